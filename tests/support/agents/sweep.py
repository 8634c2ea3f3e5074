"""The agent of the sweep. Its prompt is a list of words. The agent executes them in order and appends a message with each word.
A later attempt therefore continues after the last committed word."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from runyard import App, Message, RunContext, ToolCallPart, ToolResultPart, current_step
from runyard.execution.steps import OnUnknown

EFFECTS: Final = "SWEEP_EFFECTS"
"""The variable with the path of the file of effects. An effect is a line ``run key fence idempotency-key``."""

MENDED: Final = "SWEEP_MENDED"
"""The variable with the path of a file. While the file does not exist, the word ``break`` fails."""


KIDS: Final = ("ann", "bob")
"""The names of the children of the word ``kids``."""

POLICIES: Final[dict[str, OnUnknown]] = {"tool-fail": "fail", "tool-ask": "ask"}
"""The policy for a started and unfinished effect of a word, if it is not ``retry``."""


class PassingError(Exception):
    """An error after which another attempt succeeds."""


class LastingError(Exception):
    """An error that is not retried."""

    retryable = False


async def agent(ctx: RunContext) -> None:
    """Execute the words of the prompt."""
    assert ctx.input is not None
    done = {message.metadata.get("word") for message in await ctx.history() if message.run_id == ctx.run_id}
    for word in ctx.input.text.split():
        if word not in done:
            await WORDS[word.partition("-")[0]](ctx, word)


def effect() -> str:
    """Write an effect to the file of effects."""
    step = current_step()
    fence = structlog.contextvars.get_contextvars()["fence"]
    line = f"{step.run_id} {step.key} {fence} {step.idempotency_key}\n"
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
    return step.key


async def _tool(ctx: RunContext, word: str) -> None:
    """Call a tool and store its result."""
    call = ToolCallPart(id=f"{ctx.run_id}-{word}", name=word)
    if not any(call.id == known.id for message in await ctx.history() for known in message.tool_calls):
        await ctx.append(Message.assistant([call], stop_reason="tool_calls"))
    touched = await ctx.step(effect, key=word, on_unknown=POLICIES.get(word, "retry"))
    await ctx.append(Message.tool(ToolResultPart(call_id=call.id, content=touched), metadata={"word": word}))


async def _ask(ctx: RunContext, word: str) -> None:
    ctx.extra["asked"] = word
    answer = await ctx.ask("go on?", {"type": "string"}, key=word)
    await ctx.append(Message.assistant(f"answered {answer}", metadata={"word": word}))


async def _say(ctx: RunContext, word: str) -> None:
    await ctx.stream_text(word)
    await ctx.append(Message.assistant(word, metadata={"word": word}))


async def _stumble(ctx: RunContext, word: str) -> None:
    if ctx.attempt <= 2:
        raise PassingError("try again")


async def _break(ctx: RunContext, word: str) -> None:
    if not Path(os.environ[MENDED]).exists():
        raise LastingError("redrive me")


async def _hang(ctx: RunContext, word: str) -> None:
    await asyncio.Event().wait()


async def _nap(ctx: RunContext, word: str) -> None:
    await ctx.sleep(0.05, key=word)


async def _wait(ctx: RunContext, word: str) -> None:
    value = await ctx.wait_for(word, key=word)
    await ctx.append(Message.assistant(f"went {value}", metadata={"word": word}))


async def _kids(ctx: RunContext, word: str) -> None:
    async with asyncio.TaskGroup() as group:
        kids = [group.create_task(ctx.run(None, f"say-{name}", key=name)) for name in KIDS]
    await ctx.append(Message.assistant(" ".join(kid.result().text for kid in kids), metadata={"word": word}))


WORDS: Final[dict[str, Callable[[RunContext, str], Awaitable[None]]]] = {
    "tool": _tool,
    "ask": _ask,
    "say": _say,
    "stumble": _stumble,
    "break": _break,
    "hang": _hang,
    "nap": _nap,
    "wait": _wait,
    "kids": _kids,
}

app = App({"agent": agent}, version="1")
