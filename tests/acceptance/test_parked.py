"""What waits costs nothing: suspended runs hold no slot, no lock and no key; runs that wait for I/O hold a slot and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from tests.support.fleet import Fleet, until

SUSPENDED, SLOTS = 1000, 100
WAITING = 2000
BOUND = 60.0


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def count(database: asyncpg.Connection, status: RunStatus) -> int:
    return int(await database.fetchval("SELECT count(*) FROM runyard.runs WHERE status = $1", status.value))


@pytest.mark.slow
async def test_h1_a_thousand_suspended_runs_hold_nothing(fleet: Fleet, database: asyncpg.Connection) -> None:
    """H1: no slot (there are ten times fewer), no lock, no scheduling key; an answer still finds its run."""
    pid = await fleet.start(slots=SLOTS)
    client = fleet.client
    handles = await asyncio.gather(*(client.enqueue(f"t{n}", "say before | color? | say after", "r") for n in range(SUSPENDED)))

    async def all_asked() -> bool:
        return await count(database, RunStatus.SUSPENDED) == SUSPENDED

    await until(all_asked, BOUND)
    await until(fleet.nothing_scheduled)
    await until(fleet.no_slot_in_use)
    assert (await (await client.enqueue("other", "hello")).result(BOUND)).text == "hello"

    sample = handles[:: SUSPENDED // 20]
    for handle in sample:
        await client.respond(handle.thread_id, "blue")
    for handle in sample:
        result = await handle.result(BOUND)
        assert result.text == "after"
        assert result.run.attempt == 2
        assert [message.text for message in result.messages][-2:] == ["color? blue", "after"]
    assert await count(database, RunStatus.SUSPENDED) == SUSPENDED - len(sample)
    await until(fleet.nothing_scheduled)
    assert (await fleet.metric("runyard_rescues_total"))[pid] == 0


@pytest.mark.slow
async def test_two_thousand_runs_wait_for_io_in_one_process(fleet: Fleet, database: asyncpg.Connection, tmp_path: Path) -> None:
    """Q1: one worker process holds them all at the same moment, and none is thought lost meanwhile."""
    client, answer = fleet.client, tmp_path / "answer"
    handles = await asyncio.gather(*(client.enqueue(f"t{n}", str(answer), "r", agent="crowd") for n in range(WAITING)))
    pid = await fleet.start(app="tests.support.agents.odd:app", slots=WAITING + 500)

    async def all_running() -> bool:
        return await count(database, RunStatus.RUNNING) == WAITING

    async def all_over() -> bool:
        return await count(database, RunStatus.COMPLETED) == WAITING

    await until(all_running, BOUND)
    await asyncio.sleep(3)  # nothing to wait for: longer than the leader needs to take a run for lost
    assert (await fleet.metric("runyard_slots_in_use"))[pid] == WAITING
    answer.touch()
    await until(all_over, BOUND)
    runs = await asyncio.gather(*(handle.run() for handle in handles))
    assert {(run.attempt, run.crash_count, run.error_count) for run in runs} == {(1, 0, 0)}
    for name in ("runyard_rescues_total", "runyard_lost_tasks_total", "runyard_stale_writes_total"):
        assert (await fleet.metric(name))[pid] == 0
