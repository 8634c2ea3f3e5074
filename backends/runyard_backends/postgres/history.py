"""Decode long histories in slices, because one slice is a call of C code that blocks the rest of the process.

Between two slices the event loop and other threads can run, such as the thread that sends a worker's heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from runyard.models import Message
from runyard.support.garbage_collector import held_back

from . import codec

SLICE_MESSAGES: Final = 2_000
"""Messages of one slice."""
SLICE_BYTES: Final = 2**18
"""Bytes of a slice's stored messages; the last message may exceed them. One byte may be a value of its own."""
_PAYLOAD: Final = 5
"""Position of the payload's column, in the order of queries.sql."""


async def messages(rows: Sequence[codec.Row], **thread: str | int) -> list[Message]:
    """Decode any number of rows; otherwise like :func:`codec.messages`."""
    made: list[Message] = []
    with held_back(len(rows)):
        for part in _slices(rows):
            if made:
                await asyncio.sleep(0)
            made += codec.messages(part, **thread)
    return made


def _slices(rows: Sequence[codec.Row]) -> Iterator[Sequence[codec.Row]]:
    first = size = 0
    for n, row in enumerate(rows):
        size += len(row[_PAYLOAD] or b"")
        if size >= SLICE_BYTES or n - first >= SLICE_MESSAGES:
            yield rows[first : n + 1]
            first, size = n + 1, 0
    if first < len(rows):
        yield rows[first:]
