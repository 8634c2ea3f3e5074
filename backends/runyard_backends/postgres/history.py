"""Read long histories in parts: the size of a part, and whether another part follows.

``contexts.py`` reads the parts for an attempt. ``_path`` in ``threads.py`` reads the parts for other readers.
``runyard/execution/transcript.py`` keeps the messages of an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runyard.domain.states import RunStatus
from runyard.models import Message

from ..codec.history import kept as kept
from ..codec.history import lazily as lazily
from ..codec.history import messages as messages
from . import codec

PART_MESSAGES: Final = 5_000
"""Maximum number of messages that one statement returns. A part also ends when it has the bytes of a page."""


def more_after(part: Sequence[codec.Row]) -> bool:
    """Return True if messages may follow a part: the part is full, or messages were omitted because of their size."""
    return bool(part) and (part[0]["found"] >= PART_MESSAGES or len(part) < part[0]["found"])


async def path(rows: Sequence[codec.Row], **thread: str | int) -> list[Message]:
    """Decode the rows of a path, in slices if there are many. Each row must have the column ``run_status``, the status of the
    message's run. The returned messages have this status."""
    made = await messages(rows, **thread)
    for message, row in zip(made, rows, strict=True):
        message.run_status = row["run_status"] and RunStatus(row["run_status"])
    return made
