"""Messages that close the open tool calls of a run (R10, F6, H8). Providers refuse conversations with open calls (I7).

``postgres/functions/cuts.sql`` and ``memory/tree.py`` refuse a fork whose cut is inside a tool cycle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..errors import InvalidInputError
from .messages import Message, ToolResultPart
from .quoting import brief

CANCELLED: Final = "cancelled"
"""Error result for the open calls of a cancelled run whose messages are kept."""
FORKED: Final = "aborted by fork"
"""Error result for the tool calls that are open at the cut of a fork with ``repair``."""
MAX_REASON_CHARACTERS: Final = 2000
"""Maximum number of characters in the reason of an abort."""


def aborted(reason: str) -> str:
    """Return the text of an aborted run's last message and of the error results for its open tool calls.

    Raise InvalidInputError for an invalid reason.
    """
    if len(reason) > MAX_REASON_CHARACTERS or any(c == "\0" or "\ud800" <= c <= "\udfff" for c in reason):
        most = MAX_REASON_CHARACTERS
        raise InvalidInputError(
            f"the reason of an abort has at most {most} characters, without NUL and surrogates, got {brief(reason)}",
            field="reason",
        )
    return f"aborted: {reason}"


def closing(calls: Iterable[str], why: str) -> list[Message]:
    """Return a list with one tool message. The message contains an error result for each of ``calls``.

    ``calls``: ids of tool calls. Without calls, the list is empty. ``why``: the text of each result.
    """
    results = [ToolResultPart(call_id=call, content=why, is_error=True) for call in calls]
    return [Message.tool(*results)] if results else []


def farewell(words: str) -> Message:
    """Return the assistant message that ends an aborted run. The model of a later run reads this message."""
    return Message.assistant(words, stop_reason="aborted")


def abort_messages(messages: Iterable[Message], reason: str) -> list[Message]:
    """Return the messages that an abort appends to ``messages``: results of open calls, then an assistant message (H8)."""
    words = aborted(reason)
    return [*closing(open_tool_calls(messages), words), farewell(words)]


def open_tool_calls(messages: Iterable[Message]) -> list[str]:
    """Return, in order, the ids of the tool calls in ``messages`` that have no result in a later message (R5, F6)."""
    calls: dict[str, None] = {}
    for message in messages:
        for result in message.tool_results:
            calls.pop(result.call_id, None)
        calls.update(dict.fromkeys(call.id for call in message.tool_calls))
    return list(calls)


def cycles_closed(context: Iterable[Message], own: Iterable[Message]) -> bool:
    """Return whether the results of each tool call of a run directly follow the message with the call (R5).

    ``own``: the run's messages.

    Results at the beginning of ``own`` may close calls that are open at the end of ``context``.
    """
    before = set(open_tool_calls(context))
    expected: set[str] = set()
    for message in own:
        results = [part.call_id for part in message.tool_results]
        if results:
            if len(set(results)) != len(results) or not set(results) <= expected | before:
                return False
            expected -= set(results)
            before -= set(results)
        elif expected:
            return False
        else:
            before = set()
        calls = [call.id for call in message.tool_calls]
        if calls and (expected or len(set(calls)) != len(calls)):
            return False
        expected |= set(calls)
    return not expected
