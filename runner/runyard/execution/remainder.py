"""The uncommitted part of an attempt's context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Self

from ..domain.messages import Message, Usage
from ..domain.requests import HitlRequest
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.waits import Wait
from .control_signals import ControlSignal


@dataclass(frozen=True, slots=True)
class Remainder:
    """The uncommitted part of a context. The executor writes this part with the attempt's end.

    ``usage``: the usage to add to the usage of the run. ``used``: the whole usage of the attempt, including usage that is
    committed already. ``settled``: None if ``usage`` is certain. If the store has not answered a write of usage, ``usage`` is
    uncertain. ``settled`` is then a function that asks the store and returns the usage to add. ``last_stored``: the id of the
    last message that this context has committed, or None.
    """

    messages: list[Message]
    extra: JsonObject | None
    usage: Usage | None
    requests: list[HitlRequest]
    signal: ControlSignal | None
    result: JsonValue = None
    waits: list[Wait] = field(default_factory=list)
    used: Usage | None = None
    settled: Callable[[], Awaitable[Usage | None]] | None = None
    last_stored: str | None = None

    @classmethod
    def nothing(cls) -> Self:
        return cls([], None, None, [], None)

    def usage_only(self) -> Remainder:
        """Return only the usage. The usage counts even if the rest of the context cannot be stored."""
        return replace(Remainder.nothing(), usage=self.usage, settled=self.settled)

    @property
    def leaf_id(self) -> str | None:
        """The id of the last message that this context or the end of its attempt has stored, or None."""
        return self.messages[-1].id if self.messages else self.last_stored

    async def usage_to_add(self) -> Usage | None:
        """Return the usage to add to the usage of the run. Raises BackendUnavailableError if the store must be asked and does
        not answer."""
        return self.usage if self.settled is None else await self.settled()

    @property
    def new_requests(self) -> list[HitlRequest]:
        """The requests that no earlier attempt has stored."""
        return [request for request in self.requests if request.created_at is None]

    @property
    def parked(self) -> bool:
        """Whether a question has no answer yet, or a wait has not ended."""
        return bool(self.requests or self.waits)
