"""Agents of the OpenAI Agents SDK: ``tests.support.agents.sdk_desk:app``.

``responses`` and ``chat`` are the clerk of :mod:`tests.support.agents.desk` on two of OpenAI's protocols. The model of
``steps`` makes STEPS tool calls. The last call needs an approval. The model requests and the tool calls are lines in the file
``RUNYARD_TEST_NOTES``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from runyard import App, current_step
from runyard.adapters.openai_agent import serve
from tests.support.agents.customer_support import note
from tests.support.agents.desk import clerk
from tests.support.openai_models import ItemModel, Items, calls
from tests.support.providers.conversation import MODELS

STEPS = 3

set_tracing_disabled(True)


@function_tool
def quick() -> str:
    return "quick"


@function_tool
async def slow() -> str:
    """Hang in the first attempt of a run."""
    if current_step().attempt == 1:
        await asyncio.Event().wait()
    return "slow"


@function_tool(needs_approval=True)
def refund() -> str:
    return "refunded"


def sdk_clerk(model: Any, protocol: str) -> Agent[Any]:
    return Agent(name=protocol, instructions="Be brief.", model=model, tools=[quick, slow, refund])


def next_step(items: Items) -> Any:
    number = sum(item.get("type") == "function_call_output" for item in items)
    note("request", number)
    return "done" if number == STEPS else [calls("work" if number < STEPS - 1 else "pay", f"call_{number}", n=number)]


@function_tool
async def work(n: int) -> str:
    note("tool", n)
    return f"worked {n}"


@function_tool(needs_approval=True)
async def pay(n: int) -> str:
    note("tool", n)
    return f"paid {n}"


def make_app() -> App:
    """Return the app. The clients of the SDK find their servers by the environment."""
    chat = OpenAIChatCompletionsModel("gpt-4.1", AsyncOpenAI(api_key="unset") if not _keyed() else AsyncOpenAI())
    return App(
        agents={
            "responses": serve(sdk_clerk("gpt-5.1", "responses"), run_config=RunConfig()),
            "chat": serve(sdk_clerk(chat, "chat")),
            "anthropic": clerk(MODELS["anthropic"]),
            "steps": serve(Agent(name="steps", model=ItemModel(next_step), tools=[work, pay])),
        }
    )


def _keyed() -> bool:
    import os

    return "OPENAI_API_KEY" in os.environ


app = make_app()
