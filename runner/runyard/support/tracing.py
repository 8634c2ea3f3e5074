"""Traces by OpenTelemetry: the spans of this process, and the trace context of a call (W3C Trace Context).

A process traces if its program has set a tracer provider, for example the provider of the OpenTelemetry SDK. The module imports
OpenTelemetry only in this case. Without a provider the functions return immediately, and a span is :data:`NO_SPAN`.
``docs/how-to/traces.md`` lists the spans. A span has no content of messages and no text of an error (T4).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

from ..errors import RunyardError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

Kind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]
Attributes: TypeAlias = Mapping[str, str | int | float | bool]

SCOPE: Final = "runyard"
"""The instrumentation scope of the spans."""
API: Final = "opentelemetry.trace"
SAMPLED: Final = 1
"""The bit of a traceparent's flags for a recorded trace."""
KNOWN_FLAGS: Final = 3
"""The flags that W3C Trace Context defines: the trace is recorded, the trace id is random."""

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")

_current: ContextVar[str | None] = ContextVar("runyard_trace_context", default=None)


class SpanIds(NamedTuple):
    """The ids of a span, as numbers. The trace id is used only for a span without a parent."""

    trace_id: int
    span_id: int


class _NoSpan:
    """The span of a process that does not trace."""

    def is_recording(self) -> bool:
        return False

    def _ignore(self, *_: object, **__: object) -> None:
        return None

    set_attribute = set_attributes = add_link = add_event = set_status = update_name = end = _ignore


NO_SPAN: Final = cast("Span", _NoSpan())

_known: tuple[object, Tracer | None] = (None, None)
_chosen: ContextVar[SpanIds | None] = ContextVar("runyard_span_ids", default=None)


def tracer() -> Tracer | None:
    """Return the tracer of the process's tracer provider, or None if the process does not trace."""
    global _known
    api: Any = sys.modules.get(API)
    if api is None or not hasattr(api, "get_tracer_provider"):  # another thread is importing the API
        return None
    provider = api.get_tracer_provider()
    if provider is not _known[0]:
        _known = provider, _tracer_of(provider, api)
    return _known[1]


def chooses_ids() -> bool:
    """Return whether the spans of this process get the ids given to :func:`start`. Only the SDK's tracer can do this."""
    return isinstance(getattr(tracer(), "id_generator", None), _IdGenerator)


def current_span() -> Span:
    """Return the current span, or :data:`NO_SPAN` if there is none."""
    api: Any = sys.modules.get(API)
    if api is None or not hasattr(api, "get_current_span"):
        return NO_SPAN
    found: Span = api.get_current_span()
    return found if found.get_span_context().is_valid else NO_SPAN


def current() -> str | None:
    """Return the ``traceparent`` of the current span.

    Without a current span, return the value given to the innermost :func:`within`, or None outside of :func:`within`. Accepted
    runs record the returned value.
    """
    found = _current_context()
    return _current.get() if found is None else traceparent(found)


@contextmanager
def within(traceparent: str | None) -> Iterator[None]:
    """Inside the ``with`` block, make ``traceparent`` the context of calls that have no span. An invalid value is ignored."""
    token = _current.set(valid(traceparent))
    try:
        yield
    finally:
        _current.reset(token)


def valid(traceparent: str | None) -> str | None:
    """Return ``traceparent`` if it has the form of W3C Trace Context, version 00. Otherwise return None."""
    return traceparent if traceparent is not None and _TRACEPARENT.fullmatch(traceparent) else None


def unsampled(traceparent: str | None) -> str | None:
    """Return the valid ``traceparent`` with its sampled flag cleared. Return None for None."""
    return None if traceparent is None else f"{traceparent[:-2]}{int(traceparent[-2:], 16) & ~SAMPLED:02x}"


