"""Fan-outs in the store: the candidates, and the wait of a job for the runs that it started (F11, F5)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, ImagePart, Limit, Message, TextPart
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import Effects

from .world import T, World, said, user

pytestmark = pytest.mark.asyncio

ERROR = ErrorInfo(code="x", message="x")


class TestFanOut:
    """A job ``job`` on the thread, and runs that it started on other threads."""

    async def job(self, world: World) -> AttemptToken:
        await world.turn("before")
        await self.accept(world, user("a"))
        return await world.take("job")

    async def accept(self, world: World, *messages: Message, run_id: str = "job", **how: Any) -> bool:
        fork = ForkRequest(src=T, new=run_id, cut=Cut(), fan=FanOut(messages=messages, max_parallel=3, **how))
        request = AcceptRequest(thread_id=T, run_id=run_id, kind="fork_many", fork=fork)
        return (await world.runs.accept(request)).created

    async def child(self, world: World, thread: str) -> None:
        request = AcceptRequest(thread_id=thread, run_id="r", input=user("hi"), job=await world.ref("job"))
        await world.runs.accept(request)

    async def end(self, world: World, thread: str) -> list[str]:
        """Complete a run that the job started. Return the run ids of the jobs that its end submits."""
        return self.offered((await world.finish(await world.take("r", thread=thread), said("x"))).effects)

    def offered(self, effects: Effects) -> list[str]:
        return [job.run_id for job in effects.jobs if job.kind == "fork_many"]

    async def test_f11_the_candidates_come_back_as_they_were(self, world: World) -> None:
        """F11: The candidates and the options of the fan-out are read as they were given, in the same order."""
        messages = [
            user("plain"),
            user("odd \ud800 \0 words", metadata={"a": {"b": None}}),
            Message.user([TextPart(text="see"), ImagePart(url="https://example.org/x.png")]),
        ]
        await world.turn("before")
        await self.accept(world, *messages, stop="first", judge="critic", threads=True)
        claim = await world.claim("job")
        assert claim.fork is not None and claim.fork.fan is not None
        fan = claim.fork.fan
        stored = [(m.id, m.role, m.content, m.metadata) for m in fan.messages]
        assert stored == [(m.id, m.role, m.content, m.metadata) for m in messages]
        assert (fan.max_parallel, fan.stop, fan.judge, fan.threads) == (3, "first", "critic", True)

    async def test_f11_r2_the_same_job_again(self, world: World) -> None:
        """F11, R2: Other messages or another judge under the same job id raise RunConflictError."""
        await world.turn("before")
        assert await self.accept(world, user("a"), user("b"))
        assert not await self.accept(world, user("a"), user("b"))
        with pytest.raises(errors.RunConflictError):
            await self.accept(world, user("a"))
        with pytest.raises(errors.RunConflictError):
            await self.accept(world, user("a"), user("b"), judge="j")

    async def test_f11_a_job_waits_until_fewer_of_its_runs_are_unfinished(self, world: World) -> None:
        """F11, F5, R12: While ``until_fewer`` or more of its runs are live, the job cannot be claimed, and the reconciler
        does not submit it. The end of each run submits the job again."""
        attempt = await self.job(world)
        for n in range(3):
            await self.child(world, f"c{n}")
        ended = await world.runs.release(attempt, until_fewer=2)
        assert ended.status is RunStatus.QUEUED and not self.offered(ended.effects)
        assert (await world.claim("job")).outcome == "waiting"
        page = await world.workers.waiting(unchanged=timedelta(0))
        assert "job" not in [job.run_id for job in page.jobs]
        assert "runs that it started, 3 of them live" in await world.runs.explain(T, "job")

        for n, outcome in enumerate(("waiting", "claimed")):
            assert await self.end(world, f"c{n}") == ["job"]
            claim = await world.claim("job")
            assert claim.outcome == outcome
        assert claim.attempt is not None
        await world.runs.release(claim.attempt)
        assert (await world.claim("job")).outcome == "claimed"

    async def test_f11_a_run_that_ended_meanwhile_is_not_waited_for(self, world: World) -> None:
        """F11: A run may end after the job has checked its runs, but before the job is released. The release then submits the
        job."""
        attempt = await self.job(world)
        await self.child(world, "c")
        assert await self.end(world, "c") == ["job"]
        assert (await world.claim("job", worker="w2")).outcome == "busy"
        ended = await world.runs.release(attempt, until_fewer=1)
        assert self.offered(ended.effects) == ["job"]
        assert (await world.claim("job")).outcome == "claimed"

    @pytest.mark.parametrize("how", ["fail", "cancel", "delete", "takeover", "dead"])
    async def test_f11_every_end_of_a_run_counts(self, world: World, how: str) -> None:
        """F11, I1: Every kind of end of a run submits the job, including the deletion of the run's thread."""
        attempt = await self.job(world)
        await self.child(world, "c")
        await world.runs.release(attempt, until_fewer=1)
        match how:
            case "fail":
                effects = (await world.runs.fail(Write(attempt=await world.take("r", thread="c")), ERROR)).effects
            case "cancel":
                effects = (await world.runs.cancel("c", "r")).effects
            case "delete":
                effects = await world.threads.delete_thread("c", cancel=True)
            case "takeover":
                await world.take("r", thread="c")
                await world.runs.cancel("c", "r")
                await world.bury()
                effects = (await world.claim("r", thread="c", worker="w2")).effects
            case _:
                await world.crash("r", 3, thread="c")
                effects = (await world.claim("r", thread="c", worker="undertaker")).effects
        assert self.offered(effects) == ["job"]
        assert (await world.claim("job", worker="w3")).outcome == "claimed"

    async def test_f11_a_job_that_is_cancelled_waits_for_nothing(self, world: World) -> None:
        """R10: A waiting job is cancelled at once. The ends of its runs do not submit the cancelled job."""
        attempt = await self.job(world)
        await self.child(world, "c")
        await world.runs.release(attempt, until_fewer=1)
        assert (await world.runs.cancel(T, "job")).run.status is RunStatus.CANCELLED
        assert await self.end(world, "c") == []

    async def test_f11_a_deleted_source_leaves_the_threads(self, world: World) -> None:
        attempt = await self.job(world)
        ref = await world.ref("job")
        await self.child(world, "c")
        await world.runs.release(attempt, until_fewer=1)
        await world.threads.delete_thread(T, cancel=True)
        assert await self.end(world, "c") == []
        (claim,) = await world.runs.claim("w", [RunRef(ref.thread_key, "job")])
        assert claim.outcome in ("unknown", "ended")

    async def test_f9_an_agent_that_is_known_to_ask_is_refused_when_it_is_accepted(self, world: World) -> None:
        """F9: An agent that can ask a human is refused as agent of a probe and as judge. The call is refused at its acceptance,
        before the snapshot is read. The last registered worker with this agent decides whether the agent can ask."""
        await world.hire("asks", agents={"a": "default", "j": "default"}, asking=["j"])
        await world.accept("before")  # no run has completed, so the cut would be refused too
        probe = ForkRequest(src=T, new="p", cut=Cut())
        once = AcceptRequest(thread_id=T, run_id="p", kind="fork_once", agent="j", input=user("?"), fork=probe)
        many = replace(once, kind="fork_many", input=None)
        fan = FanOut(messages=[user("x")], max_parallel=1)
        judged = replace(many, agent="a", fork=replace(probe, fan=replace(fan, judge="j", threads=True)))
        for request in (once, replace(many, fork=replace(probe, fan=fan)), judged):
            with pytest.raises(errors.HitlNotAllowedError):
                await world.runs.accept(request)
        with pytest.raises(errors.RunNotCompletedError):
            await world.runs.accept(replace(once, agent="a"))
        await world.finish(await world.take("before"), said("x"))
        threads = replace(many, run_id="threads", fork=replace(probe, fan=replace(fan, threads=True)))
        assert (await world.runs.accept(threads)).created
        await world.hire("mended", agents={"j": "default"})
        assert (await world.runs.accept(once)).created

    async def test_f11_r16_each_candidate_is_a_message(self, world: World) -> None:
        """F11, R16: The size limit applies to each candidate, not to all together."""
        await world.turn("before")
        await world.backend.limits.set_limit(Limit(name="message_bytes", most=1000))
        assert await self.accept(world, *(user("x" * 500) for _ in range(5)))
        with pytest.raises(errors.MessageTooLargeError):
            await self.accept(world, user("x" * 2000), run_id="big")
