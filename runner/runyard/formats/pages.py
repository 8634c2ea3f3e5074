"""A page of messages in a format."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..domain.messages import Message
from ..domain.size_limits import JsonObject
from .conversion import Format, check_format, to_format, tool_names
from .wire import Loss

SLICE_PARTS: Final = 500
"""Number of parts that are converted before the event loop may run again. A larger message is converted alone."""


class MessageLoss(Loss):
    """A loss, and the id of its message."""

    message_id: str


@dataclass
class FormattedPage:
    """A page of a path as JSON objects of a format.

    ``message_ids``: for each of ``items`` the id of its message. A message can be several items, or none. ``losses``: what the
    items lack of the messages. ``next``: the cursor of the next page, or None on the last.
    """

    items: list[JsonObject] = field(default_factory=list)
    message_ids: list[str] = field(default_factory=list)
    losses: list[MessageLoss] = field(default_factory=list)
    next: str | None = None


async def formatted(messages: Sequence[Message], format: Format, next: str | None = None) -> FormattedPage:
    """Return a page with ``messages`` in the format. The event loop runs between slices of a large page.

    Raises InvalidInputError for an unknown format.
    """
    check_format(format)
    page = FormattedPage(next=next)
    names: dict[str, str] = {}
    for message in messages:
        names |= tool_names(message)
    parts = 0
    for message in messages:
        converted = to_format(format, message, names)
        page.items += converted.items
        page.message_ids += [message.id] * len(converted.items)
        page.losses += [MessageLoss(message_id=message.id, **loss.__dict__) for loss in converted.losses]
        parts += len(message.content) + (SLICE_PARTS if message.source is not None else 1)
        if parts >= SLICE_PARTS:
            parts = 0
            await asyncio.sleep(0)
    return page
