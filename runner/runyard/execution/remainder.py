"""The uncommitted part of an attempt's context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from ..domain.messages import Message, Usage
from ..domain.requests import HitlRequest
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.waits import Wait
from .control_signals import ControlSignal


@dataclass(frozen=True, slots=True)
class Remainder:
    """The uncommitted part of a context. The executor writes it with the attempt's end.

    ``usage``: the usage to add to the run's. ``used``: the whole usage of the attempt. A part of it may be committed.
    """

    messages: list[Message]
    extra: JsonObject | None
    usage: Usage | None
    requests: list[HitlRequest]
    signal: ControlSignal | None
    result: JsonValue = None
    waits: list[Wait] = field(default_factory=list)
    used: Usage | None = None

    @classmethod
    def nothing(cls) -> Self:
        return cls([], None, None, [], None)

    def usage_only(self) -> Remainder:
        """Return only the usage. The usage counts even if the rest of the context cannot be stored."""
        return Remainder([], None, self.usage, [], None)

    @property
    def new_requests(self) -> list[HitlRequest]:
        """The requests that no earlier attempt has stored."""
        return [request for request in self.requests if request.created_at is None]

    @property
    def parked(self) -> bool:
        """Whether the context waits for something."""
        return bool(self.requests or self.waits)
