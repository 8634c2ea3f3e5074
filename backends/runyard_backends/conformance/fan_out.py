"""Fan-outs in the store: their candidates, their progress and their usage (F11, F14, F15). A fork job waits for the runs that
it started (F5)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.domain.derived_ids import candidate_id, first_prompt_id
from runyard.domain.fan_outs import JUDGE, MAX_CANDIDATES, Candidate, CandidateStatus, key_of
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, HitlRequest, ImagePart, JsonObject, Limit, Message, TextPart, Usage
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, Write
from runyard.ports.fan_outs import FanOutStore, ProbeEnd
from runyard.ports.queries import PageRequest
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import Effects
from runyard.ports.workers import Retention

from .. import cursors
from .world import T, World, said, user

pytestmark = pytest.mark.asyncio

ERROR = ErrorInfo(code="x", message="x")


class TestFanOut:
    """A fork job ``job`` on the thread, and runs that it started on other threads."""

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
        """Complete a run that the fork job started. Return the run ids of the jobs that its end submits."""
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
        assert claim.fork is not None and claim.fork.fan is not None and claim.attempt is not None
        fan = claim.fork.fan
        found = await world.backend.fan_outs.messages(claim.attempt, [2, 0, 1])
        stored = [(m.id, m.role, m.content, m.metadata) for m in (found[n] for n in range(fan.total))]
        assert stored == [(m.id, m.role, m.content, m.metadata) for m in messages]
        assert (fan.total, fan.max_parallel, fan.stop, fan.judge, fan.threads) == (3, 3, "first", "critic", True)

    async def test_f11_r2_the_same_job_again(self, world: World) -> None:
        """F11, R2: Other messages or another judge under the same run id raise RunConflictError."""
        await world.turn("before")
        assert await self.accept(world, user("a"), user("b"))
        assert not await self.accept(world, user("a"), user("b"))
        with pytest.raises(errors.RunConflictError):
            await self.accept(world, user("a"))
        with pytest.raises(errors.RunConflictError):
            await self.accept(world, user("a"), user("b"), judge="j")

    async def test_f11_a_job_waits_until_fewer_of_its_runs_are_unfinished(self, world: World) -> None:
        """F11, F5, R12: A fork job waits while ``until_fewer`` or more of its started runs are live. Meanwhile the fork job
        cannot be claimed, and the reconciler does not submit the fork job. The end of each run submits the fork job again."""
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
        """F11: A run can end after the fork job has checked its runs, but before the fork job is released. The release then
        submits the fork job again."""
        attempt = await self.job(world)
        await self.child(world, "c")
        assert await self.end(world, "c") == ["job"]
        assert (await world.claim("job", worker="w2")).outcome == "busy"
        ended = await world.runs.release(attempt, until_fewer=1)
        assert self.offered(ended.effects) == ["job"]
        assert (await world.claim("job")).outcome == "claimed"

    @pytest.mark.parametrize("how", ["fail", "cancel", "delete", "takeover", "dead"])
    async def test_f11_every_end_of_a_run_counts(self, world: World, how: str) -> None:
        """F11, I1: When a started run ends, the fork job is submitted. The deletion of the run's thread also ends the run."""
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
        """R10: A waiting fork job is cancelled at once. The end of a run that the fork job started does not submit the
        cancelled fork job."""
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
        """F9: An agent that can ask a human is refused as agent of a probe and as judge. ``accept`` refuses the fork job,
        before the snapshot is read. The newest registration of a worker with this agent says whether the agent can ask."""
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
        """F11, R16: The size limit applies to the message of each candidate, and not to the sum of all messages."""
        await world.turn("before")
        await world.backend.limits.set_limit(Limit(name="message_bytes", most=1000))
        assert await self.accept(world, *(user("x" * 500) for _ in range(5)))
        with pytest.raises(errors.MessageTooLargeError):
            await self.accept(world, user("x" * 2000), run_id="big")


SPENT = Usage(requests=1, input_tokens=10, output_tokens=2, cost=0.5)


