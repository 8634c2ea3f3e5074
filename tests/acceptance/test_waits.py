"""Sleeps, signals and children on real servers, under kill -9, and a thousand sleepers (K1 to K3, H1)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from runyard.support.failpoints import VARIABLE
from tests.support.agents.tree import BRANCHES, LEAVES, NOTES
from tests.support.fleet import Fleet, WorkerProcess, until

TREE = "tests.support.agents.tree:app"
KILLS = int(os.environ.get("RUNYARD_TEST_WAIT_KILLS", "6"))
"""Workers that are killed, one after the other, at one of their writes."""
COMMITS = ("start_child", "suspend", "finish_step", "complete")
"""Writes after which another attempt goes on at a later place."""
MOMENTS = (
    *("start_child.before", "suspend.after", "start_child.after", "suspend.before", "start_step.before", "complete.after"),
    *("finish_step.before", "complete.before", "finish_step.after", "start_step.after"),
)
"""Points in an order in which each is reached: all children are started before most of them run."""
BOUND = 300.0


def deadly() -> Iterator[str]:
    """Yield the points at which the workers die: first each of MOMENTS, then the first commit of each worker."""
    for n in range(KILLS):
        points = [f"{MOMENTS[n]}=crash+{n % 2}"] if n < len(MOMENTS) else [f"{write}.after=crash" for write in COMMITS]
        yield ";".join(f"runs.{point}" for point in points)


async def pass_time(postgres: str) -> None:
    """Move the store's clock past the ends of all sleeps."""
    connection = await asyncpg.connect(postgres)
    try:
        await connection.execute("UPDATE runyard.waits SET due_at = now() WHERE kind = 'sleep'")
    finally:
        await connection.close()


@pytest.mark.slow
@pytest.mark.timeout(400 + 10 * KILLS)
async def test_i3_fifty_children_in_three_levels_under_kills(fleet: Fleet, tmp_path: Path) -> None:
    """I3, K1 to K3: A run sleeps three days, takes a signal, and runs 54 children in three levels, while workers are killed
    at their writes. Each child runs once, and the signal is taken once. The only worker has one slot, which no parent holds."""
    notes = tmp_path / "notes"
    fleet.environment = {NOTES: str(notes)}
    first = await fleet.start(app=TREE, slots=1)
    client = fleet.client
    handle = await client.enqueue("t", "go", "r", agent="root")

    async def asleep() -> bool:
        return await handle.status() is RunStatus.SUSPENDED

    await until(asleep)
    fleet.processes[first].kill()
    await client.signal("t", "go", "x", signal_id="s")
    await pass_time(fleet.postgres)
    deaths = 0
    for point in deadly():
        fleet.environment = {NOTES: str(notes), VARIABLE: point}
        process = fleet.processes[await fleet.start(app=TREE, slots=1)]

        async def died_or_done(process: WorkerProcess = process) -> bool:
            return process.returncode is not None or (await handle.run()).ended

        await until(died_or_done, 60)
        if process.returncode is None:
            break
        deaths += 1
    print(f"\n{deaths} workers died")
    assert deaths >= min(KILLS, len(MOMENTS))
    fleet.environment = {NOTES: str(notes)}
    await fleet.start(app=TREE, slots=1)
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
