"""Calls about runs: enqueue prompts, answer requests, cancel and read runs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final, TypeVar

from ..domain.agent_names import wanted
from ..domain.events import Event, ThreadEvent
from ..domain.messages import Message
from ..domain.requests import HitlRequest
from ..domain.runs import DEFAULT_OPTIONS, AttemptInfo, MultitaskStrategy, Priority, RetryPolicy, Run, run_fits
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.states import RunStatus
from ..domain.validation import ROOT_ID, check_aware, check_id, new_id
from ..domain.waits import Signal
from ..errors import HitlRequestNotFoundError, InvalidInputError, MessageNotFoundError, RunNotFoundError
from ..events.run_outcome import path_to_root
from ..ports.commands import AcceptRequest
from ..ports.queries import PageRequest, RunFilter
from ..ports.results import Page
from ..support import tracing
from .apply_effects import apply_effects
from .arguments import as_message, check_delay, check_priority, check_webhook_url, options
from .host_connections import opened
from .run_handle import RunHandle, RunResult
from .threads import ThreadCalls
from .traced_calls import accept_span, record_answer

T = TypeVar("T")

MAX_SEARCHED: Final = 1000
"""Maximum number of runs that one page examines for a queue, an error or a text."""


class RunCalls(ThreadCalls):
    """Enqueue runs, answer their requests, cancel, read and stream them."""

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
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        multitask_strategy: MultitaskStrategy = "enqueue",
        metadata: JsonObject | None = None,
        webhook: str | None = None,
        expires_in: float | None = None,
        connection: Any = None,
    ) -> RunHandle:
        """Accept a prompt on ``thread_id`` and return at once (R1 to R4, R11). An unknown thread is created.

        ``message``: the user's text, or a Message. None continues from the last message. The run fails with ``invalid_input``
        if another message of the thread has the Message's id. ``run_id``: the run's id, or None for a uuid7. A repetition with
        the same id and the same content returns the same run. The repetition may have another ``queue``, ``priority``,
        ``run_at``, ``delay``, ``timeout``, ``max_attempts``, ``retry``, ``metadata`` or ``webhook``. The values of the first
        call apply. ``agent``: the name of an agent that a worker serves. If None, the run gets the agent of the thread. If the
        thread has no agent, the run and the thread get the default agent of the client's namespace. ``queue``: by default the
        agent's queue. ``parent_id``: the id of the message after which the run branches, or ROOT_ID for a new tree.
        ``parallel``: execute the run on a new branch with its own lane. ``run_at`` (a time with a time zone) or ``delay``
        (seconds): when the run becomes due. ``timeout``: seconds per attempt. ``max_attempts``: the number of errors after
        which the run fails. Crashes, releases and questions do not count as errors. By default, temporary errors of a model's
        provider are retried for about two minutes. Any other error fails the run. ``retry``: the backoff between attempts.
        ``multitask_strategy``: what happens if the lane is busy (R3). ``expires_in``: seconds after the due time. A run that
        has not started in this time fails with ``run_expired``. ``webhook``: a URL that receives the run's end.
        ``connection``: an open database connection of the caller, from asyncpg, psycopg 3, SQLAlchemy or Django. The run
        becomes visible when the caller commits. ``metadata``: a JSON object within the bounds of
        :mod:`runyard.domain.size_limits`.

        Raises InvalidInputError, RunConflictError, ThreadBusyError, NothingToRunError, MessageNotFoundError, ForkBoundaryError,
        QueueFullError, BackendUnavailableError.
        """
        request = AcceptRequest(
            thread_id=thread_id,
            run_id=new_id() if run_id is None else run_id,
            agent=wanted(self.namespace, agent),
            queue=queue,
            input=as_message(message),
            parent_id=parent_id,
            priority=check_priority(priority),
            run_at=check_aware(run_at),
            delay=check_delay(delay, run_at),
            options=options(
                timeout=timeout,
                max_attempts=max_attempts,
                retry=retry or DEFAULT_OPTIONS.retry,
                multitask_strategy=multitask_strategy,
                parallel=parallel,
                webhook=check_webhook_url(webhook),
                expires_in=expires_in,
            ),
            metadata=metadata or {},
        )
        return await accept_request(self, request, connection)

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
        """Answer a user message again, on a new branch (B5).

        ``message_id``: the id of the answer to replace, or of the user message itself. None means the newest message.
        ``message``: a new text in place of the user message (edit and resend). ``how``: other arguments of :meth:`enqueue`.

        Raises MessageNotFoundError if there is no user message to answer.
        """
        asked = await self._asked(thread_id, message_id)
        if message is None:
            return await self.enqueue(thread_id, None, run_id, parent_id=asked.id, **how)
        return await self.enqueue(thread_id, message, run_id, parent_id=asked.parent_id or ROOT_ID, **how)

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
        """Answer a pending request. The run then continues (H3 to H5). Return the request with its answer.

        ``request_id``: the id of the request. None means the thread's only pending request. If ``request_id`` is given,
        ``thread_id`` may be None. ``response_id``: the client's id of this response. A repetition with the same id changes
        nothing. ``answered_by``: the name of the responder. The HTTP API refuses this argument and stores the name of the API
        key. ``on_behalf_of``: the person for whom the responder answers, such as a user of the backend. The name is stored and
        not verified.

        Raises ThreadNotFoundError, HitlNoPendingRequestError, HitlAmbiguousError, HitlStaleAnswerError, HitlInvalidAnswerError,
        HitlAlreadyAnsweredError. Raises InvalidInputError for an answer beyond the bounds of :mod:`runyard.domain.size_limits`.
        """
        if thread_id is None and request_id is None:
            raise InvalidInputError("give the thread_id or the request_id of the request to answer", field="thread_id")
        began = time.time_ns()
        responded = await self.backend.runs.respond(
            answer,
            thread_id=thread_id,
            request_id=request_id,
            response_id=response_id,
            answered_by=answered_by,
            on_behalf_of=on_behalf_of,
        )
        await self._apply(responded.effects)
        if responded.created:
            await record_answer(self.backend, responded.request, began)
        return responded.request

    async def signal(
        self, thread_id: str, name: str, value: JsonValue = None, *, signal_id: str | None = None, sent_by: str | None = None
    ) -> Signal:
        """Send a signal to a thread. A run of the thread that waits for ``name`` continues (:meth:`RunContext.wait_for`).

        Without such a run, the signal is kept until a run waits for it. ``value``: a JSON value. ``signal_id``: the client's id
        of this signal. A repetition with the same id changes nothing. ``sent_by``: the name of the sender. The HTTP API refuses
        this argument and stores the name of the API key.

        Raises ThreadNotFoundError. Raises SignalConflictError if the thread has another signal with this id. Raises
        TooManySignalsError if the thread keeps a thousand signals that no run has taken. Raises InvalidInputError for an
        invalid name or a value beyond the bounds of :mod:`runyard.domain.size_limits`.
        """
        sent = await self.backend.runs.signal(
            thread_id, name, value, signal_id=new_id() if signal_id is None else signal_id, sent_by=sent_by
        )
        await self._apply(sent.effects)
        return sent.signal

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Run:
        """Cancel a run durably. After this call the run appends no message (R10). ``keep``: its messages stay in the context.

        Raises RunNotFoundError, RunEndedError.
        """
        changed = await self.backend.runs.cancel(thread_id, run_id, keep=keep)
        await self._apply(changed.effects)
        return changed.run

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Run | None:
        """Abort the run that waits for a human, and keep its messages. The model of a later run reads the ``reason`` (H8).

        Each open tool call of the run gets the error result ``aborted: <reason>``. An assistant message with the stop reason
        ``aborted`` ends the run. No model is called. ``run_id``: the id of the run, if several runs wait. Returns the run, or
        None if no run waits. A repetition of the call finds no waiting run and changes nothing.

        Raises ThreadNotFoundError, RunNotFoundError, HitlAmbiguousError if several runs wait, InvalidInputError.
        """
        done = await self.backend.runs.abort_pending(thread_id, reason, run_id=run_id)
        await self._apply(done.effects)
        return done.run

    async def redrive(self, thread_id: str, run_id: str) -> Run:
        """Queue a failed or dead run again.

        Raises RunNotFoundError, RunEndedError, and ResultExpiredError for a fan-out whose messages have expired.
        """
        changed = await self.backend.runs.redrive(thread_id, run_id)
        await self._apply(changed.effects)
        return changed.run

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete the content of a run that has ended and is in no context.

        Such a run is failed, dead, cancelled without ``keep``, or a fork job. The content of a run is its messages, input,
        result, error, metadata, requests and steps. A fork or branch that was cut inside the run keeps the messages that it
        shows. The run's row stays, with ``deleted_at``. A repeated enqueue with the run's id finds this row and executes
        nothing. Lists do not show the run. Events of the run stay in streams until they expire. A repetition of the delete
        changes nothing.

        Raises RunInUseError for a run that has not ended or is part of a context, RunNotFoundError, ThreadNotFoundError.
        """
        await self.backend.runs.delete_run(thread_id, run_id)

    def handle(self, thread_id: str, run_id: str) -> RunHandle:
        """Return a handle of a run, for example of a run from another process. This method does not call the deployment."""
        return RunHandle(self, thread_id, run_id)

    async def run(self, thread_id: str, run_id: str) -> Run:
        """Return one run. A fork also has the completed runs that it inherited completely.

        The ``thread_id`` of an inherited run is the id of the thread on which it was executed.

        Raises RunNotFoundError.
        """
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
        queue: str | None = None,
        error: str | None = None,
        text: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Return runs of one thread or of all threads, the newest first, a page at a time.

        ``since`` (inclusive) and ``before`` (exclusive): bounds of the time of acceptance, with a time zone. Large values are
        left out (:attr:`runyard.models.Run.omitted`). A page may have fewer runs than ``limit``. The ``next`` of the last page
        is None.

        ``error``: the code of the run's error. ``text``: a part of the prompt, of the run id or of the thread id. If the
        prompt is not text, its JSON is searched. Upper and lower case are equal. Prompts that the list leaves out are not
        searched. ``queue``, ``error`` and ``text`` have no index. For these filters, each page examines a limited number of
        the runs that the other filters select.

        Raises InvalidInputError, InvalidCursorError, ThreadNotFoundError.
        """
        where = RunFilter(thread_id=thread_id, status=status, agent=self._agent(agent), since=since, before=before)
        looked = 0
        while True:
            page = await self.backend.runs.runs(where, PageRequest(limit=limit, cursor=cursor))
            fitting = [run for run in page.items if run_fits(run, queue, error, text)]
            looked, cursor = looked + len(page.items), page.next
            if fitting or cursor is None or looked >= MAX_SEARCHED or not page.items:
                return await self._of_known(thread_id, Page(fitting, cursor))

    async def explain(self, thread_id: str, run_id: str) -> str:
        """Return one sentence that explains the present status of the run (R12).

        Raises RunNotFoundError, ThreadNotFoundError.
        """
        return await self.backend.runs.explain(thread_id, run_id)

    async def attempts(self, thread_id: str, run_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[AttemptInfo]:
        """Return the attempts of the run with their outcomes, a page at a time.

        Raises RunNotFoundError, ThreadNotFoundError, InvalidInputError, InvalidCursorError.
        """
        return await self.backend.runs.attempts(thread_id, run_id, PageRequest(limit=limit, cursor=cursor))

    async def requests(
        self, thread_id: str | None = None, *, pending: bool = True, limit: int = 100, cursor: str | None = None
    ) -> Page[HitlRequest]:
        """Return the inbox: the pending requests of one thread or of all threads.

        ``pending=False`` includes the answered requests.

        Raises InvalidInputError, InvalidCursorError, ThreadNotFoundError.
        """
        asked = PageRequest(limit=limit, cursor=cursor)
        page = await self.backend.runs.requests(thread_id=thread_id, pending=pending, page=asked)
        return await self._of_known(thread_id, page)

    async def request(self, request_id: str) -> HitlRequest:
        """Return one request, whether it is pending or not. Raises HitlRequestNotFoundError."""
        request = await self.backend.runs.request(check_id(request_id, "request_id"))
        if request is None:
            raise HitlRequestNotFoundError(f"there is no request {request_id!r}", request_id=request_id)
        return request

    async def _of_known(self, thread_id: str | None, page: Page[T]) -> Page[T]:
        """Return ``page``. Raise ThreadNotFoundError if the page is empty because the thread does not exist."""
        if thread_id is not None and not page.items:
            await self.thread(thread_id)
        return page

    def stream(
        self, thread_id: str, run_id: str, last_event_id: str | None = None, *, found: Run | None = None
    ) -> AsyncGenerator[Event]:
        """Yield a run's events after ``last_event_id``, live, until the run ends or is suspended.

        ``found``: the run, if the caller has just read it. With ``found``, the stream does not read the run again. See
        :func:`runyard.events.run_stream.follow_run`. Raises RunNotFoundError.
        """
        return self.backend.streams.follow_run(thread_id, run_id, last_event_id, found=found)

    def stream_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[ThreadEvent]:
        """Yield the events of all runs of a thread after the cursor ``after``, live, until the thread is deleted.

        See :func:`runyard.events.thread_stream.follow_thread`. Raises ThreadNotFoundError.
        """
        return self.backend.streams.follow_thread(thread_id, after)

    async def thread_cursor(self, thread_id: str) -> str:
        """Return the cursor at which :meth:`stream_thread` without a cursor begins.

        A reader that stores this cursor loses no event, even if its connection breaks before the first event. Raises
        ThreadNotFoundError.
        """
        return await self.backend.streams.thread_cursor(thread_id)

    async def result_of(self, run: Run, most: int | None = None) -> RunResult:
        """Return the result of a run that stopped: its messages in order, and its pending requests.

        ``most``: the approximate maximum number of bytes of the messages. The same maximum applies to the requests. A larger
        result has only the last messages and the oldest requests. Its ``omitted`` names the incomplete lists.

        Raises ResultExpiredError if the run was deleted, or if it is a fork job whose result has been deleted.
        """
        found = await self.backend.streams.outcome(run, most)
        return RunResult(found.run, found.messages, found.requests, found.omitted)

    async def _asked(self, thread_id: str, message_id: str | None) -> Message:
        """Return the last user message on the path to the message ``message_id``. The path includes this message."""
        async with aclosing(path_to_root(self.backend.threads, thread_id, message_id)) as path:
            async for message in path:
                if message.role == "user":
                    return message
        raise MessageNotFoundError(
            f"thread {thread_id!r} has no user message to answer", thread_id=thread_id, message_id=message_id
        )


async def accept_request(client: RunCalls, request: AcceptRequest, connection: Any = None) -> RunHandle:
    """Accept ``request`` for ``client``, apply its effects, and return a handle of the run.

    ``connection``: the caller's open database connection. Raises the errors of :meth:`RunCalls.enqueue`.
    """
    with accept_span(client.backend, request) as span:
        request.record(app_version=client.app_version, trace_context=tracing.current())
        accepted = await client.backend.runs.accept(request, connection=opened(connection))
        if accepted.created:
            from ..support import metrics  # prometheus-client takes half of a client's import time

            metrics.child(metrics.RUNS_ACCEPTED, request.kind).inc()
        else:
            tracing.add_link(span, accepted.run.trace_context, "repeated")
        await apply_effects(accepted.effects, client.backend)
    run = accepted.run
    return RunHandle(client, run.thread_id, run.run_id, created=accepted.created, accepted=run)
