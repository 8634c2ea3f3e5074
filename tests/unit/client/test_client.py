"""The client on the memory store. The tests play the worker by hand, so that every step between two commits is theirs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta

import pytest

import runyard
from runyard import Client, Event, HitlRequest, Message, RunStatus, errors
from runyard.events.run_stream import follow_run
from runyard.models import ErrorInfo
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import EVENT_BYTES_PER_READ
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_backends.memory.events import MemoryEventLog
from runyard_backends.postgres.unconfigured_redis import NoEventLog, NoScheduler


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client.connect("memory://") as client:
        yield client


class Hand:
    """A worker that does one thing at a time."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def claim(self, thread_id: str, run_id: str) -> AttemptToken:
        await self.backend.workers.register(WorkerInfo(worker_id="hand", queues=["default"]))
        key = await self.backend.threads.thread_key(thread_id)
        assert key is not None
        [claim] = await self.backend.runs.claim("hand", [RunRef(key, run_id)])
        assert claim.attempt is not None and claim.run is not None, claim.outcome
        if claim.run.attempt > 1:
            await self.emit(claim.attempt, thread_id, 1, "run.resumed")
        else:
            await self.emit(claim.attempt, thread_id, 1, "run.started")
            if claim.run.input is not None:
                await self.emit(claim.attempt, thread_id, 2, "message.completed")
        return claim.attempt

    async def emit(self, attempt: AttemptToken, thread_id: str, n: int, kind: str, **data: str) -> None:
        event = Event(id=f"{attempt.fence}-{n}", type=kind, thread_id=thread_id, run_id=attempt.run_id, data=dict(data))
        await self.backend.events.append(attempt.thread_key, [event])

    async def complete(self, attempt: AttemptToken, thread_id: str, text: str, *, first: int = 3, tell: bool = True) -> None:
        """Answer with ``text``. ``tell`` False: die between the commit and its events."""
        [ended] = await self.backend.runs.complete(
            [Write(attempt=attempt, messages=[Message.assistant(text)], first_event=first)]
        )
        assert not isinstance(ended, Exception)
        if tell:
            await self.emit(attempt, thread_id, first, "message.completed")
            await self.emit(attempt, thread_id, first + 1, f"run.{ended.status}")

    async def suspend(self, attempt: AttemptToken, thread_id: str, question: str) -> None:
        request = HitlRequest(payload={"question": question}, thread_id=thread_id, run_id=attempt.run_id)
        ended = await self.backend.runs.suspend(Write(attempt=attempt, first_event=3), [request])
        await self.emit(attempt, thread_id, 3, "hitl.requested")
        await self.emit(attempt, thread_id, 4, f"run.{ended.status}")

    async def answer(self, client: Client, thread_id: str, prompt: str, text: str) -> str:
        """One whole run; returns its id."""
        handle = await client.enqueue(thread_id, prompt)
        await self.complete(await self.claim(thread_id, handle.id), thread_id, text)
        return handle.id


@pytest.fixture
def hand(client: Client) -> Hand:
    return Hand(client.backend)


START = ["run.queued", "run.started", "message.completed"]
"""What every run begins with: the prompt is its first message."""


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


