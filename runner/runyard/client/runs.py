"""Calls about runs: enqueue prompts, answer requests, cancel and read runs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final, TypeVar

from ..domain.events import Event, ThreadEvent
from ..domain.messages import Message
from ..domain.requests import HitlRequest
from ..domain.runs import AttemptInfo, MultitaskStrategy, Priority, RetryPolicy, Run, run_fits
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.states import RunStatus
from ..domain.validation import ROOT_ID, check_id, new_id
from ..domain.waits import Signal
from ..errors import HitlRequestNotFoundError, InvalidInputError, MessageNotFoundError, RunNotFoundError, RunyardError
from ..events.run_outcome import path_to_root
from ..ports.queries import PageRequest, RunFilter
from ..ports.results import Page
from .accepting import accept_prompts, accept_request
from .prompts import Prompt, accept_request_of
from .run_handle import RunHandle, RunResult
from .threads import ThreadCalls
from .traced_calls import record_answer

T = TypeVar("T")

MAX_SEARCHED: Final = 1000
"""Maximum number of runs that are examined for one page if the runs are filtered by queue, error or text."""


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

        ``message``: the user's text, or a Message. If ``message`` is None, the run continues from the last message. The run
        fails with ``invalid_input`` if another message of the thread has the same id as the Message. ``run_id``: the run's id,
        or None for a uuid7. A repetition with the same id and the same content returns the same run. The repetition may have
        another ``queue``, ``priority``, ``run_at``, ``delay``, ``timeout``, ``max_attempts``, ``retry``, ``metadata`` or
        ``webhook``. The values of the first call apply. ``agent``: the name of an agent that a worker serves. If None, the run
        gets the agent of the thread. If the thread has no agent, the run and the thread get the default agent of the client's
        namespace. ``queue``: by default the agent's queue. ``parent_id``: the id of the message after which the run branches,
        or ROOT_ID for a new tree. ``parallel``: execute the run on a new branch with its own lane. ``run_at`` (a time with a
        time zone) or ``delay`` (seconds): when the run becomes due. ``timeout``: maximum seconds for each attempt.
        ``max_attempts``: the number of errors after which the run fails. Crashes, releases and questions do not count as
        errors. By default, temporary errors of a model's provider are retried for about two minutes. Any other error fails the
        run. ``retry``: the backoff between attempts. ``multitask_strategy``: what happens if the lane is busy (R3).
        ``expires_in``: a number of seconds. The run fails with ``run_expired`` if it has not started this many seconds after
        its due time. ``webhook``: a URL that receives the run's end. ``connection``: an open database connection of the
        caller, from asyncpg, psycopg 3, SQLAlchemy or Django. The run is accepted when the caller commits the transaction of
        this connection. ``metadata``: a JSON object within the :mod:`runyard.domain.size_limits`.

        Raises InvalidInputError, RunConflictError, ThreadBusyError, NothingToRunError, MessageNotFoundError, ForkBoundaryError,
        QueueFullError, BackendUnavailableError.
        """
        prompt = Prompt(
            thread_id=thread_id,
            message=message,
            run_id=run_id,
            agent=agent,
            queue=queue,
            parent_id=parent_id,
            parallel=parallel,
            priority=priority,
            run_at=run_at,
            delay=delay,
            timeout=timeout,
            max_attempts=max_attempts,
            retry=retry,
            multitask_strategy=multitask_strategy,
            metadata=metadata,
            webhook=webhook,
            expires_in=expires_in,
        )
        return await accept_request(self, accept_request_of(prompt, self.namespace), connection)

    async def enqueue_many(self, prompts: Iterable[Prompt]) -> list[RunHandle | RunyardError]:
        """Accept many prompts, of any threads, and return one outcome per prompt, in order (R1 to R4, R11).

        The outcome is the handle of the run, or the error that :meth:`enqueue` would raise. A refused prompt does not affect
        the others. Prompts of one thread are accepted in their order. A prompt whose run id was accepted before, with the same
        content, has a handle with ``created=False``. In the ``accepted`` run of such a handle, large values are left out, as in
        lists (:attr:`runyard.models.Run.omitted`). The prompts are sent to the store in batches of 1,000. If an outcome is
        BackendUnavailableError, the prompt may have been accepted, and the later prompts were not sent. Repeat the call with
        the same run ids.

        Over HTTP, an error that concerns the caller is raised and is not an outcome. Examples are UnauthenticatedError and
        ForbiddenError. The prompts of earlier batches stay accepted.
        """
        return await accept_prompts(self, list(prompts))

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

        ``message_id``: the id of the answer to replace, or of the user message itself. The default is the newest message.
        ``message``: a message that is sent in place of the user message (edit and resend). ``how``: other arguments of
        :meth:`enqueue`.

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

        ``request_id``: the id of the request. If ``request_id`` is None, the thread's only pending request is answered. If
        ``request_id`` is given, ``thread_id`` can be None. ``response_id``: the client's id of this response. A repetition with
        the same id changes nothing. ``answered_by``: the name of the responder. The HTTP API refuses this argument and stores
        the name of the API key. ``on_behalf_of``: the person for whom the responder answers, such as a user of the backend. The
        name is stored and not verified.

        Raises ThreadNotFoundError, HitlNoPendingRequestError, HitlAmbiguousError, HitlStaleAnswerError,
        HitlInvalidAnswerError, HitlAlreadyAnsweredError. Raises InvalidInputError for an answer that exceeds the
        :mod:`runyard.domain.size_limits`.
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
        invalid name, and for a value that exceeds the :mod:`runyard.domain.size_limits`.
        """
        sent = await self.backend.runs.signal(
            thread_id, name, value, signal_id=new_id() if signal_id is None else signal_id, sent_by=sent_by
        )
        await self._apply(sent.effects)
        return sent.signal

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Run:
        """Cancel a run durably. After this call the run appends no message (R10).

        ``keep``: whether the messages of the run stay in the context of later runs.

        Raises RunNotFoundError, RunEndedError.
        """
        changed = await self.backend.runs.cancel(thread_id, run_id, keep=keep)
        await self._apply(changed.effects)
        return changed.run

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Run | None:
        """Abort the run that waits for a human, and keep its messages. In a later run, the model reads the ``reason`` (H8).

        Each open tool call of the run gets the error result ``aborted: <reason>``. An assistant message with the stop reason
        ``aborted`` ends the run. No model is called. ``run_id``: the id of the run, if several runs wait. Returns the run, or
        None if no run waits. A repetition of the call finds no waiting run and changes nothing.

        Raises ThreadNotFoundError, RunNotFoundError, InvalidInputError. Raises HitlAmbiguousError if several runs wait and
        ``run_id`` is None.
        """
        done = await self.backend.runs.abort_pending(thread_id, reason, run_id=run_id)
        await self._apply(done.effects)
        return done.run

    async def redrive(self, thread_id: str, run_id: str) -> Run:
        """Queue a failed or dead run again.

        Raises RunNotFoundError, RunEndedError. Raises ResultExpiredError for a fan-out whose messages have expired.
        """
        changed = await self.backend.runs.redrive(thread_id, run_id)
        await self._apply(changed.effects)
        return changed.run

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete the content of an ended run whose messages are in no context.

        Such a run is failed, dead, cancelled without ``keep``, or a fork job. The content of a run is its messages, input,
        result, error, metadata, requests and steps. A fork or a branch may begin at a message of the run. The messages of the
        run that the fork or branch shows are kept. The run's row stays, with ``deleted_at``. A repeated enqueue with the run's
        id finds this row and executes nothing. Lists do not show the run. Events of the run stay in streams until they expire.
        A repetition of the delete changes nothing.

        Raises RunNotFoundError, ThreadNotFoundError. Raises RunInUseError for a run that has not ended or is part of a
        context.
        """
        await self.backend.runs.delete_run(thread_id, run_id)

    def handle(self, thread_id: str, run_id: str) -> RunHandle:
        """Return a handle of a run, for example of a run from another process. This method does not call the deployment."""
        return RunHandle(self, thread_id, run_id)

    async def run(self, thread_id: str, run_id: str) -> Run:
        """Return one run of the thread. The runs of a fork include the completed runs that the fork inherited completely.

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
        """Return a page of the runs of one thread or of all threads, the newest first.

        ``since`` (inclusive) and ``before`` (exclusive): bounds of the time of acceptance, with a time zone. Large values are
        left out (:attr:`runyard.models.Run.omitted`). A page may have fewer runs than ``limit``. The ``next`` of the last page
        is None.

        ``error``: the code of the run's error. ``text``: a text that occurs in the prompt, the run id or the thread id. If the
        prompt is not text, its JSON is searched. The search ignores case. A prompt that the list leaves out because of its
        size is not searched. The filters ``queue``, ``error`` and ``text`` have no index. With one of these filters, only a
        limited number of runs is examined for each page.

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
        """Return a page of the attempts of the run, with their outcomes.

        Raises RunNotFoundError, ThreadNotFoundError, InvalidInputError, InvalidCursorError.
        """
        return await self.backend.runs.attempts(thread_id, run_id, PageRequest(limit=limit, cursor=cursor))

    async def requests(
        self, thread_id: str | None = None, *, pending: bool = True, limit: int = 100, cursor: str | None = None
    ) -> Page[HitlRequest]:
        """Return the inbox: the pending requests of one thread or of all threads.

        ``pending=False`` also returns the answered requests.

        Raises InvalidInputError, InvalidCursorError, ThreadNotFoundError.
        """
        asked = PageRequest(limit=limit, cursor=cursor)
        page = await self.backend.runs.requests(thread_id=thread_id, pending=pending, page=asked)
        return await self._of_known(thread_id, page)

    async def request(self, request_id: str) -> HitlRequest:
        """Return one request, pending or not. Raises HitlRequestNotFoundError."""
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

        ``found``: the run, if the caller has just read it. The run is then not read again. See
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

        A reader can store this cursor before it connects. The reader then loses no event if its connection breaks before the
        first event. Raises ThreadNotFoundError.
        """
        return await self.backend.streams.thread_cursor(thread_id)

    async def result_of(self, run: Run, most: int | None = None) -> RunResult:
        """Return the result of a run that stopped: its messages in order, and its pending requests.

        ``most``: the approximate maximum number of bytes of the messages. The same maximum applies to the requests. If the
        messages have more bytes, only the last messages are returned. If the requests have more bytes, only the oldest requests
        are returned. The result's ``omitted`` names the incomplete lists.

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
