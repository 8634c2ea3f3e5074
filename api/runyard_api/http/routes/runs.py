"""Routes of runs: prompt, wait, stream, cancel, redrive, explain."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Annotated, Final, TypedDict

from fastapi import APIRouter, Body, Depends, Query, Response

from runyard.client.run_handle import RunHandle
from runyard.domain.states import RunStatus
from runyard.errors import (
    ForkBoundaryError,
    InvalidCursorError,
    MessageNotFoundError,
    MessageTooLargeError,
    NothingToRunError,
    QueueFullError,
    ResultExpiredError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunAmbiguousError,
    RunConflictError,
    RunEndedError,
    RunInUseError,
    RunNotFoundError,
    ThreadBusyError,
    ThreadNotFoundError,
)
from runyard.events.inherited_runs import check_source
from runyard.models import Run
from runyard.ports.results import PAGE_BYTES

from ..answers import AttemptPage, Explanation, RunOutcome, RunPage
from ..field_types import Moment
from ..idempotency import BY_STATE, Idempotency, Key
from ..request_models import Cancel, Prompt, Regenerate, StreamedPrompt, as_message
from ..sse import Entry, EventStream
from ..tenant_client import Caller
from .arguments import LastEventId, Paging, RunId, ThreadId, Wait, patience
from .documentation import EVENTS, operation
from .replies import reply
from .route_access import Reads, Route, Streams, Writes

router = APIRouter(tags=["runs"], route_class=Route)

REFUSED: Final = (
    RunConflictError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    ThreadBusyError,
    NothingToRunError,
    MessageNotFoundError,
    ForkBoundaryError,
    MessageTooLargeError,
    QueueFullError,
)
"""Errors of a refused prompt."""

OF_THREAD: Final = "/v1/threads/{thread_id}"
OF_RUN: Final = "/v1/threads/{thread_id}/runs/{run_id}"
RETRY_AFTER_SECONDS: Final = "1"
"""Seconds after which a client may wait again for a run that has not stopped."""


async def _enqueue(caller: Caller, thread_id: str, body: Prompt, key: Key) -> RunHandle:
    run_id = body.run_id or key.id("runs", thread_id)
    return await caller.client.enqueue(
        thread_id, as_message(body.message), run_id, parent_id=body.parent_id, **body.execution()
    )


def accepted(caller: Caller, handle: RunHandle) -> Response:
    """Return 202 with the run if this request created it, or 200 if the run existed before."""
    assert handle.accepted is not None
    return reply(handle.accepted, 202 if handle.created else 200, Location=where(caller, handle))


def where(caller: Caller, handle: RunHandle) -> str:
    """Return the path of the run."""
    return caller.location("threads", handle.thread_id, "runs", handle.run_id)


async def outcome(caller: Caller, handle: RunHandle, seconds: float) -> Response:
    """Return the outcome of the run. If the run has not stopped after ``seconds``, return 202 and the run."""
    try:
        result = await handle.result(seconds, PAGE_BYTES)
    except TimeoutError:
        return reply(await handle.run(), 202, Location=where(caller, handle), Retry_After=RETRY_AFTER_SECONDS)
    return reply(RunOutcome.of(result), Location=where(caller, handle))


async def entries(caller: Caller, thread_id: str, run: Run, last_event_id: str | None) -> AsyncGenerator[Entry]:
    """Yield the events of ``run`` after ``last_event_id`` as entries of a stream. ``run``: an own or inherited run of
    ``thread_id``, which the caller has just read."""
    async with aclosing(caller.client.stream(thread_id, run.run_id, last_event_id, found=run)) as events:
        async for event in events:
            yield Entry(event.id, event)


async def streamed(caller: Caller, thread_id: str, run_id: str) -> Run:
    """Return the run whose events ``caller`` wants to read. Raises RunNotFoundError.

    A stream token reads the streams of one thread. The stream of an inherited run belongs to another thread. A stream token
    therefore cannot read this stream.
    """
    run = await caller.client.run(thread_id, run_id)
    if caller.principal.only is not None:
        check_own(thread_id, run)
    await check_source(caller.client.backend.runs, thread_id, run)
    return run


def check_own(thread_id: str, run: Run) -> None:
    """Raise RunNotFoundError if ``thread_id`` has inherited ``run``, because stream tokens do not read inherited runs."""
    if run.thread_id != thread_id:
        raise RunNotFoundError(
            f"thread {thread_id!r} inherited run {run.run_id!r}; a stream token reads only the runs of its own thread",
            thread_id=thread_id,
            run_id=run.run_id,
        )


@router.post(
    f"{OF_THREAD}/runs",
    status_code=202,
    **operation(
        *REFUSED,
        s200=(Run, "The run that an earlier request with the same content created.", "Location"),
        s202=(Run, "The accepted run. It will end, even if processes crash. `Location` is its path.", "Location"),
    ),
)
async def create_run(caller: Writes, thread_id: ThreadId, body: Prompt, key: Idempotency) -> Response:
    """Accept a prompt and return at once. The thread is created if it does not exist.

    A repetition of the prompt with the same `run_id` returns the same run.
    """
    return accepted(caller, await _enqueue(caller, thread_id, body, key))


@router.post(
    f"{OF_THREAD}/runs/stream",
    **operation(*REFUSED, s200=(*EVENTS, "Location")),
)
async def stream_new_run(caller: Writes, thread_id: ThreadId, body: StreamedPrompt, key: Idempotency) -> Response:
    """Accept a prompt and stream its events. `Location` is the path of the run. If the connection breaks, continue with the
    `GET` of `{Location}/stream`."""
    with caller.seat().taken() as taken:  # taken before the run is accepted, so that a refused request creates no run
        handle = await _enqueue(caller, thread_id, body, key)
        seat = taken.kept()
    assert handle.accepted is not None

    async def cancel() -> None:
        with suppress(RunEndedError):
            await handle.cancel()

    return EventStream(
        entries(caller, thread_id, handle.accepted, None),
        seat,
        {"Location": where(caller, handle)},
        on_left=cancel if body.on_disconnect == "cancel" else None,
    )


@router.post(
    f"{OF_THREAD}/runs/wait",
    **operation(
        *REFUSED,
        ResultExpiredError,
        s200=(RunOutcome, "The run ended, or waits for a human.", "Location"),
        s202=(Run, "The run has not stopped. Call `GET …/runs/{run_id}/wait` to wait again.", "Location", "Retry-After"),
    ),
)
async def wait_new_run(caller: Writes, thread_id: ThreadId, body: Prompt, key: Idempotency, wait: Wait = 30.0) -> Response:
    """Accept a prompt, and wait at most `wait` seconds until its run ends or waits for a human."""
    with caller.seat().permit:
        return await outcome(caller, await _enqueue(caller, thread_id, body, key), patience(wait, caller))


@router.post(
    f"{OF_THREAD}/regenerate",
    status_code=202,
    tags=["messages"],
    **operation(
        *REFUSED,
        ThreadNotFoundError,
        s200=(Run, "The run that an earlier request with the same content created.", "Location"),
        s202=(Run, "The accepted run, on a branch of its own.", "Location"),
    ),
)
async def regenerate(caller: Writes, thread_id: ThreadId, body: Regenerate, key: Idempotency) -> Response:
    """Answer a user message again on a new branch. With `message`, answer this message in place of the user message (edit and
    resend)."""
    handle = await caller.client.regenerate(
        thread_id,
        body.message_id,
        body.run_id or key.id("regenerate", thread_id),
        message=as_message(body.message),
        **body.execution(),
    )
    return accepted(caller, handle)


Status = Annotated[RunStatus | None, Query(description="Only runs with this status.")]
Agent = Annotated[str | None, Query(description="Only runs of this agent.")]
Since = Annotated[Moment | None, Query(description="Only runs accepted at this time or later.")]
Queue = Annotated[str | None, Query(max_length=255, description="Only runs of this queue.")]
Error = Annotated[str | None, Query(max_length=255, description="Only runs whose error has this code.")]
Text = Annotated[
    str | None,
    Query(max_length=1000, description="Only runs with this text in the prompt, the run id or the thread id."),
]
Before = Annotated[Moment | None, Query(description="Only runs accepted before this time.")]


class FilterArguments(TypedDict):
    """The arguments of ``client.runs`` that select runs."""

    status: RunStatus | None
    agent: str | None
    since: datetime | None
    before: datetime | None
    queue: str | None
    error: str | None
    text: str | None


async def _filter_arguments(
    status: Status = None,
    agent: Agent = None,
    since: Since = None,
    before: Before = None,
    queue: Queue = None,
    error: Error = None,
    text: Text = None,
) -> FilterArguments:
    return {
        "status": status, "agent": agent, "since": since, "before": before, "queue": queue, "error": error, "text": text,
    }  # fmt: skip


Filters = Annotated[FilterArguments, Depends(_filter_arguments)]


@router.get(
    f"{OF_THREAD}/runs",
    **operation(ThreadNotFoundError, InvalidCursorError, s200=(RunPage, "A page of runs, the newest first.")),
)
async def list_thread_runs(caller: Reads, thread_id: ThreadId, paging: Paging, filters: Filters) -> Response:
    """List the runs of a thread, filtered by status, agent, time, queue, error and text."""
    page = await caller.client.runs(thread_id, **filters, **paging)
    return reply(RunPage.model_construct(items=page.items, next=page.next))


@router.get("/v1/runs", **operation(InvalidCursorError, s200=(RunPage, "A page of runs, the newest first.")))
async def list_runs(caller: Reads, paging: Paging, filters: Filters) -> Response:
    """List the runs of all threads, filtered by status, agent, time, queue, error and text."""
    page = await caller.client.runs(**filters, **paging)
    return reply(RunPage.model_construct(items=page.items, next=page.next))


@router.get("/v1/runs/{run_id}", **operation(RunNotFoundError, RunAmbiguousError, s200=(Run, "The run.")))
async def find_run(caller: Reads, run_id: RunId) -> Response:
    """Find a run on any thread by its id. The beginning of the id is enough if no other run has an id with this beginning."""
    return reply(await caller.client.find_run(run_id))


@router.get(OF_RUN, **operation(RunNotFoundError, s200=(Run, "The run.")))
async def get_run(caller: Reads, thread_id: ThreadId, run_id: RunId) -> Response:
    """Read one run."""
    return reply(await caller.client.run(thread_id, run_id))


@router.delete(
    OF_RUN,
    status_code=204,
    **operation(RunNotFoundError, ThreadNotFoundError, RunInUseError, s204=(None, "The content of the run is deleted.")),
)
async def delete_run(caller: Writes, thread_id: ThreadId, run_id: RunId) -> Response:
    """Delete the content of an ended run whose messages no later run sees. Such a run failed, died, or was cancelled without
    `keep`. A fork job that ended can also be deleted.

    An empty record of the run, with `deleted_at`, stays. Lists do not contain this record.
    """
    await caller.client.delete_run(thread_id, run_id)
    return Response(status_code=204)


@router.get(
    f"{OF_RUN}/stream",
    **operation(
        RunNotFoundError,
        s200=EVENTS,
        s204=(None, "The run stopped, and `Last-Event-ID` is its last event."),
    ),
)
async def stream_run(caller: Streams, thread_id: ThreadId, run_id: RunId, last_event_id: LastEventId = None) -> Response:
    """Stream a run's events after `Last-Event-ID`, live, until the run ends or waits for a human."""
    with caller.seat().taken() as seat:
        run = await streamed(caller, thread_id, run_id)
        if last_event_id is not None and run.stopped and run.event_id == last_event_id:
            return Response(status_code=204)  # after a 204, a browser's EventSource does not reconnect
        return EventStream(entries(caller, thread_id, run, last_event_id), seat.kept())


