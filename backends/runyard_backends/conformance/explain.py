"""The sentences of ``explain``. Every store returns the same sentences, word for word (R12)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from runyard.domain.explanations import moment
from runyard.models import ErrorInfo, RunOptions
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest

from .world import T, World, now, said

pytestmark = pytest.mark.asyncio


def at(time: datetime | None) -> str:
    assert time is not None
    return moment(time)


class TestExplain:
    async def test_explain_names_why_a_queued_run_waits(self, world: World) -> None:
        """R12: ``explain`` names the reason why a queued run waits. The reason is an earlier run of the lane, no worker, no
        worker with its agent, or no free worker."""
        await world.accept("r1")
        await world.accept("r2")
        await world.accept("r3")
        assert await world.runs.explain(T, "r1") == "no live worker serves queue default"
        await world.hire("w", agents={"writer": "default"})
        assert await world.runs.explain(T, "r1") == "waiting for a free worker"
        assert await world.runs.explain(T, "r3") == "behind run r1 (queued) of its lane"
        await world.take("r1")
        assert await world.runs.explain(T, "r3") == "behind run r1 (running) of its lane"
        await world.accept("r4", thread="u", agent="reader")
        assert await world.runs.explain("u", "r4") == "no live worker of queue default serves agent reader"

    async def test_explain_names_the_time_for_which_a_run_waits(self, world: World) -> None:
        """R12, R11: ``explain`` names the due time, the end of a backoff, and the latest time to start."""
        due = now() + timedelta(hours=1)
        await world.accept("r1", run_at=due, options=RunOptions(expires_in=60.0))
        run = await world.run("r1")
        late = f"the run fails if it has not started by {at(run.expires_at)}"
        assert await world.runs.explain(T, "r1") == f"due at {moment(due)}; {late}"
        error = ErrorInfo(code="flaky", message="again")
        ended = await world.runs.release(await world.start("r2", thread="u"), delay=3600, error=error)
        [job] = ended.effects.jobs
        why = await world.runs.explain("u", "r2")
        assert why.startswith("retrying at ") and why.endswith(f" UTC after {error.headline}") and job.delay > 3500
        await world.backend.queues.pause("default")
        assert await world.runs.explain("u", "r2") == why

    async def test_explain_names_a_pause_before_the_lane(self, world: World) -> None:
        """R12: In a paused queue, ``explain`` names the pause and not the run ahead. When the run ahead ends, no run of a
        paused queue starts."""
        await world.start("r1")
        await world.accept("r2")
        since = await world.backend.queues.pause("default")
        assert await world.runs.explain(T, "r2") == f"queue default is paused since {moment(since)}"
        await world.bury()
        lost = "lost its worker w; no live worker serves queue default"
        assert await world.runs.explain(T, "r1") == f"{lost}; queue default is paused since {moment(since)}"

    async def test_explain_names_the_run_for_which_a_fork_waits(self, world: World) -> None:
        """R12, F5: ``explain`` names the run for which a fork job waits. It names this run also in a paused queue, because the
        end of the pause would not start the job."""
        await world.start("r1")
        fork = ForkRequest(src=T, new="copy", cut=Cut(after_run_id="r1"))
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="job", kind="fork", fork=fork))
        await world.backend.queues.pause("default")
        assert await world.runs.explain(T, "job") == "waiting for run r1 to end"

    async def test_explain_describes_a_run_that_runs(self, world: World) -> None:
        """R12, R21: For a running run, ``explain`` names its crashes, a requested cancel, and the version that accepted the
        run."""
        await world.accept("r1", app_version="1")
        await world.crash("r1", 2)
        claim = await world.claim("r1")
        assert claim.attempt is not None
        crashed = "after 2 crashes without progress"
        running = "running on worker w, attempt 3"
        assert await world.runs.explain(T, "r1") == f"{running}, waiting there to run alone, {crashed}"
        await world.runs.isolate(claim.attempt)
        await world.runs.cancel(T, "r1")
        assert await world.runs.explain(T, "r1") == f"{running}, alone, {crashed}; a cancel was requested"
        await world.bury()
        await world.hire("other", app_version="2")
        taken = "lost its worker w; another worker will take it over; accepted by version 1, workers run 2"
        assert await world.runs.explain(T, "r1") == taken

    async def test_explain_describes_a_run_that_stopped(self, world: World) -> None:
        """R12, H1: ``explain`` names the request of a suspended run. For an ended run, it names the end and the error."""
        request_id = await world.suspended("asked", thread="x")
        asked = await world.run("asked", "x")
        waits = f"waiting for an answer to request {request_id} since {at(asked.suspended_at)}"
        assert await world.runs.explain("x", "asked") == waits
        await world.turn("done", thread="y")
        done = await world.run("done", "y")
        assert await world.runs.explain("y", "done") == f"completed at {at(done.finished_at)}"
        await world.failed("failed", thread="z")
        failed = await world.run("failed", "z")
        assert failed.error is not None
        assert await world.runs.explain("z", "failed") == f"failed at {at(failed.finished_at)}: {failed.error.headline}"
        await world.accept("dead")
        await world.crash("dead", 3)
        await world.claim("dead")
        dead = await world.run("dead")
        how = "its worker died while executing it alone; redrive it when the cause is repaired"
        why = f"run dead crashed 3 times without progress: {how}"
        assert await world.runs.explain(T, "dead") == f"dead at {at(dead.finished_at)}: poison: {why}"

    async def test_explain_of_a_run_outside_any_worker(self, world: World) -> None:
        """R12, R17: ``explain`` says that an external run is executed outside any worker."""
        await world.checkpointer.claim_run(T, "x")
        assert await world.runs.explain(T, "x") == "running outside any worker"
        await world.finish(await world.start("r", thread="u"), said("x"))
