"""Read long histories in parts, and decode them in slices.

Each slice is decoded by one call of C code, which blocks the process. Between two slices the event loop and other threads can
run, such as the thread that sends a worker's heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from runyard.domain.states import RunStatus
from runyard.models import Message
from runyard.support.garbage_collector import held_back

from . import codec

SLICE_MESSAGES: Final = 2_000
"""Maximum number of messages of one slice."""
SLICE_BYTES: Final = 2**17
"""Bytes of stored messages after which a slice ends. The limit is low because each byte may decode to one Python object."""
PART_MESSAGES: Final = 5_000
"""Maximum number of messages that one statement returns. A part also ends at the number of bytes of a page."""
_PAYLOAD: Final = 5
"""Position of the payload among the columns of a message in queries.sql."""


def more_after(part: Sequence[codec.Row]) -> bool:
    """Return True if messages may follow a part: the part is full, or some messages were left out for their size."""
    return bool(part) and (part[0]["found"] >= PART_MESSAGES or len(part) < part[0]["found"])


async def messages(rows: Sequence[codec.Row], **thread: str | int) -> list[Message]:
    """Decode any number of rows as :func:`codec.messages` does."""
    made: list[Message] = []
    with held_back(len(rows)):
        for part in _slices(rows):
            if made:
                await asyncio.sleep(0)
            made += codec.messages(part, **thread)
    return made


async def path(rows: Sequence[codec.Row], **thread: str | int) -> list[Message]:
    """Decode any number of rows of a path, which have the status of each message's run."""
    made = await messages(rows, **thread)
    for message, row in zip(made, rows, strict=True):
        message.run_status = row["run_status"] and RunStatus(row["run_status"])
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
