"""The HTTP API under load: one process of ``runyard api``, one worker, and clients in a process of their own.

Case ``tokens``: 1,000 readers read the streams of 1,000 runs. Each run streams two tokens a second. Measured for 6 s: the time
from the moment when the worker makes a token to its arrival at the reader. In the next 26 s, each reader is cut off three
times at random, and reconnects with ``Last-Event-ID``. ``p50_returning`` and ``p99_returning`` are percentiles of the same time
over all tokens of these 26 s, including tokens that were made while their reader was disconnected.

At the end each stream is read once more from its beginning. ``missed_total``: events that a reader has not received, and gaps.
``repeated_total``: events that a reader received twice or out of order. ``garbled_total``: readers that received another text.
``kb_per_idle_stream``: kilobytes per stream by which the API process grew while the streams were opened and no run streamed.
``cpu_us_per_event``: microseconds of CPU time of the API process per event after that, including reconnections.

Case ``accept``: 100 prompts a second, each on a new thread. Measured: the time from the moment when a prompt is due to the end
of the API's answer.

Case ``accept, 64 clients``: each client sends its next prompt when its last one was accepted. Measured: the time from the
request to the end of the API's answer. ``lost_total``: accepted prompts whose runs do not complete. ``again_total``: requests
that were repeated after a 429, a 503, or a broken connection.

All clients use one key. The number of its requests per second is not limited.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import fixtures
from benchmarks.board import ENVIRONMENT, Board
from benchmarks.harness import Contestant, Measure, Sample, Scenario
from benchmarks.http_side import PAUSE
from benchmarks.lab import Lab
from benchmarks.process import worker_process
from benchmarks.runyard import NAME
from benchmarks.stats import Summary
from runyard import Client
from runyard.domain.api_keys import SCOPES
from runyard_backends.embedded.process import free_port
from runyard_backends.postgres.migrate import migrate

SIDE, CLIENTS = "benchmarks.http_side", "benchmarks.http_clients"
READERS = 1000
QUIET, UNREST = 6.0, 26.0
"""Seconds for which the runs stream: first without interruption, then while readers are cut off."""
CUTS = 3
"""How often each reader is cut off."""
WARM_UP = 20
"""Number of streams that are read, and of prompts that are sent, before the measurement."""
RATE, PROMPTS = 100.0, 600
"""Prompts per second of the case ``accept``, and their number."""
SENDERS, SENT = 64, 5000
"""Number of clients of the last case, and number of their prompts."""
UNLIMITED = {"RUNYARD_API_REQUESTS_PER_SECOND": "1e6", "RUNYARD_API_BURST": "1000000", "RUNYARD_API_TOKEN_SECRET": "b" * 32}
COMPLETED = "SELECT thread_id FROM runyard.runs WHERE starts_with(thread_id, $1) AND run_id = 'run' AND status = 'completed'"
LOOK = 0.1
"""Seconds between two checks whether the runs are completed, and between two checks whether the API is ready."""
PATIENCE = 20.0
"""Seconds within which accepted runs must complete."""


@dataclass
class Deployment:
    """An API process and a worker. ``port`` and ``key``: of the API. ``database``: for reads of the runs."""

    client: Client
    database: asyncpg.Pool
    board: Board
    port: int
    key: str

    @asynccontextmanager
    async def ordered(self, what: str, **order: Any) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start a process of clients that executes ``what`` (``read`` or ``prompt``) with the arguments ``order``.

        Kill it if it has not ended with the block.
        """
        arguments = ("-m", CLIENTS, what, "127.0.0.1", str(self.port), self.key, json.dumps(order))
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, ENVIRONMENT: str(self.board.path)}
        limit = 2**26  # the answer is one line with every sample
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=pipe, stdout=pipe, env=environment, limit=limit
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def figures(self) -> dict[str, float]:
        """Return the metrics of the API process without labels: name → value."""
        return await asyncio.to_thread(self._figures)

    def _figures(self) -> dict[str, float]:
        headers = {"Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as reply:
            families = text_string_to_metric_families(reply.read().decode())
            return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}

    async def ready(self) -> None:
        while True:
            try:
                await self.figures()
                return
            except OSError:
                await asyncio.sleep(LOOK)

    async def completed(self, prefix: str, wanted: set[str]) -> int:
        """Wait up to PATIENCE seconds until all threads of ``wanted`` have a completed run. Return the number of those that
        have one. ``prefix``: common prefix of the thread ids."""
        for _ in range(round(PATIENCE / LOOK)):
            found = {row["thread_id"] for row in await self.database.fetch(COMPLETED, prefix)}
            if wanted <= found:
                break
            await asyncio.sleep(LOOK)
        return len(wanted & found)


