"""R11: A run with an expiry fails if it has not started in time, regardless of the reason for which it waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.domain.explanations import moment
from runyard.domain.states import RunStatus
from runyard.models import HitlRequest, Limit, RunOptions, new_id
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.scheduling import Effects

from .world import T, World, eventually, now, said

pytestmark = pytest.mark.asyncio

SOON = 0.001
"""Seconds until the run expires. The time is so short that the run has expired at the next call."""
LATE = RunOptions(expires_in=SOON)


async def over(world: World, run_id: str, thread: str = T) -> None:
    """Wait until the run's expiry has passed by the store's clock."""
    expires_at = (await world.run(run_id, thread)).expires_at
    assert expires_at is not None

    async def passed() -> bool:
        return now() > expires_at + timedelta(milliseconds=50)

    await eventually(passed)


async def expired(world: World, run_id: str, effects: Effects, thread: str = T) -> None:
    """Check that the run failed with ``run_expired`` before any attempt. Check that its stream reports the failure."""
    run = await world.run(run_id, thread)
    assert run.error is not None and (run.status, run.error.code) == (RunStatus.FAILED, errors.RunExpiredError.code)
    assert run.attempt == 0 and run.event_id is not None
    [event] = [event for event in effects.events if event.ref.run_id == run_id]
    assert run_id in [job.run_id for job in effects.withdrawn if job.over]
    assert (event.type, event.event_id, event.data["error"]["code"]) == ("run.failed", run.event_id, "run_expired")


class TestExpiry:
    @pytest.mark.parametrize("queue", ["default", "nobody"])
    async def test_run_that_nobody_starts_in_time_fails(self, world: World, queue: str) -> None:
        """I1, R11: A run fails if no worker starts it in time, even if its queue has no workers. The feed reports the
        failure.
        """
        await world.accept("r", queue=queue, options=LATE)
        await over(world, "r")
        await expired(world, "r", (await world.runs.admit()).effects)
        assert "run.failed" in [entry.type for entry in (await world.backend.feed.read()).items]
        assert "did not start" in await world.runs.explain(T, "r")
        assert (await world.runs.admit()).effects == Effects()

    async def test_a_claim_that_comes_too_late_ends_it(self, world: World) -> None:
        """R11: A claim after the expiry ends the run, even before the reconciler finds the run."""
        await world.accept("r", options=LATE)
        await over(world, "r")
        claim = await world.claim("r")
        assert claim.outcome == "ended"
        await expired(world, "r", claim.effects)

    async def test_its_lane_goes_on(self, world: World) -> None:
        """I4: When one or several runs of a lane have expired, the next run of the lane starts."""
        attempt = await world.start("r0")
        for run in ("r1", "r2"):
            await world.accept(run, options=LATE)
        await world.accept("r3")
        await over(world, "r2")
        await world.runs.admit()
        assert [(await world.run(run)).status.value for run in ("r1", "r2", "r3")] == ["failed", "failed", "queued"]
        assert [job.run_id for job in (await world.finish(attempt, said("x"))).effects.jobs] == ["r3"]
        await world.accept("r4", thread="u", options=LATE)
        await world.accept("r5", thread="u")
        await over(world, "r4", "u")
        assert "r5" in [job.run_id for job in (await world.runs.admit()).effects.jobs]

    async def test_fork_job_that_waits_for_an_expired_run_fails(self, world: World) -> None:
        """F5: A fork job fails if the run at its cut expires, because an expired run has failed."""
        await world.accept("r", options=LATE)
        await over(world, "r")
        await world.runs.admit()
        with pytest.raises(errors.RunNotCompletedError):
            await world.fork("new", after_run_id="r")

    async def test_expired_run_leaves_the_line_for_a_permit(self, world: World) -> None:
        await world.backend.limits.set_limit(Limit(name="running_per_agent", subject="default", most=1))
        attempt = await world.start("r0", thread="a")
        await world.accept("r1", thread="b", options=RunOptions(expires_in=1.0))
        await world.accept("r2", thread="c")
        for run, thread in (("r1", "b"), ("r2", "c")):
            assert (await world.claim(run, thread=thread)).outcome == "limited"
        await over(world, "r1", "b")
        await expired(world, "r1", (await world.runs.admit()).effects, "b")
        assert [job.run_id for job in (await world.finish(attempt, said("x"))).effects.jobs] == ["r2"]

    async def test_a_run_that_started_does_not_expire(self, world: World) -> None:
        """R11: A run that has started does not expire while it runs, while it waits for a human, or after a release."""
        options = RunOptions(expires_in=3.0)
        attempts = [await world.start("r", thread=thread, options=options) for thread in "abc"]
        await world.ask(attempts[1], HitlRequest(request_id=new_id()))
        await world.runs.release(attempts[2])
        await over(world, "r", "c")
        assert (await world.runs.admit()).effects == Effects()
        assert [(await world.run("r", thread)).status.value for thread in "abc"] == ["running", "suspended", "queued"]
        await world.take("r", thread="c")

    async def test_time_counts_from_when_it_is_due(self, world: World) -> None:
        """R11: ``expires_in`` counts from the due time. If the run was due before its acceptance, ``expires_in`` counts from
        the acceptance."""
        await world.accept("later", delay=3600.0, options=RunOptions(expires_in=60.0))
        await world.accept("late", thread="u", run_at=now() - timedelta(hours=1), options=RunOptions(expires_in=60.0))
        later, late = await world.run("later"), await world.run("late", "u")
        assert later.run_at is not None and later.expires_at == later.run_at + timedelta(seconds=60)
        assert late.expires_at is not None and abs((late.expires_at - late.accepted_at).total_seconds() - 60) < 5

    async def test_a_pass_knows_when_the_next_one_expires(self, world: World) -> None:
        """R11: Each call of ``admit`` returns the seconds until the next expiry. The reconciler calls ``admit`` again at that
        time."""
        await world.accept("r", options=RunOptions(expires_in=600.0))
        next_due = (await world.runs.admit()).next_due
        assert next_due is not None and 500 < next_due <= 600
        await world.take("r")
        assert (await world.runs.admit()).next_due is None

    async def test_a_limit_holds_for_all(self, world: World) -> None:
        """R16: A run is accepted while the limit ``queued_seconds`` is set. If its ``expires_in`` is longer than the limit,
        the limit applies."""
        await world.accept("before")
        await world.backend.limits.set_limit(Limit(name="queued_seconds", most=60))
        own: list[tuple[str, dict[str, Any], float]] = [
            ("none", {}, 60), ("shorter", {"expires_in": 30.0}, 30), ("longer", {"expires_in": 90.0}, 60)
        ]  # fmt: skip
        for run_id, options, seconds in own:
            accepted = (await world.accept(run_id, options=RunOptions(**options))).run
            assert accepted.expires_at is not None
            assert abs((accepted.expires_at - accepted.accepted_at).total_seconds() - seconds) < 5
            assert (await world.run(run_id)).expires_at == accepted.expires_at
        assert (await world.run("before")).expires_at is None

    async def test_the_limit_spares_forks(self, world: World) -> None:
        """F5: The limit ``queued_seconds`` does not apply to fork jobs. They may wait for their run without a time limit."""
        await world.backend.limits.set_limit(Limit(name="queued_seconds", most=60))
        attempt = await world.start("r")
        fork = ForkRequest(src=T, new="c", cut=Cut(after_run_id="r"))
        assert (await world.accept("job", None, kind="fork", fork=fork)).run.expires_at is None
        await world.finish(attempt)

    async def test_expiry_is_part_of_the_request_hash(self, world: World) -> None:
        """R2: A request with another ``expires_in`` is a different request, because ``expires_in`` can change the outcome of
        the run."""
        await world.accept("r", options=RunOptions(expires_in=600.0))
        assert not (await world.accept("r", options=RunOptions(expires_in=600.0))).created
        with pytest.raises(errors.RunConflictError):
            await world.accept("r")

    async def test_redriven_it_waits_for_as_long_as_it_takes(self, world: World) -> None:
        """R11: A redriven run does not expire."""
        await world.accept("r", options=LATE)
        await over(world, "r")
        await world.runs.admit()
        await world.runs.redrive(T, "r")
        assert (await world.run("r")).expires_at is None
        await world.runs.admit()
        await world.take("r")

    async def test_explain_says_until_when_it_waits(self, world: World) -> None:
        """R12: ``explain`` shows when a waiting run expires."""
        await world.accept("r", queue="nobody", options=RunOptions(expires_in=600.0))
        run = await world.run("r")
        assert run.expires_at is not None
        late = f"the run fails if it has not started by {moment(run.expires_at)}"
        assert await world.runs.explain(T, "r") == f"no live worker serves queue nobody; {late}"
