"""Prompts and what becomes of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

from ..bounds import message_size
from ..entries import request_bytes
from ..errors import HitlRequestNotFoundError, InvalidInputError, MessageNotFoundError, ResultExpiredError, RunNotFoundError
from ..exchange import AcceptRequest, Page
from ..handle import RunHandle, RunResult
from ..models import (
    AttemptInfo,
    Event,
    HitlRequest,
    JsonObject,
    JsonValue,
    Message,
    MultitaskStrategy,
    Priority,
    RetryPolicy,
    Run,
    check_id,
    new_id,
)
from ..ports import remote_of
from ..states import RunStatus
from ..streams import follow_run
from ..threadstream import ThreadEvent, follow_thread
from ..tracing import current
from .base import as_message, aware, check_limit, due, options, told, urgency
from .threads import ThreadCalls

T = TypeVar("T")

_PAGE: Final = 50


class RunCalls(ThreadCalls):
    """Enqueue, answer, cancel, watch."""

    async def _accept(self, request: AcceptRequest, connection: Any = None) -> RunHandle:
        request = replace(request, app_version=self.app_version, trace_context=current())
        accepted = await self.backend.runs.accept(request, connection=connection)
        if accepted.created:
            from .. import metrics  # prometheus-client: half of a light client's import time

            metrics.RUNS_ACCEPTED.labels(kind=request.kind).inc()
        await self._apply(accepted.effects)
        run = accepted.run
        return RunHandle(self, run.thread_id, run.run_id, created=accepted.created, accepted=run)

    async def enqueue(
        self,
        thread_id: str,
        message: str | Message | None,
        run_id: str | None = None,
        *,
        agent: str | None = None,
        queue: str | None = None,
        parent_id: str | None = None,
        parallel: bool = False,
        priority: Priority = "normal",
        run_at: datetime | None = None,
        delay: float | None = None,
        timeout: float | None = None,
        max_attempts: int = 1,
        retry: RetryPolicy | None = None,
        multitask_strategy: MultitaskStrategy = "enqueue",
        metadata: JsonObject | None = None,
        webhook: str | None = None,
        expires_in: float | None = None,
        connection: Any = None,
    ) -> RunHandle:
        """Accept a prompt on ``thread_id``, which is made if need be, and return at once (semantics: R1 to R4, R11).

        ``message``: the user's words; None continues from the last message. A Message whose id is taken on the thread fails the
        run (``invalid_input``). ``run_id``: yours, or None for a uuid7; the same
        id with the same content again is the same run. ``agent``: a name that a worker serves. ``parent_id``: branch at that
        message. ``parallel``: on a branch and lane of its own. ``run_at`` (aware) or ``delay`` (seconds): due later.
        ``timeout``: seconds per attempt. ``expires_in``: seconds, from when it is due; a run that has not started by then fails
        with ``run_expired``. ``webhook``: a URL that is told when the run ends. ``connection``: the caller's open
        database connection; the run exists once its transaction commits. ``metadata``: JSON, no more of
        it than :mod:`runner.bounds` allows.

        Raises InvalidInputError, RunConflictError, ThreadBusyError, NothingToRunError, MessageNotFoundError, ForkBoundaryError,
        QueueFullError, BackendUnavailableError.
        """
        request = AcceptRequest(
            thread_id=check_id(thread_id, "thread_id"),
            run_id=new_id() if run_id is None else check_id(run_id, "run_id"),
            agent=agent,
            queue=queue,
            input=as_message(message),
            parent_id=parent_id,
            priority=urgency(priority),
            run_at=aware(run_at),
            delay=due(delay, run_at),
            options=options(
                timeout=timeout,
                max_attempts=max_attempts,
                retry=retry or RetryPolicy(),
                multitask_strategy=multitask_strategy,
                parallel=parallel,
                webhook=told(webhook),
                expires_in=expires_in,
            ),
            metadata=metadata or {},
        )
        return await self._accept(request, connection)

    async def regenerate(
        self,
        /,
        thread_id: str,
        message_id: str | None = None,
        run_id: str | None = None,
        *,
        message: str | Message | None = None,
        **how: Any,
    ) -> RunHandle:
        """Answer a user message once more, on a new branch (semantics: B5).

        ``message_id``: the answer to replace or the user message itself; None takes the newest. ``message``: edit and resend:
        these words take the place of the user message. ``how``: as for :meth:`enqueue`.

        Raises MessageNotFoundError if there is no user message to answer; InvalidInputError if the first message is to be
        edited.
        """
        asked = await self._asked(thread_id, message_id)
        if message is None:
            return await self.enqueue(thread_id, None, run_id, parent_id=asked.id, **how)
        if asked.parent_id is None:
            raise InvalidInputError(
                f"message {asked.id!r} is the first of its thread: nothing is before it to branch from; use a new thread",
                thread_id=thread_id,
                message_id=asked.id,
            )
        return await self.enqueue(thread_id, message, run_id, parent_id=asked.parent_id, **how)

    async def respond(
        self,
        thread_id: str | None,
        answer: JsonValue,
        request_id: str | None = None,
        response_id: str | None = None,
        *,
        answered_by: str | None = None,
        on_behalf_of: str | None = None,
    ) -> HitlRequest:
        """Answer a pending request; its run goes on (semantics: H3 to H5). Returns the request with its answer.

        ``request_id``: None takes the thread's only pending one; with it ``thread_id`` may be None. ``response_id``: yours, to
        make a repetition safe. ``answered_by``: who answers; over HTTP that is the API key, and this is refused.
        ``on_behalf_of``: for whom, such as the user of a backend; it is kept beside and trusted by nobody.

        Raises ThreadNotFoundError, HitlNoPendingRequestError, HitlAmbiguousError, HitlStaleAnswerError, HitlInvalidAnswerError,
        HitlAlreadyAnsweredError, InvalidInputError for an answer that holds too much (:mod:`runner.bounds`).
        """
        if thread_id is None and request_id is None:
            raise InvalidInputError("name the thread or the request to answer", field="thread_id")
        responded = await self.backend.runs.respond(
            answer,
            thread_id=thread_id,
            request_id=request_id,
            response_id=response_id,
            answered_by=answered_by,
            on_behalf_of=on_behalf_of,
        )
        await self._apply(responded.effects)
        return responded.request

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Run:
        """Cancel durably: nothing is appended after this returned (semantics: R10). ``keep``: its messages stay in the context.

        Raises RunNotFoundError, RunEndedError.
        """
        changed = await self.backend.runs.cancel(thread_id, run_id, keep=keep)
        await self._apply(changed.effects)
        return changed.run

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Run | None:
        """Give up the run that waits for a human: a cancel with keep, in words that the model will read (semantics: H8).

        Each of its open tool calls gets an error result ``aborted: <reason>``, and an assistant message with stop reason
        ``aborted`` ends it; no model is called. ``run_id``: which run, where several wait. Returns the run, or None if nothing
        waits: so a repetition changes nothing.

        Raises ThreadNotFoundError, RunNotFoundError, HitlAmbiguousError if several runs wait, InvalidInputError.
        """
        done = await self.backend.runs.abort_pending(thread_id, reason, run_id=run_id)
        await self._apply(done.effects)
        return done.run

    async def redrive(self, thread_id: str, run_id: str) -> Run:
        """Queue a failed or dead run again. Raises RunNotFoundError, RunEndedError."""
        changed = await self.backend.runs.redrive(thread_id, run_id)
        await self._apply(changed.effects)
        return changed.run

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete what a run said and left that ended and is in no context: failed, dead, cancelled without ``keep``, or a fork
        job. A repetition changes nothing.

        Its messages go, but for those that a fork or a branch shows that was cut inside the run; so do its input, result,
        error, metadata, requests and steps. The run stays, with ``deleted_at``, so that the same request again finds it and
        executes nothing; no list has it. The events that streams still hold go with their time.

        Raises RunInUseError for a run that has not ended or is part of a context; RunNotFoundError, ThreadNotFoundError.
        """
        await self.backend.runs.delete_run(thread_id, run_id)

    def handle(self, thread_id: str, run_id: str) -> RunHandle:
        """A handle of a run that was enqueued elsewhere; asks nothing."""
        return RunHandle(self, thread_id, run_id)

    async def run(self, thread_id: str, run_id: str) -> Run:
        """One run. Raises RunNotFoundError."""
        run = await self.backend.runs.run(thread_id, run_id)
        if run is None:
            raise RunNotFoundError(f"thread {thread_id!r} has no run {run_id!r}", thread_id=thread_id, run_id=run_id)
        return run

    async def runs(
        self,
        thread_id: str | None = None,
        *,
        status: RunStatus | None = None,
        agent: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Runs, of one thread or of all, the newest first, a page at a time. ``since`` and ``before`` (aware) bound when they
        were accepted; the second is exclusive. Large values are left out (:attr:`runner.models.Run.omitted`). A page may come
        short: follow ``next`` until there is none.

        Raises InvalidInputError, InvalidCursorError, ThreadNotFoundError.
        """
        check_limit(limit)
        page = await self.backend.runs.runs(
            thread_id=thread_id,
            status=status,
            agent=agent,
            since=aware(since, "since"),
            before=aware(before, "before"),
            limit=limit,
            cursor=cursor,
        )
        return await self._of_known(thread_id, page)

    async def explain(self, thread_id: str, run_id: str) -> str:
        """One sentence that says why the run is not running, or what it does (semantics: R12). Raises RunNotFoundError,
        ThreadNotFoundError."""
        return await self.backend.runs.explain(thread_id, run_id)

    async def attempts(self, thread_id: str, run_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[AttemptInfo]:
        """What workers made of the run, attempt by attempt, a page at a time.

        Raises RunNotFoundError, ThreadNotFoundError, InvalidCursorError.
        """
        check_limit(limit)
        return await self.backend.runs.attempts(thread_id, run_id, limit=limit, cursor=cursor)

    async def requests(
        self, thread_id: str | None = None, *, pending: bool = True, limit: int = 100, cursor: str | None = None
    ) -> Page[HitlRequest]:
        """The inbox: requests that wait for a human, of one thread or of all. ``pending=False``: the answered ones too.

        Raises InvalidCursorError, ThreadNotFoundError.
        """
        check_limit(limit)
        page = await self.backend.runs.requests(thread_id=thread_id, pending=pending, limit=limit, cursor=cursor)
        return await self._of_known(thread_id, page)

    async def request(self, request_id: str) -> HitlRequest:
        """One request, waiting or not. Raises HitlRequestNotFoundError."""
        request = await self.backend.runs.request(check_id(request_id, "request_id"))
        if request is None:
            raise HitlRequestNotFoundError(f"there is no request {request_id!r}", request_id=request_id)
        return request

    async def _of_known(self, thread_id: str | None, page: Page[T]) -> Page[T]:
        """``page`` of a list, unless it is empty because there is no such thread."""
        if thread_id is not None and not page.items:
            await self.thread(thread_id)
        return page

    async def stream(self, thread_id: str, run_id: str, last_event_id: str | None = None) -> AsyncGenerator[Event]:
        """A run's events after ``last_event_id``, live, until it ends or is suspended: :func:`runner.streams.follow_run`."""
        async with aclosing(follow_run(self.backend, thread_id, run_id, last_event_id)) as events:
            async for event in events:
                yield event

    async def stream_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[ThreadEvent]:
        """The events of all runs of a thread, live, until it is deleted: :func:`runner.threadstream.follow_thread`."""
        async with aclosing(follow_thread(self.backend, thread_id, after)) as events:
            async for event in events:
                yield event

    async def result_of(self, run: Run, most: int | None = None) -> RunResult:
        """What a run left that stopped: its messages in order, and the requests that it waits for. ``most``: bytes of either,
        about; of more there are the last messages and the oldest requests, and ``omitted`` says so.

        Raises ResultExpiredError if it is a fork job whose result is kept no longer, or was deleted.
        """
        if (remote := remote_of(self.backend)) is not None:
            told = RunResult(*await remote.outcome(run))
            return await self._whole(told) if told.omitted and most is None else told
        if run.deleted_at is not None:
            raise ResultExpiredError(f"run {run.run_id!r} was deleted", thread_id=run.thread_id, run_id=run.run_id)
        if run.kind != "prompt" and run.kind != "external":
            if run.status is RunStatus.COMPLETED and run.result is None:
                message = f"the result of {run.kind} job {run.run_id!r} was kept for its time; ask again under another run id"
                raise ResultExpiredError(message, thread_id=run.thread_id, run_id=run.run_id)
            return RunResult(run)
        last = await self.backend.runs.last_message_id(run.thread_id, run.run_id)
        messages, before = await self._messages_of(run, last, most)
        requests, more = await self._requests_of(run, most)
        short = {"messages": before, "requests": more}
        return RunResult(run, messages, requests, [name for name, omitted in short.items() if omitted])

    async def _whole(self, told: RunResult) -> RunResult:
        """``told`` with what was left out of it."""
        messages, requests = told.messages, told.requests
        if "messages" in told.omitted:
            messages = (await self._messages_of(told.run, messages[0].parent_id, None))[0] + messages
        if "requests" in told.omitted:
            requests, _ = await self._requests_of(told.run, None)
        return RunResult(told.run, messages, requests)

    async def _messages_of(self, run: Run, last: str | None, most: int | None) -> tuple[list[Message], bool]:
        """The run's messages up to ``last``, which stand together on one path; and whether some before them are left out."""
        found: list[Message] = []
        left = most or 0
        if last is not None:
            async with aclosing(self._backwards(run.thread_id, last)) as path:
                async for message in path:
                    if message.run_id != run.run_id:
                        break
                    if most is not None:
                        left -= message_size(message)
                        if found and left < 0:
                            return found[::-1], True
                    found.append(message)
        return found[::-1], False

    async def _requests_of(self, run: Run, most: int | None) -> tuple[list[HitlRequest], bool]:
        """The requests that the run waits for, the oldest first, and whether some behind them are left out."""
        found: list[HitlRequest] = []
        left, cursor = most or 0, None
        while run.status is RunStatus.SUSPENDED:
            page = await self.backend.runs.requests(thread_id=run.thread_id, pending=True, cursor=cursor)
            for request in page.items:
                if request.run_id == run.run_id:
                    left -= request_bytes(request)
                    if most is not None and found and left < 0:
                        return found, True
                    found.append(request)
            if (cursor := page.next) is None:
                break
        return found, False

    async def _asked(self, thread_id: str, message_id: str | None) -> Message:
        """The user message that ``message_id`` answers or is."""
        async with aclosing(self._backwards(thread_id, message_id)) as path:
            async for message in path:
                if message.role == "user":
                    return message
        raise MessageNotFoundError(
            f"thread {thread_id!r} has no user message to answer", thread_id=thread_id, message_id=message_id
        )

    async def _backwards(self, thread_id: str, leaf_id: str | None) -> AsyncGenerator[Message]:
        """The path from ``leaf_id`` to the root, read as far as it is asked for."""
        cursor: str | None = None
        while True:
            page = await self.backend.threads.messages(thread_id, leaf_id, limit=_PAGE, cursor=cursor, newest_first=True)
            for message in page.items:
                yield message
            if page.next is None:
                return
            cursor = page.next
