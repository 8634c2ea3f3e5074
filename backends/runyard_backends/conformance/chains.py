"""Chains: the completion of a run claims the next run of its lane, for the same worker."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runyard import errors
from runyard.domain.limits import Limit
from runyard.domain.states import RunStatus
from runyard.models import RunOptions
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Claim, Ended

from .children import child, start_child
from .waits import park
from .world import T, World, call, said, user

pytestmark = pytest.mark.asyncio


async def finish(world: World, *attempts: AttemptToken, **fields: object) -> list[Ended]:
    """Complete the runs of ``attempts``, and claim the next runs of their lanes."""
    fields = {"messages": [said("done")], **fields}
    found = await world.runs.complete([Write(attempt=attempt, claim_next=True, **fields) for attempt in attempts])  # type: ignore[arg-type]
    assert all(isinstance(ended, Ended) for ended in found), found
    return found  # type: ignore[return-value]


async def follow(world: World, attempt: AttemptToken) -> Claim:
    """Complete a run. Return the claim of the next run of its lane."""
    [ended] = await finish(world, attempt)
    assert ended.next is not None and ended.next.outcome == "claimed" and ended.next.attempt is not None
    return ended.next


async def token(world: World, attempt: AttemptToken) -> AttemptToken:
    """Complete a run. Return the attempt of the next run of its lane."""
    claim = await follow(world, attempt)
    assert claim.attempt is not None
    return claim.attempt


class TestChains:
    async def test_the_end_of_a_run_claims_the_next_run_of_its_lane(self, world: World) -> None:
        """R3, I4: The runs of a lane still start one at a time and in order."""
        first = await world.start("r1", "1")
        for run_id in ("r2", "r3"):
            await world.accept(run_id, run_id)
        [ended] = await finish(world, first, messages=[said("1!")], extra={"k": 1})
        assert ended.status is RunStatus.COMPLETED and ended.effects.jobs == []
        claim = ended.next
        assert claim is not None and claim.run is not None and claim.attempt is not None and claim.job is not None
        assert (claim.ref, claim.outcome, claim.takeover) == (await world.ref("r2"), "claimed", False)
        assert claim.attempt.fence > first.fence, "each attempt has a fence of its own"
        assert (claim.run.status, claim.run.attempt, claim.run.worker_id) == (RunStatus.RUNNING, 1, "w")
        assert (claim.extra, claim.leaf_id, claim.alone) == ({"k": 1}, None, False)
        assert claim.run.input is not None and claim.run.input.text == "r2"
        assert (claim.job.ref, claim.job.lane, claim.job.delay, claim.effects.jobs) == (claim.ref, "", 0.0, [])
        assert claim.job.queued is not None and claim.job.queued.type == "run.queued", "nobody has written this event"
        assert await world.run("r2") == claim.run.model_copy(update={"input": (await world.run("r2")).input})
        assert await world.context(claim.attempt) == ["1", "1!", "r2"]
        assert [attempt.run_id for attempt in await world.workers.running("w")] == ["r2"]
        assert (await world.claim("r3")).outcome == "behind"
        ended = await world.finish(claim.attempt, said("2!"))
        assert ended.next is None and [job.run_id for job in ended.effects.jobs] == ["r3"]
        assert await world.context(await world.take("r3")) == ["1", "1!", "r2", "2!", "r3"]

    async def test_a_chain_ends_with_its_lane(self, world: World) -> None:
        attempt = await world.start("r1")
        await world.accept("r2")
        attempt = await token(world, attempt)
        [ended] = await finish(world, attempt)
        assert (ended.status, ended.next, ended.effects.jobs) == (RunStatus.COMPLETED, None, [])

    @pytest.mark.parametrize("how", ["draining", "dead", "paused", "queue", "agent", "per agent", "per tenant"])
    async def test_what_the_worker_may_not_claim_is_offered_to_all(self, world: World, how: str) -> None:
        """W8, R16: The completion does not claim the next run if the worker is draining or dead, if the worker does not serve
        the next run, or if the queue is paused. It does not claim the next run either if running runs are limited. The free
        permit may then belong to a run of another lane. In each case, the end of the completed run is stored."""
        await world.hire("w", agents={"default": "default"})
        first = await world.start("r1")
        fields = {"queue": {"queue": "gpu"}, "agent": {"agent": "other", "queue": "default"}}.get(how, {})
        await world.accept("r2", **fields)
        match how:
            case "draining":
                await world.workers.drain("w")
            case "dead":
                await world.bury("w")
            case "paused":
                await world.backend.queues.pause("default")
            case "per agent" | "per tenant":
                await world.backend.limits.set_limit(Limit(name=f"running_{how.replace(' ', '_')}", most=9))
        [ended] = await finish(world, first)
        assert (ended.status, ended.next) == (RunStatus.COMPLETED, None)
        assert [job.run_id for job in ended.effects.jobs] == ["r2"]
        run = await world.run("r2")
        assert (run.status, run.attempt, run.worker_id) == (RunStatus.QUEUED, 0, None)

    async def test_an_expired_run_is_not_claimed(self, world: World) -> None:
        first = await world.start("r1")
        await world.accept("r2", options=RunOptions(expires_in=1e-6))
        [ended] = await finish(world, first)
        assert ended.status is RunStatus.COMPLETED and ended.next is None
        assert await world.status("r2") is RunStatus.FAILED

    async def test_a_cancelled_run_hands_on_its_lane(self, world: World) -> None:
        """R10: If a cancel was requested, the completion cancels the run. The completion still claims the next run of the
        lane."""
        first = await world.start("r1")
        await world.accept("r2")
        await world.runs.cancel(T, "r1")
        [ended] = await finish(world, first)
        assert ended.status is RunStatus.CANCELLED and ended.next is not None and ended.next.ref.run_id == "r2"
        assert ended.effects.jobs == []

    async def test_a_run_with_an_open_tool_cycle_hands_on_its_lane(self, world: World) -> None:
        """R5: The next run does not see the failed run."""
        first = await world.start("r1")
        await world.accept("r2", "2")
        [ended] = await finish(world, first, messages=[call("c")])
        assert ended.status is RunStatus.FAILED and ended.next is not None and ended.next.attempt is not None
        assert await world.context(ended.next.attempt) == ["2"]

    async def test_a_repeated_completion_claims_nothing(self, world: World) -> None:
        """A repeated completion claims nothing, because the first completion may have claimed the next run already. The worker
        finds the next run with ``running``."""
        first = await world.start("r1")
        await world.accept("r2")
        before = await follow(world, first)
        [again] = await finish(world, first)
        assert (again.status, again.next, again.effects.jobs) == (RunStatus.COMPLETED, None, [])
        assert await world.workers.running("w") == [before.attempt]

    async def test_a_stale_completion_claims_nothing(self, world: World) -> None:
        """I2: A completion with an older fence claims nothing, because the lane belongs to the attempt that took over the
        run."""
        first = await world.start("r1")
        await world.accept("r2")
        await world.bury()
        await world.take("r1", worker="w2")
        [refused] = await world.runs.complete([Write(attempt=first, claim_next=True)])
        assert isinstance(refused, errors.StaleFenceError)
        assert await world.status("r2") is RunStatus.QUEUED

    async def test_each_lane_of_a_batch_goes_on_by_itself(self, world: World) -> None:
        """Each completion in a batch claims the next run of its own lane. A completion claims nothing if its lane has no next
        run, or if it was called without ``claim_next``."""
        attempts = [await world.start("r1", thread=thread) for thread in ("a", "b", "c")]
        for thread in ("a", "b"):
            await world.accept("r2", thread=thread)
        writes = [Write(attempt=a, messages=[said("x")], claim_next=n != 1) for n, a in enumerate(attempts)]
        one, two, three = await world.runs.complete(writes)
        assert isinstance(one, Ended) and isinstance(two, Ended) and isinstance(three, Ended)
        assert one.next is not None and one.next.ref == await world.ref("r2", "a") and one.effects.jobs == []
        assert two.next is None and [job.ref for job in two.effects.jobs] == [await world.ref("r2", "b")]
        assert (three.next, three.effects.jobs) == (None, [])

    async def test_other_jobs_that_the_end_wakes_are_submitted(self, world: World) -> None:
        """F5: A fork job may wait for the end of the run. The completion does not claim the fork job, because it is not in the
        lane of the run. The fork job is submitted to Redis instead."""
        first = await world.start("r1")
        await world.accept("r2")
        fork = ForkRequest(src=T, new="f", cut=Cut(after_run_id="r1"))
        await world.accept("job", None, kind="fork", fork=fork)
        [ended] = await finish(world, first)
        assert ended.next is not None and ended.next.ref.run_id == "r2"
        assert [job.run_id for job in ended.effects.jobs] == ["job"]

    async def test_a_lane_beside_the_main_lane_is_a_lane_of_its_own(self, world: World) -> None:
        """B4: The end of a run claims a run of the same lane only."""
        beside = AcceptRequest(thread_id=T, run_id="beside", input=user("x"), options=RunOptions(parallel=True))
        await world.turn("r0")
        await world.runs.accept(beside)
        attempt = await world.take("beside")
        first = await world.start("r1")
        await world.accept("r2")
        [ended] = await finish(world, attempt)
        assert ended.next is None and await world.status("r2") is RunStatus.QUEUED
        assert (await follow(world, first)).ref.run_id == "r2"

    async def test_each_lane_of_a_thread_goes_on_by_itself(self, world: World) -> None:
        """W10: Two runs of one thread complete together. Only one of them may claim the next run of its lane."""
        await world.turn("r0")
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="b0", input=user("x"), options=RunOptions(parallel=True)))
        await world.runs.complete([Write(attempt=await world.take("b0"), messages=[said("b0!")])])
        leaf = await world.runs.last_message_id(T, "b0")
        for run_id in ("b1", "b2"):
            await world.accept(run_id, parent_id=leaf)
        for run_id in ("r1", "r2"):
            await world.accept(run_id)
        writes = [
            Write(attempt=await world.take(run_id), messages=[said("x")], claim_next=run_id == "r1") for run_id in ("b1", "r1")
        ]
        beside, main = await world.runs.complete(writes)
        assert isinstance(beside, Ended) and isinstance(main, Ended)
        assert beside.next is None and [job.ref for job in beside.effects.jobs] == [await world.ref("b2")]
        assert main.next is not None and main.next.ref == await world.ref("r2") and main.effects.jobs == []

    async def test_a_child_does_not_claim_its_parent(self, world: World) -> None:
        """K3: The end of a child submits the job of its parent. It does not claim the parent, because the parent is not in the
        child's lane."""
        attempt = await world.start("r1")
        await start_child(world, attempt)
        await park(world, attempt, child())
        await world.accept("c2", thread="child")
        [ended] = await finish(world, await world.take("c1", thread="child"))
        assert ended.next is not None and ended.next.ref.run_id == "c2"
        assert [job.run_id for job in ended.effects.jobs] == ["r1"]


