"""The ends of waits, and waits of runs that have ended (K1 to K3)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, HitlRequest, new_id
from runyard.ports.commands import Write

from .children import child, start_child
from .waits import SOON, park, signal, sleep, wake
from .world import T, World, eventually, now, said

pytestmark = pytest.mark.asyncio


class TestEndedWaits:
    async def test_h5_a_completed_run_leaves_no_open_request(self, world: World) -> None:
        """H5, K1: The first attempt stores a request and continues, because another wait of the run has already ended. When
        the run completes, the request is closed."""
        attempt = await world.start("r1")
        ask = HitlRequest(request_id=new_id(), timeout=0, on_deadline={"fail": True})
        ended = await park(world, attempt, sleep(timeout=0), sleep("open", timeout=3600), signal(), asks=ask)
        assert ended.status is RunStatus.RUNNING
        await world.finish(attempt, said("done"))
        assert (await world.runs.requests(pending=True)).items == []
        assert (await world.runs.admit()).next_due is None
        assert (await world.run("r1")).attempt == 1
        assert await world.status("r1") is RunStatus.COMPLETED

    async def test_k2_a_run_that_was_asked_to_cancel_takes_no_signal(self, world: World) -> None:
        """K2, R10: A run with a requested cancel takes no signal. The signal stays until another run waits for it."""
        await park(world, await world.start("r1"), sleep(timeout=SOON), signal())
        attempt = await wake(world)
        await world.runs.cancel(T, "r1")
        assert (await world.runs.signal(T, "paid", 1, signal_id="s")).signal.run_id is None
        assert (await world.runs.release(attempt)).status is RunStatus.CANCELLED
        assert (await park(world, await world.start("r2"), signal())).status is RunStatus.RUNNING

    async def test_k2_a_signal_of_a_name_for_which_nobody_waits_stays(self, world: World) -> None:
        """K2: A signal does not end the wait of a run that waits for another name. The signal stays until a run waits for its
        name."""
        await park(world, await world.start("r1"), signal())
        assert (await world.runs.signal(T, "due", 1, signal_id="s")).signal.run_id is None
        assert await world.status("r1") is RunStatus.SUSPENDED
        assert (await world.runs.signal(T, "paid", 2, signal_id="t")).signal.run_id == "r1"
        attempt = await world.take("r1")
        assert (await park(world, attempt, signal("v", "due"))).status is RunStatus.RUNNING


class TestEndedChildren:
    async def test_k3_a_verb_on_a_cancelled_parents_thread_leaves_the_children_to_cancel(self, world: World) -> None:
        """K3: A verb on the thread of a cancelled parent ends the due waits of this thread. It does not end waits for children
        that the reconciler must still cancel."""
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await park(world, attempt, child())
        await world.runs.cancel(T, "r1")
        await world.runs.signal(T, "paid", 1, signal_id="s")
        await world.runs.admit()
        assert await world.status("c1", "child") is RunStatus.CANCELLED

    @pytest.mark.parametrize("what", ["run", "thread", "live thread"])
    async def test_k3_a_cancel_reaches_children_of_deleted_parents(self, world: World, what: str) -> None:
        """K3, D1: A parent is cancelled and then deleted. Its children are still cancelled."""
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await park(world, attempt, child())
        if what != "live thread":
            await world.runs.cancel(T, "r1")
        if what == "run":
            await world.runs.delete_run(T, "r1")
        else:
            await world.threads.delete_thread(T, cancel=what == "live thread")

        async def cancelled() -> bool:
            await world.runs.admit()
            return await world.status("c1", "child") is RunStatus.CANCELLED

        await eventually(cancelled)
        await world.runs.admit()
        assert (await world.runs.admit()).next_due is None

    async def test_k3_a_redriven_child_has_not_ended(self, world: World) -> None:
        """K3, H12: When a child was redriven, its parent waits until the child ends again."""
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await fail_child(world)
        await world.runs.redrive("child", "c1")
        assert (await park(world, attempt, child())).status is RunStatus.SUSPENDED
        assert (await world.runs.admit()).next_due is None
        await world.finish(await world.take("c1", thread="child"), said("done"))
        await wake(world)

    async def test_k3_a_parent_waits_again_for_a_redriven_child(self, world: World) -> None:
        """K3, H12: The end of a child queues the parent again. If the child is redriven before a worker claims the parent, the
        parent waits again until the child ends."""
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await park(world, attempt, child())
        await fail_child(world)

        async def woken() -> bool:
            await world.runs.admit()
            return await world.status("r1") is RunStatus.QUEUED

        await eventually(woken)
        await world.runs.redrive("child", "c1")
        attempt = await world.take("r1")
        assert (await world.runs.ledger(attempt)).waits["c1"].ended_at is None
        assert (await park(world, attempt, child())).status is RunStatus.SUSPENDED
        await world.finish(await world.take("c1", thread="child"), said("done"))
        claim = await world.claim("r1")
        assert claim.attempt is not None and claim.effects.jobs == []  # the effects do not offer the claimed run again
        assert (await world.runs.ledger(claim.attempt)).waits["c1"].ended_at is not None

    async def test_r24_a_wait_that_was_due_before_the_cancel_has_ended(self, world: World) -> None:
        """R24, R10: A cancel closes the open waits of a run. The timeline shows only those as cancelled that were not due."""
        late = signal("late", timeout=SOON)
        await park(world, await world.start("r1"), sleep(timeout=SOON), late, sleep("long", timeout=3600))
        due = now() + timedelta(seconds=SOON)

        async def passed() -> bool:
            return now() > due

        await eventually(passed)
        await world.runs.cancel(T, "r1")
        entries = (await world.backend.timelines.timeline(T, "r1")).entries
        shown = {entry.id: entry.status for entry in entries if entry.type in ("sleep", "signal")}
        assert shown == {"nap": "ended", "late": "timeout", "long": "cancelled"}


async def fail_child(world: World) -> None:
    attempt = await world.take("c1", thread="child")
    await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
