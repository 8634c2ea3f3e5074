"""The agents of the demo: a travel desk that uses a model or a script, and two agents whose runs the demo measures."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from runyard.agents.default_model import default_model
from runyard.app import App
from runyard.execution.context import RunContext
from runyard.models import Message, ToolCallPart, ToolResultPart, Usage

ANSWERS: Final = {
    "Three days off. Where to?": "Lisbon: tiled houses, custard tarts, and the sea at the end of a tram line.",
    "Find me a hotel": "A small one in Alfama, with a view over the roofs.",
    "And a museum": "The tile museum; it is quiet in the mornings.",
    "And a beach": "Cascais, forty minutes by train along the river.",
    "What should I pack?": "Sunscreen, and shoes for steep streets.",
    "I would rather go by train": "Then through Paris and Hendaye, with a night on the way.",
    "And if we just stayed at home?": "You would save six hundred euros and miss the tarts.",
}
TOKEN_SECONDS: Final = 0.02
"""Seconds between two words of a scripted answer."""
STEP_SECONDS: Final = 1.5
"""Seconds between the payment and the answer. The demo kills the worker in this time."""

MODEL: Final = default_model()
"""The model of the travel desk, or None if the desk follows a script."""


def says(prompt: str, text: str) -> bool:
    """Return True if ``text`` is the scripted answer to ``prompt``. With a model, return True for any text."""
    return text == ANSWERS[prompt] if MODEL is None else bool(text.strip())


async def scripted(ctx: RunContext) -> None:
    """Book a train after an approval, settle a bill in two steps, and answer every other prompt."""
    prompt = ctx.input.text if ctx.input else ""
    if prompt == "Book the sleeper":
        await _book(ctx)
    elif prompt == "Settle the bill":
        await _settle(ctx)
    else:
        await _say(ctx, ANSWERS.get(prompt, prompt))


async def echo(ctx: RunContext) -> None:
    """Answer with the prompt."""
    await ctx.append(Message.assistant(ctx.input.text if ctx.input else "", stop_reason="stop"))


async def doubtful(ctx: RunContext) -> None:
    """Ask a human before the answer."""
    await _say(ctx, f"You said {await ctx.ask('Are you sure?')}.")


async def unlucky(ctx: RunContext) -> None:
    """Fail."""
    await _say(ctx, "One moment …")
    raise LookupError("the ledger has no such invoice")


async def shortest(ctx: RunContext) -> None:
    """Choose the shortest candidate of a fan-out."""
    candidates: list[Any] = ctx.input.metadata["candidates"] if ctx.input else []
    ctx.result = min(candidates, key=lambda each: len(each["text"]))["number"]


async def _book(ctx: RunContext) -> None:
    call = ToolCallPart(id=f"{ctx.run_id}-book", name="book", arguments={"train": "sleeper", "price": 120})
    own = [message for message in await ctx.history() if message.run_id == ctx.run_id]
    if not any(message.tool_calls for message in own):
        await ctx.append(Message.assistant([call], stop_reason="tool_calls", usage=_usage(ctx, call.name)))
    approval = await ctx.approve(call, "Book the sleeper for 120 €?")
    content = await ctx.step(_reserve, key=call.id) if approval else "refused"
    await ctx.append(Message.tool(ToolResultPart(call_id=call.id, content=content, is_error=not approval)))
    await _say(ctx, "Berth 31 is yours." if approval else "Not booked.")


async def _settle(ctx: RunContext) -> None:
    call = ToolCallPart(id=f"{ctx.run_id}-pay", name="pay", arguments={"euros": 120})
    own = [message for message in await ctx.history() if message.run_id == ctx.run_id]
    if not any(message.tool_results for message in own):
        await ctx.append(Message.assistant([call], stop_reason="tool_calls", usage=_usage(ctx, call.name)))
        paid = await ctx.step(_pay, key=call.id)
        await ctx.append(Message.tool(ToolResultPart(call_id=call.id, content=paid)))
    await asyncio.sleep(STEP_SECONDS)
    await _say(ctx, "Paid, once. Have a good trip!")


async def _reserve() -> str:
    return "berth 31"


async def _pay() -> str:
    return "paid"


async def _say(ctx: RunContext, text: str) -> None:
    words = text.split(" ")
    for n, word in enumerate(words):
        await ctx.stream_text(word if n == len(words) - 1 else f"{word} ")
        await asyncio.sleep(TOKEN_SECONDS)
    await ctx.append(Message.assistant(text, stop_reason="stop", usage=_usage(ctx, text)))


def _usage(ctx: RunContext, text: str) -> Usage:
    """Return the usage of a scripted answer, in which each word counts as a token."""
    asked, said = (len(each.split()) for each in (ctx.input.text if ctx.input else "", text))
    return Usage(requests=1, input_tokens=asked, output_tokens=said, seconds=said * TOKEN_SECONDS)


def _app() -> App:
    travel: Any = scripted
    advice: Any = scripted
    if MODEL is not None:
        from .desk import adviser, desk  # imported here: only a demo with a model needs pydantic-ai

        travel, advice = desk(MODEL, STEP_SECONDS), adviser(MODEL)
    others = {"echo": echo, "doubtful": doubtful, "unlucky": unlucky, "shortest": shortest}
    return App({"travel": travel, "adviser": advice, **others}, namespace="", version="demo")


app = _app()
