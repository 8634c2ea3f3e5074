"""SAQ combined with Postgres by hand: the minimum that makes a run durable, without order, forks, takeover or retries.

It commits three times per run: before the job is enqueued (the run and the user's message), before the job's body (the claim),
and after the body (the assistant's message and the end of the run).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
from saq import Queue, Worker

from benchmarks import fixtures
from benchmarks.board import Board, stamp
from benchmarks.lab import Lab
from benchmarks.ports import Facts
from benchmarks.process import exit_with_parent, worker_process

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    run text PRIMARY KEY, thread text NOT NULL, status text NOT NULL DEFAULT 'queued');
CREATE TABLE IF NOT EXISTS messages (
    id bigserial PRIMARY KEY, thread text NOT NULL, run text NOT NULL, role text NOT NULL, content text NOT NULL);
CREATE INDEX IF NOT EXISTS messages_of_thread ON messages (thread, id);
"""
ACCEPT = """
WITH r AS (INSERT INTO runs (run, thread) VALUES ($1, $2))
INSERT INTO messages (thread, run, role, content) VALUES ($2, $1, 'user', $3)
"""
CLAIM = "UPDATE runs SET status = 'running' WHERE run = $1 AND status = 'queued' RETURNING thread"
COMPLETE = """
WITH r AS (UPDATE runs SET status = 'completed' WHERE run = $1)
INSERT INTO messages (thread, run, role, content) VALUES ($2, $1, 'assistant', $3)
"""
UNFINISHED = "SELECT count(*) FROM runs WHERE thread = ANY ($1) AND status <> 'completed'"
LOOK = 0.02
"""Seconds between two checks in Postgres whether the runs are completed."""


class GluedQueue:
    def __init__(self, queue: Queue, database: asyncpg.Pool, prefix: str) -> None:
        self._queue, self._database, self._prefix = queue, database, prefix

    async def enqueue(self, slot: int, key: str) -> None:
        run, thread = f"{self._prefix}-{slot}", f"{self._prefix}-{key}"
        await self._database.execute(ACCEPT, run, thread, fixtures.PROMPT)
        await self._queue.enqueue("turn", slot=slot, run=run)

    async def settle(self, keys: Mapping[str, int]) -> Facts:
        threads = [f"{self._prefix}-{key}" for key in keys]
        while await self._database.fetchval(UNFINISHED, threads):  # noqa: ASYNC110 -- the runs are another process's
            await asyncio.sleep(LOOK)
        return {}


@asynccontextmanager
async def start(lab: Lab, board: Board, *, slots: int) -> AsyncIterator[GluedQueue]:
    """Start one worker that runs ``slots`` jobs at once."""
    name, url = f"bench-glued-{board.path.stem}", await lab.database("glued")
    async with asyncpg.create_pool(url, min_size=1) as database:
        await database.execute(SCHEMA)
        async with worker_process([__name__, lab.redis_url, name, str(slots), url], board):
            queue = Queue.from_url(lab.redis_url, name=name)
            await queue.connect()
            try:
                yield GluedQueue(queue, database, board.path.stem)
            finally:
                await queue.disconnect()


async def turn(_ctx: Any, *, slot: int, run: str, database: asyncpg.Pool) -> None:
    thread = await database.fetchval(CLAIM, run)
    stamp(slot)
    await database.execute(COMPLETE, run, thread, "done")


async def main(redis_url: str, name: str, slots: str, url: str) -> None:
    exit_with_parent()
    queue = Queue.from_url(redis_url, name=name)
    await queue.connect()
    async with asyncpg.create_pool(url, min_size=1) as database:
        await Worker(queue, [("turn", partial(turn, database=database))], concurrency=int(slots)).start()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
