"""The processor time of all processes of a deployment per simple run: Postgres, Redis, the workers and the producer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from redis.asyncio import Redis

from benchmarks import peers, runyard
from benchmarks.harness import Contestant, Measure, Sample
from benchmarks.lab import Lab
from benchmarks.processor_time import cpu_seconds, parent_of
from benchmarks.scenarios._queues import FIRST, enqueue_all, warm_up

THREADS = 200
RUNS = 4_000
"""Runs per turn."""


def contestant(name: str, *, workers: int = 1, database: str = "runyard", ended: int = 0) -> Contestant:
    """Return runyard with this number of worker processes. ``ended``: number of ended runs that ``database`` has before."""

    @asynccontextmanager
    async def opened(lab: Lab) -> AsyncIterator[Measure]:
        side = runyard.side()
        assert side is not None
        if ended:
            await side.fill(lab, database, lab.scaled(ended, ended // 100))

        async def measure(_case: str) -> Sample:
            runs = lab.scaled(RUNS, RUNS // 5)
            slots = range(FIRST, FIRST + runs)
            keys = {slot: f"cpu-{slot % THREADS}" for slot in slots}
            board = lab.board(FIRST + runs)
            pids = await _servers(lab)
            async with side.queue(lab, board, slots=peers.SLOTS, workers=workers, database=database) as queue:
                await warm_up(queue, board)
                servers, client, worker = _cpu(pids), time.process_time(), await queue.cpu_seconds()
                begin = time.monotonic()
                await enqueue_all(queue, keys)
                await board.wait(slots)
                facts = await queue.settle(Counter(keys.values()))
                seconds = time.monotonic() - begin
                spent = {
                    "client µs": time.process_time() - client,
                    "worker µs": await queue.cpu_seconds() - worker,
                    **{f"{part} µs": after - servers[part] for part, after in _cpu(pids).items()},
                }
            per_run = {part: 1e6 * each / runs for part, each in spent.items()}
            return Sample([sum(per_run.values())], {"runs/s": runs / seconds, **per_run, **facts})

        yield measure

    return Contestant(name, opened)


async def _servers(lab: Lab) -> dict[str, int]:
    """Return part → process id. Raises ValueError if a server runs on another machine, whose /proc cannot be read."""
    async with Redis.from_url(lab.redis_url) as redis:
        server = (await redis.info("server"))["process_id"]
    connection = await asyncpg.connect(lab.postgres_url)
    try:  # the server's process for a connection ends with the connection
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        postgres = parent_of(backend)
    finally:
        await connection.close()
    if postgres is None or parent_of(server) is None:
        raise ValueError("the processor time of the servers is known on their own machine only")
    return {"postgres": postgres, "redis": server}


def _cpu(pids: dict[str, int]) -> dict[str, float]:
    return {part: cpu_seconds(pid) for part, pid in pids.items()}
