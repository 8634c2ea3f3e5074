"""Sleeps, signals and children on real servers, under kill -9, and a thousand sleepers (K1 to K3, H1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from runyard.support.failpoints import VARIABLE
from tests.support.agents.tree import BRANCHES, LEAVES, NOTES
from tests.support.fleet import Fleet, WorkerProcess, until

TREE = "tests.support.agents.tree:app"
DEADLY = (
    *("start_child.before+2", "start_child.after+4", "suspend.before+1", "suspend.after+3"),
    *("complete.before+1", "complete.after+1"),
)
"""Writes at which one worker after the other is killed. The number is that of the writes before."""
BOUND = 300.0


async def pass_time(postgres: str) -> None:
    """Move the store's clock past the ends of all sleeps."""
    connection = await asyncpg.connect(postgres)
    try:
        await connection.execute("UPDATE runyard.waits SET due_at = now() WHERE kind = 'sleep'")
    finally:
        await connection.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_i3_fifty_children_in_three_levels_under_kills(fleet: Fleet, tmp_path: Path) -> None:
    """I3, K1 to K3: A run sleeps three days, takes a signal, and runs 54 children in three levels, while workers are killed
    at their writes. Each child runs once, and the signal is taken once."""
    notes = tmp_path / "notes"
    fleet.environment = {NOTES: str(notes)}
    first = await fleet.start(app=TREE)
    client = fleet.client
    handle = await client.enqueue("t", "go", "r", agent="root")

    async def asleep() -> bool:
        return await handle.status() is RunStatus.SUSPENDED

    await until(asleep)
    fleet.processes[first].kill()
    await client.signal("t", "go", "x", signal_id="s")
    await pass_time(fleet.postgres)
    deaths = 0
    for point in DEADLY:
        write, _, before = point.partition("+")
        fleet.environment = {NOTES: str(notes), VARIABLE: f"runs.{write}=crash+{before}"}
        process = fleet.processes[await fleet.start(app=TREE)]

        async def died_or_done(process: WorkerProcess = process) -> bool:
            return process.returncode is not None or (await handle.run()).ended

        await until(died_or_done, 60)
        deaths += process.returncode is not None
    assert deaths == len(DEADLY)
    fleet.environment = {NOTES: str(notes)}
    await fleet.start(app=TREE)
    result = await handle.result(BOUND)
    leaves = [f"x-{n}-{m}" for n in range(BRANCHES) for m in range(LEAVES)]
    assert (result.status, result.text.split()) == (RunStatus.COMPLETED, leaves)
    runs = (await client.runs(limit=100)).items
    assert len(runs) == 1 + BRANCHES + BRANCHES * LEAVES and {run.status for run in runs} == {RunStatus.COMPLETED}
    assert len(set(notes.read_text().splitlines())) == len(leaves)
    again = await client.signal("t", "go", "x", signal_id="s")
    assert again.run_id == "r"


@pytest.mark.slow
async def test_k1_a_thousand_sleepers_hold_nothing(fleet: Fleet) -> None:
    """K1, H1: They hold no slot, no lock and no key in Redis that schedules them."""
    await fleet.start(app=TREE, slots=100)
    await asyncio.gather(*(fleet.client.enqueue(f"t{n}", "go", "r", agent="root") for n in range(1000)))

    async def asleep() -> bool:
        states = (await fleet.backend.queues.queues()).items
        return sum(state.suspended for state in states) == 1000

    for condition in (asleep, fleet.nothing_scheduled, fleet.no_slot_in_use):
        await until(condition, 60)
    assert (await fleet.client.requests()).items == []
