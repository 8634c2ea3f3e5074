"""What the database refuses by itself, should a stored function ever forget to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard import Client


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize(
    "active",
    [
        "status = 'running', worker_id = 'w', fence = 1, started_at = now()",
        "status = 'suspended', suspended_at = now()",
    ],
    ids=["running", "suspended"],
)
async def test_a_lane_has_one_active_run(postgres_url: str, connection: asyncpg.Connection, active: str) -> None:
    """I2: the partial unique index live_runs_active."""
    async with Client.connect(postgres_url) as client:
        for run_id in ("r1", "r2"):
            await client.enqueue("t", "hi", run_id)
    await connection.execute(f"UPDATE runyard.runs SET {active} WHERE run_id = 'r1'")
    with pytest.raises(asyncpg.UniqueViolationError, match="live_runs_active"):
        await connection.execute(f"UPDATE runyard.runs SET {active} WHERE run_id = 'r2'")
