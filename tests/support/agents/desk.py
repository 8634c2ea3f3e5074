"""Agents whose prompts name the tools to call, on each of the providers' protocols: ``tests.support.agents.desk:app``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pydantic import BaseModel
from pydantic_ai import Agent, ToolReturn
from pydantic_ai.direct import model_request

from runyard import App, Message, RunContext, current_step
from runyard.agents.message_codec import to_model
from runyard.agents.models import model_named
from runyard.agents.provider_quirks import fitting
from tests.support.providers.conversation import MODELS, Call, Conversation, Reply

WORDS = {
    "again": Call("quick", id="call_0"),  # an id that an earlier call has
    "garbled": Call("show", raw='{"no": JSON'),
}


async def model(conversation: Conversation) -> Reply:
    """Call the tools that the prompt names. The tools of one step are called together. A comma ends a step. ``wait``: never
    answer. ``blank``: answer with blank text. ``nothing``: call a tool that does not exist."""
    steps = conversation.prompt.split(", ")
    words = steps[conversation.steps].split() if conversation.steps < len(steps) else []
    words = [word for word in words if word in (*conversation.tools, *WORDS, "wait", "blank", "nothing")]
    if "wait" in words:
        await asyncio.Event().wait()
    if calls := tuple(WORDS.get(word, Call(word)) for word in words if word != "blank"):
        return Reply("\n\n" if "blank" in words else "Just a moment.", "I need tools.", calls)
    return Reply("Done: " + " ".join(result.content for result in conversation.results), "All is known.")


class Form(BaseModel):
    word: str = "quick"


def clerk(name: str) -> Agent[None, str | Form]:
    """Return the clerk. Its tool ``slow`` hangs in the first attempt of a run. ``refund`` needs an approval. ``show`` returns
    further content beside its result. ``final_result`` is the output tool, which ends the run."""
    agent: Agent[None, str | Form] = Agent(
        name, output_type=[str, Form], system_prompt="Be brief.", model_settings={"thinking": True}, defer_model_check=True
    )

    @agent.tool_plain
    def quick() -> str:
        return "quick"

    @agent.tool_plain
    async def slow() -> str:
        if current_step().attempt == 1:
            await asyncio.Event().wait()
        return "slow"

    @agent.tool_plain(requires_approval=True)
    def refund() -> str:
        return "refunded"

    @agent.tool_plain
    def show() -> ToolReturn:
        return ToolReturn("shown", content=["This is what it looks like."])

    return agent


async def talker(ctx: RunContext) -> None:
    """Append several messages one after the other, then ask."""
    await ctx.append(*map(Message.assistant, ("First of all.", "", " ", "And then. ")))
    await ctx.ask("What else?")


async def send_as_it_is(messages: Sequence[Message], protocol: str) -> None:
    """Send a conversation to a model directly. An agent of pydantic-ai would first close its open tool calls."""
    model = model_named(MODELS[protocol])
    await model_request(model, fitting(await to_model(messages), model))


def reader(protocol: str) -> Callable[[RunContext], Awaitable[None]]:
    """Return an agent that sends its history to a model without changes."""

    async def read(ctx: RunContext) -> None:
        await send_as_it_is(await ctx.history(), protocol)
        await ctx.append(Message.assistant("Done: quick"))

    return read


READERS = {protocol: f"reader of {protocol}" for protocol in MODELS if protocol != "gemini"}
"""Agents that change nothing. Gemini is left out: its further rules (turns) are met by agents of pydantic-ai only."""


def desk() -> App:
    """Return an App with a clerk for each protocol, the readers, and a talker."""
    clerks = {protocol: clerk(name) for protocol, name in MODELS.items()}
    return App(agents={**clerks, **{name: reader(protocol) for protocol, name in READERS.items()}, "talker": talker})


app = desk()
