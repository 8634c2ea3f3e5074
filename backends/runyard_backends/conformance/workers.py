"""Workers: heartbeat, death, the leader's lease, and the reconciler's queries (W1, W2)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import RunOptions
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.scheduling import MAIN_LANE
from runyard.ports.workers import WorkerInfo

from .world import T, World, eventually, said

pytestmark = pytest.mark.asyncio

ZERO = timedelta(0)


class TestWorkers:
    async def test_register_beat_leave(self, world: World) -> None:
        info = WorkerInfo(worker_id="w", queues=["a", "b"], agents={"x": "a"}, app_version="1", slots=4, address="h:1")
        await world.workers.register(info)
        (worker,) = await world.workers.workers()
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

    async def test_repeated_register_is_one_worker(self, world: World) -> None:
        """A repeated registration, after a lost answer, is one worker."""
        info = WorkerInfo(worker_id="w", queues=["a"], slots=4)
        await world.workers.register(info)
        await world.workers.register(info)
        (worker,) = await world.workers.workers()
        assert (worker.worker_id, worker.slots, worker.dead_at) == ("w", 4, None)
        await world.bury("w")
        with pytest.raises(errors.WorkerDeadError):
            await world.workers.register(info)

    async def test_death_is_final(self, world: World) -> None:
        """A declared death is final, and only a worker whose heartbeat did not change can be declared dead."""
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
        """R12: A claim by a worker that lacks the agent makes no attempt, however often it is repeated. A run without an agent
        runs anywhere."""
        await world.hire("writers", agents={"writer": "default"})
        await world.hire("readers", agents={"reader": "default"})
        await world.accept("r1", agent="writer")
        before = await world.run("r1")
        assert (await world.claim("r1", worker="readers")).outcome == "unserved"
        assert await world.run("r1") == before and (await world.runs.attempts(T, "r1")).items == []
        await world.take("r1", worker="writers")
        for n, agent in enumerate((None, "default")):
            await world.accept("r1", thread=f"u{n}", agent=agent)
            await world.take("r1", thread=f"u{n}", worker="readers")

    async def test_explain_knows_whom_a_worker_serves(self, world: World) -> None:
        """R12: Each worker serves ``default``, a worker that names no agent serves all, and a draining worker serves none."""
        await world.hire("readers", agents={"reader": "default"})
        for n, agent in enumerate((None, "default", "reader")):
            await world.accept("r1", thread=f"u{n}", agent=agent)
            assert await world.runs.explain(f"u{n}", "r1") == "waiting for a free worker"
        await world.hire("writers", agents={"writer": "default"})
        await world.workers.drain("writers")
        await world.accept("r1", agent="writer")
        assert await world.runs.explain(T, "r1") == "no live worker of queue default serves agent writer"
        await world.hire("any")
        assert await world.runs.explain(T, "r1") == "waiting for a free worker"

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

    async def test_lane_heads_are_queued_or_have_a_dead_worker(self, world: World) -> None:
        """W2: Heads are the queued heads of lanes, and running runs whose worker is dead. The runs behind them are no heads."""
        await world.start("dead")
        await world.accept("behind")
        await world.accept("queued", thread="u")
        await world.accept("late", thread="v", delay=3600)
        await world.suspended("suspended", thread="x")
        await world.start("alive", thread="y")

        async def heads() -> dict[str, bool]:
            return {head.job.run_id: head.orphaned for head in await world.workers.heads(unchanged=ZERO)}

        assert await heads() == {"queued": False}
        await world.hire("w2")
        await world.bury("w")
        assert await heads() == {"dead": True, "queued": False, "alive": True}
        assert await world.workers.heads(unchanged=timedelta(hours=1)) == []

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
    async def test_heads_say_which_orphans_wait_for_their_cancel(self, world: World, dies: str) -> None:
        """R10: A claim ends an orphaned run whose cancel was requested, also in a paused queue. The order of cancel and death
        does not matter."""
        await world.start("cancelled")
        await world.start("lost", thread="u")
        await world.backend.queues.pause("default")
        if dies == "first":
            await world.bury()
        await world.runs.cancel(T, "cancelled")
        if dies == "last":
            await world.bury()
        heads = await world.workers.heads(unchanged=ZERO)
        assert {head.job.run_id: head.cancelled for head in heads} == {"cancelled": True, "lost": False}
        claim = await world.claim("cancelled", worker="leader")
        assert claim.outcome == "ended" and [event.type for event in claim.effects.events] == ["run.cancelled"]
        assert await world.status("cancelled") is RunStatus.CANCELLED

    async def test_heads_by_keyset(self, world: World) -> None:
        """W2: Heads are read in pages, in the order of (thread_key, lane)."""
        for n in range(3):
            await world.accept("r", thread=f"t{n}")
        await world.accept("p", thread="t1", options=RunOptions(parallel=True))
        seen = []
        after: tuple[int, str] | None = None
        while page := await world.workers.heads(unchanged=ZERO, after=after, limit=2):
            seen += [(head.job.thread_key, head.job.lane) for head in page]
            after = seen[-1]
        assert len(seen) == 4 and seen == sorted(seen)
        assert {lane for _, lane in seen} == {MAIN_LANE, "p"}

    async def test_released_head_waits_for_its_time(self, world: World) -> None:
        await world.runs.release(await world.start("r1"), delay=3600)
        assert await world.workers.heads(unchanged=ZERO) == []
        await world.runs.cancel(T, "r1")
