"""arq with its stock worker: a no-op job without durable data.

Settings are arq's defaults except ``poll_delay`` and ``max_jobs``. By default arq also stores results.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.worker import Worker, func

from benchmarks.board import Board, stamp
from benchmarks.lab import Lab
from benchmarks.ports import Facts
from benchmarks.process import exit_with_parent, worker_process


class ArqQueue:
    def __init__(self, redis: ArqRedis, queue: str) -> None:
        self._redis = redis
        self._queue = queue

    async def enqueue(self, slot: int, key: str) -> None:
        await self._redis.enqueue_job("noop", slot, _queue_name=self._queue)

    async def settle(self, keys: Mapping[str, int]) -> Facts:
        return {}


@asynccontextmanager
async def start(lab: Lab, board: Board, *, poll: float, slots: int) -> AsyncIterator[ArqQueue]:
    """Start one worker that reads the queue every ``poll`` seconds."""
    queue = f"bench:arq:{board.path.stem}"
    command = [__name__, lab.redis_url, queue, str(poll), str(slots)]
    async with worker_process(command, board):
        redis = await create_pool(RedisSettings.from_dsn(lab.redis_url))
        try:
            yield ArqQueue(redis, queue)
        finally:
            await redis.aclose()


async def noop(_ctx: dict[Any, Any], slot: int) -> None:
    stamp(slot)


def main(redis_url: str, queue: str, poll: str, slots: str) -> None:
    exit_with_parent()
    Worker(
        functions=[func(noop)],  # type: ignore[arg-type]
        queue_name=queue,
        redis_settings=RedisSettings.from_dsn(redis_url),
        poll_delay=float(poll),
        max_jobs=int(slots),
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
