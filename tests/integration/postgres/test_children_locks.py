"""Verbs on a run against the ends of its children, with the first's transaction still open when the second starts.

The end of a child changes a wait of its parent without the lock of the parent's thread. So none of these pairs may break a
deadlock, lose the wake-up of the parent, or wake it twice (K2, K3, O5).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runyard.domain.waits import Wait
from runyard.errors import BackendUnavailableError, CancelRequestedError
from runyard.models import ErrorInfo, Message
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.queries import RunFilter
from runyard.ports.refs import AttemptToken, RunRef
from runyard_backends.conformance.children import start_child
from runyard_backends.conformance.world import World
from runyard_backends.postgres.backend import PostgresBackend, connect
from tests.integration.postgres.test_verb_pairs import (
    Refused,
    Scene,
    Stores,
    Verb,
    backend,
    blocked_or_done,
    in_turn,
    outcome,
    prompt,
    together,
)

__all__ = ["backend"]

CHILDREN = ("c1", "c2")


class Family(Scene):
    """A thread with a run that is in hand, and a thread for each of its children, which are in hand too."""

    children: list[AttemptToken]

    def of_child(self, run_id: str) -> str:
        return f"{self.thread_id}-{run_id}"


async def take(s: Stores, key: int, run_id: str) -> AttemptToken:
    [claim] = await s.runs.claim("w", [RunRef(key, run_id)])
    assert claim.attempt is not None
    return claim.attempt


async def prepare(s: Stores, name: str, state: str) -> Family:
    """``state``: running, parked (for both children and a signal), woken (parked, and ``c1`` has ended) or failed."""
    for child in CHILDREN:  # the thread of the parent has the largest key
        await s.threads.store_message(f"{name}-{child}", Message.user("first"))
    accepted = await s.runs.accept(AcceptRequest(thread_id=name, run_id="running", input=Message.user("hello")))
    family = Family(name, accepted.effects.jobs[0].thread_key, AttemptToken(0, "", 0))
    family.attempt = await take(s, family.key, "running")
    family.children = []
    for child in CHILDREN:
        request = AcceptRequest(
            thread_id=family.of_child(child), run_id=child, input=Message.user("go"), job=family.attempt.ref
        )
        [job] = (await s.runs.start_child(family.attempt, request)).effects.jobs
        family.children.append(await take(s, job.thread_key, child))
    if state in ("parked", "woken"):
        await park(s, family)
    if state == "woken":
        await end_first(s, family)
    if state == "failed":
        await s.runs.fail(Write(attempt=family.attempt), ErrorInfo(code="x", message="x"))
        await s.runs.accept(prompt(family, "queued"))
        family.attempt = await take(s, family.key, "queued")
    return family


async def end(s: Stores, *attempts: AttemptToken) -> Any:
    ends = await s.runs.complete([Write(attempt=attempt) for attempt in attempts])
    return [Refused(str(getattr(e, "code", e))) if isinstance(e, Exception) else e.status for e in ends]


async def end_first(s: Stores, family: Family) -> Any:
    return await end(s, family.children[0])


async def end_last(s: Stores, family: Family) -> Any:
    return await end(s, family.children[1])


async def end_both(s: Stores, family: Family) -> Any:
    return await end(s, *reversed(family.children))


async def fail_last(s: Stores, family: Family) -> Any:
    return (await s.runs.fail(Write(attempt=family.children[1]), ErrorInfo(code="x", message="x"))).status


async def delete_child(s: Stores, family: Family) -> Any:
    await s.threads.delete_thread(family.of_child("c2"), cancel=True)


async def park(s: Stores, family: Family) -> Any:
    waits = [
        *(Wait(wait_id=child, kind="child", name=family.of_child(child)) for child in CHILDREN),
        Wait(wait_id="w", kind="signal", name="paid"),
    ]
    return (await s.runs.suspend(Write(attempt=family.attempt), [], waits)).status


async def claim(s: Stores, family: Family) -> Any:
    [claimed] = await s.runs.claim("w2", [RunRef(family.key, "running")], wait=10)
    assert [job for job in claimed.effects.jobs if job.run_id == "running"] == [], "the claimed run is offered again"
    return claimed.outcome


async def cancel(s: Stores, family: Family) -> Any:
    return (await s.runs.cancel(family.thread_id, "running")).run.status


async def signal(s: Stores, family: Family) -> Any:
    sent = await s.runs.signal(family.thread_id, "paid", 7, signal_id="s")
    return sent.signal.run_id is not None, sent.created


async def admit(s: Stores, family: Family) -> Any:
    await s.runs.admit()


async def redrive(s: Stores, family: Family) -> Any:
    return (await s.runs.redrive(family.thread_id, "running")).run.status


async def delete_run(s: Stores, family: Family) -> Any:
    await s.runs.delete_run(family.thread_id, "running")


async def delete(s: Stores, family: Family) -> Any:
    await s.threads.delete_thread(family.thread_id, cancel=True)


ENDS = [end_first, end_both, fail_last, delete_child]
PARENTS = {
    "running": [park, cancel, signal, admit, delete],
    "parked": [claim, cancel, signal, admit, delete, end_last],
    "woken": [claim, cancel, signal],
    "failed": [redrive, delete_run, delete],
}


async def picture(s: Stores, family: Family) -> Any:
    """What is left after the reconciler has been there, and what of it waits."""
    for _ in range(2):
        await s.runs.admit()
    runs = {}
    for thread in (family.thread_id, *map(family.of_child, CHILDREN)):
        for run in (await s.runs.runs(RunFilter(thread_id=thread))).items:
            asked = run.cancel_requested_at is not None and run.finished_at is None
            runs[run.run_id] = (run.status, run.attempt, asked)
    waits = await s.db.pool.fetch(
        "SELECT w.wait_id, w.ended_at IS NOT NULL, w.signal_id FROM runyard.waits w"
        " JOIN runyard.runs r USING (thread_key, run_id) WHERE thread_key = $1 AND r.emptied_at IS NULL ORDER BY w.wait_id",
        family.key,
    )
    return runs, [tuple(wait) for wait in waits]


@pytest.mark.parametrize("ended", ENDS, ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("state", PARENTS)
async def test_the_end_of_a_child_and_a_verb_on_its_parent_act_as_if_in_turn(
    backend: PostgresBackend, ended: Verb, state: str
) -> None:
    """K3: In either order. Whoever waits for an ended child is woken."""
    s = Stores.on(backend.db)
    wrong = []
    pairs = [(other, ended) for other in PARENTS[state]]
    pairs += [(ended, other) for other in PARENTS[state] if other is not delete]  # a deletion goes on after its commit
    for number, (first, second) in enumerate(pairs):
        live = await prepare(s, f"live-{number}", state)
        try:
            one, two, waited = await together(backend, first, second, live)
        except BackendUnavailableError as error:  # a deadlock
            wrong.append((first.__name__, second.__name__, error, None))
            continue
        got = ((one, two), await picture(s, live))
        scene = await prepare(s, f"turn-{number}", state)
        allowed = [(await in_turn(s, first, second, scene), await picture(s, scene))]
        if not waited:
            scene = await prepare(s, f"back-{number}", state)
            allowed.append(((await in_turn(s, second, first, scene))[::-1], await picture(s, scene)))
        if got not in allowed:
            wrong.append((first.__name__, second.__name__, got, allowed))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("verb", [cancel, admit, delete_run], ids=lambda verb: verb.__name__)
async def test_a_batch_with_a_child_and_its_parents_thread_never_deadlocks(backend: PostgresBackend, verb: Verb) -> None:
    """O5: The batch has ended a child when it comes to the thread of the parent, on which the verb is."""
    s = Stores.on(backend.db)
    family = await prepare(s, "t", "parked" if verb is cancel else "failed")
    async with backend.db.transaction() as transaction:
        batch = Stores.on(transaction)
        await end_both(batch, family)
        task = asyncio.create_task(outcome(verb, s, family))
        assert not await blocked_or_done(backend.db, task), "the verb waits for the end of a child"
        await end(batch, family.attempt)
    assert not isinstance(await task, Refused)


async def test_a_deletion_beside_such_a_batch_never_deadlocks(backend: PostgresBackend) -> None:
    """O5, D1: And leaves no wait behind."""
    s = Stores.on(backend.db)
    family = await prepare(s, "t", "failed")
    async with backend.db.transaction() as transaction:
        batch = Stores.on(transaction)
        await end_both(batch, family)
        task = asyncio.create_task(delete(s, family))
        async with asyncio.timeout(30):
            while await s.threads.thread(family.thread_id) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        [ended] = await end(batch, family.attempt)
        assert ended == Refused("stale_fence")
    await task
    assert await s.db.pool.fetchval("SELECT count(*) FROM runyard.waits") == 0
    assert await s.db.pool.fetchval("SELECT count(*) FROM runyard.removals") == 0


async def test_a_child_that_is_started_beside_a_cancel_is_refused(backend: PostgresBackend) -> None:
    """R10, K3: The start of the child waits for the thread of the child while the parent is cancelled. No child is left."""
    s = Stores.on(backend.db)
    family = await prepare(s, "t", "running")
    request = AcceptRequest(thread_id=family.of_child("c1"), run_id="late", input=Message.user("go"), job=family.attempt.ref)
    async with backend.db.transaction() as transaction:
        await end_first(Stores.on(transaction), family)
        task = asyncio.create_task(s.runs.start_child(family.attempt, request))
        assert await blocked_or_done(backend.db, task)
        await cancel(s, family)
    with pytest.raises(CancelRequestedError):
        await task
    assert await s.runs.run(family.of_child("c1"), "late") is None


async def test_the_reconciler_looks_at_children_of_cancelled_runs_only(backend: PostgresBackend) -> None:
    """K3: Not at a redriven child, whose wait stays due while it runs again."""
    s = Stores.on(backend.db)
    family = await prepare(s, "t", "parked")
    await fail_last(s, family)
    await s.runs.redrive(family.of_child("c2"), "c2")
    assert await s.db.pool.fetch("SELECT runyard.doomed_children(10)") == []
    await cancel(s, family)
    assert len(await s.db.pool.fetch("SELECT runyard.doomed_children(10)")) == 2


async def test_the_reconciler_looks_at_no_child_that_it_cannot_cancel(backend: PostgresBackend) -> None:
    """K3: A child that is not due has no place in its lane. It is cancelled after its admission, and must not take the place of
    children that can be cancelled at once."""
    world = World(backend, connect)
    attempt = await world.start("r1")
    await start_child(world, attempt, delay=3600)
    await world.runs.cancel("t", "r1")
    await world.runs.release(attempt)
    assert await backend.db.pool.fetchval("SELECT count(*) FROM runyard.waits WHERE due_at <= now()") == 1
    assert await backend.db.pool.fetch("SELECT runyard.doomed_children(10)") == []
