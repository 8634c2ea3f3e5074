"""Children of runs in the store (K3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.domain.waits import MAX_CHILD_DEPTH, MAX_CHILDREN, Wait
from runyard.models import ErrorInfo
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Accepted

from .waits import park, wake
from .world import T, World, eventually, said, user

pytestmark = pytest.mark.asyncio


async def start_child(
    world: World, attempt: AttemptToken, run_id: str = "c1", thread: str = "child", **fields: Any
) -> Accepted:
    request = AcceptRequest(thread_id=thread, run_id=run_id, input=user("go"), job=attempt.ref, **fields)
    return await world.runs.start_child(attempt, request)


def child(run_id: str = "c1", thread: str = "child") -> Wait:
    return Wait(wait_id=run_id, kind="child", name=thread)


class TestChildren:
    async def test_k3_the_end_of_a_child_wakes_its_parent(self, world: World) -> None:
        """K3: The end of a child submits the job of the suspended parent. The claim of the parent finds this end."""
        attempt = await world.start("r1")
        assert (await start_child(world, attempt)).created
        assert not (await start_child(world, attempt)).created  # the call is repeated after a lost reply
        assert (await park(world, attempt, child())).status is RunStatus.SUSPENDED
        assert (await world.claim("r1")).outcome == "suspended"
        assert (await world.runs.explain(T, "r1")).startswith("waiting for its child c1 of thread child since")
        ended = await world.finish(await world.take("c1", thread="child"), said("done"))
        assert [job.run_id for job in ended.effects.jobs] == ["r1"]
        claim = await world.claim("r1")
        assert claim.attempt is not None and claim.effects.jobs == []  # the effects do not offer the claimed run again
        ledger = await world.runs.ledger(claim.attempt)
        assert (ledger.waits["c1"].name, ledger.waits["c1"].ended_at is not None) == ("child", True)

    async def test_k3_the_reconciler_wakes_a_parent_whose_job_was_lost(self, world: World) -> None:
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await park(world, attempt, child())
        await world.runs.cancel("child", "c1")
        await wake(world)

    async def test_h12_a_child_that_ended_before_parks_nothing(self, world: World) -> None:
        attempt = await world.start("r1")
        await start_child(world, attempt)
        ended = await world.finish(await world.take("c1", thread="child"), said("done"))
        assert ended.effects.jobs == []  # the parent is running, so it is not offered
        assert (await park(world, attempt, child())).status is RunStatus.RUNNING

    @pytest.mark.parametrize("parked", [True, False], ids=["parked before", "parked after"])
    async def test_k3_a_redriven_child_is_waited_for(self, world: World, parked: bool) -> None:
        """K3: A child may be redriven before its parent has seen the failure. The parent then waits for the next end of the
        child."""
        attempt = await world.start("r1")
        await start_child(world, attempt)
        if parked:
            await park(world, attempt, child())
        await world.runs.fail(Write(attempt=await world.take("c1", thread="child")), ErrorInfo(code="x", message="x"))
        await world.runs.redrive("child", "c1")
        if not parked:
            assert (await park(world, attempt, child())).status is RunStatus.SUSPENDED
        await world.runs.admit()
        assert (await world.claim("r1")).outcome == "suspended"
        await world.finish(await world.take("c1", thread="child"), said("done"))
        await world.take("r1")

    async def test_k3_a_cancel_reaches_children_and_theirs(self, world: World) -> None:
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await park(world, attempt, child())
        inner = await world.take("c1", thread="child")
        await start_child(world, inner, "c2", "grandchild")
        await park(world, inner, child("c2", "grandchild"))
        running = await world.take("c2", thread="grandchild")
        await world.runs.cancel(T, "r1")

        async def asked() -> bool:
            await world.runs.admit()
            return (await world.run("c2", "grandchild")).cancel_requested_at is not None

        await eventually(asked)
        assert await world.status("c1", "child") is RunStatus.CANCELLED
        assert (await world.finish(running, said("late"))).status is RunStatus.CANCELLED
        await world.runs.admit()
        assert (await world.runs.admit()).next_due is None

    async def test_k3_a_failed_run_leaves_its_children(self, world: World) -> None:
        """K3: The children of a failed run continue. After a redrive, the run finds their results."""
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
        await world.runs.admit()
        await world.finish(await world.take("c1", thread="child"), said("done"))
        await world.runs.redrive(T, "r1")
        again = await world.take("r1")
        assert (await park(world, again, child())).status is RunStatus.RUNNING

    async def test_k3_a_child_on_a_thread_that_waits_for_it_is_refused(self, world: World) -> None:
        """K3: A child is refused if it is on the parent's own thread or on the thread of an ancestor. A refused child leaves no
        wait."""
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await park(world, attempt, child())
        inner = await world.take("c1", thread="child")
        for thread in (T, "child"):
            with pytest.raises(errors.ChildDeadlockError):
                await start_child(world, inner, "c2", thread)
        assert (await world.runs.ledger(inner)).waits == {}

    async def test_k3_children_are_bounded(self, world: World) -> None:
        attempt = await world.start("r0")
        for n in range(1, MAX_CHILD_DEPTH + 1):
            await start_child(world, attempt, f"r{n}", f"t{n}")
            attempt = await world.take(f"r{n}", thread=f"t{n}")
        with pytest.raises(errors.TooManyChildrenError):
            await start_child(world, attempt, "more", "more")

    async def test_i2_an_attempt_without_the_fence_starts_no_child(self, world: World) -> None:
        """I2, R10: A stale attempt cannot start a child. If a cancel of its run was requested, an attempt cannot start a child
        either."""
        attempt = await world.start("r1")
        await world.bury()
        other = await world.take("r1", worker="w2")
        with pytest.raises(errors.StaleFenceError):
            await start_child(world, attempt)
        await world.runs.cancel(T, "r1")
        with pytest.raises(errors.CancelRequestedError):
            await start_child(world, other)
        assert await world.threads.thread("child") is None

    async def test_k3_a_deleted_child_thread_ends_the_wait(self, world: World) -> None:
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await park(world, attempt, child())
        await world.threads.delete_thread("child", cancel=True)
        await wake(world)
        assert await world.runs.run("child", "c1") is None

    async def test_k3_a_child_in_a_paused_queue_waits(self, world: World) -> None:
        attempt = await world.start("r1")
        await start_child(world, attempt, queue="slow")
        await park(world, attempt, child())
        await world.backend.queues.pause("slow")
        assert (await world.claim("c1", thread="child")).outcome == "paused"
        await world.runs.cancel(T, "r1")
        await world.runs.admit()
        assert await world.status("c1", "child") is RunStatus.CANCELLED

    async def test_k3_the_number_of_children_is_bounded(self, world: World) -> None:
        """K3: Beyond the maximum number, a new child is refused. A repeated call for an accepted child succeeds."""
        attempt = await world.start("r1")
        for part in range(0, MAX_CHILDREN, 100):
            names = [f"c{n}" for n in range(part, part + 100)]
            await asyncio.gather(*(start_child(world, attempt, name, name) for name in names))
        with pytest.raises(errors.TooManyChildrenError):
            await start_child(world, attempt, "more", "more")
        assert await world.threads.thread("more") is None
        assert not (await start_child(world, attempt, "c999", "c999")).created

    async def test_k3_a_run_of_another_starter_is_no_child(self, world: World) -> None:
        """K3: A run that the parent did not start has the id of a child. The call is refused, and the parent does not wait for
        that run."""
        await world.runs.accept(AcceptRequest(thread_id="child", run_id="c1", input=(message := user("go"))))
        other = await world.start("r0", thread="other")
        await world.runs.start_child(other, AcceptRequest(thread_id="child", run_id="c2", input=message, job=other.ref))
        attempt = await world.start("r1")
        for run_id in ("c1", "c2"):
            request = AcceptRequest(thread_id="child", run_id=run_id, input=message, job=attempt.ref)
            with pytest.raises(errors.RunConflictError):
                await world.runs.start_child(attempt, request)
        assert (await world.runs.ledger(attempt)).waits == {}
        assert set((await world.runs.ledger(other)).waits) == {"c2"}

    @pytest.mark.parametrize("parallel", [True, False])
    async def test_k3_the_id_of_a_child_is_on_one_thread(self, world: World, parallel: bool) -> None:
        """K3: A second child with the same id on another thread is refused, because its end would end the wait for the first
        child."""
        attempt = await world.start("r1")
        if parallel:
            calls = (start_child(world, attempt, thread=thread) for thread in ("one", "two"))
            failures = [each for each in await asyncio.gather(*calls, return_exceptions=True) if isinstance(each, Exception)]
            assert [type(failure) for failure in failures] == [errors.RunConflictError]
        else:
            await start_child(world, attempt, thread="one")
            with pytest.raises(errors.RunConflictError) as refused:
                await start_child(world, attempt, thread="two")
            assert refused.value.details["differs"] == ["thread_id"]
        assert len([t for t in ("one", "two") if await world.threads.thread(t) is not None]) == 1
        assert len((await world.runs.ledger(attempt)).waits) == 1

    async def test_k3_a_child_that_is_not_due_is_cancelled_when_it_is(self, world: World) -> None:
        """K3: If the parent is cancelled, a delayed child is cancelled when it is due. Before this time, the reconciler does
        not examine the child."""
        attempt = await world.start("r1")
        await start_child(world, attempt, delay=0.2)
        await start_child(world, attempt, "c2", "later", delay=3600)
        await world.runs.cancel(T, "r1")
        await world.runs.release(attempt)

        async def cancelled() -> bool:
            await world.runs.admit()
            return await world.status("c1", "child") is RunStatus.CANCELLED

        await eventually(cancelled)
        assert await world.status("c2", "later") is RunStatus.QUEUED
        next_due = (await world.runs.admit()).next_due
        assert next_due is not None and next_due > 3000
