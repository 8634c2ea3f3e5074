"""The agents that ``benchmarks.sizing`` runs: ``benchmarks.sizing_app:app``."""

from __future__ import annotations

import asyncio
from typing import Final

from runyard import App, Message, RunContext

TEXT: Final = "a sentence of thirty letters. " * 9
"""The text of a message: 270 bytes."""
TOKENS_PER_SECOND: Final = 20

app = App(version="sizing")


@app.agent
async def answers(ctx: RunContext) -> None:
    """Answer with one message."""
    await ctx.append(Message.assistant(TEXT))


@app.agent
async def streams(ctx: RunContext) -> None:
    """Stream as many tokens as the prompt says, then append them as a message."""
    assert ctx.input is not None
    tokens = int(ctx.input.text)
    for _ in range(tokens):
        await ctx.stream_text("word ")
        await asyncio.sleep(1 / TOKENS_PER_SECOND)
    await ctx.append(Message.assistant("word " * tokens))


@app.agent(hitl=True)
async def asks(ctx: RunContext) -> None:
    """Wait for a human."""
    await ctx.ask("go on?")
    await ctx.append(Message.assistant(TEXT))
