"""Probes, and outputs of any kind, of agents of the OpenAI Agents SDK (F9)."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, AgentOutputSchemaBase, function_tool, set_tracing_disabled
from pydantic import BaseModel

from runyard import App, current_run
from runyard.adapters import openai_agent
from runyard.adapters.json_values import OMITTED
from runyard.errors import HitlNotAllowedError
from runyard.support import agent_adapters
from runyard.testing import Harness
from tests.support.openai_models import ItemModel, calls, results


@pytest.fixture(autouse=True)
def adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tracing_disabled(True)
    monkeypatch.setitem(agent_adapters._registered, "agents", openai_agent.adapt)


async def test_f9_a_tool_that_asks_ends_a_probe() -> None:
    """The model does not see the refusal as an error of the tool."""
    ran: list[str] = []

    @function_tool
    async def ask() -> str:
        ran.append("tool")
        try:
            return f"human said {await current_run().ask('which?')}"
        except Exception as error:
            return f"hidden: {error}"

    model = ItemModel(lambda items: "done" if results(items) else [calls("ask", "1")])
    agents = {"echo": Agent(name="echo", model=ItemModel(lambda items: "hi")), "a": Agent(name="a", model=model, tools=[ask])}
    async with Harness(App(agents=agents)) as harness:
        run = await harness.prompt("t", "one", agent="echo")
        with pytest.raises(HitlNotAllowedError):
            await harness.fork_once("t", "go", run.id, agent="a")
    assert ran == ["tool"] and len(model.requests) == 1


async def test_f9_an_approval_of_an_agent_that_is_a_tool_refuses_a_probe() -> None:
    """Before the model is asked, also of an agent that is a tool of a tool."""

    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    agent = Agent(name="pays", model=ItemModel(lambda items: "no"), tools=[pay])
    model = ItemModel(lambda items: "done")
    for name in ("outer", "outermost"):
        agent = Agent(name=name, model=model, tools=[agent.as_tool("help", "h")])
    agents = {"echo": Agent(name="echo", model=ItemModel(lambda items: "hi")), "a": agent}
    async with Harness(App(agents=agents)) as harness:
        run = await harness.prompt("t", "one", agent="echo")
        with pytest.raises(HitlNotAllowedError):
            await harness.fork_once("t", "go", run.id, agent="a")
    assert model.requests == []


@pytest.mark.parametrize("output", [b"\xff", float("nan"), "x" * 9 * 2**20])
async def test_an_output_that_is_no_result_fails_no_run(output: object) -> None:
    """The run completes with the nearest JSON, or with the reason why there is none."""

    class Output(BaseModel):
        value: Any

    class Made(AgentOutputSchemaBase):
        def is_plain_text(self) -> bool:
            return False

        def name(self) -> str:
            return "output"

        def json_schema(self) -> dict[str, Any]:
            return {}

        def is_strict_json_schema(self) -> bool:
            return False

        def validate_json(self, json_str: str) -> Any:
            return Output(value=output)

    agent = Agent(name="a", model=ItemModel(lambda items: "{}"), output_type=Made())
    async with Harness(App(agents={"a": agent})) as harness:
        run = await harness.prompt("t", "go")
    assert run.ok, run.error
    assert run.run.result in ({"value": "_w=="}, {"value": None}) or list(run.run.result) == [OMITTED]  # type: ignore[call-overload]
