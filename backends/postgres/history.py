"""Long histories, from rows to messages, slice by slice: each is one call of C that lets nothing else of the process run.

Between two slices the event loop has its turn, and other threads theirs, such as the one that keeps a worker alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from runner.collector import held_back
from runner.models import Message

from . import codec

SLICE: Final = 2_000
"""Messages of one slice."""
SLICE_BYTES: Final = 2**18
"""Bytes of a slice's messages as they are stored, the last one of which may exceed them. A byte may be a value of its own."""
_PAYLOAD: Final = 5
"""The column of the payload, in the order of sql/queries.sql."""


async def messages(rows: Sequence[codec.Row], **thread: str | int) -> list[Message]:
    """As :func:`codec.messages`, of any number of rows."""
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
        if size >= SLICE_BYTES or n - first >= SLICE:
            yield rows[first : n + 1]
            first, size = n + 1, 0
    if first < len(rows):
        yield rows[first:]
