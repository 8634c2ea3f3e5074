"""The span of a request, and the trace context of its caller (T2)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Scope

from runyard.support import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_HEADER_CHARACTERS: Final = 512
"""Maximum size of a header with a trace context. W3C Trace Context requires that a ``tracestate`` of this size is accepted."""
PROBES: Final = ("/livez", "/readyz", "/metrics")
"""Paths whose requests have no span, because they come every few seconds."""


class RequestSpan:
    """The span of one request. ``span`` is :data:`runyard.support.tracing.NO_SPAN` if the request has none."""

    def __init__(self, span: Span, method: str) -> None:
        self._span, self._method = span, method

    def answered(self, status: int | None, route: str, code: str | None) -> None:
        """Record the response. ``status``: the status of the response, or None if the caller left before. ``route``: the
        template of the path, or empty. ``code``: the code of the error in the response, or None."""
        if not self._span.is_recording():
            return
        if route:
            self._span.update_name(f"{self._method} {route}")
            self._span.set_attribute("http.route", route)
        if code:
            self._span.set_attribute("error.type", code)
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
            if status >= 500:
                tracing.fail(self._span, code or str(status))


@contextmanager
def request_span(scope: Scope, headers: Mapping[str, str], *, trusted: bool) -> Iterator[RequestSpan]:
    """Make a span for a request. The span is the current one inside the ``with`` block.

    A span of this process may already be active, for example the span of a host that mounts the API. No other span is then
    made. Without a tracer provider, only the caller's context is kept. This context is stored with the runs that the request
    accepts.
    """
    method = scope["method"] if scope["method"] in METHODS else "HTTP"
    if tracing.tracer() is None:
        given = tracing.valid(headers.get("traceparent"))
        with tracing.within(given if trusted else tracing.unsampled(given)):
            yield RequestSpan(tracing.NO_SPAN, method)
    elif tracing.current_span() is not tracing.NO_SPAN or scope["path"].removeprefix(scope.get("root_path", "")) in PROBES:
        yield RequestSpan(tracing.NO_SPAN, method)
    else:
        attributes = {
            "http.request.method": method if method != "HTTP" else "_OTHER",
            "url.path": scope["path"],  # without the query, which may contain a token
            "url.scheme": scope.get("scheme", "http"),
        }
        caller = _context_of_caller(headers, method, trusted=trusted)
        with tracing.span(method, "server", attributes, parent=caller) as span:
            yield RequestSpan(span, method)


def _context_of_caller(headers: Mapping[str, str], method: str, *, trusted: bool) -> SpanContext | None:
    """Read the caller's context with the propagators of the process (OTEL_PROPAGATORS). Return None if there is no valid
    context."""
    from opentelemetry import propagate
    from opentelemetry.trace import SpanContext, TraceFlags, get_current_span

    textmap = propagate.get_global_textmap()
    carrier = {name: headers[name] for name in textmap.fields - {"baggage"} if name in headers}
    short = {name: value for name, value in carrier.items() if len(value) <= MAX_HEADER_CHARACTERS}
    found = get_current_span(textmap.extract(short)).get_span_context()
    if not found.is_valid:
        return None
    if trusted or not found.trace_flags.sampled or _sampled_here(method):
        return found
    flags = TraceFlags(found.trace_flags & ~tracing.SAMPLED)
    return SpanContext(found.trace_id, found.span_id, is_remote=True, trace_flags=flags, trace_state=found.trace_state)


def _sampled_here(method: str) -> bool:
    """Return True if the sampler of this process would record a request without a caller's trace.

    The sampler gets a new random trace id. Otherwise a caller could choose an id that a sampler by ratio accepts. A provider
    other than the SDK's has no such sampler. In this case the result follows the caller's context.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind

    sampler: Any = getattr(tracing.tracer(), "sampler", None)
    if sampler is None:
        return True
    decided = sampler.should_sample(Context(), secrets.randbits(128), method, SpanKind.SERVER)
    return bool(decided.decision.is_sampled())
