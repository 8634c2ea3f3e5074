"""Lanes: one run at a time, in order, and what a prompt does on a busy lane."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.domain.crashes import MAX_CRASHES
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, RunOptions
from runyard.ports.commands import Write

from .world import T, World, eventually, said

pytestmark = pytest.mark.asyncio

REJECT = RunOptions(multitask_strategy="reject")
INTERRUPT = RunOptions(multitask_strategy="interrupt")
ROLLBACK = RunOptions(multitask_strategy="rollback")


class TestLanes:
    async def test_lane_runs_one_at_a_time_in_order(self, world: World) -> None:
        """R3, I4: One run of a lane runs at a time. The call that ends this run returns the job of the next run."""
        first = await world.start("r1", "1")
        for run_id in ("r2", "r3"):
            assert (await world.accept(run_id, run_id)).effects.jobs == []
            assert (await world.claim(run_id)).outcome == "behind"
        ended = await world.finish(first, said("1!"))
        assert [job.run_id for job in ended.effects.jobs] == ["r2"]
        assert (await world.claim("r3")).outcome == "behind"
        ended = await world.finish(await world.take("r2"), said("2!"))
        assert [job.run_id for job in ended.effects.jobs] == ["r3"]
        attempt = await world.take("r3")
        assert await world.context(attempt) == ["1", "1!", "r2", "2!", "r3"]

    async def test_threads_do_not_wait_for_each_other(self, world: World) -> None:
        await world.start("r1")
        await world.start("r1", thread="u")

    async def test_suspended_run_blocks_its_lane(self, world: World) -> None:
        """R4: A prompt behind a suspended run waits. It does not answer the run's request."""
        request = await world.suspended("r1")
        assert (await world.accept("r2", "yes")).effects.jobs == []
        assert (await world.claim("r2")).outcome == "behind"
        assert [r.request_id for r in (await world.runs.requests()).items] == [request]
        responded = await world.runs.respond("yes", thread_id=T)
        assert [job.run_id for job in responded.effects.jobs] == ["r1"]
        assert (await world.claim("r2")).outcome == "behind"

    async def test_retry_keeps_its_place(self, world: World) -> None:
        """I4: A released run keeps its place in the lane."""
        attempt = await world.start("r1")
        await world.accept("r2")
        await world.runs.release(attempt, delay=3600)
        assert (await world.claim("r2")).outcome == "behind"

    @pytest.mark.parametrize("how", ["cancel", "fail", "dead"])
    async def test_any_end_hands_out_the_next(self, world: World, how: str) -> None:
        """R3: Every call that ends a run returns the job of the next run of the lane."""
        if how == "cancel":
            await world.accept("r1")
            await world.accept("r2")
            effects = (await world.runs.cancel(T, "r1")).effects
        elif how == "fail":
            attempt = await world.start("r1")
            await world.accept("r2")
            effects = (await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))).effects
        else:
            await world.accept("r1")
            await world.accept("r2")
            await world.crash("r1", MAX_CRASHES)
            effects = (await world.claim("r1", worker="w3")).effects
            assert await world.status("r1") is RunStatus.DEAD
        assert [job.run_id for job in effects.jobs] == ["r2"]

    async def test_cancel_in_the_middle_of_the_queue(self, world: World) -> None:
        await world.start("r1")
        await world.accept("r2")
        await world.accept("r3")
        assert (await world.runs.cancel(T, "r2")).effects.jobs == []
        assert (await world.claim("r3")).outcome == "behind"

    async def test_reject(self, world: World) -> None:
        """R3: ``reject`` on a busy lane raises ThreadBusyError and accepts nothing."""
        await world.accept("r0", options=REJECT)
        with pytest.raises(errors.ThreadBusyError):
            await world.accept("r1", options=REJECT)
        assert await world.runs.run(T, "r1") is None
        await world.runs.cancel(T, "r0")
        await world.accept("r1", options=REJECT)

    async def test_late_reject_fails_the_run(self, world: World) -> None:
        """R3: ``reject`` applies at admission. If the lane is busy at the admission of a delayed run, the run fails. Its
        ``accept`` has already returned and cannot raise an error."""
        await world.accept("late", delay=0.4, options=REJECT)
        await world.start("r1")

        async def failed() -> bool:
            await world.runs.admit()
            return await world.status("late") is RunStatus.FAILED

        await eventually(failed)
        error = (await world.run("late")).error
        assert error is not None and error.code == "thread_busy"

    async def test_interrupt_keeps_what_was_said(self, world: World) -> None:
        """R3: ``interrupt`` cancels the active run and keeps its messages in the context. The prompt is queued as usual."""
        attempt = await world.start("r1", "1")
        await world.runs.append(attempt, [said("half")])
        await world.accept("r2", "2")
        accepted = await world.accept("r3", "3", options=INTERRUPT)
        assert accepted.effects.cancels == [await world.ref("r1")]
        ended = await world.finish(attempt, said("unheard"))
        assert ended.status is RunStatus.CANCELLED and [job.run_id for job in ended.effects.jobs] == ["r2"]
        assert await world.context(await world.take("r2")) == ["1", "half", "2"]

    async def test_rollback_drops_what_was_said(self, world: World) -> None:
        """R3: ``rollback`` cancels the active run. Later contexts have none of its messages."""
        attempt = await world.start("r1", "1")
        await world.runs.append(attempt, [said("half")])
        await world.accept("r2", "2", options=ROLLBACK)
        await world.finish(attempt)
        assert await world.context(await world.take("r2")) == ["2"]

    async def test_interrupt_of_a_suspended_run(self, world: World) -> None:
        """R3, R10: ``interrupt`` ends a suspended run at once and closes its request."""
        request = await world.suspended("r1")
        accepted = await world.accept("r2", options=INTERRUPT)
        assert [job.run_id for job in accepted.effects.jobs][-1:] == ["r2"]
        assert (await world.run("r1")).status is RunStatus.CANCELLED
        with pytest.raises(errors.HitlStaleAnswerError):
            await world.runs.respond("x", thread_id=T, request_id=request)

    async def test_parallel_runs_do_not_wait(self, world: World) -> None:
        """B4: Each parallel run has its own branch and lane and does not wait."""
        main = await world.start("r1")
        beside = await world.start("p1", "p1?", options=RunOptions(parallel=True))
        assert (await world.run("p1")).lane == "p1"
        await world.finish(beside, said("p1!"))
        await world.finish(main, said("r1!"))
        assert await world.texts() == ["hi", "r1!"]

    async def test_redrive_goes_to_the_end(self, world: World) -> None:
        """R19: A redriven run gets a place at the end of its lane."""
        await world.failed("r1")
        await world.accept("r2")
        changed = await world.runs.redrive(T, "r1")
        assert changed.run.status is RunStatus.QUEUED and changed.run.error is None and changed.effects.jobs == []
        assert (await world.claim("r1")).outcome == "behind"
        await world.finish(await world.take("r2"), said("2!"))
        attempt = await world.take("r1")
        assert await world.context(attempt) == ["r1?", "r1…"]
        await world.finish(attempt, said("r1!"))
        assert await world.cut(after_run_id="r2") == ["hi", "2!"]
