"""Agents of three levels: a root that sleeps and waits for a signal, branches, and leaves that note their work in a file."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Final

from runyard import App, Message, RunContext, current_step

NOTES: Final = "TREE_NOTES"
"""The variable with the path of the file to which each leaf adds a line, under its idempotency key."""
BRANCHES: Final = 6
LEAVES: Final = 8
"""Children of the root, and of each branch: 6 and 48, in three levels with the root."""


async def root(ctx: RunContext) -> None:
    """Sleep for three days, wait for a signal, and collect the texts of all branches."""
    await ctx.sleep(timedelta(days=3))
    word = await ctx.wait_for("go", {"type": "string"})
    await _collect(ctx, "branch", [f"{word}-{n}" for n in range(BRANCHES)])


async def branch(ctx: RunContext) -> None:
    """Collect the texts of the leaves of a branch."""
    assert ctx.input is not None
    await _collect(ctx, "leaf", [f"{ctx.input.text}-{n}" for n in range(LEAVES)])


async def leaf(ctx: RunContext) -> None:
    """Note the prompt, and answer with it."""
    assert ctx.input is not None
    await ctx.step(note, ctx.input.text, key="note")
    await ctx.append(Message.assistant(ctx.input.text))


async def _collect(ctx: RunContext, agent: str, prompts: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(ctx.run(None, prompt, agent=agent, key=prompt)) for prompt in prompts]
    await ctx.append(Message.assistant(" ".join(part.result().text for part in parts)))


def note(text: str) -> None:
    """Add a line with the text and the idempotency key to the file of notes."""
    file = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{text} {current_step().idempotency_key}\n".encode())
    finally:
        os.close(file)


app = App({"root": root, "branch": branch, "leaf": leaf}, version="1")
