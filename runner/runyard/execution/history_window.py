"""Read the end of a long history.

A history is read in pages from its end, until the window has enough messages. A window has the call of each of its results,
because providers refuse a tool result without its call.

The messages of a window are selected in the order in which they were stored, and then grouped by run. Each run stands at the
place of its first message in the window. If the window lacks the first message of a run, the run may stand at another place in
the whole history.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ..domain.messages import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, by_run
from ..errors import InvalidInputError

PAGE_MESSAGES: Final = 100
"""Number of messages of one page, if the caller has given no number of messages."""
CYCLE_MESSAGES: Final = 8
"""Number of messages of the first page that is read only for the call of a result. Each further page is larger."""
SEARCHED_MESSAGES: Final = 1_000
"""Maximum number of messages before a full window that are searched for the calls of its results."""
CHARACTERS_PER_TOKEN: Final = 4
MESSAGE_TOKENS: Final = 4
"""Estimated tokens of a message without content."""
MEDIA_TOKENS: Final = 1_500
"""Estimated tokens of an image, a sound, a document or another file."""

ReadPage = Callable[[int, Message | None], Awaitable[list[Message]]]
"""Reads a page of a history, the last message first. The first argument is the maximum number of messages. The second argument
is the message before which the page ends. If the second argument is None, the page has the last messages of the history. If no
message is before the second argument, the page is empty."""


def check_window(last: int | None, max_tokens: int | None) -> None:
    """Raise :class:`InvalidInputError` for a bound below 1."""
    bounds: dict[str, object] = {"last": last, "max_tokens": max_tokens}
    for name, value in bounds.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InvalidInputError(f"{name} must be an integer of at least 1, got {value!r}", field=name)


def estimated_tokens(message: Message) -> int:
    """Return an estimate of the tokens of a message for a model."""
    return MESSAGE_TOKENS + sum(_tokens(part) for part in message.content)


def _tokens(part: Any) -> int:
    if isinstance(part, TextPart | ThinkingPart):
        return _of_characters(len(part.text))
    if isinstance(part, ToolCallPart):
        return _of_characters(len(part.name) + len(json.dumps(part.arguments)))
    if isinstance(part, ToolResultPart) and part.has_parts:
        return sum(map(_tokens, part.parts))
    if isinstance(part, ToolResultPart):
        return _of_characters(len(part.content) if isinstance(part.content, str) else len(json.dumps(part.content)))
    return MEDIA_TOKENS


def _of_characters(count: int) -> int:
    return -(-count // CHARACTERS_PER_TOKEN)


async def read_window(read: ReadPage, last: int | None, max_tokens: int | None) -> list[Message]:
    """Return the messages that were stored last, grouped by run (S5). The window has at most ``last`` messages, with about
    ``max_tokens`` tokens in total, and at least one message.

    For each result, the window also has the call and all messages that were stored after the call. If the call is not among
    the last SEARCHED_MESSAGES before the window, the window stays as it is.
    """
    window: list[Message] = []  # the last message first
    uncalled: set[tuple[str | None, str]] = set()  # run and id of each call that the window lacks
    tokens, wanted, length = 0, last or PAGE_MESSAGES, 0
    while page := await read(wanted, window[-1] if window else None):
        for message in page:
            tokens += estimated_tokens(message) if max_tokens is not None else 0
            full = (last is not None and len(window) >= last) or (max_tokens is not None and tokens > max_tokens)
            if window and full:
                length = length or len(window)
                if not uncalled:
                    return by_run(reversed(window))
                if len(window) - length >= SEARCHED_MESSAGES:
                    return by_run(reversed(window[:length]))
            window.append(message)
            uncalled |= {(message.run_id, result.call_id) for result in message.tool_results}
            # A result without a run is the answer of a repaired fork. Its call belongs to a run.
            uncalled -= {(run_id, call.id) for call in message.tool_calls for run_id in (message.run_id, None)}
        if last is not None and len(window) >= last and not uncalled:
            break
        wanted = PAGE_MESSAGES
        if last is not None:
            wanted = last - len(window) if len(window) < last else max(CYCLE_MESSAGES, len(window) - last)
    return by_run(reversed(window[: length or None] if uncalled else window))


def page_of(messages: Sequence[Message], limit: int, before: Message | None = None) -> list[Message]:
    """Return a page of ``messages``, as :data:`ReadPage` does."""
    end = len(messages)
    if before is not None:
        end = next(n for n in range(end - 1, -1, -1) if messages[n].id == before.id)
    return list(reversed(messages[max(0, end - limit) : end]))
