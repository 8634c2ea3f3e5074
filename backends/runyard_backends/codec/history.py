"""Decode long histories in slices.

One call of C code decodes a slice and blocks all threads of the process. The event loop and the other threads run between two
slices. One of these threads sends a worker's heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from runyard.models import Message
from runyard.support.garbage_collector import held_back

from . import message_rows
from .values import Row

SLICE_MESSAGES: Final = 2_000
"""Maximum number of messages of one slice."""
SLICE_BYTES: Final = 2**17
"""Bytes of stored messages after which a slice ends. The limit is low, because decoding may create one Python object per
byte."""
_PAYLOAD: Final = 5
"""Position of the payload among the columns of a message."""


async def messages(rows: Sequence[Row], **thread: str | int) -> list[Message]:
    """Decode any number of rows. The arguments and errors are the same as for :func:`message_rows.messages`."""
    made: list[Message] = []
    with held_back(len(rows)):
        for part in _slices(rows):
            if made:
                await asyncio.sleep(0)
            made += message_rows.messages(part, **thread)
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
