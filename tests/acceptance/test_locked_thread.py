"""User code locks the row of one thread for long (Q4). Only the runs of this thread wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from tests.support.fleet import SLACK, Fleet, until

QUICK = 3 + SLACK
"""Seconds for all runs of a burst together."""
ENDED_HELD = "SELECT count(*) FROM runyard.runs WHERE thread_id LIKE 'held%' AND status = 'completed'"


@asynccontextmanager
async def locked(fleet: Fleet, *threads: str) -> AsyncIterator[asyncpg.Connection]:
    host = await asyncpg.connect(fleet.postgres)
    try:
        async with host.transaction():
            await host.execute("SELECT 1 FROM runyard.threads WHERE thread_id = ANY ($1) FOR UPDATE", list(threads))
            yield host
    finally:
        await host.close()


async def burst(fleet: Fleet, name: str, script: str = "say hi") -> None:
    """Execute runs on threads that nobody has locked."""
    async with asyncio.timeout(QUICK):
        handles = await asyncio.gather(*(fleet.client.enqueue(f"{name}-{n}", script) for n in range(10)))
        assert all(result.ok for result in await asyncio.gather(*(handle.result(QUICK) for handle in handles)))


@pytest.mark.parametrize("slots", [1, 20])
async def test_a_worker_passes_the_runs_of_locked_threads(fleet: Fleet, slots: int) -> None:
    """Also a worker with one slot. The locked runs are claimed soon after the lock is gone."""
    held = [await fleet.client.enqueue(f"held-{n}", "say hi") for n in range(3)]
    async with locked(fleet, *(handle.thread_id for handle in held)):
        await fleet.start(slots=slots)
        await burst(fleet, "first")
        await burst(fleet, "second")
        assert {(await handle.run()).status for handle in held} == {RunStatus.QUEUED}
    async with asyncio.timeout(QUICK):
        assert all(result.ok for result in await asyncio.gather(*(handle.result(QUICK) for handle in held)))


async def test_a_worker_completes_other_runs_while_a_thread_is_locked(fleet: Fleet) -> None:
    """Runs that are due, and deadlines, of other threads are admitted as well."""
    await fleet.start(slots=50)
    held = [await fleet.client.enqueue(f"held-{n}", "say one | sleep 0.3 | say two") for n in range(3)]
    for handle in held:
        await fleet.holder(handle.thread_id, handle.id, 1)
    async with locked(fleet, *(handle.thread_id for handle in held)) as host:
        ended = await host.fetchval(ENDED_HELD)  # on a slow machine, a run may end before the lock
        assert ended < len(held)
        await burst(fleet, "prompted")
        other = await asyncpg.connect(fleet.postgres)
        try:
            await other.execute("SELECT runyard.accept('held-0', 'say hi')")
            await other.execute("SELECT runyard.accept('hosted', 'say hi', run_id => 'r')")
        finally:
            await other.close()
        delayed = await fleet.client.enqueue("delayed", "say hi", delay=0.2)
        async with asyncio.timeout(QUICK):
            assert (await delayed.result(QUICK)).ok

            async def hosted() -> bool:
                run = await fleet.backend.runs.run("hosted", "r")
                return run is not None and run.status is RunStatus.COMPLETED

            await until(hosted)
        assert await host.fetchval(ENDED_HELD) == ended
    async with asyncio.timeout(QUICK):
        assert all(result.ok for result in await asyncio.gather(*(handle.result(QUICK) for handle in held)))