async def said(process: asyncio.subprocess.Process) -> Any:
    """Return the next line that the clients print. Raises RuntimeError if their process has ended."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise RuntimeError(f"the clients ended with status {await process.wait()}; the reason is on standard error")
    return line.decode().strip()


def go_on(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")


@asynccontextmanager
async def deployed(lab: Lab, slots: int) -> AsyncIterator[Deployment]:
    """Start an API process and a worker, and warm them up."""
    url = await lab.database("http")
    await migrate(url)
    board, port = lab.board(2), free_port()
    servers = {"RUNYARD_POSTGRES_URL": url, "RUNYARD_REDIS_URL": lab.redis_url, **UNLIMITED}
    async with (
        Client.connect(url, redis=lab.redis_url) as client,
        asyncpg.create_pool(url, min_size=1, max_size=2) as database,
        worker_process([SIDE, url, lab.redis_url, str(slots)], board),
        worker_process(["runyard_api.cli", "api", "--port", str(port)], lab.board(1), environment=servers),
    ):
        _, key = await client.create_key("bench", scopes=SCOPES)
        deployment = Deployment(client, database, board, port, key)
        await deployment.ready()
        yield deployment


async def tokens(deployment: Deployment, prefix: str, readers: int, quiet: float, unrest: float, *, start: int) -> Sample:
    words = round((quiet + unrest) / PAUSE)

    async def enqueue(numbers: range) -> None:
        for n in numbers:
            await deployment.client.enqueue(f"{prefix}-{n}", f"{start} {n * PAUSE / readers} {words}", "run", agent="speaks")

    await asyncio.gather(*(enqueue(range(first, readers, 20)) for first in range(20)))
    order = {"prefix": prefix, "count": readers, "tokens": words, "quiet": quiet, "cuts": CUTS, "start": start}
    before = await deployment.figures()
    async with deployment.ordered("read", **order) as process:
        await said(process)
        opened = await deployment.figures()
        go_on(process)
        await said(process)
        after = await deployment.figures()
        go_on(process)
        found = json.loads(await said(process))
    grown = opened["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
    used = after["process_cpu_seconds_total"] - opened["process_cpu_seconds_total"]
    returning = Summary.of(found["ms_returning"])
    own = {
        "p50_returning": returning.p50,
        "p99_returning": returning.p99,
        "kb_per_idle_stream": grown / 1000 / readers,
        "cpu_us_per_event": 1e6 * used / found["facts"]["events_total"],
    }
    return Sample(found["ms"], {**own, **found["facts"]})


async def accept(deployment: Deployment, prefix: str, count: int, *, rate: float | None = None) -> Sample:
    order = {"prefix": prefix, "count": count, "text": fixtures.PROMPT, "rate": rate, "clients": SENDERS}
    async with deployment.ordered("prompt", **order) as process:
        found = json.loads(await said(process))
    accepted = set(found["accepted"])
    lost = len(accepted) - await deployment.completed(prefix, accepted)
    return Sample(found["ms"], {**found["facts"], "lost_total": lost})


@asynccontextmanager
async def opened(lab: Lab) -> AsyncIterator[Measure]:
    readers = lab.scaled(READERS, 50)

    async def measure(case: str) -> Sample:
        match case:
            case "tokens":
                return await tokens(deployment, case, readers, lab.scaled(QUIET, 2.0), lab.scaled(UNREST, 3.0), start=1)
            case "accept":
                return await accept(deployment, "rate", lab.scaled(PROMPTS, 100), rate=RATE)
            case _:
                return await accept(deployment, "clients", lab.scaled(SENT, 500))

    async with deployed(lab, readers + WARM_UP) as deployment:
        await tokens(deployment, "warm-up", WARM_UP, 0.5, 0.5, start=0)
        await accept(deployment, "warm", WARM_UP)
        yield measure


SCENARIO = Scenario(
    name="http",
    title="The HTTP API under load",
    unit="ms",
    better="lower",
    cases=("tokens", "accept", f"accept, {SENDERS} clients"),
    contestants=[Contestant(NAME, opened)],
    rounds=1,
    seconds=90,
)
