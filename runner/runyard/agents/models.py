"""Cache of models by name. Without it, pydantic-ai makes a model per run, with a new HTTP client and new connections."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model, infer_model

_made: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Model[Any]]]] = WeakKeyDictionary()
"""Models by event loop, since the connections of a client belong to one loop."""


def model_of(agent: AbstractAgent[Any, Any]) -> Model[Any] | None:
    """Return the model that ``agent`` names, cached per event loop, or None if the agent resolves its model itself."""
    name, capability = agent.model, agent.root_capability
    if not isinstance(name, str) or capability.has_resolve_model_id or capability.get_model() is not None:
        return None
    return model_named(name)


def model_named(name: str) -> Model[Any]:
    """Return the model ``provider:model``, the same object for one event loop."""
    made = _made.setdefault(asyncio.get_running_loop(), {})
    if name not in made:
        made[name] = infer_model(name)
    return made[name]
