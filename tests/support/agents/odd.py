"""Agents that do what the scripted one cannot: ``tests.support.agents.odd:app``."""

import asyncio
import os
import signal
import time
from contextlib import suppress

from runyard.app import App
from runyard.execution.context import RunContext
from runyard.models import Message

app = App()
beside = 0
arrived = asyncio.Condition()


@app.agent
async def poison(ctx: RunContext) -> None:
    """Kills the process in which ``input`` others are by then; alone, at once."""
    assert ctx.input is not None
    if ctx.attempt < 3:
        async with arrived:
            await arrived.wait_for(lambda: beside >= int(ctx.input.text))
    os.kill(os.getpid(), signal.SIGKILL)


@app.agent
async def innocent(ctx: RunContext) -> None:
    """Takes its time until it is alone."""
    global beside
    async with arrived:
        beside += 1
        arrived.notify_all()
    if ctx.attempt < 3:
        await asyncio.Event().wait()
    await ctx.append(Message.assistant("done"))


@app.agent
async def vanish(ctx: RunContext) -> None:
    """Ends the worker's task of its run from inside, in the first attempt, as no code should."""
    if ctx.attempt == 1:
        for task in asyncio.all_tasks():
            if getattr(task.get_coro(), "__qualname__", "") == "ClaimLoop._execute":
                task.cancel()
        await asyncio.Event().wait()
    await ctx.append(Message.assistant("done"))


@app.agent
async def quit(ctx: RunContext) -> None:
    """Ends as a program would; ``input`` names what it raises, and which of its tasks does."""
    assert ctx.input is not None
    what, where = ctx.input.text.split()
    error = {"exit": SystemExit(2), "interrupt": KeyboardInterrupt()}[what]

    async def leave() -> None:
        raise error

    match where:
        case "itself":
            await leave()
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(leave())
        case "gathered":
            await asyncio.gather(leave(), asyncio.sleep(0))
        case "forgotten":
            task = asyncio.create_task(leave())
            await asyncio.wait([task])


@app.agent
async def stubborn(ctx: RunContext) -> None:
    """Does not end when it is cancelled: ``input`` says whether a task or a thread of it goes on."""
    assert ctx.input is not None
    if ctx.attempt > 1:
        return
    if ctx.input.text == "thread":
        await asyncio.to_thread(time.sleep, 60)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
