"""The trace that a call belongs to, so that a run can be found from it (W3C Trace Context)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_current: ContextVar[str | None] = ContextVar("runyard_trace_context", default=None)


def current() -> str | None:
    """The ``traceparent`` of whoever calls, None without one. Runs that are accepted record it."""
    return _current.get()


@contextmanager
def within(traceparent: str | None) -> Iterator[None]:
    """Accept runs as part of the trace ``traceparent``; what is no valid header value counts as none."""
    valid = traceparent if traceparent is not None and _TRACEPARENT.fullmatch(traceparent) else None
    token = _current.set(valid)
    try:
        yield
    finally:
        _current.reset(token)