class TestCrashesOfChains:
    async def test_death_before_the_next_run_has_begun_is_no_crash_of_it(self, world: World) -> None:
        """The completion of a run has claimed the next run, and then the worker dies. The crash counts for the next run only if
        the attempt of the next run has begun."""
        first = await world.start("r1")
        await world.accept("r2")
        await follow(world, first)
        await world.bury()
        claim = await world.claim("r2", worker="w2")
        assert (claim.outcome, claim.takeover, claim.alone) == ("claimed", True, False)
        assert (await world.run("r2")).crash_count == 0
        await world.bury("w2")
        assert (await world.claim("r2", worker="w3")).outcome == "claimed"
        assert (await world.run("r2")).crash_count == 1, "a worker claimed this attempt by itself"

    async def test_death_after_progress_is_a_crash(self, world: World) -> None:
        first = await world.start("r1")
        await world.accept("r2")
        await world.runs.append(await token(world, first), [said("on")])
        await world.bury()
        await world.claim("r2", worker="w2")
        assert (await world.run("r2")).crash_count == 1

    async def test_a_takeover_fences_the_worker_of_a_chain_out(self, world: World) -> None:
        """I2: After a takeover, the store refuses all writes of the worker of the chain. This worker may not know yet that it
        was declared dead."""
        first = await world.start("r1")
        await world.accept("r2")
        await world.accept("r3")
        chained = await token(world, first)
        await world.bury()
        taken = await world.take("r2", worker="w2")
        assert taken.fence > chained.fence
        with pytest.raises(errors.StaleFenceError):
            await world.runs.append(chained, [said("late")])
        [refused] = await world.runs.complete([Write(attempt=chained, claim_next=True)])
        assert isinstance(refused, errors.StaleFenceError)
        assert (await follow(world, taken)).ref.run_id == "r3"
        assert [run.run_id for run in await world.workers.running("w2")] == ["r3"]

    async def test_a_lost_chain_is_no_lost_job(self, world: World) -> None:
        """The reconciler finds the claimed run among the runs of the dead worker, and not among the waiting runs."""
        first = await world.start("r1")
        await world.accept("r2")
        await follow(world, first)
        assert (await world.workers.waiting(unchanged=timedelta(0))).jobs == []
        await world.bury()
        assert [orphan.job.run_id for orphan in (await world.workers.orphans()).orphans] == ["r2"]
