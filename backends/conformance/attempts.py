"""Attempts: claims, fenced writes, ends, crashes, retries, cancels."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from runner import errors
from runner.eventdata import check_event_data
from runner.exchange import EVENTS_BYTES, AcceptRequest, Attempt, RunRef, Write
from runner.models import ErrorInfo, Event, HitlRequest, Message, Usage, new_id
from runner.states import RunStatus

from .world import T, World, call, result, said, texts, user

pytestmark = pytest.mark.asyncio


class TestAttempts:
    async def test_claim_needs_a_living_worker(self, world: World) -> None:
        await world.accept("r1")
        ref = await world.ref("r1")
        with pytest.raises(errors.WorkerDeadError):
            await world.runs.claim("nobody", [ref])
        await world.hire("w")
        await world.bury("w")
        with pytest.raises(errors.WorkerDeadError):
            await world.runs.claim("w", [ref])

    async def test_unknown_claims(self, world: World) -> None:
        await world.hire()
        await world.accept("r1")
        ref = await world.ref("r1")
        claims = await world.runs.claim("w", [RunRef(ref.thread_key, "nope")])
        assert claims[0].outcome == "unknown"
        assert (await world.runs.claim("w", [RunRef(ref.thread_key + 99999, "r1")]))[0].outcome == "unknown"

    async def test_second_claim_is_busy(self, world: World) -> None:
        """I2: one live attempt."""
        await world.start("r1")
        assert (await world.claim("r1", worker="other")).outcome == "busy"

    async def test_fences_grow_and_stale_writes_are_refused(self, world: World) -> None:
        """I2: every write carries the fence."""
        old = await world.start("r1")
        await world.bury("w")
        claim = await world.claim("r1", worker="w2")
        assert claim.takeover and claim.attempt is not None and claim.attempt.fence > old.fence
        error = ErrorInfo(code="x", message="x")
        for write in (
            world.runs.append(old, [said("zombie")]),
            world.runs.start_step(old, "k"),
            world.runs.finish_step(old, "k", 1),
            world.runs.context(old),
            world.finish(old, said("zombie")),
            world.runs.suspend(Write(attempt=old), []),
            world.runs.fail(Write(attempt=old), error),
            world.runs.release(old),
        ):
            with pytest.raises(errors.StaleFenceError):
                await write
        await world.finish(claim.attempt, said("alive"))
        assert await world.texts() == ["hi", "alive"]

    async def test_append_then_complete(self, world: World) -> None:
        """R6: seq, parents and times are the store's; messages count once the run completed."""
        attempt = await world.start("r1")
        first, second = await world.runs.append(attempt, [said("one"), said("two")])
        assert first.seq is not None and second.seq == first.seq + 1 and second.parent_id == first.id
        assert first.run_id == "r1" and first.created_at is not None
        assert await world.texts() == []
        await world.finish(attempt, said("three"), result={"n": 1}, usage=Usage(requests=1, input_tokens=5))
        messages = await world.messages()
        assert texts(messages) == ["hi", "one", "two", "three"]
        assert [m.parent_id for m in messages] == [None, *(m.id for m in messages[:-1])]
        assert [m.seq for m in messages] == [1, 2, 3, 4]
        run = await world.run("r1")
        assert (run.completion_seq, run.result, run.usage.input_tokens) == (1, {"n": 1}, 5)

    @pytest.mark.parametrize(
        "usage",
        [
            Usage(cost=math.inf),
            Usage(cost=math.nan),
            Usage(input_tokens=2**63),
            Usage(input_tokens=10**5000),
            Usage(requests=-1),
        ],
    )
    async def test_usage_that_is_no_amount_is_refused(self, world: World, usage: Usage) -> None:
        """R6: nothing of the write is kept, and the attempt goes on."""
        attempt = await world.start("r1")
        write, error = Write(attempt=attempt, messages=[said("no")], usage=usage), ErrorInfo(code="x", message="x")
        for refused in (
            world.finish(attempt, said("no"), usage=usage),
            world.runs.suspend(write, [HitlRequest()]),
            world.runs.fail(write, error),
            world.runs.append(attempt, [said("no", usage=usage)]),
        ):
            with pytest.raises(errors.InvalidInputError, match="usage"):
                await refused
        most = Usage(input_tokens=2**63 - 1, cost=0.5)
        await world.finish(attempt, said("yes"), usage=most)
        assert await world.texts() == ["hi", "yes"]
        assert (await world.run("r1")).usage == most

    @pytest.mark.parametrize("value", [math.nan, 10**5000, "\ud800", "\0"], ids=["nan", "endless", "surrogate", "nul"])
    async def test_an_error_that_is_no_json_is_refused(self, world: World, value: Any) -> None:
        """R7: the attempt goes on."""
        attempt = await world.start("r1")
        error = ErrorInfo(code="x", message="x").model_copy(update={"details": {"value": value}})
        with pytest.raises(errors.InvalidInputError):
            await world.runs.fail(Write(attempt=attempt), error)
        with pytest.raises(errors.InvalidInputError):
            await world.runs.release(attempt, error=error)
        assert (await world.finish(attempt, said("yes"))).status is RunStatus.COMPLETED

    async def test_repeated_append_is_stored_once(self, world: World) -> None:
        """I3: a write whose answer got lost is repeated with the same message ids."""
        attempt = await world.start("r1")
        message = said("once")
        (first,) = await world.runs.append(attempt, [message])
        (second,) = await world.runs.append(attempt, [message])
        assert first.seq == second.seq
        await world.finish(attempt)
        assert await world.texts() == ["hi", "once"]

    async def test_said_again_in_other_words(self, world: World) -> None:
        """I3: an append answers what is stored, so that no event says anything else."""
        message = said("one", metadata={"k": 1})
        (stored,) = await world.runs.append(await world.start("r1"), [message])
        await world.bury()
        attempt = await world.take("r1", worker="w2")
        fresh = said("fresh")
        again, new = await world.runs.append(attempt, [said("other", id=message.id), fresh])
        assert again == stored and (again.text, again.metadata) == ("one", {"k": 1})
        assert (new.text, new.parent_id) == ("fresh", message.id)
        assert await world.runs.context(attempt) == [*(await world.runs.context(attempt))[:1], stored, new]

    async def test_new_messages_beside_repeated_ones_are_stored(self, world: World) -> None:
        """I3, R6: a later attempt says again what an earlier one committed, under the same ids, and goes on from there."""
        one, two, three = said("one"), said("two"), said("three")
        await world.runs.append(await world.start("r1"), [one])
        await world.bury()
        attempt = await world.take("r1", worker="w2")
        stored = await world.runs.append(attempt, [one, two, one])
        assert [message.seq for message in stored] == [2, 3, 2]
        await world.finish(attempt, one, two, three, extra={"k": 1}, usage=Usage(input_tokens=5), result="done")
        messages = await world.messages()
        assert texts(messages) == ["hi", "one", "two", "three"]
        assert [m.parent_id for m in messages] == [None, *(m.id for m in messages[:-1])]
        run, thread = await world.run("r1"), await world.threads.thread(T)
        assert thread is not None and (thread.extra, run.result, run.usage.input_tokens) == ({"k": 1}, "done", 5)

    async def test_message_id_of_another_run_is_refused(self, world: World) -> None:
        """B2: an id names one message of its thread; what the run has said so far stays."""
        first = said("first")
        await world.finish(await world.start("r1"), first)
        attempt, other = await world.start("r2"), Message.assistant("other", id=first.id)
        for messages in ([other], [said("new"), other]):
            with pytest.raises(errors.InvalidInputError):
                await world.runs.append(attempt, messages)
            with pytest.raises(errors.InvalidInputError):
                await world.finish(attempt, *messages)
        assert await world.context(attempt) == ["hi", "first", "hi"]
        await world.finish(attempt, said("second"))
        assert await world.texts() == ["hi", "first", "hi", "second"]

    async def test_prompt_with_a_message_id_that_is_taken_fails(self, world: World) -> None:
        """B2: at its claim, whoever brought the message first; the lane moves on. Other threads may have the same message."""
        message = user("same")
        for run_id, thread in (("r1", T), ("r2", T), ("r1", "u")):
            await world.runs.accept(AcceptRequest(thread_id=thread, run_id=run_id, input=message))
        await world.accept("r3")
        ended = await world.finish(await world.take("r1"))
        assert [job.run_id for job in ended.effects.jobs] == ["r2"]
        claim = await world.claim("r2")
        assert claim.outcome == "ended" and [job.run_id for job in claim.effects.jobs] == ["r3"]
        assert [event.type for event in claim.effects.events] == ["run.failed"]
        run = await world.run("r2")
        assert run.error is not None and (run.status, run.error.code) == (RunStatus.FAILED, "invalid_input")
        await world.finish(await world.take("r3"))
        await world.finish(await world.take("r1", thread="u"))
        assert [await world.texts(), await world.texts("u")] == [["same", "hi"], ["same"]]

    async def test_repeated_complete_is_one_completion(self, world: World) -> None:
        """I3, R6: a complete whose answer got lost."""
        attempt = await world.start("r1")
        message = said("done")
        first = await world.finish(attempt, message)
        second = await world.finish(attempt, message)
        assert (first.status, first.event_id) == (second.status, second.event_id)
        assert await world.texts() == ["hi", "done"] and (await world.run("r1")).completion_seq == 1

    async def test_complete_many(self, world: World) -> None:
        """Each write of a batch has its own answer."""
        good, bad = await world.start("r1"), await world.start("r2", thread="u")
        stale = Attempt(bad.thread_key, bad.run_id, bad.fence + 1000)
        done, refused = await world.runs.complete([Write(attempt=good, messages=[said("x")]), Write(attempt=stale)])
        assert not isinstance(done, Exception) and done.status is RunStatus.COMPLETED
        assert isinstance(refused, errors.StaleFenceError)
        assert await world.status("r2", "u") is RunStatus.RUNNING

    @pytest.mark.parametrize(
        "own",
        [
            [call("a")],
            [call("a"), said("no result")],
            [result("a")],
            [call("a", "b"), result("a")],
            [call("a"), result("a"), result("a")],
            [call("a"), said("between"), result("a")],
            [call("a"), call("b"), result("a", "b")],
        ],
        ids=lambda own: "-".join(texts(own)),
    )
    async def test_incomplete_tool_cycle_fails(self, world: World, own: list[Message]) -> None:
        """R5, I7: what was written is kept for inspection and stays out of every context and fork."""
        attempt = await world.start("r1")
        ended = await world.finish(attempt, *own)
        assert ended.status is RunStatus.FAILED and ended.error is not None and ended.error.code == "incomplete_tool_cycle"
        run = await world.run("r1")
        assert run.completion_seq is None and run.error is not None
        assert await world.texts() == []
        (leaf,) = await world.leaves()
        assert leaf.run_status is RunStatus.FAILED
        assert await world.texts(leaf=leaf.message_id) == ["hi", *texts(own)]

    @pytest.mark.parametrize(
        "own",
        [
            [call("a"), result("a"), said("x")],
            [call("a", "b"), result("a"), result("b")],
            [call("a"), result("a"), call("b"), result("b")],
        ],
        ids=lambda own: "-".join(texts(own)),
    )
    async def test_complete_tool_cycles(self, world: World, own: list[Message]) -> None:
        """R5: each call directly followed by its results."""
        ended = await world.finish(await world.start("r1"), *own)
        assert ended.status is RunStatus.COMPLETED

    async def test_fail_keeps_messages_out_of_context(self, world: World) -> None:
        """R7: no completion_seq, never in a later context."""
        await world.turn("r1")
        await world.failed("r2")
        run = await world.run("r2")
        assert (run.status, run.completion_seq, run.error and run.error.code) == (RunStatus.FAILED, None, "x")
        assert await world.context(await world.start("r3", "r3?")) == ["r1?", "r1!", "r3?"]

    @pytest.mark.parametrize("words", ["nul \0", "lone \ud800"], ids=["nul", "surrogate"])
    async def test_an_error_that_cannot_be_stored(self, world: World, words: str) -> None:
        attempt = await world.start("r1")
        for error in (ErrorInfo(code="x", message=words), ErrorInfo(code="x", message="x", details={"k": [words]})):
            with pytest.raises(errors.InvalidInputError):
                await world.runs.fail(Write(attempt=attempt), error)
            with pytest.raises(errors.InvalidInputError):
                await world.runs.release(attempt, error=error)
        assert (await world.run("r1")).status is RunStatus.RUNNING

    async def test_crash_resumes_from_the_last_committed_message(self, world: World) -> None:
        """R9: the same run, the same snapshot, what it wrote before."""
        await world.turn("r0")
        attempt = await world.start("r1")
        (stored,) = await world.runs.append(attempt, [said("half")])
        await world.bury("w")
        claim = await world.claim("r1", worker="w2")
        assert claim.leaf_id == stored.id and claim.attempt is not None
        assert claim.run is not None and (claim.run.attempt, claim.run.crash_count) == (2, 1)
        assert await world.context(claim.attempt) == ["r0?", "r0!", "hi", "half"]

    async def test_own_lost_task_is_no_crash(self, world: World) -> None:
        attempt = await world.start("r1")
        again = await world.take("r1")
        assert again.fence > attempt.fence and (await world.run("r1")).crash_count == 0

    async def test_release_counts_only_errors(self, world: World) -> None:
        """R11: a retry counts, a hand-over does not."""
        attempt = await world.start("r1")
        ended = await world.runs.release(attempt)
        assert ended.status is RunStatus.QUEUED and [job.run_id for job in ended.effects.jobs] == ["r1"]
        assert (await world.run("r1")).error_count == 0
        attempt = await world.take("r1")
        ended = await world.runs.release(attempt, delay=3600, error=ErrorInfo(code="flaky", message="again"))
        assert ended.effects.jobs[0].delay > 3500
        assert (await world.run("r1")).error_count == 1
        claim = await world.claim("r1")
        assert claim.outcome == "not_due" and claim.retry_in is not None and claim.retry_in > 3500

    async def test_steps_are_recorded_once(self, world: World) -> None:
        """semantics E, ledger: a later attempt finds what an earlier one finished or started."""
        attempt = await world.start("r1")
        assert await world.runs.start_step(attempt, "a") is None
        await world.runs.finish_step(attempt, "a", {"n": 1})
        assert await world.runs.start_step(attempt, "b") is None
        await world.runs.release(attempt)
        attempt = await world.take("r1")
        done, begun = await world.runs.start_step(attempt, "a"), await world.runs.start_step(attempt, "b")
        assert done is not None and done.done and done.result == {"n": 1}
        assert begun is not None and not begun.done
        ledger = await world.runs.ledger(attempt)
        assert {key: step.done for key, step in ledger.steps.items()} == {"a": True, "b": False}

    async def test_repeated_step_calls_are_one_step(self, world: World) -> None:
        """Ledger: an attempt that repeats a call whose answer got lost is not told that the step's end is unknown."""
        attempt = await world.start("r1")
        assert await world.runs.start_step(attempt, "a") is None
        assert await world.runs.start_step(attempt, "a") is None
        await world.runs.finish_step(attempt, "a", 1)
        await world.runs.finish_step(attempt, "a", 2)  # what is recorded stays
        done = await world.runs.start_step(attempt, "a")
        assert done is not None and (done.done, done.result) == (True, 1)

    async def test_the_ledger_says_which_attempt_started_a_step(self, world: World) -> None:
        """Ledger: each start whose end is unknown is told from the one before."""
        first = await world.start("r1")
        await world.runs.start_step(first, "a")
        await world.runs.release(first)
        second = await world.take("r1")
        assert (await world.runs.ledger(second)).steps["a"].fence == first.fence
        begun = await world.runs.start_step(second, "a")
        assert begun is not None and begun.fence == first.fence
        await world.runs.release(second)
        third = await world.take("r1")
        assert (await world.runs.ledger(third)).steps["a"].fence == second.fence

    async def test_a_step_of_a_stale_attempt_is_refused(self, world: World) -> None:
        """I2: neither its start nor its end reaches the ledger."""
        first = await world.start("r1")
        await world.runs.start_step(first, "a")
        second = await world.take("r1")
        for write in (world.runs.start_step(first, "b"), world.runs.finish_step(first, "a", 1)):
            with pytest.raises(errors.StaleFenceError):
                await write
        assert {key: step.done for key, step in (await world.runs.ledger(second)).steps.items()} == {"a": False}

    async def test_cancel_before_start_wins(self, world: World) -> None:
        """R10."""
        await world.accept("r1")
        changed = await world.runs.cancel(T, "r1")
        assert changed.run.status is RunStatus.CANCELLED
        assert [event.type for event in changed.effects.events] == ["run.cancelled"]
        assert (await world.claim("r1")).outcome == "ended"
        assert (await world.runs.cancel(T, "r1")).run.status is RunStatus.CANCELLED

    async def test_acknowledged_cancel_stops_writes(self, world: World) -> None:
        """I8: no later append by the run; the attempt's end finds it cancelled and stores nothing."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("before")])
        changed = await world.runs.cancel(T, "r1")
        assert changed.effects.cancels == [await world.ref("r1")]
        assert await world.workers.cancelling("w") == [await world.ref("r1")]
        with pytest.raises(errors.CancelRequestedError):
            await world.runs.append(attempt, [said("after")])
        with pytest.raises(errors.CancelRequestedError):
            await world.runs.start_step(attempt, "k")
        ended = await world.finish(attempt, said("after"))
        assert ended.status is RunStatus.CANCELLED
        assert await world.texts() == []
        assert await world.texts(leaf=(await world.leaves())[0].message_id) == ["hi", "before"]

    @pytest.mark.parametrize("verb", ["complete", "fail", "suspend", "release", "takeover"])
    async def test_keep_repairs_and_counts(self, world: World, verb: str) -> None:
        """R10 keep: dangling calls get error results, what was said stays in the conversation."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [call("a", "b"), result("a")])
        await world.runs.cancel(T, "r1", keep=True)
        match verb:
            case "complete":
                await world.finish(attempt, said("unheard"))
            case "fail":
                await world.runs.fail(Write(attempt=attempt, messages=[said("unheard")]), ErrorInfo(code="x", message="x"))
            case "suspend":
                await world.runs.suspend(Write(attempt=attempt, messages=[said("unheard")]), [])
            case "release":
                await world.runs.release(attempt)
            case _:
                await world.bury("w")
                assert (await world.claim("r1", worker="w2")).outcome == "ended"
        run = await world.run("r1")
        assert run.status is RunStatus.CANCELLED and run.completion_seq == 1
        messages = await world.messages()
        assert texts(messages) == ["hi", "call:a,b", "result:a", "result:b"]
        assert messages[-1].tool_results[0].is_error and messages[-1].tool_results[0].content == "cancelled"
        assert messages[-1].run_id == "r1"
        assert await world.cut(after_run_id="r1") == texts(messages)

    async def test_keep_of_a_run_that_said_nothing(self, world: World) -> None:
        """R10: nothing to keep, no completion number."""
        await world.accept("r1")
        changed = await world.runs.cancel(T, "r1", keep=True)
        assert changed.run.status is RunStatus.CANCELLED and changed.run.completion_seq is None

    @pytest.mark.parametrize("said_then", [[result("x")], [call("a"), said("and more")]], ids=["stray result", "gap"])
    async def test_keep_of_what_no_provider_accepts(self, world: World, said_then: list[Message]) -> None:
        """I7, R10: what closing the open calls does not mend stays out of the conversation."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, said_then)
        await world.runs.cancel(T, "r1", keep=True)
        await world.finish(attempt)
        run = await world.run("r1")
        assert run.status is RunStatus.CANCELLED and run.completion_seq is None
        assert await world.texts() == []

    async def test_first_cancel_decides(self, world: World) -> None:
        attempt = await world.start("r1")
        await world.runs.cancel(T, "r1")
        await world.runs.cancel(T, "r1", keep=True)
        await world.finish(attempt)
        assert (await world.run("r1")).completion_seq is None

    async def test_snapshot_is_frozen_at_the_first_claim(self, world: World) -> None:
        """R9, design 3.2: a later attempt sees the same, whatever was stored meanwhile."""
        attempt = await world.start("r1")
        await world.checkpointer.append(T, [user("beside")])
        assert await world.context(attempt) == ["hi"]
        await world.runs.release(attempt)
        attempt = await world.take("r1")
        assert await world.context(attempt) == ["hi"]
        await world.finish(attempt, said("done"))
        assert await world.context(await world.start("r2", "next")) == ["hi", "done", "beside", "next"]

    async def test_extra_is_merged_at_completion(self, world: World) -> None:
        """R6, H11: extra is part of the completion; a failed run's is dropped."""
        await world.checkpointer.save_extra(T, {"a": 1, "b": 1})
        await world.turn("r1", extra={"b": 2, "c": {"d": 1}})
        thread = await world.threads.thread(T)
        assert thread is not None and thread.extra == {"a": 1, "b": 2, "c": {"d": 1}}
        attempt = await world.start("r2")
        await world.runs.fail(Write(attempt=attempt, extra={"a": 9}), ErrorInfo(code="x", message="x"))
        claim = await world.claim((await world.accept("r3")).run.run_id)
        assert claim.extra == {"a": 1, "b": 2, "c": {"d": 1}}

    async def test_usage_adds_up(self, world: World) -> None:
        await world.turn("r1", usage=Usage(requests=1, input_tokens=3, output_tokens=4, cost=0.5, seconds=1.5))
        await world.turn("r2", usage=Usage(requests=1, input_tokens=1, output_tokens=1, cost=0.25, seconds=1))
        thread = await world.threads.thread(T)
        assert thread is not None and thread.usage == Usage(requests=2, input_tokens=4, output_tokens=5, cost=0.75, seconds=2.5)

    async def test_events_number_the_write(self, world: World) -> None:
        """E1: messages and the end of the run carry event ids of the attempt."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("one")], first_event=3)
        ended = await world.finish(attempt, said("two"), first_event=7)
        assert ended.event_id == f"{attempt.fence}-8"
        events = await world.runs.run_events(attempt.ref)
        assert [(e.id, e.type) for e in events if e.type != "run.started"][-3:] == [
            (f"{attempt.fence}-3", "message.completed"),
            (f"{attempt.fence}-7", "message.completed"),
            (f"{attempt.fence}-8", "run.completed"),
        ]

    async def test_proven_events_hold_what_live_ones_do(self, world: World) -> None:
        """E1: a reader cannot tell whether an event comes from Redis or from what the store proves."""
        await world.turn("r1")
        await world.failed("r2")
        asked = await world.suspended("r3")
        proven = {run: await world.runs.run_events(await world.ref(run)) for run in ("r1", "r2", "r3")}
        ends = {run: (events[-1].type, events[-1].data) for run, events in proven.items()}
        assert ends["r1"] == ("run.completed", {"status": "completed"})
        error = {"code": "x", "message": "x", "details": {}}
        assert ends["r2"] == ("run.failed", {"status": "failed", "error": error})
        assert ends["r3"] == ("run.suspended", {"status": "suspended", "request_ids": [asked]})
        outside = (await world.runs.cancel(T, "r3")).effects.events
        assert [(event.type, event.data) for event in outside] == [("run.cancelled", {"status": "cancelled"})]
        told = [(event.type, event.data) for events in proven.values() for event in events]
        for type_, data in (*told, *((event.type, event.data) for event in outside)):
            check_event_data(type_, data)

    async def test_proven_events_come_in_pages(self, world: World) -> None:
        """E1, E4: a reader holds so many events, and of so many bytes, whatever the run said."""
        first = await world.start("r1")
        small = [said(f"small {n}") for n in range(5)]
        await world.runs.append(first, small, first_event=3)
        await world.runs.release(first)
        second = await world.take("r1")
        large = [said("x" * (EVENTS_BYTES // 3)) for _ in range(7)]
        await world.runs.append(second, large, first_event=4)
        huge = said("x" * EVENTS_BYTES * 2)
        asked = [HitlRequest(request_id=f"q{n}", payload={"question": "x" * n}) for n in (9, 1, 5)]
        await world.runs.suspend(Write(attempt=second, messages=[huge], first_event=20), asked)
        numbers = [f"{first.fence}-{n}" for n in range(2, 8)] + [f"{second.fence}-{n}" for n in (*range(4, 11), *range(20, 25))]
        found, after = list[list[Event]](), None
        while page := await world.runs.run_events(first.ref, after):
            found.append(page)
            after = page[-1].id
        events = [event for page in found for event in page]
        assert [event.id for event in events] == numbers
        assert [event.type for event in events[-4:]] == [*["hitl.requested"] * 3, "run.suspended"]
        assert events[-1].data["request_ids"] == ["q9", "q1", "q5"]
        sizes = [sum(len(json.dumps(event.data)) for event in page) for page in found]
        assert all(size <= EVENTS_BYTES or len(page) == 1 for size, page in zip(sizes, found, strict=True)), sizes
        for n, event_id in enumerate(numbers):
            assert await world.runs.run_events(first.ref, event_id, limit=1) == events[n + 1 : n + 2]
        assert await world.runs.run_events(first.ref, f"{first.fence}-9", limit=1) == events[6:7]
        assert await world.runs.run_events(first.ref, f"{10**30}-{10**30}") == []
        assert await world.runs.run_events(RunRef(first.thread_key, "nowhere")) == []

    async def test_nothing_is_proved_of_a_deleted_thread(self, world: World) -> None:
        """E4: whoever reads a run while its thread is deleted finds no more."""
        await world.suspended("r1")
        ref = await world.ref("r1")
        await world.threads.delete_thread(T, cancel=True)
        assert await world.runs.run_events(ref) == []

    async def test_an_end_with_the_number_of_a_message_is_proved(self, world: World) -> None:
        """E2: a reader waits for it."""
        await world.suspended("r1")
        run = await world.run("r1")
        events = await world.runs.run_events(await world.ref("r1"))
        assert [event.type for event in events if event.id == run.event_id] == ["run.suspended"]

    async def test_an_end_that_was_left_behind_is_not_proved(self, world: World) -> None:
        """E2: what the run waits for was answered; it is queued, and has not ended."""
        request_id = await world.suspended("r1")
        await world.runs.respond("yes", request_id=request_id)
        events = await world.runs.run_events(await world.ref("r1"))
        assert {event.type for event in events} == {"message.completed", "hitl.requested"}

    async def test_a_release_without_a_task_ends_a_cancelled_run_after_all_its_events(self, world: World) -> None:
        """E1: nobody knows how many events the attempt had sent, so the end has a fence of its own."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("one")], first_event=3)
        await world.runs.cancel(T, "r1")
        ended = await world.runs.release(attempt, first_event=None)
        assert ended.status is RunStatus.CANCELLED
        assert [event.event_id for event in ended.effects.events] == [ended.event_id]
        events = await world.runs.run_events(attempt.ref)
        assert [event.type for event in events][-2:] == ["message.completed", "run.cancelled"]
        assert events[-1].id == ended.event_id

    async def test_wrong_attempts_of_unknown_runs(self, world: World) -> None:
        await world.accept("r1")
        ref = await world.ref("r1")
        for attempt in (Attempt(ref.thread_key, "nope", 1), Attempt(ref.thread_key, "r1", 99999)):
            with pytest.raises(errors.RunError):
                await world.runs.append(attempt, [said(new_id())])
