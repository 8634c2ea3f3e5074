"""The spans of an agent of the OpenAI Agents SDK (T1, T4)."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, function_tool, set_tracing_disabled

from runyard import App, current_run
from runyard.adapters import openai_agent
from runyard.support import agent_adapters
from runyard.testing import Harness
from tests.support.openai_models import ItemModel, calls, results
from tests.support.traces import recorded

set_tracing_disabled(True)

SECRET = "the-secret-words"


async def test_models_and_tools_are_below_their_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question of a tool is no error. A stored answer is replayed without a span."""
    monkeypatch.setitem(agent_adapters._registered, "agents", openai_agent.adapt)

    @function_tool
    async def look(word: str) -> str:
        return f"{await current_run().ask(SECRET)} {word}"

    def script(items: Any) -> Any:
        return SECRET if results(items) else [calls("look", word=SECRET)]

    agent = Agent(name="a", model=ItemModel(script), tools=[look])
    with recorded() as spans:
        async with Harness(App({"a": agent})) as harness:
            asked = await harness.prompt("t", SECRET, "r")
            done = await asked.respond(SECRET)
    assert done.ok
    first, second = spans.named("invoke_agent a")
    assert spans.tree(first) == ("invoke_agent a", ["chat ItemModel", "execute_tool look"])
    assert spans.tree(second) == ("invoke_agent a", ["execute_tool look", "chat ItemModel"])
    chat = spans.named("chat ItemModel")[0].attributes
    assert chat["gen_ai.usage.input_tokens"] > 0 and chat["gen_ai.conversation.id"] == "t"
    assert not any(span.failed or SECRET in span.everything for span in spans)
