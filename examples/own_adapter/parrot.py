"""A minimal framework of agents. A bot repeats the last text of the user, or calls a function once and says the result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class Call:
    """A request of the bot to call ``function`` with ``text``."""

    function: Callable[[str], Awaitable[str]]
    text: str


@dataclass
class Bot:
    """A bot that answers a conversation. A conversation is a list of alternating texts of the user and of the bot.

    ``function``: a function that the bot calls once per answer. ``careful``: whether a human must allow each call. ``heard``:
    all conversations so far.
    """

    function: Callable[[str], Awaitable[str]] | None = None
    careful: bool = False
    heard: list[list[str]] = field(default_factory=list)

    async def next(self, conversation: list[str], result: str | None = None) -> AsyncIterator[str | Call]:
        """Yield the words of the answer. If the bot has a function and ``result`` is None, yield only a call.

        ``result``: the result of the call.
        """
        self.heard.append(conversation)
        if self.function is not None and result is None:
            yield Call(self.function, "x")
            return
        answer = f"You said: {conversation[-1]}" if result is None else f"done: {result}"
        for word in answer.split(" "):
            yield word if answer.startswith(word) else f" {word}"