def ended(number: int, outcome: CandidateStatus = "completed", text: str = "x", usage: Usage = SPENT) -> ProbeEnd:
    """Return the end of a probe as a fork job records it."""
    reason = {"completed": "stop", "failed": "error", "cancelled": "cancelled"}[outcome]
    value: JsonObject = {"text": text, "messages": [said(text).model_dump(mode="json")], "stop_reason": reason}
    if outcome == "failed":
        value["error"] = ERROR.model_dump(mode="json")
    return ProbeEnd(key_of(number), outcome, usage, value)


class TestFanOutProgress:
    """A fork job ``job`` on the thread with five candidates."""

    async def job(self, world: World, total: int = 5, **how: Any) -> AttemptToken:
        await world.turn("before")
        messages = [user(f"m{n}") for n in range(total)]
        fork = ForkRequest(src=T, new="job", cut=Cut(), fan=FanOut(messages=messages, max_parallel=3, **how))
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="job", kind="fork_many", fork=fork))
        return await world.take("job")

    async def counts(self, world: World) -> dict[str, int]:
        """Return the counts that are not 0."""
        progress = await world.backend.fan_outs.progress(T, "job")
        found = progress.model_dump(exclude={"usage", "total"})
        assert sum(found.values()) == progress.total
        return {name: count for name, count in found.items() if count}

    async def all(self, world: World, limit: int = 100) -> list[Candidate]:
        """Return the candidates of every page."""
        found, cursor = list[Candidate](), None
        while True:
            page = await world.backend.fan_outs.candidates(T, "job", PageRequest(limit=limit, cursor=cursor))
            assert len(page.items) <= limit
            found += page.items
            if (cursor := page.next) is None:
                return found

    async def start_thread(self, world: World, number: int) -> tuple[str, str]:
        """Start a candidate's run. Return the ids of its thread and its run."""
        thread = candidate_id(T, "job", number)
        run = first_prompt_id(thread)
        request = AcceptRequest(thread_id=thread, run_id=run, input=user("?"), job=await world.ref("job"))
        await world.runs.accept(request)
        return thread, run

    async def test_f14_probes_are_counted_while_the_job_runs(self, world: World) -> None:
        """F14: A candidate counts as running only during the attempt that began the candidate. The usage in the progress is the
        sum over the probes that have ended."""
        attempt = await self.job(world)
        assert await self.counts(world) == {"queued": 5}
        await world.backend.fan_outs.begin(attempt, [0, 1, 2])
        await world.backend.fan_outs.end(attempt, [ended(0), ended(2, "failed")])
        assert await self.counts(world) == {"queued": 2, "running": 1, "completed": 1, "failed": 1}
        assert (await world.backend.fan_outs.progress(T, "job")).usage == SPENT + SPENT
        await world.runs.release(attempt)
        assert await self.counts(world) == {"queued": 3, "completed": 1, "failed": 1}
        again = await world.take("job")
        assert await self.counts(world) == {"queued": 3, "completed": 1, "failed": 1}
        await world.backend.fan_outs.begin(again, [1])
        assert await self.counts(world) == {"queued": 2, "running": 1, "completed": 1, "failed": 1}

    async def test_f14_the_usage_of_each_probe_counts_once(self, world: World) -> None:
        """F14, I1: The usage of a probe counts from the record of its end on. A later death of the worker does not matter. A
        repeated record adds nothing. The usage of the judge also counts."""
        attempt = await self.job(world)
        await world.backend.fan_outs.end(attempt, [ended(0)])
        await world.backend.fan_outs.end(attempt, [ended(0), ended(1)])
        assert (await world.run("job")).usage == SPENT + SPENT
        await world.bury()
        again = await world.take("job", worker="w2")
        await world.backend.fan_outs.end(again, [ended(1, text="other"), ended(2)])
        await world.backend.fan_outs.end(again, [ProbeEnd(JUDGE, None, SPENT, {"winner": 2, "verdict": None})])
        await world.backend.fan_outs.end(again, [ProbeEnd(JUDGE, None, SPENT, {"winner": 1, "verdict": None})])
        assert [step.result for step in (await world.runs.ledger(again)).steps.values() if step.key == JUDGE] == [
            {"winner": 2, "verdict": None}
        ]
        left = Usage(requests=1)
        await world.finish(again, result={"winner": 2, "verdict": None}, usage=left)
        total = SPENT + SPENT + SPENT + SPENT + left
        assert (await world.run("job")).usage == total
        assert (await world.backend.fan_outs.progress(T, "job")).usage == total
        assert [one.text for one in await self.all(world)][:3] == ["x", "x", "x"]
        assert await self.counts(world) == {"completed": 3, "cancelled": 2}

    async def test_f14_runs_on_threads_are_counted_live(self, world: World) -> None:
        """F14: The status and the usage of a candidate with a thread are the status and the usage of its run."""
        attempt = await self.job(world, threads=True)
        ids = [await self.start_thread(world, n) for n in range(4)]
        await world.backend.fan_outs.begin(attempt, [0, 1, 2, 3])
        assert await self.counts(world) == {"queued": 5}
        held = [await world.take(run, thread=thread) for thread, run in ids[:3]]
        await world.ask(held[1], HitlRequest(request_id="q", payload={"question": "?"}))
        await world.finish(held[2], said("x"), usage=SPENT)
        assert await self.counts(world) == {"queued": 2, "running": 1, "parked": 1, "completed": 1}
        assert (await world.backend.fan_outs.progress(T, "job")).usage == SPENT
        assert (await world.run("job")).usage == Usage()
        found = await self.all(world)
        assert [one.thread_id for one in found] == [*(thread for thread, _ in ids), None]
        assert [one.text for one in found] == ["", "", "x", "", ""]
        assert [one.stop_reason for one in found] == [None, None, "stop", None, None]

    async def test_f14_a_deleted_thread_keeps_its_recorded_usage(self, world: World) -> None:
        """F14, D1: After the deletion of its thread, a candidate keeps its recorded usage, but no content. A candidate whose
        end was not recorded counts as cancelled."""
        attempt = await self.job(world, threads=True)
        ids = [await self.start_thread(world, n) for n in range(2)]
        await world.backend.fan_outs.begin(attempt, [0, 1])
        (thread, run), (other, _) = ids
        await world.finish(await world.take(run, thread=thread), said("secret"), usage=SPENT)
        recorded = ProbeEnd(key_of(0), "completed", SPENT, {"stop_reason": "stop"})
        await world.backend.fan_outs.end(attempt, [recorded])
        for each in (thread, other):
            await world.threads.delete_thread(each, cancel=True)
        assert await self.counts(world) == {"queued": 3, "completed": 1, "cancelled": 1}
        assert (await world.backend.fan_outs.progress(T, "job")).usage == SPENT
        first = (await self.all(world))[0]
        assert (first.status, first.text, first.messages, first.usage) == ("completed", "", [], SPENT)

    @pytest.mark.parametrize("how", ["cancel", "fail"])
    async def test_f14_after_the_job_no_probe_is_running(self, world: World, how: str) -> None:
        """F14, R10: When the fork job ends, its unfinished probes count as cancelled. Answers of finished probes stay
        readable."""
        attempt = await self.job(world)
        await world.backend.fan_outs.begin(attempt, [0, 1])
        await world.backend.fan_outs.end(attempt, [ended(0)])
        if how == "cancel":
            await world.runs.cancel(T, "job")
            with pytest.raises(errors.CancelRequestedError):
                await world.backend.fan_outs.end(attempt, [ended(1)])
            await world.runs.release(attempt)
        else:
            await world.runs.fail(Write(attempt=attempt), ERROR)
        assert await self.counts(world) == {"completed": 1, "cancelled": 4}
        assert (await world.backend.fan_outs.progress(T, "job")).usage == SPENT
        assert [one.stop_reason for one in await self.all(world)] == ["stop", *["cancelled"] * 4]

    async def test_f14_i2_an_attempt_that_lost_the_job_records_nothing(self, world: World) -> None:
        """F14, I2: The attempt of a dead worker cannot begin or end a candidate, or read a message."""
        attempt = await self.job(world)
        await world.bury()
        await world.take("job", worker="w2")
        store = world.backend.fan_outs
        for call in (store.begin(attempt, [0]), store.end(attempt, [ended(0)]), store.messages(attempt, [0])):
            with pytest.raises(errors.StaleFenceError):
                await call
        assert await self.counts(world) == {"queued": 5}

    async def test_f15_pages_have_every_candidate_once(self, world: World) -> None:
        """F15: Pages of any size have the candidates in their order, while the fork job runs."""
        attempt = await self.job(world, 7)
        await world.backend.fan_outs.end(attempt, [ended(n, text=str(n)) for n in (1, 2, 6)])
        for limit in (1, 2, 3, 7, 100):
            found = await self.all(world, limit)
            assert [one.number for one in found] == list(range(7))
            assert [one.text for one in found] == ["", "1", "2", "", "", "", "6"]

    async def test_f15_a_cursor_of_another_list(self, world: World) -> None:
        await self.job(world, 2)
        for cursor in ("x", *map(cursors.encode, (2, -1, True, "1", [1], 2**40))):
            with pytest.raises(errors.InvalidCursorError):
                await world.backend.fan_outs.candidates(T, "job", PageRequest(cursor=cursor))

    async def test_f15_f14_d4_what_cannot_be_read(self, world: World) -> None:
        """F14, F15, A1, D4: The reads of progress and candidates are refused for an unknown run or thread, and for a run that
        is no fan-out. They are also refused for a fan-out of another tenant, after the expiry of the result, and after the
        deletion of the thread."""
        attempt = await self.job(world)
        await world.finish(attempt, result={"winner": None, "verdict": None})
        store = world.backend.fan_outs
        other = (await world.factory("other")).fan_outs

        async def refused(error: type[errors.RunyardError], store: FanOutStore, thread: str, run: str) -> None:
            for call in (store.progress(thread, run), store.candidates(thread, run)):
                with pytest.raises(error):
                    await call

        await refused(errors.InvalidInputError, store, T, "before")
        await refused(errors.RunNotFoundError, store, T, "none")
        await refused(errors.ThreadNotFoundError, store, "none", "job")
        await refused(errors.ThreadNotFoundError, other, T, "job")
        await world.workers.prune(Retention(results=timedelta(0)))
        await refused(errors.ResultExpiredError, store, T, "job")
        await world.threads.delete_thread(T)
        await refused(errors.ThreadNotFoundError, store, T, "job")

    async def test_f15_a_deleted_job_has_no_candidates(self, world: World) -> None:
        """F15, D1: Deleting the content of a fan-out's run deletes the messages and answers of its candidates."""
        attempt = await self.job(world)
        await world.backend.fan_outs.end(attempt, [ended(0)])
        await world.runs.fail(Write(attempt=attempt), ERROR)
        await world.runs.delete_run(T, "job")
        with pytest.raises(errors.ResultExpiredError):
            await world.backend.fan_outs.candidates(T, "job")

    async def test_f15_a_thousand_messages(self, world: World) -> None:
        """F15, R2: A large fan-out has all its messages with their ids. A repeated call finds the same fork job."""
        await world.turn("before")
        messages = [user(f"m{n}") for n in range(MAX_CANDIDATES)]
        fork = ForkRequest(src=T, new="job", cut=Cut(), fan=FanOut(messages=messages, max_parallel=3))
        request = AcceptRequest(thread_id=T, run_id="job", kind="fork_many", fork=fork)
        assert (await world.runs.accept(request)).created
        assert not (await world.runs.accept(request)).created
        changed = replace(fork, fan=FanOut(messages=[*messages[:-1], user("another")], max_parallel=3))
        with pytest.raises(errors.RunConflictError):
            await world.runs.accept(replace(request, fork=changed))
        claim = await world.claim("job")
        assert claim.attempt is not None and claim.fork is not None and claim.fork.fan is not None
        assert claim.fork.fan.total == MAX_CANDIDATES
        found = await world.backend.fan_outs.messages(claim.attempt, range(MAX_CANDIDATES))
        assert [(found[n].id, found[n].text) for n in range(MAX_CANDIDATES)] == [(m.id, m.text) for m in messages]
        assert await self.counts(world) == {"queued": MAX_CANDIDATES}
