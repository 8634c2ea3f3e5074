"""Entries of lists: the size of an entry, and the omission of its large values."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

from .messages import Message
from .requests import HitlRequest
from .runs import LARGE_VALUE_BYTES, AttemptInfo, Run
from .threads import Thread

M = TypeVar("M", Run, Thread)

_EMPTY: Final[dict[str, Any]] = {"input": None, "result": None, "metadata": {}, "extra": {}, "config": {}}
"""The fields of an entry that can be large → the value that replaces a large value."""


def entry(found: M) -> M:
    """Return a copy of ``found`` for a list. The copy lacks the large values and names their fields in ``omitted``."""
    if isinstance(found, Run):
        found = found.without_tracebacks()
    large = [name for name in _EMPTY if json_bytes(getattr(found, name, None)) > LARGE_VALUE_BYTES]
    kept = {name: _EMPTY[name] for name in large} | {"omitted": large}
    return found.model_copy(update=kept).model_copy(deep=True)


def json_bytes(value: Any) -> int:
    """Return the number of bytes of ``value`` as JSON."""
    if value is None or value == {}:
        return 0
    if isinstance(value, Message):
        value = value.model_dump(mode="json", include={"content", "metadata"})
    return len(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))


def entry_bytes(found: Run | Thread) -> int:
    """Return the approximate number of bytes of a run or a thread in a list."""
    shown = [json_bytes(getattr(found, name, None)) for name in _EMPTY]
    error = found.error.without_traceback().model_dump() if isinstance(found, Run) and found.error else None
    return 1024 + sum(size for size in shown if size <= LARGE_VALUE_BYTES) + json_bytes(error)


def attempt_bytes(attempt: AttemptInfo) -> int:
    """Return the approximate number of bytes of an attempt in a list."""
    return 512 + (json_bytes(attempt.error.model_dump()) if attempt.error else 0)


def message_bytes(message: Message) -> int:
    """Return the approximate number of bytes of a message in a list."""
    return 512 + json_bytes(message)


def request_bytes(request: HitlRequest) -> int:
    """Return the approximate number of bytes of a request in a list."""
    shown = (request.payload, request.answer_schema, request.on_deadline, request.answer)
    return 512 + sum(json_bytes(value) for value in shown)
