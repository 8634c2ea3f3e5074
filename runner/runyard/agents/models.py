"""Cache of models by name. Without the cache, pydantic-ai would make a model and new connections for each run."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model, infer_model

_made: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Model[Any]]]] = WeakKeyDictionary()
"""The cached models of each event loop. A model belongs to one loop, because its connections belong to one loop."""


def model_of(agent: AbstractAgent[Any, Any]) -> Model[Any] | None:
    """Return the model that ``agent`` names. Return None if the agent resolves its model itself."""
    name, capability = agent.model, agent.root_capability
    if not isinstance(name, str) or capability.has_resolve_model_id or capability.get_model() is not None:
        return None
    return model_named(name)


def model_named(name: str) -> Model[Any]:
    """Return the model ``provider:model``. All calls in one event loop return the same object."""
    made = _made.setdefault(asyncio.get_running_loop(), {})
    if name not in made:
        made[name] = infer_model(name)
    return made[name]
