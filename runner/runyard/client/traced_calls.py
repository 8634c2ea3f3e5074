"""The spans of a client's calls about runs (T1). If the client uses HTTP, the API makes these spans."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from ..domain.requests import HitlRequest
from ..errors import RunyardError
from ..ports.commands import AcceptRequest, ForkRequest
from ..ports.stores import Backend
from ..support import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def accept_span(backend: Backend, request: AcceptRequest) -> AbstractContextManager[Span]:
    """Make the span of the call that accepts ``request``. This span becomes the parent of the spans of the run's attempts."""
    if backend.remote or tracing.tracer() is None:
        return nullcontext(tracing.NO_SPAN)
    attributes = {
        "gen_ai.conversation.id": request.thread_id,
        "runyard.run.id": request.run_id,
        "runyard.run.kind": request.kind,
        "messaging.system": "runyard",
        "messaging.operation.type": "send",
        "messaging.operation.name": "accept",
    }
    if request.agent is not None:
        attributes["gen_ai.agent.name"] = request.agent
    return tracing.span("accept", "producer", attributes)


def accept_many_span(backend: Backend, count: int) -> AbstractContextManager[Span]:
    """Make the span of the call that accepts ``count`` prompts.

    The spans of these runs' attempts become children of this span.
    """
    if backend.remote or tracing.tracer() is None:
        return nullcontext(tracing.NO_SPAN)
    attributes: dict[str, str | int] = {
        "runyard.run.kind": "prompt",
        "messaging.system": "runyard",
        "messaging.operation.type": "send",
        "messaging.operation.name": "accept",
        "messaging.batch.message_count": count,
    }
    return tracing.span("accept", "producer", attributes)


def fork_span(backend: Backend, request: ForkRequest) -> AbstractContextManager[Span]:
    """Make the span of a call that forks a thread without a fork job."""
    if backend.remote or tracing.tracer() is None:
        return nullcontext(tracing.NO_SPAN)
    attributes = {"gen_ai.conversation.id": request.new, "runyard.thread.parent_id": request.src}
    return tracing.span("fork", attributes=attributes)


async def link_source(backend: Backend, span: Span, thread_id: str, run_id: str | None) -> None:
    """Link ``span`` to the trace of the run at the cut. Do nothing if this run has no trace."""
    if run_id is not None and span.is_recording():
        tracing.add_link(span, await _trace_of(backend, thread_id, run_id), "fork")


async def record_answer(backend: Backend, request: HitlRequest, began: int) -> None:
    """Record the answer to ``request`` as a span in the trace of the request's run.

    Link this span and the caller's span to each other.

    ``began``: the time of the call in nanoseconds since 1970. Do nothing if ``request`` belongs to no run.
    """
    if backend.remote or tracing.tracer() is None or request.thread_id is None or request.run_id is None:
        return
    if (of_run := await _trace_of(backend, request.thread_id, request.run_id)) is None:
        return
    attributes = {
        "gen_ai.conversation.id": request.thread_id,
        "runyard.run.id": request.run_id,
        "runyard.request.id": request.request_id,
        "runyard.request.kind": request.kind,
    }
    answer = tracing.start("respond", "producer", attributes, parent=of_run, began=began)
    caller = tracing.current_span()
    if tracing.NO_SPAN not in (answer, caller):
        tracing.add_link(answer, caller.get_span_context(), "caller")
        tracing.add_link(caller, answer.get_span_context(), "answer")
    tracing.end(answer)


async def _trace_of(backend: Backend, thread_id: str, run_id: str) -> str | None:
    """Return the trace context of a run, or None if the run or the store cannot be read."""
    try:
        run = await backend.runs.run(thread_id, run_id)
    except RunyardError:
        return None
    return run.trace_context if run is not None else None