class TestEnqueue:
    async def test_r1_returns_at_accept_with_the_given_or_a_generated_id(self, client: Client) -> None:
        given = await client.enqueue("t", "hello", "mine")
        made = await client.enqueue("t", "hello")
        assert (given.id, given.thread_id, given.created) == ("mine", "t", True)
        assert made.id != given.id
        assert await given.status() is RunStatus.QUEUED

    async def test_r2_the_same_enqueue_again_is_the_same_run(self, client: Client) -> None:
        await client.enqueue("t", "hello", "r")
        again = await client.enqueue("t", "hello", "r")
        assert not again.created
        assert len((await client.runs("t")).items) == 1
        with pytest.raises(errors.RunConflictError) as caught:
            await client.enqueue("t", "another", "r")
        assert "message" in caught.value.details["differs"]

    async def test_only_a_head_of_a_lane_is_submitted(self, client: Client) -> None:
        await client.enqueue("t", "first", "a")
        await client.enqueue("t", "second", "b")
        delivered = await client.backend.scheduler.claim("w", ["default"], 10)
        assert [delivery.job.run_id for delivery in delivered] == ["a"]

    async def test_redis_down_at_accept_is_still_accepted(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        async def refuse(*_: object) -> None:
            raise errors.BackendUnavailableError("connection refused")

        monkeypatch.setattr(client.backend.scheduler, "submit", refuse)
        handle = await client.enqueue("t", "hello")
        assert await handle.status() is RunStatus.QUEUED

    async def test_redis_that_hangs_at_accept_is_waited_for_with_patience_only(self, client: Client) -> None:
        from runyard.client.apply_effects import apply_effects
        from runyard.ports.scheduling import Effects, Job

        async def hang(*_: object) -> None:
            await asyncio.Event().wait()

        client.backend.scheduler.submit = hang  # type: ignore[method-assign]
        assert not await apply_effects(Effects(jobs=[Job(1, "r")]), client.backend, patience=0.01)

    async def test_streams_of_deleted_threads_do_not_wait_for_jobs(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """D2: nothing repeats their deletion, and the calls share the patience."""
        from runyard.client.apply_effects import apply_effects
        from runyard.ports.scheduling import Effects, Job

        forgotten: list[int] = []

        async def forget(threads: list[int]) -> None:
            forgotten.extend(threads)

        async def hang(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(client.backend.scheduler, "submit", hang)
        monkeypatch.setattr(client.backend.events, "forget", forget)
        assert not await apply_effects(Effects(jobs=[Job(1, "r")], deleted=[7]), client.backend, patience=0.01)
        assert forgotten == [7]

    async def test_without_any_redis_everything_but_speed_is_there(self, client: Client, hand: Hand) -> None:
        backend = client.backend
        backend.scheduler, backend.events = NoScheduler(), NoEventLog()
        handle = await client.enqueue("t", "hello")
        waiting = asyncio.create_task(handle.result(timeout=10))
        key = await backend.threads.thread_key("t")
        assert key is not None
        await backend.workers.register(WorkerInfo(worker_id="hand", queues=["default"]))
        [claim] = await backend.runs.claim("hand", [RunRef(key, handle.id)])
        assert claim.attempt is not None
        await backend.runs.complete([Write(attempt=claim.attempt, messages=[Message.assistant("hi")], first_event=3)])
        assert (await waiting).text == "hi"

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"delay": -1.0}, "delay"),
            ({"delay": 1.0, "run_at": datetime.now(UTC)}, "delay"),
            ({"run_at": datetime(2030, 1, 1)}, "run_at"),
            ({"run_at": datetime(9999, 12, 31, tzinfo=UTC), "expires_in": 3e8}, "run_at"),
            ({"run_at": datetime(1, 1, 1, tzinfo=UTC)}, "run_at"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"timeout": -5.0}, "timeout"),
            ({"priority": "urgent"}, "priority"),
            ({"queue": ""}, "queue"),
            ({"agent": ""}, "agent"),
        ],
    )
    async def test_values_that_can_never_be_accepted(self, client: Client, options: dict[str, object], field: str) -> None:
        with pytest.raises(errors.InvalidInputError) as caught:
            await client.enqueue("t", "hello", **options)  # type: ignore[arg-type]
        assert caught.value.details["field"] == field

    async def test_ids_are_checked(self, client: Client) -> None:
        with pytest.raises(errors.InvalidInputError):
            await client.enqueue("", "hello")
        with pytest.raises(errors.InvalidInputError):
            await client.enqueue("t", "hello", "x" * 256)

    async def test_a_run_in_the_future_is_watched_from_before_its_thread_exists(self, client: Client) -> None:
        handle = await client.enqueue("t", "later", run_at=datetime.now(UTC) + timedelta(hours=1))
        await handle.cancel()
        result = await handle.result(timeout=5)
        assert result.status is RunStatus.CANCELLED


