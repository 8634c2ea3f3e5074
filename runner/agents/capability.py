"""Base of the capabilities that runyard adds to a pydantic-ai run."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import AgentStreamEvent


@dataclass
class Capability(AbstractCapability[Any]):
    """A capability that is made for one run, and that takes no part in its stream: it would be a layer around each token."""

    @classmethod
    def get_serialization_name(cls) -> str | None:
        return None

    def wrap_run_event_stream(
        self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        return stream

    @property
    def has_wrap_run_event_stream(self) -> bool:
        return False

    def listens_to(self, event: AgentStreamEvent) -> bool:
        return False
