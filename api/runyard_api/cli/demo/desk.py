"""The travel desk of the demo on a real model."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models import ModelRequestContext

WHO: Final = "You are the travel desk of a small office. Answer in one or two plain sentences and ask nothing back. "
TOOLS: Final = (
    "Asked to book a train, call the tool book, with the sleeper at 120 euros; asked to settle the bill, call the tool pay "
    "with 120 euros. Use no tool otherwise, and say in the end what came of it."
)


class Rest(AbstractCapability[None]):
    """Waits ``seconds`` between a payment and the model's answer. During this time, the demo kills the worker."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def before_model_request(self, ctx: RunContext[None], request_context: ModelRequestContext) -> ModelRequestContext:
        last = request_context.messages[-1]
        if isinstance(last, ModelRequest) and any(isinstance(p, ToolReturnPart) and p.tool_name == "pay" for p in last.parts):
            await asyncio.sleep(self.seconds)
        return request_context


def desk(model: str, rest: float) -> Agent[None, str]:
    """Return the travel desk. ``model``: ``"provider:model"``. ``rest``: seconds that the agent waits after a payment."""
    capabilities: list[AbstractCapability[Any]] = [Rest(rest)]
    agent = Agent(model, instructions=WHO + TOOLS, capabilities=capabilities, defer_model_check=True)

    @agent.tool_plain(requires_approval=True)
    def book(train: str, euros: int) -> str:
        """Book a berth on a train."""
        return "berth 31"

    @agent.tool_plain
    def pay(euros: int) -> str:
        """Pay the bill."""
        return "paid"

    return agent


def adviser(model: str) -> Agent[None, str]:
    """Return the travel desk without its tools. This agent asks no human, because an agent of a probe must not ask."""
    return Agent(model, instructions=WHO, defer_model_check=True)