@router.get(
    f"{OF_RUN}/wait",
    **operation(
        RunNotFoundError,
        ResultExpiredError,
        s200=(RunOutcome, "The run ended, or waits for a human.", "Location"),
        s202=(Run, "The run has not stopped. Call again to wait again.", "Location", "Retry-After"),
    ),
)
async def wait_run(caller: Reads, thread_id: ThreadId, run_id: RunId, wait: Wait = 30.0) -> Response:
    """Wait at most `wait` seconds until a run ends or waits for a human."""
    with caller.seat().permit:
        return await outcome(caller, caller.client.handle(thread_id, run_id), patience(wait, caller))


@router.get(
    f"{OF_RUN}/explain",
    **operation(RunNotFoundError, ThreadNotFoundError, s200=(Explanation, "One sentence about the run.")),
)
async def explain_run(caller: Reads, thread_id: ThreadId, run_id: RunId) -> Response:
    """Return one sentence about a run: the reason why it waits, or its current activity."""
    return reply(Explanation(explanation=await caller.client.explain(thread_id, run_id)))


@router.get(
    f"{OF_RUN}/attempts",
    **operation(RunNotFoundError, ThreadNotFoundError, InvalidCursorError, s200=(AttemptPage, "A page, in order.")),
)
async def list_attempts(caller: Reads, thread_id: ThreadId, run_id: RunId, paging: Paging) -> Response:
    """List the attempts of a run: worker, outcome, times and error."""
    page = await caller.client.attempts(thread_id, run_id, **paging)
    return reply(AttemptPage.model_construct(items=page.items, next=page.next))


