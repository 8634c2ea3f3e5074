"""Attempts: claims, fenced writes, ends, crashes, retries."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, HitlRequest, Message, RunOptions, Usage, new_id
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Ended

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

    async def test_a_claim_has_the_config_of_the_thread(self, world: World) -> None:
        """Each claim has the present config of the thread, even a claim that takes over the run."""
        await world.start("r1")
        await world.threads.update_thread(T, config={"policy": "ask"})
        await world.bury("w")
        assert (await world.claim("r1", worker="w2")).config == {"policy": "ask"}

    async def test_unknown_claims(self, world: World) -> None:
        await world.hire()
        await world.accept("r1")
        ref = await world.ref("r1")
        claims = await world.runs.claim("w", [RunRef(ref.thread_key, "nope")])
        assert claims[0].outcome == "unknown"
        assert (await world.runs.claim("w", [RunRef(ref.thread_key + 99999, "r1")]))[0].outcome == "unknown"

    async def test_second_claim_is_busy(self, world: World) -> None:
        """I2: A run has at most one live attempt. A second claim is refused."""
        await world.start("r1")
        assert (await world.claim("r1", worker="other")).outcome == "busy"

    async def test_fences_grow_and_stale_writes_are_refused(self, world: World) -> None:
        """I2: Fences grow, and a write with an older fence is refused."""
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

    async def test_only_the_stale_writes_of_a_batch_are_refused(self, world: World) -> None:
        """I2: In a batch, a write with an older fence is refused. The other writes are stored."""
        old = await world.start("r1")
        await world.bury("w")
        new = await world.take("r1", worker="w2")
        await world.accept("r2", thread="other")
        other = await world.take("r2", thread="other", worker="w2")
        ends = await world.runs.complete([Write(attempt=old, messages=[said("zombie")]), Write(attempt=other)])
        assert [type(end) for end in ends] == [errors.StaleFenceError, Ended]
        await world.finish(new, said("alive"))
        assert await world.texts() == ["hi", "alive"]

    async def test_append_then_complete(self, world: World) -> None:
        """R6: The store sets the seq, the parent and the time of each message. When the run is completed, later contexts
        contain the messages."""
        attempt = await world.start("r1")
        first, second = await world.runs.append(attempt, [said("one"), said("two")])
        assert first.seq is not None and second.seq == first.seq + 1 and second.parent_id == first.id
        assert first.run_id == "r1" and first.created_at is not None
        beside = await world.start("beside", "q", options=RunOptions(parallel=True))
        assert await world.context(beside) == ["q"]
        await world.runs.cancel(T, "beside")
        await world.finish(attempt, said("three"), result={"n": 1}, usage=Usage(requests=1, input_tokens=5))
        messages = await world.messages()
        assert texts(messages) == ["hi", "one", "two", "three"]
        assert [m.parent_id for m in messages] == [None, *(m.id for m in messages[:-1])]
        assert [m.seq for m in messages] == [1, 2, 3, 5]
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
        """R6: Invalid usage is refused. No part of the write is stored, and the attempt continues."""
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
        """R7: An error that cannot be stored as JSON is refused, and the attempt continues."""
        attempt = await world.start("r1")
        error = ErrorInfo(code="x", message="x").model_copy(update={"details": {"value": value}})
        with pytest.raises(errors.InvalidInputError):
            await world.runs.fail(Write(attempt=attempt), error)
        with pytest.raises(errors.InvalidInputError):
            await world.runs.release(attempt, error=error)
        assert (await world.finish(attempt, said("yes"))).status is RunStatus.COMPLETED

    async def test_repeated_append_is_stored_once(self, world: World) -> None:
        """I3: A repeated append with the same message ids, after a lost reply, is stored once."""
        attempt = await world.start("r1")
        message = said("once")
        (first,) = await world.runs.append(attempt, [message])
        (second,) = await world.runs.append(attempt, [message])
        assert first.seq == second.seq
        await world.finish(attempt)
        assert await world.texts() == ["hi", "once"]

    async def test_said_again_in_other_words(self, world: World) -> None:
        """I3: If a later attempt appends other content under a stored message id, the append returns the stored message."""
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
        """I3, R6: If a later attempt appends stored messages together with new messages, only the new messages are stored."""
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

    async def test_a_message_twice_in_the_last_write_is_stored_once(self, world: World) -> None:
        """I3, B3: A completion that contains a message twice stores the message once. Otherwise the message would become its
        own ancestor."""
        attempt = await world.start("r1")
        one, two = said("one"), said("two")
        await world.finish(attempt, one, two, one)
        stored = await world.messages()
        assert texts(stored) == ["hi", "one", "two"]
        assert [message.parent_id for message in stored] == [None, *(message.id for message in stored[:-1])]

    async def test_message_id_of_another_run_is_refused(self, world: World) -> None:
        """B2: An append with a message id of another run is refused. The run's earlier messages stay."""
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
        """B2: A prompt with a message id that is taken fails at its claim, and the lane continues. Another thread may use the
        id."""
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
        """I3, R6: A repeated call of ``complete`` is one completion. Messages, extra, status and completion number are stored
        together."""
        attempt = await world.start("r1")
        message = said("done")
        assert (await world.run("r1")).completion_seq is None and await world.texts() == ["hi"]
        first = await world.finish(attempt, message, extra={"a": 1})
        second = await world.finish(attempt, message, extra={"a": 1})
        assert (first.status, first.event_id) == (second.status, second.event_id)
        assert await world.texts() == ["hi", "done"] and (await world.run("r1")).completion_seq == 1
        thread = await world.threads.thread(T)
        assert thread is not None and thread.extra == {"a": 1}

    async def test_complete_many(self, world: World) -> None:
        """Each write of a batch has its own result."""
        good, bad = await world.start("r1"), await world.start("r2", thread="u")
        stale = AttemptToken(bad.thread_key, bad.run_id, bad.fence + 1000)
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
        """R5, I7: A run with an incomplete tool cycle fails. Its messages stay readable but are in no context and no fork."""
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
        """R5: A run completes if each call is directly followed by its result."""
        ended = await world.finish(await world.start("r1"), *own)
        assert ended.status is RunStatus.COMPLETED

    async def test_fail_keeps_messages_out_of_context(self, world: World) -> None:
        """R7: A failed run has no completion number, and its messages are in no later context."""
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
        """R9: After a crash the run continues with the same snapshot and the messages that it wrote before."""
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
        """R11: A release with an error counts as a retry. A release without an error does not count."""
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

    async def test_a_suspension_resets_the_count_of_errors(self, world: World) -> None:
        """R11: A suspension sets the error count of the run to 0."""
        attempt = await world.start("r1")
        await world.runs.release(attempt, error=ErrorInfo(code="flaky", message="again"))
        await world.ask(await world.take("r1"), HitlRequest(request_id=new_id()))
        assert (await world.run("r1")).error_count == 0

    async def test_snapshot_is_frozen_at_the_first_claim(self, world: World) -> None:
        """R9, S5: A later attempt sees the snapshot of the first claim, without messages that were stored after it."""
        attempt = await world.start("r1")
        await world.checkpointer.append(T, [user("beside")])
        assert await world.context(attempt) == ["hi"]
        await world.runs.release(attempt)
        attempt = await world.take("r1")
        assert await world.context(attempt) == ["hi"]
        await world.finish(attempt, said("done"))
        assert await world.context(await world.start("r2", "next")) == ["hi", "done", "beside", "next"]

    async def test_extra_is_merged_at_completion(self, world: World) -> None:
        """R6, H11: Extra is merged with the completion. The extra of a failed run is dropped."""
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

    async def test_wrong_attempts_of_unknown_runs(self, world: World) -> None:
        await world.accept("r1")
        ref = await world.ref("r1")
        for attempt in (AttemptToken(ref.thread_key, "nope", 1), AttemptToken(ref.thread_key, "r1", 99999)):
            with pytest.raises(errors.RunError):
                await world.runs.append(attempt, [said(new_id())])
