"""What the servers of all protocols have in common: a conversation as a scenario sees it, the reply it gives, and refusals."""

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
"""A JSON object from the wire."""

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
    """A tool call. ``id`` is the protocol's; the server makes one where a scenario gives none. ``raw``: arguments as the model
    wrote them, where they are no JSON; Gemini's models cannot."""

    name: str
    arguments: Body = field(default_factory=dict)
    id: str = ""
    raw: str | None = None

    @property
    def written(self) -> str:
        return json.dumps(self.arguments) if self.raw is None else self.raw


@dataclass(frozen=True)
class Result:
    """What was answered to a call. ``is_error`` is None where the protocol does not say it."""

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
    """What a request says. ``tools``: the names of the tools that the model may call."""

    protocol: str
    model: str
    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[str, ...] = ()

    @property
    def prompt(self) -> str:
        """The last text of the user."""
        return next((turn.texts[-1] for turn in reversed(self.turns) if turn.role == "user" and turn.text), "")

    @property
    def results(self) -> list[Result]:
        """The results of the calls that the model made since the user's last text, in order."""
        return [result for turn in self._since() for result in turn.results]

    @property
    def steps(self) -> int:
        """How often the model spoke since the user's last text."""
        return sum(turn.role == "model" for turn in self._since())

    def _since(self) -> tuple[Turn, ...]:
        last = max((n for n, turn in enumerate(self.turns) if turn.role == "user" and turn.text), default=-1)
        return self.turns[last + 1 :]


@dataclass(frozen=True)
class Reply:
    """What the model says: thinking, then text, then tool calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(len(tokens(text)) for text in (self.thinking, self.text)) + 5 * len(self.calls)


Scenario: TypeAlias = Callable[[Conversation], Reply | Awaitable[Reply]]
"""The model: a function of the conversation alone, so that it answers every process alike, and again after a crash."""


@dataclass(frozen=True)
class Event:
    """A piece of a streamed answer. ``token``: the server's speed counts it."""

    data: bytes
    token: bool = False


@dataclass(frozen=True)
class Ask:
    """A request that was found good."""

    conversation: Conversation
    stream: bool
    body: Body


class Refused(Exception):
    """The request is refused. ``path`` is where the fault is, ``code`` the protocol's word for it."""

    def __init__(self, message: str, status: int = 400, *, path: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.path, self.code = message, status, path, code


def refuse(message: str, *, path: str | None = None, code: str | None = None) -> NoReturn:
    raise Refused(message, path=path, code=code)


def tokens(text: str) -> list[str]:
    """The text in the pieces in which it is streamed."""
    return re.findall(r"\s*\S+|\s+$", text)


def pieces(text: str, size: int = 12) -> list[str]:
    """A JSON text in the pieces in which it is streamed: they break anywhere."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def parsed(arguments: str) -> Body:
    """The arguments of a call, which a model may have written wrong."""
    try:
        read = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def fresh(prefix: str, size: int = 12) -> str:
    """An id that was never given before."""
    return f"{prefix}{secrets.token_hex(size)}"


def sign(text: str) -> str:
    """The server's proof that ``text`` is its own; it needs no memory of having said it."""
    return hmac.new(SECRET, text.encode(), hashlib.sha256).hexdigest()


def signed(text: str, signature: str) -> bool:
    return hmac.compare_digest(sign(text), signature)


def weigh(body: Body) -> int:
    """About how many tokens a request is."""
    return max(1, len(str(body)) // 4)