@router.post(
    f"{OF_RUN}/cancel",
    dependencies=BY_STATE,
    **operation(RunNotFoundError, ThreadNotFoundError, RunEndedError, s200=(Run, "The run. It stores nothing more.")),
)
async def cancel_run(
    caller: Writes, thread_id: ThreadId, run_id: RunId, body: Annotated[Cancel | None, Body()] = None
) -> Response:
    """Cancel a run. If a worker executes the run, the worker stops within about a second. A repetition returns the same run."""
    return reply(await caller.client.cancel(thread_id, run_id, keep=body is not None and body.keep))


@router.post(
    f"{OF_RUN}/redrive",
    dependencies=BY_STATE,
    status_code=202,
    **operation(
        RunNotFoundError,
        ThreadNotFoundError,
        RunEndedError,
        RunAlreadyClaimedError,
        RunAlreadyCompletedError,
        ResultExpiredError,
        s202=(Run, "The run is queued again.", "Location"),
    ),
)
async def redrive_run(caller: Writes, thread_id: ThreadId, run_id: RunId) -> Response:
    """Queue a failed or dead run again. A repetition is refused while the run is queued or runs."""
    run = await caller.client.redrive(thread_id, run_id)
    return reply(run, 202, Location=caller.location("threads", thread_id, "runs", run_id))
