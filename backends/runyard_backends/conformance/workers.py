"""Workers: heartbeat, death, the leader's lease, and the reconciler's queries (W1, W2)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.domain.explanations import moment
from runyard.domain.states import RunStatus
from runyard.models import RunOptions
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.refs import RunRef
from runyard.ports.workers import BlockedLoop, WaitingCursor, WorkerInfo

from .world import T, World, eventually, said

pytestmark = pytest.mark.asyncio

ZERO = timedelta(0)


class TestWorkers:
    async def test_register_beat_leave(self, world: World) -> None:
        budgets = {"x": [{"per": "run", "on_exceeded": "fail", "limits": {"tokens": 10}}]}
        of_app: dict[str, Any] = {"agents": {"x": "a"}, "budgets": budgets, "app_version": "1"}
        await world.workers.register(WorkerInfo(worker_id="w", queues=["a", "b"], slots=4, address="h:1", **of_app))
        (worker,) = await world.workers.workers()
        assert worker.budgets == budgets
        assert (worker.worker_id, list(worker.queues), dict(worker.agents), worker.slots) == ("w", ["a", "b"], {"x": "a"}, 4)
        assert worker.heartbeat_at is not None and worker.dead_at is None and not worker.draining
        assert worker.address == "h:1" and worker.silent_for is not None and 0 <= worker.silent_for < 60
        await world.workers.beat("w")
        (beaten,) = await world.workers.workers()
        assert beaten.heartbeat_at is not None and beaten.heartbeat_at >= worker.heartbeat_at
        await world.workers.drain("w")
        assert (await world.workers.workers())[0].draining
        await world.workers.leave("w")
        assert await world.workers.workers() == []

    async def test_a_blocked_main_loop_is_named_until_it_turns_or_in_the_attempts_that_it_cost(self, world: World) -> None:
        """R12: User code can block the main loop of a worker. While the worker lives, ``explain`` names the place in the code.
        After the death of the worker, the errors of its attempts name this place. The time of the block then does not grow any
        more."""
        blocked = BlockedLoop(12.0, "app.py:26", "Stack")
        await world.start("r1")
        await world.accept("r2", thread="u")
        await world.workers.report_block("w", blocked)
        (worker,) = await world.workers.workers()
        assert worker.blocked is not None and worker.blocked.seconds >= 12
        assert (worker.blocked.place, worker.blocked.stack) == ("app.py:26", "Stack")
        place = "the main loop of the worker has been blocked for 12 s at app.py:26"
        assert await world.runs.explain(T, "r1") == f"running on worker w, attempt 1; {place}"
        assert await world.runs.explain("u", "r2") == f"waiting for a free worker; {place}"
        await world.hire("v")
        assert await world.runs.explain("u", "r2") == "waiting for a free worker"
        await world.workers.report_block("w", None)
        assert await world.runs.explain(T, "r1") == "running on worker w, attempt 1"
        await world.workers.report_block("w", blocked)
        await world.bury()
        await world.workers.report_block("w", None)
        await world.workers.report_block("nobody", blocked)
        dead, dead_later = [(await world.workers.workers())[0] for _ in range(2)]
        assert dead.worker_id == "w" and dead.dead_at is not None and dead.blocked is not None
        assert dead.blocked.place == "app.py:26" and dead_later.blocked == dead.blocked
        await world.take("r1", worker="v")
        lost, _ = (await world.runs.attempts(T, "r1")).items
        assert lost.outcome == "lost" and lost.error is not None and lost.error.traceback == "Stack"
        assert (lost.error.code, lost.error.message) == (
            "main_loop_blocked",
            "the main loop of its worker was blocked at app.py:26",
        )

    async def test_a_queued_run_waits_for_redis_while_no_worker_reaches_it(self, world: World) -> None:
        """R12: ``explain`` names Redis if no worker that could claim the run reaches Redis. The time of the first report is
        kept."""
        await world.hire("w")
        await world.accept("r1")
        await world.workers.report_redis("w", "no answer in time")
        (first,) = await world.workers.workers()
        assert first.redis_outage is not None and first.redis_outage.reason == "no answer in time"
        await world.workers.report_redis("w", "wrong password")
        since = moment(first.redis_outage.since)
        lost = f"waiting for Redis, which the workers of queue default have not reached since {since}: wrong password"
        assert await world.runs.explain(T, "r1") == lost
        await world.hire("v")
        assert await world.runs.explain(T, "r1") == "waiting for a free worker"
        await world.workers.report_block("v", BlockedLoop(12.0, "app.py:26", "Stack"))
        blocked = "waiting for a free worker; the main loop of the worker has been blocked for 12 s at app.py:26"
        assert await world.runs.explain(T, "r1") == blocked
        await world.workers.report_redis("w", None)
        assert await world.runs.explain(T, "r1") == "waiting for a free worker"
        await world.workers.report_redis("nobody", "away")

    async def test_repeated_register_is_one_worker(self, world: World) -> None:
        """A repeated registration, after a lost reply, is one worker."""
        info = WorkerInfo(worker_id="w", queues=["a"], slots=4)
        await world.workers.register(info)
        await world.workers.register(info)
        (worker,) = await world.workers.workers()
        assert (worker.worker_id, worker.slots, worker.dead_at) == ("w", 4, None)
        await world.bury("w")
        with pytest.raises(errors.WorkerDeadError):
            await world.workers.register(info)

    async def test_death_is_final(self, world: World) -> None:
        """A declared death is final. Only a worker whose heartbeat has not changed can be declared dead."""
        await world.hire()
        (seen,) = await world.workers.workers()
        assert seen.heartbeat_at is not None
        await world.workers.beat("w")
        (fresh,) = await world.workers.workers()
        if fresh.heartbeat_at != seen.heartbeat_at:
            assert not await world.workers.mark_dead("w", seen.heartbeat_at)
        assert fresh.heartbeat_at is not None
        assert await world.workers.mark_dead("w", fresh.heartbeat_at)
        assert not await world.workers.mark_dead("w", fresh.heartbeat_at)
        with pytest.raises(errors.WorkerDeadError):
            await world.workers.beat("w")
        assert not await world.workers.mark_dead("nobody", fresh.heartbeat_at)

    async def test_a_worker_leaves_a_run_to_those_that_have_its_agent(self, world: World) -> None:
        """R12: A claim by a worker that lacks the agent makes no attempt, however often it is repeated. Any worker can execute
        a run that has no agent yet."""
        await world.hire("writers", agents={"writer": "default"})
        await world.hire("readers", agents={"reader": "default"})
        await world.accept("r1", agent="writer")
        before = await world.run("r1")
        claim = await world.claim("r1", worker="readers")
        assert (claim.outcome, claim.requires) == ("unserved", "writer")
        assert await world.run("r1") == before and (await world.runs.attempts(T, "r1")).items == []
        await world.take("r1", worker="writers")
        await world.accept("r1", thread="u")
        await world.take("r1", thread="u", worker="readers")

    async def test_explain_knows_whom_a_worker_serves(self, world: World) -> None:
        """R12: Each worker serves runs that have no agent yet. A worker that registered without agents serves all agents. A
        draining worker serves no run."""
        await world.hire("readers", agents={"reader": "default"})
        for n, agent in enumerate((None, "reader")):
            await world.accept("r1", thread=f"u{n}", agent=agent)
            assert await world.runs.explain(f"u{n}", "r1") == "waiting for a free worker"
        await world.hire("writers", agents={"writer": "default"})
        await world.workers.drain("writers")
        await world.accept("r1", agent="writer")
        assert await world.runs.explain(T, "r1") == "no live worker of queue default serves agent writer"
        await world.hire("any")
        waits = "not serve the run's agent; waiting for a free worker that serves it"
        assert await world.runs.explain(T, "r1") == f"worker readers does {waits}"
        await world.hire("clerks", agents={"clerk": "default"})
        assert await world.runs.explain(T, "r1") == f"worker clerks and 1 other do {waits}"

    async def test_a_fork_job_needs_no_agent(self, world: World) -> None:
        """R12: A fork job needs no agent, because the worker forks without an agent."""
        await world.turn("r1")
        await world.workers.drain("w")
        await world.hire("readers", agents={"reader": "default"})
        fork = ForkRequest(src=T, new="c", cut=Cut(after_run_id="r1"))
        await world.accept("job", None, kind="fork", agent="writer", fork=fork)
        assert await world.runs.explain(T, "job") == "waiting for a free worker"
        await world.take("job", worker="readers")

    async def test_lease_has_one_holder(self, world: World) -> None:
        assert await world.workers.lead("a", 60)
        assert not await world.workers.lead("b", 60)
        assert await world.workers.lead("a", 0.01)

        async def taken() -> bool:
            return await world.workers.lead("b", 60)

        await eventually(taken)
        assert not await world.workers.lead("a", 60)

    async def test_running_lists_a_workers_attempts(self, world: World) -> None:
        one = await world.start("r1")
        two = await world.start("r1", thread="u")
        assert set(await world.workers.running("w")) == {one, two}
        await world.finish(one, said("x"))
        assert await world.workers.running("w") == [two]
        assert await world.workers.running("other") == []

    async def test_orphans_are_the_running_runs_of_dead_and_missing_workers(self, world: World) -> None:
        """W2: Only running runs of dead and missing workers are orphans. Runs of live workers, and queued, suspended or ended
        runs are not."""
        await world.start("dead")
        await world.accept("behind")
        await world.accept("queued", thread="u")
        await world.suspended("suspended", thread="x")
        await world.turn("ended", thread="z")
        await world.accept("alive", thread="y")
        await world.take("alive", thread="y", worker="w2")
        await world.accept("left", thread="v")
        await world.take("left", thread="v", worker="w3")

        async def orphans() -> list[tuple[str, str]]:
            page = await world.workers.orphans()
            assert page.after is None
            return [(orphan.job.run_id, orphan.worker_id) for orphan in page.orphans]

        assert await orphans() == []
        await world.bury("w")
        await world.workers.leave("w3")
        assert await orphans() == [("dead", "w"), ("left", "w3")]

    async def test_a_page_of_orphans_ends_with_a_whole_worker(self, world: World) -> None:
        """W2: A page has all orphans of each of its workers. Therefore the id of the last worker can be the cursor."""
        for n, worker in enumerate(("w1", "w2", "w1", "w3", "w2")):
            await world.accept("r", thread=f"t{n}")
            await world.take("r", thread=f"t{n}", worker=worker)
        keys = [(await world.ref("r", f"t{n}")).thread_key for n in range(5)]
        for worker in ("w1", "w2", "w3"):
            await world.bury(worker)
        pages, after = list[set[int]](), ""
        while True:
            page = await world.workers.orphans(after=after, limit=1)
            pages.append({keys.index(orphan.job.thread_key) for orphan in page.orphans})
            if page.after is None:
                break
            after = page.after
        assert pages == [{0, 2}, {1, 4}, {3}, set()]
        three = await world.workers.orphans(limit=3)
        assert len(three.orphans) == 4 and three.after == "w2"

    async def test_an_external_run_is_no_orphan_and_does_not_wait(self, world: World) -> None:
        """W2, R17: An external run is no orphan and needs no job, because no worker executes an external run."""
        await world.checkpointer.claim_run(T, "x")
        assert (await world.workers.orphans()).orphans == []
        assert (await world.workers.waiting(unchanged=ZERO)).jobs == []

    async def test_the_heads_of_lanes_wait(self, world: World) -> None:
        """W2: ``waiting`` returns only runs that are due, are the heads of their lanes, and have no worker."""
        await world.start("running")
        await world.accept("behind")
        await world.accept("first", thread="u")
        await world.accept("second", thread="u")
        await world.accept("late", thread="v", delay=3600)
        await world.suspended("suspended", thread="x")
        await world.accept("behind-a-question", thread="x")
        await world.turn("ended", thread="z")

        async def waiting(unchanged: timedelta = ZERO, **fields: Any) -> list[str]:
            return [job.run_id for job in (await world.workers.waiting(unchanged=unchanged, **fields)).jobs]

        assert await waiting() == ["first"]
        await world.bury("w")
        assert await waiting() == ["first"]
        assert await waiting(timedelta(hours=1)) == []
        assert await waiting(within=timedelta(hours=1)) == ["first"]
        await asyncio.sleep(0.01)
        assert await waiting(within=timedelta(milliseconds=1)) == []

    async def test_a_page_of_waiting_runs_ends_after_the_examined_runs(self, world: World) -> None:
        """W2: ``limit`` counts examined runs, including runs that are not the heads of their lanes. Therefore a long lane does
        not make a read long. Runs are examined in the order of their last changes."""
        for thread in ("a", "b"):
            for n in range(3):
                await world.accept(f"{thread}{n}", thread=thread)
        await world.accept("p", thread="a", options=RunOptions(parallel=True))
        pages = list[list[str]]()
        after: WaitingCursor | None = None
        while True:
            page = await world.workers.waiting(unchanged=ZERO, after=after, limit=2)
            pages.append([job.run_id for job in page.jobs])
            if page.after is None:
                break
            after = page.after
        assert pages == [["a0"], ["b0"], [], ["p"]]
        page = await world.workers.waiting(unchanged=ZERO, after=after, within=timedelta(hours=1))
        assert [job.run_id for job in page.jobs] == ["p"]

    async def test_still_waiting_are_the_given_runs_that_wait(self, world: World) -> None:
        """W2: ``still_waiting`` omits runs that are running or have ended, because such runs need no job."""
        for n in range(3):
            await world.accept("r", thread=f"t{n}")
        await world.accept("behind", thread="t0")
        refs = [await world.ref("r", f"t{n}") for n in range(3)]
        behind, unknown = await world.ref("behind", "t0"), RunRef(refs[0].thread_key, "unknown")
        await world.take("r", thread="t1")

        async def still(*refs: RunRef) -> set[RunRef]:
            return {job.ref for job in await world.workers.still_waiting(refs, unchanged=ZERO)}

        assert await still(*refs, behind, unknown) == {refs[0], refs[2]}
        assert await still(refs[2], behind) == {refs[2]}
        await world.runs.cancel("t0", "r")
        assert await still(*refs, behind) == {behind, refs[2]}
        assert await world.workers.still_waiting(refs, unchanged=timedelta(hours=1)) == []
        assert await still() == set()

    async def test_an_orphan_that_nobody_may_take_over(self, world: World) -> None:
        """R12: An orphaned run keeps its attempt until another worker takes it over. ``explain`` names the missing agent."""
        await world.hire("one", agents={"x": "default"})
        await world.accept("r", agent="x")
        assert (await world.claim("r", worker="one")).outcome == "claimed"
        await world.bury("one")
        assert await world.runs.explain(T, "r") == "lost its worker one; no live worker serves queue default"
        await world.hire("two", agents={"y": "default"})
        for _ in range(2):
            assert (await world.claim("r", worker="two")).outcome == "unserved"
            assert [attempt.outcome for attempt in (await world.runs.attempts(T, "r")).items] == ["running"]
        assert await world.runs.explain(T, "r") == "lost its worker one; no live worker of queue default serves agent x"
        await world.hire("three", agents={"x": "default"})
        assert await world.runs.explain(T, "r") == "lost its worker one; another worker will take it over"
        assert (await world.claim("r", worker="three")).takeover
        assert [attempt.outcome for attempt in (await world.runs.attempts(T, "r")).items] == ["lost", "running"]

    @pytest.mark.parametrize("dies", ["first", "last"])
    async def test_orphans_say_which_wait_for_their_cancel(self, world: World, dies: str) -> None:
        """R10: A claim ends an orphaned run whose cancel was requested, even in a paused queue. The request may come before or
        after the worker's death."""
        await world.start("cancelled")
        await world.start("lost", thread="u")
        await world.backend.queues.pause("default")
        if dies == "first":
            await world.bury()
        await world.runs.cancel(T, "cancelled")
        if dies == "last":
            await world.bury()
        page = await world.workers.orphans()
        assert {orphan.job.run_id: orphan.cancelled for orphan in page.orphans} == {"cancelled": True, "lost": False}
        claim = await world.claim("cancelled", worker="leader")
        assert claim.outcome == "ended" and [event.type for event in claim.effects.events] == ["run.cancelled"]
        assert await world.status("cancelled") is RunStatus.CANCELLED

    async def test_released_head_waits_for_its_time(self, world: World) -> None:
        await world.runs.release(await world.start("r1"), delay=3600)
        assert (await world.workers.waiting(unchanged=ZERO)).jobs == []
        await world.runs.cancel(T, "r1")