class TestResult:
    async def test_waits_for_the_completion(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        waiting = asyncio.create_task(handle.result(timeout=5))
        attempt = await hand.claim("t", handle.id)
        await hand.complete(attempt, "t", "hi")
        result = await waiting
        assert result.ok
        assert result.text == "hi"
        assert [message.role for message in result.messages] == ["user", "assistant"]
        assert result.raise_for_status() is result

    async def test_of_a_run_with_later_runs_behind_it(self, client: Client, hand: Hand) -> None:
        first = await hand.answer(client, "t", "one", "eins")
        for n in range(60):
            await hand.answer(client, "t", f"{n}", f"{n}!")
        assert (await client.handle("t", first).result()).text == "eins"

    async def test_a_suspension_stops_the_wait_and_the_answer_starts_another(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        await hand.suspend(attempt, "t", "sure?")
        result = await handle.result(timeout=5)
        assert result.status is RunStatus.SUSPENDED
        assert [request.payload["question"] for request in result.requests] == ["sure?"]
        assert handle.run_id == result.run.run_id == handle.id
        with pytest.raises(errors.RunNotCompletedError):
            result.raise_for_status()
        with pytest.raises(errors.RunNotCompletedError, match="suspended"):
            print(result.text)
        assert result.last_text == ""

        await client.respond("t", "yes")
        waiting = asyncio.create_task(handle.result(timeout=5))
        attempt = await hand.claim("t", handle.id)
        await hand.complete(attempt, "t", "done", first=2)
        assert (await waiting).text == "done"

    async def test_a_failure_is_an_answer_that_can_be_raised(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        await client.backend.runs.fail(Write(attempt=attempt), ErrorInfo(code="queue_full", message="no room"))
        result = await handle.result(timeout=5)
        assert not result.ok
        with pytest.raises(errors.QueueFullError, match="no room"):
            result.raise_for_status()
        with pytest.raises(errors.QueueFullError, match="no room"):
            print(result.text)

    async def test_the_wait_is_bounded(self, client: Client) -> None:
        handle = await client.enqueue("t", "hello")
        with pytest.raises(TimeoutError) as caught:
            await handle.result(timeout=0.01)
        assert str(caught.value) == f"run {handle.id} of thread t has not ended after 0.01 s; it is queued"
        with pytest.raises(TimeoutError, match="has not ended after 0 s; it is queued"):
            await handle.result(timeout=0)

    async def test_an_unknown_run(self, client: Client) -> None:
        with pytest.raises(errors.RunNotFoundError):
            await client.handle("t", "r").result()


class TestStream:
    async def finished(self, client: Client, hand: Hand, *, tell: bool = True) -> tuple[str, AttemptToken]:
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        await hand.emit(attempt, "t", 3, "message.delta", text="h")
        await hand.complete(attempt, "t", "hi", first=4, tell=tell)
        return handle.id, attempt

    async def test_e2_ends_with_exactly_one_terminal_event(self, client: Client, hand: Hand) -> None:
        run_id, _ = await self.finished(client, hand)
        events = [event async for event in client.stream("t", run_id)]
        assert types(events) == [*START, "message.delta", "message.completed", "run.completed"]

    async def test_e1_resumes_after_any_event_without_overlap_or_loss(self, client: Client, hand: Hand) -> None:
        run_id, _ = await self.finished(client, hand)
        events = [event async for event in client.stream("t", run_id)]
        for n, last in enumerate(events):
            assert [event async for event in client.stream("t", run_id, last.id)] == events[n + 1 :]

    async def test_e1_an_unknown_id_yields_a_gap_and_what_is_proved(self, client: Client, hand: Hand) -> None:
        run_id, _ = await self.finished(client, hand)
        for unknown in ("never issued", "999999999-1"):
            events = [event async for event in client.stream("t", run_id, unknown)]
            assert types(events)[0] == "gap"
            assert types(events)[-2:] == ["message.completed", "run.completed"]
            assert events[0].id is None

    async def test_e4_a_terminal_event_that_was_never_written_is_supplied(self, client: Client, hand: Hand) -> None:
        run_id, _ = await self.finished(client, hand, tell=False)
        events = [event async for event in client.stream("t", run_id)]
        assert types(events) == [*START, "message.delta", "message.completed", "run.completed"]

    async def test_a_run_that_was_found_is_not_read_again(
        self, client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_id, _ = await self.finished(client, hand)
        found = await client.run("t", run_id)

        async def unexpected(*_: str) -> None:
            raise AssertionError("the run was read again")

        monkeypatch.setattr(client.backend.runs, "run", unexpected)
        assert types([event async for event in client.stream("t", run_id, found=found)])[-1] == "run.completed"
        assert [event async for event in client.stream("t", run_id, found.event_id, found=found)] == []

    async def test_e4_also_to_a_reader_that_was_there_all_the_time(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        async with aclosing(follow_run(client.backend, "t", handle.id, recheck=0.05)) as events:
            assert types([await anext(events) for _ in START]) == START
            await hand.complete(attempt, "t", "hi", tell=False)
            async with asyncio.timeout(5):
                assert types([event async for event in events]) == ["message.completed", "run.completed"]

    async def test_a_live_reader_passes_an_answered_suspension(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        await hand.suspend(await hand.claim("t", handle.id), "t", "sure?")
        await client.respond("t", "yes")
        async with asyncio.timeout(5), aclosing(handle.stream()) as events:
            history = [await anext(events) for _ in range(len(START) + 2)]
            assert types(history) == [*START, "hitl.requested", "run.suspended"]
            following = asyncio.ensure_future(anext(events))
            ended, _ = await asyncio.wait((following,), timeout=0.05)
            assert not ended
            await hand.complete(await hand.claim("t", handle.id), "t", "done", first=2)
            assert (await following).type == "run.resumed"
            assert types([event async for event in events]) == ["message.completed", "run.completed"]

    async def test_i9_what_redis_lost_is_announced(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        async with aclosing(client.stream("t", handle.id)) as events:
            assert types([await anext(events) for _ in START]) == START
            await hand.emit(attempt, "t", 5, "message.delta")  # 3 and 4 were lost
            assert types([await anext(events), await anext(events)]) == ["gap", "message.delta"]
            await hand.complete(attempt, "t", "hi", first=6)
            assert types([event async for event in events]) == ["message.completed", "run.completed"]

    async def test_i9_a_commit_that_its_worker_did_not_live_to_tell_is_supplied(self, client: Client, hand: Hand) -> None:
        """Also to a live reader, before the next attempt's events: the count of one attempt says nothing about another."""
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        async with asyncio.timeout(5), aclosing(handle.stream()) as events:
            assert types([await anext(events) for _ in START]) == START
            [said] = await client.backend.runs.append(attempt, [Message.assistant("so far")], first_event=3)
            await client.backend.runs.release(attempt, first_event=4)
            await hand.complete(await hand.claim("t", handle.id), "t", "done", first=2)
            rest = [event async for event in events]
        assert types(rest) == ["message.completed", "run.resumed", "message.completed", "run.completed"]
        assert rest[0].id == f"{attempt.fence}-3" and said.text == "so far"

    async def test_i9_a_redriven_run_is_queued_after_what_was_not_told(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        async with asyncio.timeout(5), aclosing(handle.stream()) as events:
            assert types([await anext(events) for _ in START]) == START
            write = Write(attempt=attempt, messages=[Message.assistant("so far")], first_event=3)
            await client.backend.runs.fail(write, ErrorInfo(code="x", message="x"))
            await client.redrive("t", handle.id)
            said, queued = await anext(events), await anext(events)
        assert types([said, queued]) == ["message.completed", "run.queued"] and queued.data == {"attempt": 2}

    async def test_e2_a_run_queued_again_while_it_is_read_is_read_to_its_new_end(self, client: Client, hand: Hand) -> None:
        """Of a lost stream the store proves the old end no more once the run was queued again."""
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        said = [Message.assistant("x" * EVENT_BYTES_PER_READ) for _ in range(3)]
        await client.backend.runs.append(attempt, said, first_event=3)
        await client.backend.runs.fail(Write(attempt=attempt, first_event=6), ErrorInfo(code="x", message="x"))
        client.backend.events = MemoryEventLog()
        async with asyncio.timeout(5), aclosing(handle.stream()) as events:
            seen = [await anext(events) for _ in range(3)]
            await client.redrive("t", handle.id)
            await hand.complete(await hand.claim("t", handle.id), "t", "done", first=2)
            seen += [event async for event in events]
        assert types(seen)[-3:] == ["run.resumed", "message.completed", "run.completed"]
        assert types(seen).count("message.completed") == 5

    async def test_e1_a_queued_event_that_redis_lost_is_not_sent_twice(self, client: Client, hand: Hand) -> None:
        """Its fence is above that of any attempt, and the reconciler writes it again with the job."""
        handle = await client.enqueue("t", "hello")
        async with aclosing(handle.stream()) as events:
            queued = await anext(events)
        client.backend.events = MemoryEventLog()
        async with asyncio.timeout(5), aclosing(handle.stream(queued.id)) as events:
            assert (await anext(events)).type == "gap"
            key = await client.backend.threads.thread_key("t")
            assert key is not None
            await client.backend.events.append(key, [queued])
            await hand.complete(await hand.claim("t", handle.id), "t", "hi")
            told = [event async for event in events]
        assert types(told) == ["run.started", "message.completed", "message.completed", "run.completed"]

    async def test_an_answered_suspension_is_history_and_does_not_end_the_stream(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        attempt = await hand.claim("t", handle.id)
        await hand.suspend(attempt, "t", "sure?")
        first = [event async for event in handle.stream()]
        assert types(first) == [*START, "hitl.requested", "run.suspended"]

        await client.respond("t", "yes")
        attempt = await hand.claim("t", handle.id)
        await hand.complete(attempt, "t", "done", first=2)
        rest = ["run.resumed", "message.completed", "run.completed"]
        assert types([event async for event in handle.stream(first[-1].id)]) == rest
        assert types([event async for event in handle.stream()]) == types(first) + rest

    async def test_redis_away_is_bridged(self, client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
        async def away(*_: object) -> AsyncIterator[Event]:
            raise errors.BackendUnavailableError("connection refused")
            yield

        handle = await client.enqueue("t", "hello")
        monkeypatch.setattr(client.backend.events, "follow", away)
        reading = asyncio.create_task(_all(handle.stream()))
        attempt = await hand.claim("t", handle.id)
        await hand.complete(attempt, "t", "hi", tell=False)
        assert types(await asyncio.wait_for(reading, 5)) == [*START, "message.completed", "run.completed"]


async def _all(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


class TestRespondAndCancel:
    async def test_h3_the_answer_is_kept_and_the_run_submitted(self, client: Client, hand: Hand) -> None:
        handle = await client.enqueue("t", "hello")
        scheduler = client.backend.scheduler
        await scheduler.release("w", await scheduler.claim("w", ["default"], 10))
        await hand.suspend(await hand.claim("t", handle.id), "t", "sure?")
        [request] = (await client.requests()).items
        answered = await client.respond(None, "yes", request.request_id, "my-response", answered_by="ann")
        assert (answered.answer, answered.answered_by) == ("yes", "ann")
        assert await handle.status() is RunStatus.QUEUED
        assert [delivery.job.run_id for delivery in await scheduler.claim("w", ["default"], 10)] == [handle.id]
        assert not (await client.requests()).items
        with pytest.raises(errors.HitlAlreadyAnsweredError):
            await client.respond("t", "no", request.request_id)

    async def test_h3_names_what_is_missing(self, client: Client) -> None:
        with pytest.raises(errors.InvalidInputError):
            await client.respond(None, "yes")
        with pytest.raises(errors.ThreadNotFoundError):
            await client.respond("nowhere", "yes")

    async def test_an_unknown_thread_is_told_from_an_empty_one(self, client: Client) -> None:
        await client.create_thread("empty")
        for asked in (client.runs, client.requests):
            assert (await asked("empty")).items == []
            with pytest.raises(errors.ThreadNotFoundError):
                await asked("nowhere")

    async def test_h8_an_abort_is_told_to_readers_and_lets_the_next_one_start(self, client: Client, hand: Hand) -> None:
        waits = await client.enqueue("t", "may I?", "waits")
        await client.enqueue("t", "and then?", "next")
        await hand.suspend(await hand.claim("t", "waits"), "t", "really?")
        aborted = await client.abort_pending("t", "nobody answers")
        assert aborted is not None and aborted.run_id == "waits"
        result = await waits.result(5)
        assert (result.status, result.last_text) == (RunStatus.CANCELLED, "aborted: nobody answers")
        assert types(await _all(client.stream("t", "waits")))[-1] == "run.cancelled"
        assert await client.abort_pending("t", "again") is None
        await hand.claim("t", "next")

    async def test_r10_cancel_of_a_queued_run_lets_the_next_one_start(self, client: Client) -> None:
        await client.enqueue("t", "first", "a")
        await client.enqueue("t", "second", "b")
        assert (await client.cancel("t", "a")).status is RunStatus.CANCELLED
        assert [delivery.job.run_id for delivery in await client.backend.scheduler.claim("w", ["default"], 10)] == ["b"]

    async def test_explain_is_a_sentence(self, client: Client) -> None:
        await client.enqueue("t", "first", "a")
        second = await client.enqueue("t", "second", "b")
        assert "a" in await second.explain()


class TestForks:
    async def test_f1_f7_fork_with_a_first_prompt(self, client: Client, hand: Hand) -> None:
        first = await hand.answer(client, "t", "one", "eins")
        await hand.answer(client, "t", "two", "zwei")
        fork = await client.fork("t", "f", first, title="Follow-up", tags={"k": "v"}, message="more")
        assert (fork.parent_thread_id, fork.forked_after_run_id, fork.title) == ("t", first, "Follow-up")
        assert [message.text for message in (await client.messages("f")).items] == ["one", "eins"]
        [run] = (await client.runs("f")).items
        again = await client.fork("t", "f", first, title="Follow-up", tags={"k": "v"}, message="more")
        assert again.thread_id == fork.thread_id
        assert [run.run_id] == [one.run_id for one in (await client.runs("f")).items]

    async def test_f4_typed_answers(self, client: Client, hand: Hand) -> None:
        with pytest.raises(errors.ThreadNotFoundError):
            await client.fork("nowhere")
        first = await hand.answer(client, "t", "one", "eins")
        with pytest.raises(errors.RunNotCompletedError):
            await client.fork("t", "f", "unknown")
        await client.fork("t", "f", first)
        with pytest.raises(errors.ThreadAlreadyExistsError):
            await client.fork("t", "f", first, title="another")

    async def test_fork_with_two_cuts_is_refused(self, client: Client) -> None:
        with pytest.raises(errors.InvalidInputError):
            await client.fork("t", after_run_id="r", at_seq=3)

    async def test_f5_a_fork_job_is_a_run_of_the_source(self, client: Client, hand: Hand) -> None:
        first = await hand.answer(client, "t", "one", "eins")
        job = await client.enqueue_fork("t", "f", "job", after_run_id=first)
        assert (await job.run()).kind == "fork"
        assert not (await client.enqueue_fork("t", "f", "job", after_run_id=first)).created

    @pytest.mark.parametrize("prompt", ["", "a\nb", "x" * 300])
    async def test_an_invalid_id_of_the_first_prompt_is_named(self, client: Client, hand: Hand, prompt: str) -> None:
        """F5: An invalid id is refused under the name of its argument. An empty one is not replaced by another id."""
        first = await hand.answer(client, "t", "one", "eins")
        with pytest.raises(errors.InvalidInputError) as refused:
            await client.enqueue_fork("t", "f", "job", after_run_id=first, message="go on", prompt_run_id=prompt)
        assert refused.value.details["field"] == "prompt_run_id"
        with pytest.raises(errors.InvalidInputError) as refused:
            await client.fork("t", "f", first, message="go on", run_id=prompt)
        assert refused.value.details["field"] == "run_id"
        with pytest.raises(errors.InvalidInputError) as refused:
            await client.signal("t", "go", signal_id=prompt)
        assert refused.value.details["field"] == "signal_id"

    async def test_f9_a_probe_is_a_job_with_a_result(self, client: Client, hand: Hand) -> None:
        await hand.answer(client, "t", "one", "eins")
        asking = asyncio.create_task(client.fork_once("t", "what if?", run_id="probe", wait=5))
        while not [run for run in (await client.runs("t")).items if run.run_id == "probe"]:  # noqa: ASYNC110  # the store has no event for this
            await asyncio.sleep(0)
        attempt = await hand.claim("t", "probe")
        answer = Message.assistant("then so", stop_reason="stop")
        result = {"text": "then so", "messages": [answer.model_dump(mode="json")], "stop_reason": "stop"}
        [ended] = await client.backend.runs.complete([Write(attempt=attempt, result=result, first_event=3)])
        assert not isinstance(ended, Exception)
        await hand.emit(attempt, "t", 3, "run.completed")
        probe = await asking
        assert (probe.text, probe.stop_reason) == ("then so", "stop")
        assert probe.messages == [answer]
        assert [message.text for message in (await client.messages("t")).items] == ["one", "eins"]


class TestTree:
    async def test_b5_regenerate_answers_the_same_message_on_another_branch(self, client: Client, hand: Hand) -> None:
        await hand.answer(client, "t", "one", "eins")
        handle = await client.regenerate("t")
        attempt = await hand.claim("t", handle.id)
        assert [message.text for message in await client.backend.runs.context(attempt)] == ["one"]
        await hand.complete(attempt, "t", "un")
        assert [message.text for message in (await client.messages("t")).items] == ["one", "un"]
        assert len((await client.branches("t")).items) == 2

    async def test_b5_edit_and_resend_branches_before_the_message(self, client: Client, hand: Hand) -> None:
        await hand.answer(client, "t", "one", "eins")
        await hand.answer(client, "t", "two", "zwei")
        edited = await client.regenerate("t", message="three")
        await hand.complete(await hand.claim("t", edited.id), "t", "drei")
        assert [message.text for message in (await client.messages("t")).items] == ["one", "eins", "three", "drei"]

    async def test_b5_edit_and_resend_of_the_first_message(self, client: Client, hand: Hand) -> None:
        await hand.answer(client, "t", "one", "eins")
        edited = await client.regenerate("t", message="other")
        await hand.complete(await hand.claim("t", edited.id), "t", "andere")
        assert [message.text for message in (await client.messages("t")).items] == ["other", "andere"]
        assert [leaf.depth for leaf in (await client.branches("t")).items] == [2, 2]

    async def test_b5_retry_of_a_failed_and_of_a_cancelled_run(self, client: Client, hand: Hand) -> None:
        """B5: one call each; the question is in the context once."""
        await hand.answer(client, "t", "one", "eins")
        await client.enqueue("t", "two", "r")
        await client.backend.runs.fail(Write(attempt=await hand.claim("t", "r")), ErrorInfo(code="x", message="x"))
        assert (await client.redrive("t", "r")).run_id == "r"
        await hand.complete(await hand.claim("t", "r"), "t", "zwei")
        assert [message.text for message in (await client.messages("t")).items] == ["one", "eins", "two", "zwei"]
        await client.enqueue("t", "three", "s")
        stopped = await hand.claim("t", "s")
        cancelled = await client.cancel("t", "s")
        await client.backend.runs.complete([Write(attempt=stopped)])
        assert cancelled.input is not None
        again = await client.regenerate("t", cancelled.input.id)
        await hand.complete(await hand.claim("t", again.id), "t", "drei")
        path = (await client.messages("t")).items
        assert [message.text for message in path] == ["one", "eins", "two", "zwei", "three", "drei"]

    async def test_b1_store_message(self, client: Client) -> None:
        stored = await client.store_message("t", "a note")
        assert stored.role == "user"
        with pytest.raises(errors.LeafMovedError):
            await client.store_message("t", "late", expected_leaf=runyard.new_id())


class TestLineage:
    async def test_f12_ancestors_are_bounded_and_continue(self, client: Client, hand: Hand) -> None:
        """F12: ``limit`` bounds the ancestors too; the lineage of ``next_ancestor`` continues the list."""
        await hand.answer(client, "t0", "one", "eins")
        for n in range(4):
            await client.fork(f"t{n}", f"t{n + 1}")
        first = await client.lineage("t4", limit=2)
        assert ([one.thread_id for one in first.ancestors], first.next_ancestor) == (["t3", "t2"], "t1")
        rest = await client.lineage("t1", limit=2)
        assert ([one.thread_id for one in rest.ancestors], rest.next_ancestor) == (["t0"], None)
        assert (await client.lineage("t0")).children[0].thread_id == "t1"

    async def test_d2_a_thread_under_a_deleted_id_is_no_ancestor(self, client: Client, hand: Hand) -> None:
        """D2, F12: a new thread under the id of a deleted one is no parent of the forks of the deleted one."""
        await hand.answer(client, "t", "one", "eins")
        await client.fork("t", "old")
        await client.delete_thread("t")
        await hand.answer(client, "t", "two", "zwei")
        await client.fork("t", "new")
        [gone] = (await client.lineage("old")).ancestors
        assert gone.thread_id == "t" and gone.deleted_at is not None
        assert [one.thread_id for one in (await client.lineage("new")).ancestors] == ["t"]
        assert (await client.diff("old", "new")).common_ancestor is None
        await client.delete_thread("t", descendants=True)
        assert [one.thread_id for one in (await client.threads()).items] == ["old"]

    async def test_f12_a_deleted_thread_is_a_common_ancestor(self, client: Client, hand: Hand) -> None:
        """F12: ``diff`` finds a common ancestor that is deleted, also behind another deleted ancestor."""
        await hand.answer(client, "t", "one", "eins")
        for new, src in (("a", "t"), ("b", "a"), ("c", "t")):
            await client.fork(src, new)
        for gone in ("t", "a"):
            await client.delete_thread(gone)
        assert (await client.diff("b", "c")).common_ancestor == "t"

    async def test_b6_history_of_nested_forks_is_in_one_order(self, client: Client, hand: Hand) -> None:
        """B6, F12: sequence numbers grow along the path through nested forks, and two of them differ after their last common
        message only."""
        await hand.answer(client, "t0", "q0", "a0")
        for n in range(5):
            await client.fork(f"t{n}", f"t{n + 1}")
            await hand.answer(client, f"t{n + 1}", f"q{n + 1}", f"a{n + 1}")
        path = (await client.messages("t5")).items
        assert [message.text for message in path] == [f"{kind}{n}" for n in range(6) for kind in "qa"]
        assert [message.seq for message in path] == sorted({message.seq for message in path})
        found = await client.diff("t5", "t2")
        assert (found.common_ancestor, found.common_message_id) == ("t2", path[5].id)
        assert (found.ours[0].text, found.theirs) == ("q3", [])


class TestConnecting:
    async def test_can_be_awaited_or_entered(self) -> None:
        client = await Client.connect("memory://")
        await client.close()
        async with Client.connect("memory://") as entered:
            assert isinstance(entered, Client)

    @pytest.mark.parametrize("url", ["nothing://here", "no-scheme", ""])
    async def test_an_unknown_scheme_lists_the_known_ones(self, url: str) -> None:
        with pytest.raises(errors.InvalidInputError, match="memory://"):
            await Client.connect(url)

    async def test_a_registered_scheme_wins(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        from runyard.support import backend_urls

        async def connect(url: str, *, tenant: str) -> Backend:
            return client.backend

        monkeypatch.setattr(backend_urls, "_registered", {})
        backend_urls.register("mine", connect)
        assert (await Client.connect("mine://x")).backend is client.backend
        assert "mine" in backend_urls.schemes()

    async def test_tenants_never_meet(self) -> None:
        async with Client.connect("memory://shared") as one, Client.connect("memory://shared", tenant="b") as other:
            await one.enqueue("t", "hello", "r")
            with pytest.raises(errors.RunNotFoundError):
                await other.run("t", "r")


class TestSurface:
    def test_public_names_are_sorted_and_importable(self) -> None:
        assert sorted(runyard.__all__) == runyard.__all__
        for name in runyard.__all__:
            assert getattr(runyard, name) is not None
        with pytest.raises(AttributeError):
            _ = runyard.nothing_of_the_kind  # type: ignore[attr-defined]

    def test_importing_it_is_light(self) -> None:
        heavy = "pydantic", "asyncpg", "redis", "arq", "rich", "typer", "structlog"
        code = f"import runyard, sys; print([name for name in {heavy!r} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


async def test_accept_request_is_what_the_store_gets(client: Client) -> None:
    """A transactional enqueue hands the connection to the store, and applies nothing before the host commits."""
    seen: list[tuple[AcceptRequest, object]] = []
    real = client.backend.runs.accept

    async def accept(request: AcceptRequest, *, connection: object = None) -> object:
        seen.append((request, connection))
        return await real(request)

    client.backend.runs.accept = accept  # type: ignore[method-assign, assignment]
    marker = object()
    await client.enqueue("t", "hello", "r", connection=marker, metadata={"k": 1})
    [(request, connection)] = seen
    assert connection is marker
    assert (request.thread_id, request.run_id, request.metadata) == ("t", "r", {"k": 1})


class TestUsage:
    @pytest.mark.parametrize(
        "since, until",
        [
            (date(9000, 1, 1), None),
            (None, date.min),
            (date.max, date.max),
            (datetime(2024, 1, 1, tzinfo=UTC), None),
            (None, "2024-01-01"),
        ],
    )
    async def test_usage_of_a_value_that_is_no_day_is_refused(
        self, client: Client, since: date | None, until: date | None
    ) -> None:
        with pytest.raises(errors.InvalidInputError, match=r"since|until"):
            await client.usage(since, until)

    async def test_agent_that_is_no_name_is_refused(self, client: Client) -> None:
        with pytest.raises(errors.InvalidInputError, match="agent"):
            await client.usage(agent="")


async def test_runs_are_found_by_queue_error_and_text(client: Client) -> None:
    for n in range(30):
        await client.enqueue(f"t{n}", f"Order {n}", f"r{n}", queue="slow" if n == 3 else "default")
    hand = Hand(client.backend)
    attempt = await hand.claim("t7", "r7")
    await client.backend.runs.fail(Write(attempt=attempt), ErrorInfo(code="odd", message="x"))
    for wanted, found in (
        ({"queue": "slow"}, ["r3"]),
        ({"error": "odd"}, ["r7"]),
        ({"text": "ORDER 12"}, ["r12"]),
        ({"text": "t29"}, ["r29"]),
        ({"text": "r0", "queue": "default"}, ["r0"]),
        ({"text": "nothing"}, []),
    ):
        page = await client.runs(limit=2, **wanted)  # type: ignore[arg-type]
        assert [run.run_id for run in page.items] == found, wanted
