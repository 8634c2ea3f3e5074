"""Limits that SQL and Python both hold runs to are the same numbers."""

from __future__ import annotations

import json

import asyncpg
import pytest
from annotated_types import Le
from pydantic import ValidationError

from runyard.domain.crashes import MAX_CRASHES
from runyard.models import RunOptions


async def test_the_number_of_crashes_is_the_same(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("SELECT runyard.max_crashes()") == MAX_CRASHES
    finally:
        await connection.close()


async def test_the_number_of_attempts_is_the_same(postgres_url: str) -> None:
    """What Python takes, SQL takes, and the other way round."""
    [most] = [bound.le for bound in RunOptions.model_fields["max_attempts"].metadata if isinstance(bound, Le)]
    assert most == 1000
    connection = await asyncpg.connect(postgres_url)
    accept = "SELECT runyard.accept('t', 'hi', options => $1::jsonb)"
    try:
        for attempts in (1, 9, 10, 99, 100, 999, most):
            RunOptions(max_attempts=attempts)
            await connection.execute(accept, json.dumps({"max_attempts": attempts}))
        for attempts in (-1, 0, most + 1, 2000, 10 * most):
            with pytest.raises(ValidationError):
                RunOptions(max_attempts=attempts)
            with pytest.raises(asyncpg.PostgresError, match="1 to 1000"):
                await connection.execute(accept, json.dumps({"max_attempts": attempts}))
    finally:
        await connection.close()
