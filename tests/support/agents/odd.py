"""Agents for cases that the scripted agent does not cover: ``tests.support.agents.odd:app``."""

import asyncio
import ctypes
import itertools
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from runyard.app import App
from runyard.execution.context import RunContext
from runyard.models import Message

app = App()
beside = 0
arrived = asyncio.Condition()
looks: dict[str, asyncio.Task[None]] = {}


@app.agent
async def poison(ctx: RunContext) -> None:
    """Kill the process when ``input`` runs of ``innocent`` have begun in it. From the third attempt on, kill it at once."""
    assert ctx.input is not None
    if ctx.attempt < 3:
        async with arrived:
            await arrived.wait_for(lambda: beside >= int(ctx.input.text))
    os.kill(os.getpid(), signal.SIGKILL)


@app.agent
async def innocent(ctx: RunContext) -> None:
    """Wait without end in the first two attempts. Complete in the third."""
    global beside
    async with arrived:
        beside += 1
        arrived.notify_all()
    if ctx.attempt < 3:
        await asyncio.Event().wait()
    await ctx.append(Message.assistant("done"))


@app.agent
async def vanish(ctx: RunContext) -> None:
    """Cancel the worker's tasks of its runs in the first attempt, and wait without end."""
    if ctx.attempt == 1:
        for task in asyncio.all_tasks():
            if getattr(task.get_coro(), "__qualname__", "") == "ClaimLoop._execute":
                task.cancel()
        await asyncio.Event().wait()
    await ctx.append(Message.assistant("done"))


@app.agent
async def quit(ctx: RunContext) -> None:
    """Raise an exception that ends a program. ``input``: the exception, and the task that raises it."""
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
    """Continue after a cancellation. ``input``: whether a task or a thread continues."""
    assert ctx.input is not None
    if ctx.attempt > 1:
        return
    if ctx.input.text == "thread":
        await asyncio.to_thread(time.sleep, 60)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@app.agent
async def hold(ctx: RunContext) -> None:
    """Keeps the interpreter's lock in native code, in the first attempt. ``input``: ``asleep`` or ``busy``, the seconds, and a
    folder: the agent waits for the file ``go`` there, and makes ``held`` when it begins."""
    assert ctx.input is not None
    how, seconds, folder = ctx.input.text.split()
    if ctx.attempt == 1:
        await _made(Path(folder, "go"))
        Path(folder, "held").touch()
        if how == "asleep":
            ctypes.PyDLL(None).sleep(int(seconds))
        else:
            began = time.thread_time()
            sum(itertools.repeat(1, 5_000_000))
            sum(itertools.repeat(1, int(5_000_000 * int(seconds) / (time.thread_time() - began))))
    await ctx.append(Message.assistant("done"))


@app.agent
async def neighbour(ctx: RunContext) -> None:
    """Waits for the file ``input``."""
    assert ctx.input is not None
    await _made(Path(ctx.input.text))
    await ctx.append(Message.assistant("done"))


@app.agent
async def crowd(ctx: RunContext) -> None:
    """Waits for the file ``input``, for which all runs of the process look together."""
    assert ctx.input is not None
    file = ctx.input.text
    if file not in looks:
        looks[file] = asyncio.create_task(_made(Path(file)))
    await asyncio.shield(looks[file])
    await ctx.append(Message.assistant("done"))


async def _made(file: Path) -> None:
    while not file.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)


@app.agent
async def sleeper(ctx: RunContext) -> None:
    """Block the main loop. ``input``: seconds in the first attempt. Later attempts complete at once."""
    assert ctx.input is not None
    if ctx.attempt == 1:
        time.sleep(float(ctx.input.text))  # noqa: ASYNC251 - the line that a blocked loop names
    await ctx.append(Message.assistant("done"))
