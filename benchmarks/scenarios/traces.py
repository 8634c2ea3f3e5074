"""The CPU time that a worker spends on a simple run, without and with traces.

Measured: microseconds of CPU time of the worker's process per run, over 200 threads. ``runyard`` has no tracer provider. ``no
run recorded`` has one, whose sampler leaves every run out. ``every run recorded`` exports all spans by OTLP to this process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.harness import Contestant, Measure, Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.runyard import NAME, side

THREADS = 200
RUNS = 2_000
"""Runs per turn."""
BACKLOG = 100
"""Runs that are enqueued at once."""


def contestant(name: str, sampler: str | None, redis_database: int) -> Contestant:
    """Return a worker with the sampler of this name, or without a tracer provider. It has a database of Redis of its own, since
    all contestants are open at the same time."""

    @asynccontextmanager
    async def opened(lab: Lab) -> AsyncIterator[Measure]:
        module: Any = side()
        numbers = itertools.count(1)
        async with AsyncExitStack() as stack:
            environment = {}
            if sampler is not None:
                url = await stack.enter_async_context(collector())
                environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_TRACES_SAMPLER": sampler}
            board = lab.board(20 * RUNS)
            queue = await stack.enter_async_context(
                module.queue(lab, board, slots=1000, environment=environment, redis_database=redis_database)
            )

            async def measure(case: str) -> Sample:
                first, *slots = itertools.islice(numbers, lab.scaled(RUNS, RUNS // 5))
                await queue.enqueue(first, "0")
                await board.wait(range(first, first + 1))  # the worker has started
                before = await queue.cpu_seconds()
                for n in range(0, len(slots), BACKLOG):
                    await asyncio.gather(*(queue.enqueue(slot, str(slot % THREADS)) for slot in slots[n : n + BACKLOG]))
                for slot in slots:
                    await board.wait(range(slot, slot + 1))
                return Sample([1e6 * (await queue.cpu_seconds() - before) / len(slots)])

            yield measure

    return Contestant(name, opened)


@asynccontextmanager
async def collector() -> AsyncIterator[str]:
    """Take spans by OTLP over HTTP and drop them. Yield the URL."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                [size] = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
                await reader.readexactly(int(size))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


SCENARIO = Scenario(
    name="traces",
    title="CPU time of a worker per simple run",
    unit="µs",
    better="lower",
    cases=("simple run",),
    contestants=[
        contestant(NAME, None, 0),
        contestant("no run recorded", "always_off", 1),
        contestant("every run recorded", "always_on", 2),
    ]
    if side() is not None
    else [],
    rounds=5,
    seconds=90,
)
