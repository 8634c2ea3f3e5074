"""A worker dies or loses an answer at a commit of a chain: in a lane of queued runs, each completion claims the next run."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from runyard import RunHandle, RunStatus
from runyard.ports.refs import AttemptToken
from runyard_backends.conformance.world import proved
from tests.support.agents.sweep import EFFECTS
from tests.support.fleet import Fleet, until

APP = "tests.support.agents.chains:app"
BOUND = 60.0
RUNS = [f"r{n}" for n in range(4)]


@pytest.fixture(autouse=True)
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    return tmp_path / "effects"


async def lane(fleet: Fleet) -> list[RunHandle]:
    return [await fleet.client.enqueue("t", f"tool-{run} say-{run}", run) for run in RUNS]


async def completed(handles: list[RunHandle]) -> list[tuple[int, int]]:
    """Wait for all runs. Return the number of attempts and of crashes of each."""
    results = [await handle.result(BOUND) for handle in handles]
    assert [result.status for result in results] == [RunStatus.COMPLETED] * len(handles)
    return [(result.run.attempt, result.run.crash_count) for result in results]


async def consistent(fleet: Fleet, effects: Path) -> None:
    """I3, I4, I9: Each run has its messages and its effect once and in order, and its events without an unannounced gap."""
    messages = (await fleet.client.messages("t")).items
    assert [message.run_id for message in messages] == [run for run in RUNS for _ in range(4)]
    lines = [line.split() for line in effects.read_text().splitlines()]
    assert [run for run, *_ in lines] == RUNS, lines
    key = await fleet.backend.threads.thread_key("t")
    assert key is not None
    for run in RUNS:
        events = [event async for event in fleet.client.handle("t", run).stream()]
        assert [event.type for event in events if event.type.startswith("run.")][-1] == "run.completed"
        fence = (await fleet.client.handle("t", run).run()).fence
        assert fence is not None
        known = {event.id for event in events}
        assert {event.id for event in await proved(fleet.backend.runs, AttemptToken(key, run, fence).ref)} <= known, run


async def dies(fleet: Fleet, pid: int) -> None:
    assert await asyncio.wait_for(fleet.processes[pid].wait(), BOUND) == -signal.SIGKILL


@pytest.mark.timeout(240)
async def test_wherever_the_worker_of_a_chain_dies(fleet: Fleet, effects: Path) -> None:
    """I1, R9: One worker after another is killed. A run whose attempt had only been claimed has no crash."""
    handles = await lane(fleet)
    for point in ("runs.complete.before[r0]", "runs.complete.after[r0]", "runs.append.before[r1]", "runs.complete.after[r2]"):
        await dies(fleet, (await fleet.spawn(APP, failpoints=f"{point}=crash")).pid)
    await fleet.start(app=APP)
    assert await completed(handles) == [(2, 1), (3, 1), (1, 0), (2, 0)]
    await consistent(fleet, effects)


async def test_a_chain_whose_claim_was_not_answered_goes_on(fleet: Fleet, effects: Path) -> None:
    """W4: The worker repeats the completion, which claims nothing again. Then it finds that it has no task for the next run."""
    handles = await lane(fleet)
    await fleet.start(app=APP, failpoints="runs.complete.after[r0]=error*1")
    assert await completed(handles) == [(1, 0), (2, 0), (1, 0), (1, 0)]
    await consistent(fleet, effects)


async def test_a_worker_that_was_stopped_in_a_chain_is_fenced_out(fleet: Fleet, effects: Path, tmp_path: Path) -> None:
    """I2: another worker takes over the run in the middle of the chain. Later writes of the first worker are refused."""
    handles = await lane(fleet)
    reached, go_on = tmp_path / "reached", tmp_path / "go on"
    at = "runs.complete.before[r2]"
    first = await fleet.start(app=APP, failpoints=f"{at}=note({reached});{at}=pause({go_on})")

    async def there() -> bool:
        return reached.exists()

    await until(there, BOUND)
    os.kill(first, signal.SIGSTOP)
    await fleet.start(app=APP)
    attempts = await completed(handles)
    assert attempts[:2] == [(1, 0), (1, 0)] and attempts[2] == (2, 1)
    go_on.touch()
    os.kill(first, signal.SIGCONT)
    await until(fleet.no_slot_in_use, BOUND)
    await consistent(fleet, effects)
