"""Encode the writes of an attempt before its last write, and decode their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from runyard.domain.size_limits import check_value
from runyard.models import Message
from runyard.ports.refs import AttemptToken

from ...codec.message_rows import NewMessage, many
from ...codec.values import Row, pack


class InterimWrite(NamedTuple):
    """The attributes of a ``runyard.interim_write``, in their order."""

    thread_key: int
    run_id: str
    fence: int
    messages: list[NewMessage]
    first_event: int
    start_key: str | None = None
    finish_key: str | None = None
    result: bytes | None = None


def new_messages(attempt: AttemptToken, messages: Sequence[Message], first_event: int) -> InterimWrite:
    """Encode the append of ``messages``. Raises InvalidInputError if a message cannot be stored."""
    return InterimWrite(attempt.thread_key, attempt.run_id, attempt.fence, many(messages), first_event)


def step_start(attempt: AttemptToken, key: str) -> InterimWrite:
    """Encode the start of the step ``key``."""
    return InterimWrite(attempt.thread_key, attempt.run_id, attempt.fence, [], 1, start_key=key)


def step_result(attempt: AttemptToken, key: str, result: Any) -> InterimWrite:
    """Encode the result of the step ``key``. Raises InvalidInputError if it cannot be stored."""
    check_value(result, "result")
    return InterimWrite(attempt.thread_key, attempt.run_id, attempt.fence, [], 1, finish_key=key, result=pack(result))


def by_write(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """Return the rows of each of ``count`` writes, in the order of the writes."""
    found: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        found[row["place"] - 1].append(row)
    return found
