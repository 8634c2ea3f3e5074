"""Two programs without namespaces share a queue, and each worker has agents that the other lacks."""

from __future__ import annotations

import asyncio

from tests.support.fleet import SLACK, Fleet

APPS = "tests.support.agents.two_apps"
BOUND = 60.0


async def waited(fleet: Fleet, thread_id: str, agent: str) -> float:
    """Prompt an agent. Return the seconds from the accept to the start of the run."""
    run = (await (await fleet.client.enqueue(thread_id, "hi", agent=agent)).result(BOUND)).run
    assert run.started_at is not None and run.accepted_at is not None and run.attempt == 1
    return (run.started_at - run.accepted_at).total_seconds()


async def test_a_run_starts_at_once_while_a_worker_has_its_agent(fleet: Fleet) -> None:
    """R12: one after another, and many at once, whichever worker takes the job first."""
    for app in ("clerks", "sellers"):
        await fleet.start(app=f"{APPS}:{app}")
    alternating = [await waited(fleet, f"t{n}", ("clerk", "seller")[n % 2]) for n in range(10)]
    assert max(alternating) < 2 + SLACK, alternating
    together = await asyncio.gather(*(waited(fleet, f"u{n}", ("clerk", "seller")[n % 2]) for n in range(20)))
    assert max(together) < 2 + SLACK, together


async def test_a_run_starts_soon_after_the_first_worker_that_has_its_agent(fleet: Fleet) -> None:
    """R12: as in a rolling deploy that adds an agent."""
    await fleet.start(app=f"{APPS}:clerks")
    early = await fleet.client.enqueue("early", "hi", agent="seller")
    clerk = await waited(fleet, "t", "clerk")  # the worker has also looked at the earlier job
    assert await early.explain() == "no live worker of queue default serves agent seller"
    await fleet.start(app=f"{APPS}:sellers")
    registered = asyncio.get_running_loop().time()
    assert (await early.result(BOUND)).text == "I am the seller."
    assert max(clerk, asyncio.get_running_loop().time() - registered) < 2 + SLACK
