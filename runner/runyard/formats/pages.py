"""A page of messages in a format."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from ..domain.messages import Message
from ..domain.size_limits import JsonObject
from .conversion import Format, check_format, to_format
from .wire import Loss

SLICE_SECONDS: Final = 0.01
"""Seconds of work after which a conversion lets the event loop do other work. A single message is converted without a pause."""


class MessageLoss(Loss):
    """A loss, and the id of its message."""

    message_id: str


@dataclass
class FormattedPage:
    """A page of a path as JSON objects of a format.

    ``message_ids``: for each item, the id of its message. A message can be several items, or no item. ``losses``: the values
    of the messages that the items lack or change. ``next``: the cursor of the next page, or None on the last page.
    """

    items: list[JsonObject] = field(default_factory=list)
    message_ids: list[str] = field(default_factory=list)
    losses: list[MessageLoss] = field(default_factory=list)
    next: str | None = None


async def formatted(
    messages: Sequence[Message], format: Format, next: str | None = None, *, newest_first: bool = False
) -> FormattedPage:
    """Return a page with ``messages`` in the format.

    A large page is converted in slices, between which the event loop can work.

    ``newest_first``: whether ``messages`` begin with the newest message.

    Some formats need the tool name of a result. If a result lacks the name, the name is taken from the newest call with the
    result's id in those of ``messages`` that are older than the result.

    Raises InvalidInputError for an unknown format.
    """
    check_format(format)
    page = FormattedPage(next=next)
    names = _names_of_results(messages[::-1])[::-1] if newest_first else _names_of_results(messages)
    since = monotonic()
    for message, known in zip(messages, names, strict=True):
        converted = to_format(format, message, known)
        page.items += converted.items
        page.message_ids += [message.id] * len(converted.items)
        page.losses += [MessageLoss(message_id=message.id, **loss.__dict__) for loss in converted.losses]
        if monotonic() - since > SLICE_SECONDS:
            await asyncio.sleep(0)
            since = monotonic()
    return page


def _names_of_results(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return a dict for each message. The dict maps the call ids of the message's tool results to the names of the tools.

    Every message needs a separate dict, because the ids of calls can repeat.
    """
    called: dict[str, str] = {}
    found: list[dict[str, str]] = []
    for message in messages:
        found.append({part.call_id: called[part.call_id] for part in message.tool_results if part.call_id in called})
        called |= {part.id: part.name for part in message.tool_calls}
    return found
