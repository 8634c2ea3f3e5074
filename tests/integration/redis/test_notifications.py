"""Calls that return nothing may still free a run; the workers hear of it, so that no reconciler has to find it (W2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import asyncpg
import pytest

from runyard.models import Message
from runyard_backends.postgres.backend import PostgresBackend, connect


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    backend = await connect(postgres_url)
    assert isinstance(backend, PostgresBackend)
    yield backend
    await backend.close()


async def told(backend: PostgresBackend, act: Callable[[], Awaitable[object]]) -> list[str]:
    """The run ids that the workers are told to submit while ``act`` runs."""
    async with aclosing(backend.notifications()) as notifications:
        await anext(notifications)  # connected
        await act()
        async with asyncio.timeout(30):
            while True:
                effects = await anext(notifications)
                if effects.jobs:
                    return [job.run_id for job in effects.jobs]


async def host_accepts(url: str, run_id: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SELECT runyard.accept('t', 'hello', run_id => $1)", run_id)
    finally:
        await connection.close()


async def test_append_that_admits_a_hosts_run(backend: PostgresBackend, postgres_url: str) -> None:
    """I1: the append takes the thread's lock, so it admits; nobody else would see a run to admit afterwards."""
    await host_accepts(postgres_url, "hosted")
    assert await told(backend, lambda: backend.checkpointer.append("t", [Message.user("stored")])) == ["hosted"]


async def test_external_claim_that_admits_a_hosts_run(backend: PostgresBackend, postgres_url: str) -> None:
    """I1."""
    await host_accepts(postgres_url, "hosted")
    assert await told(backend, lambda: backend.checkpointer.claim_run("t", "outside")) == ["hosted"]
