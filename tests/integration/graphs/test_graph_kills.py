"""Two workers execute a graph with a tool, a subgraph and an interrupt, and are killed with -9 (R9, F13)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.agents.graph import effects
from tests.support.fleet import Fleet, until
from tests.support.long_form import LONG

APP = "tests.support.agents.graph:app"
BEFORE_THE_ANSWER = [
    "graphs.put_writes.before=crash*1+3",
    "runs.suspend.after=crash",
    "graphs.begin.after=crash",
    "graphs.put.before=crash*1+2",
    "graphs.put.after=crash*1+4",
    "graphs.put_writes.after=crash*1+5",
    "runs.append.after=crash",
    "graphs.mark.after=crash",
]
"""Failpoints that kill workers before the graph asks. ``+n``: after n such calls. The fourth call is the subgraph's first."""
AFTER_THE_ANSWER = ["graphs.mark.before=crash*1+1", "graphs.put.after=crash*1+1", "runs.complete.before=crash"]
SHORT = 2, 1
"""Numbers of the failpoints in the short form."""


async def test_r9_kill_9_repeats_no_effect_of_a_node(fleet: Fleet, notes: Path) -> None:
    """The worker of each run is killed once, and another worker continues the run. Each effect happens once, in forks too."""
    early, late = BEFORE_THE_ANSWER[: None if LONG else SHORT[0]], AFTER_THE_ANSWER[: None if LONG else SHORT[1]]
    threads = [f"t{n}" for n in range(len(early))]
    doomed = [await fleet.start(app=APP, slots=1, failpoints=point) for point in early]
    handles = [await fleet.client.enqueue(thread_id, "go") for thread_id in threads]
    async with asyncio.timeout(60):
        await asyncio.gather(*(fleet.processes[pid].wait() for pid in doomed))
    second = await fleet.start(app=APP)

    async def suspended() -> bool:
        runs = [await handle.run() for handle in handles]
        assert not [run.error for run in runs if run.error is not None]
        return all(run.status == "suspended" for run in runs)

    await until(suspended, 60)
    for thread_id in threads:
        assert effects(notes, thread_id) == ["plan", "tool", "read", "write", "review"]
    fleet.processes[second].kill()
    doomed = [await fleet.start(app=APP, slots=1, failpoints=point) for point in late]
    for thread_id in threads:
        await fleet.client.respond(thread_id, "yes")
    async with asyncio.timeout(60):
        await asyncio.gather(*(fleet.processes[pid].wait() for pid in doomed))
    await asyncio.gather(*(fleet.start(app=APP) for _ in range(2)))
    for thread_id, handle in zip(threads, handles, strict=True):
        result = await handle.result(60)
        assert result.ok, result.error
        assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
        assert result.messages[-1].text == "yes of 3 messages"
        assert effects(notes, thread_id) == ["plan", "tool", "read", "write", "review", "publish:yes", "answer"]
    await go_on_in_a_fork(fleet, threads[0])
    assert effects(notes, "fork")[-2:] == ["publish:no", "answer"]


async def go_on_in_a_fork(fleet: Fleet, thread_id: str) -> None:
    """Fork after the first run, and answer the question of the fork's run."""
    await fleet.client.fork(thread_id, "fork")
    handle = await fleet.client.enqueue("fork", "again", run_id="second")
    assert (await handle.result(30)).run.status == "suspended"
    await fleet.client.respond("fork", "no")
    result = await handle.result(30)
    assert result.messages[-1].text == "no of 7 messages"
    assert result.ok
