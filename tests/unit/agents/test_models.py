"""Models by name are made once, not for each run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import Model
from pydantic_ai.models.test import TestModel

from runyard.agents.models import model_of


class Chooses(AbstractCapability[Any]):
    """Finds the model of a name by itself."""

    async def resolve_model_id(self, ctx: Any, *, model_id: Any) -> Model[Any]:
        return TestModel()


class Brings(AbstractCapability[Any]):
    """Has a model of its own."""

    def get_model(self) -> Model[Any]:
        return TestModel()


def named(*capabilities: AbstractCapability[Any]) -> Agent[None, str]:
    return Agent("openai-chat:gpt-4.1", capabilities=capabilities, defer_model_check=True)


def test_agents_of_an_event_loop_share_the_model_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")

    async def twice() -> set[int]:
        return {id(model_of(named())), id(model_of(named()))}

    with asyncio.Runner() as one, asyncio.Runner() as other:
        seen = one.run(twice()), other.run(twice())
    assert [len(ids) for ids in seen] == [1, 1]


async def test_an_agent_with_a_model_or_a_way_to_one_keeps_it() -> None:
    assert model_of(Agent(TestModel())) is None
    assert model_of(named(Chooses())) is None
    assert model_of(named(Brings())) is None
    assert model_of(Agent()) is None
