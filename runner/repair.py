"""Messages that close what a run left open, so that every provider accepts the conversation (semantics: R10, F6, H8; I7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .errors import InvalidInputError
from .legible import brief
from .models import Message, ToolResultPart, open_tool_calls

CANCELLED: Final = "cancelled"
"""What closes the open calls of a run that is cancelled and kept."""
FORKED: Final = "aborted by fork"
"""What closes the open calls at the cut of a fork that repairs them."""
LONGEST_REASON: Final = 2000
"""Characters that the reason of an abort may have."""


def aborted(reason: str) -> str:
    """What an aborted run's calls and its last message say. Raises InvalidInputError for a reason that cannot be stored."""
    if len(reason) > LONGEST_REASON or any(c == "\0" or "\ud800" <= c <= "\udfff" for c in reason):
        raise InvalidInputError(
            f"the reason of an abort has at most {LONGEST_REASON} characters that every store takes, got {brief(reason)}",
            field="reason",
        )
    return f"aborted: {reason}"


def closing(calls: Iterable[str], why: str) -> list[Message]:
    """One tool message with an error result ``why`` for each of the ``calls`` (ids); none if there are no calls."""
    results = [ToolResultPart(call_id=call, content=why, is_error=True) for call in calls]
    return [Message.tool(*results)] if results else []


def farewell(words: str) -> Message:
    """The assistant message that ends an aborted run: a model that reads on knows that nothing came of it."""
    return Message.assistant(words, stop_reason="aborted")


def abort_messages(messages: Iterable[Message], reason: str) -> list[Message]:
    """What an abort adds after a run's ``messages``: a result for each open call, then an assistant message (semantics: H8)."""
    words = aborted(reason)
    return [*closing(open_tool_calls(messages), words), farewell(words)]
