"""A worker whose runs stream tokens at a steady rate: ``python -m benchmarks.http_side POSTGRES REDIS SLOTS``."""

from __future__ import annotations

import asyncio
import functools
import sys
import time

from benchmarks.board import stamped
from benchmarks.process import exit_with_parent
from runyard import App, Message, RunContext
from runyard.support.settings import Settings
from runyard_api.worker.process import run_worker

PAUSE = 0.5
"""Seconds between two tokens of a run."""

app = App(version="bench")


@app.agent
async def speaks(ctx: RunContext) -> None:
    """Stream a number of tokens, each with the time at which it was made.

    The prompt has three numbers: the slot of the board that is stamped when the runs may begin, the seconds to wait after that
    time, and the number of tokens.
    """
    assert ctx.input is not None
    start, late, tokens = ctx.input.text.split()
    begin = await asyncio.shield(_stamped(int(start))) / 1e9 + float(late)
    said = []
    for n in range(int(tokens)):
        await asyncio.sleep(begin + n * PAUSE - time.monotonic())
        said.append(f"{n}:{time.monotonic_ns()} ")
        await ctx.emit(said[-1])
    await ctx.append(Message.assistant("".join(said)))


@app.agent
async def answers(ctx: RunContext) -> None:
    await ctx.append(Message.assistant("done"))


@functools.cache
def _stamped(slot: int) -> asyncio.Task[int]:
    """Return the task that waits for the stamp of ``slot``. All runs share one task."""

    async def look() -> int:
        while not (at := stamped(slot)):  # noqa: ASYNC110 -- the stamp comes from another process
            await asyncio.sleep(0.01)
        return at

    return asyncio.create_task(look())


if __name__ == "__main__":
    url, redis_url, slots = sys.argv[1:]
    exit_with_parent()
    run_worker(app, Settings(postgres_url=url, redis_url=redis_url, slots=int(slots), log_level="warning"))
