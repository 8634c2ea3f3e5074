"""Decode long histories in slices, or lazily.

One call of C code decodes a slice and blocks all threads of the process. The event loop and all other threads, such as a
worker's heartbeat thread, run between two slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from runyard.models import Message
from runyard.support.garbage_collector import held_back

from . import message_rows
from .lazy_messages import KeptRow, lazy_messages
from .values import Row

LAZY_MIN_MESSAGES: Final = 200
"""If a history has at least this number of messages, each message is decoded at its first use."""
LAZY_SLICE_MESSAGES: Final = 20_000
"""Maximum number of lazy messages that are made before the event loop can do other work."""

SLICE_MESSAGES: Final = 2_000
"""Maximum number of messages of one slice."""
SLICE_BYTES: Final = 2**17
"""Bytes of stored messages after which a slice ends. The limit is low, because decoding may create one Python object per
byte."""
_PAYLOAD: Final = 5
"""Position of the payload among the columns of a message."""


async def messages(rows: Sequence[Row], **thread: str | int) -> list[Message]:
    """Decode rows, in slices if there are many. The arguments and errors are the same as for :func:`message_rows.messages`."""
    made: list[Message] = []
    with held_back(len(rows)):
        for part in _slices(rows):
            if made:
                await asyncio.sleep(0)
            made += message_rows.messages(part, **thread)
    return made


def kept(rows: Iterable[Row], **thread: str | int) -> list[KeptRow]:
    """Return rows in the form that :func:`lazily` needs. ``thread``: the ``thread_id`` or the ``thread_key``, for the error."""
    return list(zip(rows, repeat(thread)))


async def lazily(rows: Sequence[KeptRow]) -> list[Message]:
    """Return the messages of a history. In a long history, each message is decoded at its first use. The first use of a message
    from a damaged row raises DataCorruptedError. The messages of a short history are decoded in this call. The call then raises
    the error for a damaged row."""
    if len(rows) < LAZY_MIN_MESSAGES:
        return await messages([row for row, _ in rows], **(rows[0][1] if rows else {}))
    made: list[Message] = []
    with held_back(len(rows)):
        for first in range(0, len(rows), LAZY_SLICE_MESSAGES):
            if made:
                await asyncio.sleep(0)
            made += lazy_messages(rows[first : first + LAZY_SLICE_MESSAGES])
    return made


def _slices(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    first = size = 0
    for n, row in enumerate(rows):
        size += len(row[_PAYLOAD] or b"")
        if size >= SLICE_BYTES or n - first >= SLICE_MESSAGES:
            yield rows[first : n + 1]
            first, size = n + 1, 0
    if first < len(rows):
        yield rows[first:]
