"""The parts that all protocols share: the conversation that a scenario gets, the reply that it returns, and refusals."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeAlias

Body: TypeAlias = dict[str, Any]
"""A JSON object of a request or a response."""

MODELS = {
    "openai-chat": "openai-chat:gpt-4.1",
    "openai-responses": "openai-responses:gpt-5.1",
    "anthropic": "anthropic:claude-haiku-4-5",
    "gemini": "google:gemini-3.8-flash",
}
"""The model of each protocol as pydantic-ai names it."""

SECRET = b"what the servers sign with"


@dataclass(frozen=True)
class Call:
    """A tool call. ``id``: that of the protocol; the server makes one if the scenario gives none. ``raw``: the arguments as the
    model wrote them, if they are no JSON. Gemini has no such arguments."""

    name: str
    arguments: Body = field(default_factory=dict)
    id: str = ""
    raw: str | None = None

    @property
    def written(self) -> str:
        return json.dumps(self.arguments) if self.raw is None else self.raw


@dataclass(frozen=True)
class Result:
    """The result of a call. ``is_error``: None if the protocol does not have it."""

    name: str
    content: str
    id: str = ""
    is_error: bool | None = None


@dataclass(frozen=True)
class Turn:
    """One message of the conversation. ``texts``: its blocks."""

    role: Literal["user", "model"]
    texts: tuple[str, ...] = ()
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True)
class Conversation:
    """The conversation of a request. ``tools``: the names of the tools that the model may call."""

    protocol: str
    model: str
    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[str, ...] = ()

    @property
    def prompt(self) -> str:
        """Return the last text of the user."""
        return next((turn.texts[-1] for turn in reversed(self.turns) if turn.role == "user" and turn.text), "")

    @property
    def results(self) -> list[Result]:
        """Return the results of the model's calls after the user's last text, in order."""
        return [result for turn in self._since() for result in turn.results]

    @property
    def steps(self) -> int:
        """Return the number of the model's messages after the user's last text."""
        return sum(turn.role == "model" for turn in self._since())

    def _since(self) -> tuple[Turn, ...]:
        last = max((n for n, turn in enumerate(self.turns) if turn.role == "user" and turn.text), default=-1)
        return self.turns[last + 1 :]


@dataclass(frozen=True)
class Reply:
    """A reply of the model: thinking, then text, then tool calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(len(tokens(text)) for text in (self.thinking, self.text)) + 5 * len(self.calls)


Scenario: TypeAlias = Callable[[Conversation], Reply | Awaitable[Reply]]
"""The model: a function of the conversation alone. It gives every process the same answer, also after a crash."""


@dataclass(frozen=True)
class Event:
    """A piece of a streamed answer. ``token``: True if the server's speed counts the piece."""

    data: bytes
    token: bool = False


@dataclass(frozen=True)
class Ask:
    """A valid request."""

    conversation: Conversation
    stream: bool
    body: Body


class Refused(Exception):
    """The request is refused. ``path``: the place of the fault. ``code``: the protocol's name of the fault."""

    def __init__(self, message: str, status: int = 400, *, path: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.path, self.code = message, status, path, code


def refuse(message: str, *, path: str | None = None, code: str | None = None) -> NoReturn:
    raise Refused(message, path=path, code=code)


def tokens(text: str) -> list[str]:
    """Return the text in the pieces in which it is streamed."""
    return re.findall(r"\s*\S+|\s+$", text)


def pieces(text: str, size: int = 12) -> list[str]:
    """Return a JSON text in the pieces in which it is streamed. A piece may end at any character."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def parsed(arguments: str) -> Body:
    """Return the arguments of a call. The model may have written invalid JSON."""
    try:
        read = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def fresh(prefix: str, size: int = 12) -> str:
    """Return a new id."""
    return f"{prefix}{secrets.token_hex(size)}"


def sign(text: str) -> str:
    """Return the signature that proves that ``text`` is the server's. The server keeps no record of it."""
    return hmac.new(SECRET, text.encode(), hashlib.sha256).hexdigest()


def signed(text: str, signature: str) -> bool:
    return hmac.compare_digest(sign(text), signature)


def weigh(body: Body) -> int:
    """Return the approximate number of tokens of a request."""
    return max(1, len(str(body)) // 4)
