"""Records of fan-outs: the retention of the records, and records that a worker of the previous release wrote (F11, F14,
D4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.domain.derived_ids import candidate_id, first_prompt_id
from runyard.domain.fan_outs import Candidate, FanOutProgress, key_of
from runyard.models import JsonObject, Usage
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, Write
from runyard.ports.fan_outs import ProbeEnd
from runyard.ports.refs import AttemptToken
from runyard.ports.workers import Retention

from .fan_out import ERROR, SPENT, ended
from .world import T, World, said, user

pytestmark = pytest.mark.asyncio

EVERYTHING = Retention(results=timedelta(0))


class TestFanOutRecords:
    """A fork job ``job`` on the thread."""

    async def job(self, world: World, total: int = 4, **how: Any) -> AttemptToken:
        await world.turn("before")
        fan = FanOut(messages=[user(f"m{n}") for n in range(total)], max_parallel=3, **how)
        fork = ForkRequest(src=T, new="job", cut=Cut(), fan=fan)
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="job", kind="fork_many", fork=fork))
        return await world.take("job")

    async def statuses(self, world: World) -> list[str]:
        return [one.status for one in await self.candidates(world)]

    async def candidates(self, world: World) -> list[Candidate]:
        return (await world.backend.fan_outs.candidates(T, "job")).items

    async def progress(self, world: World) -> FanOutProgress:
        return await world.backend.fan_outs.progress(T, "job")

    @pytest.mark.parametrize("over", [False, True])
    async def test_f14_a_probe_that_the_previous_release_recorded_has_its_status(self, world: World, over: bool) -> None:
        """F14, F11: In a record of the previous release, a probe has a stop reason and no outcome. The stop reason determines
        the status of the probe, while the fork job runs and after its end."""
        attempt = await self.job(world)
        for number, reason in enumerate(("stop", "error", "aborted")):
            answer: JsonObject = {"text": f"t{number}", "messages": [], "stop_reason": reason, "error": None, "thread_id": None}
            await world.runs.finish_step(attempt, key_of(number), answer)
        if over:
            await world.finish(attempt, result={"winner": None, "verdict": None})
        assert await self.statuses(world) == ["completed", "failed", "cancelled", "cancelled" if over else "queued"]
        assert [one.text for one in await self.candidates(world)] == ["t0", "t1", "t2", ""]
        found = await self.progress(world)
        assert (found.completed, found.failed, found.cancelled) == (1, 1, 2 if over else 1)

    async def test_f14_the_start_of_a_thread_that_the_previous_release_recorded_is_replaced(self, world: World) -> None:
        """F14, F11: A worker of the previous release records the start of a candidate's thread. The first record of the
        candidate's end replaces this record. Later records change nothing."""
        attempt = await self.job(world, 2, threads=True)
        await world.runs.finish_step(attempt, key_of(0), {"thread_id": "x"})
        store = world.backend.fan_outs
        for outcome in ("failed", "completed"):
            await store.end(attempt, [ProbeEnd(key_of(0), outcome, SPENT, {"stop_reason": "stop"})])
        step = (await world.runs.ledger(attempt)).steps[key_of(0)]
        assert step.done and step.outcome == "failed"
        assert (await self.progress(world)).usage == SPENT and (await world.run("job")).usage == Usage()

    @pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
    async def test_d4_a_fan_out_expires_however_it_ended(self, world: World, how: str) -> None:
        """D4: The messages and answers are deleted after their retention. The run and its id stay."""
        attempt = await self.job(world)
        await world.backend.fan_outs.end(attempt, [ended(0)])
        match how:
            case "complete":
                await world.finish(attempt, result={"winner": None, "verdict": None})
            case "fail":
                await world.runs.fail(Write(attempt=attempt), ERROR)
            case _:
                await world.runs.cancel(T, "job")
                await world.runs.release(attempt)
        await world.workers.prune(Retention())
        assert (await self.progress(world)).completed == 1
        await world.workers.prune(EVERYTHING)
        for call in (self.progress(world), self.candidates(world)):
            with pytest.raises(errors.ResultExpiredError):
                await call
        assert (await world.runs.ledger(attempt)).steps == {}
        assert await world.backend.fan_outs.messages(attempt, []) == {}
        run = await world.run("job")
        assert (run.run_id, run.deleted_at, run.result, run.usage) == ("job", None, None, SPENT)
        if how == "fail":
            with pytest.raises(errors.ResultExpiredError):
                await world.runs.redrive(T, "job")

    async def test_d4_a_redriven_fan_out_does_not_expire(self, world: World) -> None:
        """D4, R6: After a redrive, the fork job is live again. Its messages and answers are therefore not deleted."""
        attempt = await self.job(world)
        await world.backend.fan_outs.end(attempt, [ended(0)])
        await world.runs.fail(Write(attempt=attempt), ERROR)
        await world.runs.redrive(T, "job")
        await world.workers.prune(EVERYTHING)
        again = await world.take("job")
        assert [one.text for one in (await world.backend.fan_outs.messages(again, [0, 3])).values()] == ["m0", "m3"]
        assert await self.statuses(world) == ["completed", "queued", "queued", "queued"]

    async def test_f14_d1_a_deleted_run_of_a_candidate_keeps_its_record(self, world: World) -> None:
        """F14, D1: The run of a candidate failed, and its content is deleted. The candidate keeps its recorded status and
        usage."""
        attempt = await self.job(world, 1, threads=True)
        thread, run = await self.started(world)
        other = await world.take(run, thread=thread)
        await world.runs.append(other, [said("secret")])
        await world.runs.fail(Write(attempt=other, usage=SPENT), ERROR)
        await world.backend.fan_outs.end(attempt, [ProbeEnd(key_of(0), "failed", SPENT, {"stop_reason": "error"})])
        [before] = await self.candidates(world)
        assert [message.text for message in before.messages] == ["?", "secret"] and before.error == ERROR
        await world.runs.delete_run(thread, run)
        [found] = await self.candidates(world)
        assert (found.status, found.messages, found.usage, found.thread_id) == ("failed", [], SPENT, thread)

    async def started(self, world: World) -> tuple[str, str]:
        """Start the run of the first candidate. Return the ids of its thread and its run."""
        thread = candidate_id(T, "job", 0)
        request = AcceptRequest(thread_id=thread, run_id=first_prompt_id(thread), input=user("?"), job=await world.ref("job"))
        await world.runs.accept(request)
        return thread, request.run_id
