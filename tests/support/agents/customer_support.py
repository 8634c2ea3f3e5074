"""A support agent with three tools, over each provider's protocol: ``tests.support.agents.customer_support:app``.

Each call of a tool is a line in the file that ``RUNYARD_TEST_NOTES`` names.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pydantic_ai import Agent

from runyard import App, current_step
from tests.support.providers.conversation import MODELS, Call, Conversation, Reply

NOTES = "RUNYARD_TEST_NOTES"


def note(*words: object) -> None:
    """Note an effect in one write, which a crash of this process cannot cut."""
    file = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


def notes(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def support(model: str) -> Agent[None, str]:
    """Return the agent on one model. A refund needs an approval, a look takes some time, and the shop is closed."""
    agent = Agent(model, system_prompt="You help customers of a shop.", defer_model_check=True)

    @agent.tool_plain(requires_approval=True)
    def refund(order: str) -> str:
        note(order, "refund", current_step().idempotency_key)
        return "refunded"

    @agent.tool_plain
    async def look(order: str) -> str:
        await asyncio.sleep(0.3)
        note(order, "look", current_step().idempotency_key)
        return "found"

    @agent.tool_plain
    def shop(order: str) -> str:
        note(order, "shop", current_step().idempotency_key)
        raise RuntimeError("the shop is closed")

    return agent


def model(conversation: Conversation) -> Reply:
    """Call look, refund and shop in one answer. Then answer with their results."""
    order = {"order": conversation.prompt.split()[-1]}
    if conversation.steps == 0:
        calls = (Call("look", order), Call("refund", order), Call("shop", order))
        return Reply("I will see to it.", "All three at once.", calls)
    return Reply("; ".join(f"{result.name}: {result.content}" for result in conversation.results))


app = App(agents={protocol: support(name) for protocol, name in MODELS.items()})
plain = App(agents={protocol: Agent(name, defer_model_check=True) for protocol, name in MODELS.items()})
"""Agents without tools, one for each protocol."""
