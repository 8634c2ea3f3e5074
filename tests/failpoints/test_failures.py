"""Rows of the table in docs/guarantees.md that no other test has: what fails at one named moment, and what comes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard import RunStatus
from runyard.models import STREAM_ENDS
from runyard_backends.embedded import EmbeddedPostgres
from tests.support.agents.sweep import EFFECTS
from tests.support.fleet import Fleet, until

APP = "tests.support.agents.sweep:app"
BOUND = 40.0


@pytest.fixture(autouse=True)
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    return tmp_path / "effects"


async def dies(fleet: Fleet, pid: int) -> None:
    assert await asyncio.wait_for(fleet.processes[pid].wait(), BOUND) == -signal.SIGKILL


@pytest.mark.parametrize("point", ["scheduler.claim.after", "runs.claim.before"])
async def test_death_between_the_two_claims_is_no_crash(fleet: Fleet, point: str) -> None:
    """The lock in Redis runs out and the run is submitted again; Postgres never heard of the attempt."""
    client = fleet.client
    handle = await client.enqueue("t", "tool-a say-on", "r")
    await dies(fleet, (await fleet.spawn(APP, failpoints=f"{point}=crash")).pid)
    await fleet.start(app=APP)
    result = await handle.result(BOUND)
    assert result.ok
    assert (result.run.attempt, result.run.crash_count) == (1, 0)


async def test_death_after_the_final_commit(fleet: Fleet, effects: Path) -> None:
    """Nothing is run again, the next run of the lane starts, and readers are told of the end that nobody announced.

    The commit claimed the next run, too. Its attempt had not begun, so the death is no crash of it.
    """
    first = await fleet.client.enqueue("t", "tool-a say-on", "first")
    second = await fleet.client.enqueue("t", "say-more", "second")
    await dies(fleet, (await fleet.spawn("tests.support.agents.chains:app", failpoints="runs.complete.after=crash")).pid)
    assert (await first.status(), await second.status()) == (RunStatus.COMPLETED, RunStatus.RUNNING)
    await fleet.start(app=APP)
    run = (await second.result(BOUND)).run
    assert (run.attempt, run.crash_count) == (2, 0)
    assert len(effects.read_text().splitlines()) == 1
    ends = [event.type async for event in first.stream() if event.type in STREAM_ENDS]
    assert ends == ["run.completed"]


@pytest.mark.parametrize("answered", ["before the worker dies", "after it died"])
async def test_death_after_the_suspension(fleet: Fleet, tmp_path: Path, answered: str) -> None:
    """H6, I6: the lane's lock is still the dead worker's; the answer waits for it to run out, and the run resumes once."""
    stored, go_on = tmp_path / "stored", tmp_path / "go on"
    at = "runs.suspend.after"
    rules = f"{at}=note({stored});{at}=pause({go_on});{at}=crash"
    handle = await fleet.client.enqueue("t", "ask-go say-on", "r")
    victim = (await fleet.spawn(APP, failpoints=rules)).pid

    async def there() -> bool:
        return stored.exists()

    await until(there, BOUND)
    if answered == "before the worker dies":
        await fleet.client.respond("t", "yes")
    go_on.touch()
    await dies(fleet, victim)
    if answered == "after it died":
        await fleet.client.respond("t", "yes")
    await fleet.start(app=APP)
    result = await handle.result(BOUND)
    assert result.ok
    assert [message.text for message in result.messages[1:]] == ["answered yes", "say-on"]
    assert (result.run.attempt, result.run.crash_count) == (2, 0)


async def test_another_leads_when_the_leader_is_stopped(fleet: Fleet) -> None:
    """Its lease runs out; a run that becomes due, which only a leader admits, starts."""
    leader = await fleet.start(app=APP)
    assert (await (await fleet.client.enqueue("t", "say-on", "due-1", delay=0.2)).result(BOUND)).ok
    await fleet.start(app=APP)
    os.kill(leader, signal.SIGSTOP)
    assert (await (await fleet.client.enqueue("t", "say-on", "due-2", delay=0.2)).result(BOUND)).ok


@pytest.fixture
def stalled(postgres_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    yield postgres_server
    postgres_server.resume()


async def test_a_stall_of_postgres_kills_nobody(fleet: Fleet, stalled: EmbeddedPostgres) -> None:
    """Ten seconds without an answer, three times the death limit: nobody is declared dead, nothing is taken over."""
    await asyncio.gather(fleet.start(app=APP), fleet.start(app=APP))
    handle = await fleet.client.enqueue("t", "hang", "r")

    async def running() -> bool:
        return await handle.status() is RunStatus.RUNNING

    await until(running)
    began = time.monotonic()
    stalled.pause()
    await asyncio.sleep(10)
    stalled.resume()
    assert time.monotonic() - began >= 10
    await handle.cancel()
    result = await handle.result(BOUND)
    assert (result.status, result.run.attempt, result.run.crash_count) == (RunStatus.CANCELLED, 1, 0)
    assert [worker.dead_at for worker in await fleet.backend.workers.workers()] == [None, None]
