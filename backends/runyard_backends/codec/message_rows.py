"""Encode messages for storage, and decode them from rows.

The payload of a message has the fields that have no column, encoded with msgpack. A payload that starts with ``{`` is JSON that
a stored function wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from runyard.domain.size_limits import check_content
from runyard.errors import DataCorruptedError
from runyard.models import Message, check_fields, check_message, check_message_id, check_usage, stored_messages

from .damaged_rows import UNDECODABLE
from .values import Row, moment, pack, unpack, without_none


class NewMessage(NamedTuple):
    """The attributes of a ``runyard.new_message``, in their order. ``calls``: the ids of the message's tool calls. ``results``:
    the call ids of its tool results."""

    message_id: str
    role: str
    payload: bytes
    calls: list[str] | None
    results: list[str] | None


def new_message(message: Message, *, by_agent: bool = False) -> NewMessage:
    """Encode a message as a ``runyard.new_message``. ``by_agent``: True if an attempt or a checkpointer appends the message. If
    False, the fields that only an agent may set are dropped (M5). Raises InvalidInputError if the message is invalid or cannot
    be stored. The stored function checks its size in bytes."""
    check_fields(check_message(message))
    check_content(message)
    body: dict[str, Any] = {"content": [without_none(part.__dict__) for part in message.content]}
    if message.stop_reason is not None:
        body["stop_reason"] = message.stop_reason
    if message.usage is not None:
        body["usage"] = check_usage(message.usage).__dict__
    if message.metadata:
        body["metadata"] = message.metadata
    if message.source is not None:
        body["source"] = message.source.__dict__
    if by_agent and message.provider_details is not None:
        body["provider_details"] = message.provider_details
    calls = [part.id for part in message.content if part.type == "tool_call"] or None
    results = [part.call_id for part in message.content if part.type == "tool_result"] or None
    return NewMessage(check_message_id(message.id, "message id"), message.role, pack(body), calls, results)


def many(items: Sequence[Message]) -> list[NewMessage]:
    """Encode the messages of an attempt or of a checkpointer."""
    return [new_message(message, by_agent=True) for message in items]


def _noted(note: str, calls: Sequence[str] | None, results: Sequence[str] | None) -> dict[str, Any]:
    """Return the content of a message that the store itself wrote. Such a message has tool results that close open tool calls,
    or is a tombstone. ``note``: the text."""
    content: list[dict[str, Any]] = [
        {"type": "tool_result", "call_id": call, "content": note, "is_error": True} for call in results or ()
    ]
    content += [{"type": "tool_call", "id": call, "name": "erased", "arguments": {}} for call in calls or ()]
    return {"content": content or [{"type": "text", "text": note}]}


def messages(rows: Sequence[Row], **thread: str | int) -> list[Message]:
    """Decode messages from a few rows. For many rows use :mod:`..history`.

    ``rows``: rows that begin with the columns of a message, in the order of queries.sql. The time is a datetime, or the bytes
    of a time of Postgres. ``thread``: the ``thread_id`` or the
    ``thread_key``, for the error. Raises DataCorruptedError with the thread and the message.
    """
    try:
        return stored_messages(map(fields, rows))
    except UNDECODABLE as error:
        raise _corrupted(rows, thread) from error


def _corrupted(rows: Sequence[Row], thread: Mapping[str, str | int]) -> DataCorruptedError:
    """Return the error for the first of ``rows`` that cannot be decoded."""
    for row in rows:
        try:
            stored_messages([fields(row)])
        except UNDECODABLE as error:
            where = " ".join(f"{name} {value}" for name, value in thread.items())
            return DataCorruptedError(
                f"message {row[1]} of {where} cannot be decoded ({type(error).__name__}); did another program write the row?",
                message_id=row[1],
                seq=row[0],
                **thread,
            )
    raise AssertionError("each of the messages can be decoded")


def fields(row: Row) -> dict[str, Any]:
    """Return the fields of a message. The fields are not validated."""
    seq, id_, parent_id, run_id, role, payload, note, calls, results, created_at, *_ = row
    found: dict[str, Any] = _noted(note, calls, results) if payload is None else unpack(payload)
    found["id"] = id_
    found["role"] = role
    found["run_id"] = run_id
    found["parent_id"] = parent_id
    found["seq"] = seq
    found["created_at"] = created_at if isinstance(created_at, datetime) else moment(created_at)
    return found
