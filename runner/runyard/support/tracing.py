"""The trace context of a call (W3C Trace Context), which accepted runs record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_current: ContextVar[str | None] = ContextVar("runyard_trace_context", default=None)


def current() -> str | None:
    """Return the caller's ``traceparent``, or None. Accepted runs record it."""
    return _current.get()


@contextmanager
def within(traceparent: str | None) -> Iterator[None]:
    """Record ``traceparent`` with the runs that are accepted inside the ``with`` block. An invalid value is ignored."""
    valid = traceparent if traceparent is not None and _TRACEPARENT.fullmatch(traceparent) else None
    token = _current.set(valid)
    try:
        yield
    finally:
        _current.reset(token)
