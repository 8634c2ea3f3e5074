"""SAQ on Redis with a no-op job without durable data. Settings are SAQ's defaults except ``concurrency``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from benchmarks.board import Board, stamp
from benchmarks.lab import Lab
from benchmarks.ports import Facts
from benchmarks.process import exit_with_parent, worker_process


class SaqQueue:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def enqueue(self, slot: int, key: str) -> None:
        await self._queue.enqueue("noop", slot=slot)

    async def settle(self, keys: Mapping[str, int]) -> Facts:
        return {}


@asynccontextmanager
async def start(lab: Lab, board: Board, *, slots: int) -> AsyncIterator[SaqQueue]:
    """Start one worker that runs ``slots`` jobs at once."""
    name = f"bench-{board.path.stem}"
    async with worker_process([__name__, lab.redis_url, name, str(slots)], board):
        queue = Queue.from_url(lab.redis_url, name=name)
        await queue.connect()
        try:
            yield SaqQueue(queue)
        finally:
            await queue.disconnect()


async def noop(_ctx: Any, *, slot: int) -> None:
    stamp(slot)


async def main(redis_url: str, name: str, slots: str) -> None:
    exit_with_parent()
    queue = Queue.from_url(redis_url, name=name)
    await queue.connect()
    await Worker(queue, [noop], concurrency=int(slots)).start()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