def traceparent(context: SpanContext) -> str:
    """Return ``context`` as a ``traceparent``."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def span_context(traceparent: str | None) -> SpanContext | None:
    """Return a ``traceparent`` of another process as a span context. Return None for an invalid value. This function needs a
    tracer provider."""
    from opentelemetry.trace import SpanContext, TraceFlags

    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags & KNOWN_FLAGS))


def add_link(span: Span, context: SpanContext | str | None, why: str) -> None:
    """Link ``span`` to another span. ``why``: how the other span is related to ``span``."""
    if span.is_recording():
        found = span_context(context) if isinstance(context, str) else context
        if found is not None:
            span.add_link(found, {"runyard.link": why})


@contextmanager
def span(
    name: str,
    kind: Kind = "internal",
    attributes: Attributes | None = None,
    *,
    parent: SpanContext | str | None = None,
    began: int | None = None,
) -> Iterator[Span]:
    """Make a span. Inside the ``with`` block this span is the current span.

    An exception of the block marks the span (:func:`fail`).

    The arguments are as in :func:`start`.
    """
    if tracer() is None:
        yield NO_SPAN
        return
    started = start(name, kind, attributes, parent=parent, began=began)
    with active(started):
        try:
            yield started
        except Exception as error:
            fail(started, error)
            raise
        finally:
            end(started)


@contextmanager
def active(span: Span) -> Iterator[None]:
    """Make ``span`` the current span inside the ``with`` block. The end of the block does not end the span."""
    if span is NO_SPAN:
        yield
        return
    from opentelemetry.trace import use_span

    with use_span(span, record_exception=False, set_status_on_exception=False):
        yield


def start(
    name: str,
    kind: Kind = "internal",
    attributes: Attributes | None = None,
    *,
    parent: SpanContext | str | None = None,
    began: int | None = None,
    ids: SpanIds | None = None,
) -> Span:
    """Start a span. Return the span, or :data:`NO_SPAN` if the process does not trace. The caller ends the span.

    ``parent``: a span context or a ``traceparent``. The default is the current span, or else the context of :func:`within`.
    ``began``: the start in nanoseconds since 1970, by default the present time. ``ids``: the ids of the span. These ids are
    used only if :func:`chooses_ids` returns True.
    """
    if (own := tracer()) is None:
        return NO_SPAN
    from opentelemetry.trace import SpanKind

    token = _chosen.set(ids)
    try:
        kinds = SpanKind[kind.upper()]
        return own.start_span(name, _parent(parent), kinds, attributes=attributes, start_time=began)
    except Exception as error:
        _warn("span_not_started", name, error)
        return NO_SPAN
    finally:
        _chosen.reset(token)


def end(span: Span, ended: int | None = None) -> None:
    """End ``span``. ``ended``: the end in nanoseconds since 1970, by default the present time."""
    try:
        span.end(ended)
    except Exception as error:
        _warn("span_not_exported", getattr(span, "name", ""), error)


def _warn(event: str, name: str, error: Exception) -> None:
    """Log an error of the program's sampler or span processors. Such an error must not fail a run (T6)."""
    import structlog  # this import takes as long as the other imports of a client together

    structlog.get_logger("runyard.traces").warning(event, span=name, error=type(error).__qualname__)


def fail(span: Span, error: BaseException | str) -> None:
    """Mark ``span`` as failed, with the code or the class of ``error``.

    The text of ``error`` is left out, as it may quote a message (T4).
    """
    if not span.is_recording():
        return
    from opentelemetry.trace import StatusCode

    code = error if isinstance(error, str) else error.code if isinstance(error, RunyardError) else type(error).__qualname__
    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", code)


def log_fields() -> dict[str, str]:
    """Return ``trace_id`` and ``span_id`` of the current span for a log line. Without a span, return an empty dict."""
    found = _current_context()
    return {} if found is None else _named(found)


def exemplar(span: Span | None = None) -> dict[str, str] | None:
    """Return the exemplar of a measurement: the ids of ``span`` (None: the current span).

    Return None for an unrecorded span.
    """
    if span is NO_SPAN or tracer() is None:
        return None
    found = _current_context() if span is None else span.get_span_context()
    return _named(found) if found is not None and found.is_valid and found.trace_flags.sampled else None


def headers() -> dict[str, str]:
    """Return the headers that send the context of this call to another process."""
    found = _current_context()
    if found is None:
        return {} if (recorded := _current.get()) is None else {"traceparent": recorded}
    state = found.trace_state.to_header()
    return {"traceparent": traceparent(found), **({"tracestate": state} if state else {})}


def _current_context() -> SpanContext | None:
    """Return the context of the current span, or None if there is no span."""
    found = current_span()
    return None if found is NO_SPAN else found.get_span_context()


def _parent(parent: SpanContext | str | None) -> Context | None:
    """Return the OpenTelemetry context in which a span starts. Return None for the current context."""
    if isinstance(parent, str) or (parent is None and _current_context() is None):
        parent = span_context(parent or _current.get())
    if parent is None:
        return None
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return set_span_in_context(NonRecordingSpan(parent))


def _named(context: SpanContext) -> dict[str, str]:
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _tracer_of(provider: Any, api: Any) -> Tracer | None:
    """Return the tracer of ``provider``, or None if the provider makes no spans."""
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    found: Tracer = provider.get_tracer(SCOPE)
    if isinstance(found, api.NoOpTracer):  # set by OTEL_SDK_DISABLED
        return None
    generator = getattr(found, "id_generator", None)
    if generator is not None and not isinstance(generator, _IdGenerator):
        found.id_generator = _IdGenerator(generator)  # type: ignore[attr-defined]  # the SDK's; this tracer is runyard's alone
    return found


class _IdGenerator:
    """Returns the ids given to :func:`start`. If none were given, returns ids of ``own``, the provider's generator."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def generate_trace_id(self) -> int:
        chosen = _chosen.get()
        return chosen.trace_id if chosen is not None else cast(int, self._own.generate_trace_id())

    def generate_span_id(self) -> int:
        chosen = _chosen.get()
        return chosen.span_id if chosen is not None else cast(int, self._own.generate_span_id())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
