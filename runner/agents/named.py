"""Models by name. pydantic-ai makes one for each run of an agent, with an HTTP client that has to connect anew."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model, infer_model

_made: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Model[Any]]]] = WeakKeyDictionary()
"""By event loop, since the connections of a client belong to one."""


def model_of(agent: AbstractAgent[Any, Any]) -> Model[Any] | None:
    """The model that ``agent`` names, the same one for every run of an event loop. None: the agent has or finds its own."""
    name, capability = agent.model, agent.root_capability
    if not isinstance(name, str) or capability.has_resolve_model_id or capability.get_model() is not None:
        return None
    return model_named(name)


def model_named(name: str) -> Model[Any]:
    """The model ``provider:model``, the same one throughout an event loop."""
    made = _made.setdefault(asyncio.get_running_loop(), {})
    if name not in made:
        made[name] = infer_model(name)
    return made[name]
