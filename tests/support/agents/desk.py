"""Agents that do what they are told, on each of the providers' protocols: ``tests.support.agents.desk:app``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pydantic import BaseModel
from pydantic_ai import Agent, ToolReturn
from pydantic_ai.direct import model_request
from pydantic_ai.models import infer_model

from runyard import App, Message, RunContext, current_step
from runyard.agents.message_codec import to_model
from runyard.agents.provider_quirks import fitting
from tests.support.providers.conversation import MODELS, Call, Conversation, Reply

WORDS = {
    "again": Call("quick", id="call_0"),  # an id that was there before
    "garbled": Call("show", raw='{"no": JSON'),
}


async def model(conversation: Conversation) -> Reply:
    """Does what the prompt says: words are tools to be called at once, a comma ends a step. ``wait`` says nothing for ever,
    ``blank`` says it without a word, ``nothing`` is no tool."""
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
    """``slow`` hangs in a run's first attempt; ``refund`` needs an approval; ``show`` shows the model something besides;
    ``final_result`` fills in a form and ends the run."""
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
    """Says several things, one after the other, then asks."""
    await ctx.append(*map(Message.assistant, ("First of all.", "", " ", "And then. ")))
    await ctx.ask("What else?")


async def send_as_it_is(messages: Sequence[Message], protocol: str) -> None:
    """Send a conversation to a model directly: pydantic-ai's agents would first mend what is open in it."""
    model = infer_model(MODELS[protocol])
    await model_request(model, fitting(to_model(messages), model))


def reader(protocol: str) -> Callable[[RunContext], Awaitable[None]]:
    """An agent that sends its history to a model as it is."""

    async def read(ctx: RunContext) -> None:
        await send_as_it_is(await ctx.history(), protocol)
        await ctx.append(Message.assistant("Done: quick"))

    return read


READERS = {protocol: f"reader of {protocol}" for protocol in MODELS if protocol != "gemini"}
"""Agents that mend nothing. What Gemini's own rules demand besides (sides that take turns), pydantic-ai's agents see to."""


def desk() -> App:
    """A clerk for each protocol, under its name, the readers, and a talker."""
    clerks = {protocol: clerk(name) for protocol, name in MODELS.items()}
    return App(agents={**clerks, **{name: reader(protocol) for protocol, name in READERS.items()}, "talker": talker})


app = desk()
