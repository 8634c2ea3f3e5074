"""Encode the writes of an attempt before its last write, and decode their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from runyard.domain.size_limits import check_value
from runyard.models import Message, Usage
from runyard.ports.refs import AttemptToken

from ...codec.message_rows import NewMessage, many
from ...codec.values import Row, pack
from .attempt_writes import usage_json


class InterimWrite(NamedTuple):
    """The attributes of a ``runyard.interim_write``, in their order.

    ``result``: the result of the step ``finish_key``. If the write only starts a step, ``result`` has the step's arguments as
    UTF-8 text.
    """

    thread_key: int
    run_id: str
    fence: int
    messages: list[NewMessage]
    first_event: int
    start_key: str | None = None
    finish_key: str | None = None
    result: bytes | None = None
    usage: str | None = None

    @property
    def size(self) -> int:
        """The number of bytes of the messages and the result."""
        return sum(len(message.payload) for message in self.messages) + len(self.result or b"")


def new_messages(
    attempt: AttemptToken, messages: Sequence[Message], first_event: int, usage: Usage | None = None
) -> InterimWrite:
    """Encode the append of ``messages``. ``usage``: the usage of the run so far. Raises
    InvalidInputError if a message cannot be stored."""
    held = (attempt.thread_key, attempt.run_id, attempt.fence)
    return InterimWrite(*held, many(messages), first_event, usage=usage_json(usage))


def step_start(attempt: AttemptToken, key: str, input: str | None) -> InterimWrite:
    """Encode the start of the step ``key`` with the arguments ``input``."""
    arguments = input.encode() if input is not None else None
    return InterimWrite(attempt.thread_key, attempt.run_id, attempt.fence, [], 1, start_key=key, result=arguments)


def step_result(attempt: AttemptToken, key: str, result: Any, usage: Usage | None = None) -> InterimWrite:
    """Encode the result of the step ``key``. ``usage``: the usage of the run so far. Raises InvalidInputError
    if the result cannot be stored."""
    check_value(result, "result")
    held = (attempt.thread_key, attempt.run_id, attempt.fence)
    return InterimWrite(*held, [], 1, finish_key=key, result=pack(result), usage=usage_json(usage))


def by_write(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """Return the rows of each of ``count`` writes, in the order of the writes."""
    found: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        found[row["place"] - 1].append(row)
    return found
