"""What runs, tokens, suspended runs, forks, idle streams and processes cost: ``python -m benchmarks.sizing [--quick]``.

The program starts private servers, one worker and one API process, and reads the processor time of each process from /proc. It
prints one line per figure. ``docs/sizing.md`` computes deployments from them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
import uvloop
from redis.asyncio import Redis
from rich.console import Console

from benchmarks import environment, report
from benchmarks.lab import Lab
from benchmarks.processor_time import cpu_seconds
from benchmarks.sizing_app import TEXT, TOKENS_PER_SECOND
from runyard import Client
from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis
from runyard_backends.postgres.migrate import migrate

RUNYARD: Final = (sys.executable, "-P", "-m", "runyard_api.cli")
START_SECONDS: Final = 60.0
TOGETHER: Final = 50
"""Calls of a client at once."""
THREADS: Final = 200
STREAMING: Final = 50
"""Runs that stream at once."""
STATISTICS_SECONDS: Final = 1.5
"""Seconds after which Postgres has counted the commits of all connections."""

STATE: Final = """
SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS commits,
       pg_current_wal_lsn() - '0/0' AS wal,
       (SELECT sum(pg_table_size(c.oid) + pg_indexes_size(c.oid)) FROM pg_class c
        WHERE c.relnamespace = 'runyard'::regnamespace AND c.relkind = 'r') AS bytes
"""
UNDER_WAY: Final = "SELECT EXISTS (SELECT FROM runyard.live_runs l WHERE l.status IN ('queued', 'running'))"
CONNECTIONS: Final = """
SELECT application_name AS name, count(*) AS connections FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'runyard%' GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor seconds of each part of the deployment, and the counters of the servers, at one moment."""

    at: float
    cpu: Mapping[str, float]
    commits: int
    wal: int
    bytes: int
    redis_bytes: int


@dataclass
class Deployment:
    """Servers, one worker and one API process. ``client`` is connected to the servers, ``http`` to
    the API. ``pids``: part → process; its children count too."""

    api_url: str
    client: Client
    http: Client
    pids: Mapping[str, int]
    database: asyncpg.Connection
    redis: Redis

    async def read(self) -> Reading:
        at = time.monotonic()
        await asyncio.sleep(STATISTICS_SECONDS)
        row = await self.database.fetchrow(STATE)
        assert row is not None
        memory = await self.redis.info("memory")
        cpu = {part: cpu_seconds(pid) for part, pid in self.pids.items()} | {"client": time.process_time()}
        return Reading(at, cpu, row["commits"], int(row["wal"]), int(row["bytes"]), memory["used_memory"])

    async def settled(self) -> None:
        """Wait until every run has ended or waits for a human."""
        while await self.database.fetchval(UNDER_WAY):  # noqa: ASYNC110 -- the state is in Postgres
            await asyncio.sleep(0.1)

    async def idle(self, seconds: float) -> dict[str, float]:
        """Return the share of a core that each part uses while nothing is asked of it."""
        before = await self.read()
        await asyncio.sleep(seconds)
        after = await self.read()
        return {part: (after.cpu[part] - before.cpu[part]) / (after.at - before.at) for part in self.pids}

    def say(self, what: str, of: str, figure: str) -> None:
        """Print a figure as a row of a table."""
        print(f"| {what} | {of} | {figure} |", flush=True)


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def per(before: Reading, after: Reading, number: int) -> dict[str, float]:
    """Return the milliseconds of processor time of each part, per item."""
    return {part: 1000 * (after.cpu[part] - before.cpu[part]) / number for part in after.cpu}


def parts(values: Mapping[str, float], unit: str, scale: float = 1.0) -> str:
    return ", ".join(f"{part} {scale * value:.2g} {unit}" for part, value in values.items())


async def limited(job: Callable[[int], Awaitable[Any]], number: int) -> None:
    """Call ``job`` with the numbers from 0, TOGETHER at once."""
    room = asyncio.Semaphore(TOGETHER)

    async def one(n: int) -> None:
        async with room:
            await job(n)

    await asyncio.gather(*map(one, range(number)))


async def runs(deployment: Deployment, number: int) -> None:
    """Runs of two messages, enqueued by a client on Postgres, and then over HTTP."""

    async def by_client(n: int) -> None:
        await deployment.client.enqueue(f"client-{n % THREADS}", TEXT, agent="answers")

    async def over_http(n: int) -> None:
        await deployment.http.enqueue(f"http-{n % THREADS}", TEXT, agent="answers")

    for how, enqueue in (("a run, enqueued by a client", by_client), ("a run, enqueued over HTTP", over_http)):
        before = await deployment.read()
        await limited(enqueue, number)
        await deployment.settled()
        after = await deployment.read()
        deployment.say(how, "CPU", parts(per(before, after, number), "ms"))
        deployment.say(how, "on this machine", f"{number / (after.at - before.at):.0f} runs/s")
        deployment.say(how, "commits", f"{(after.commits - before.commits) / number:.2f}")
        deployment.say(how, "write-ahead log", f"{(after.wal - before.wal) / number / 1000:.1f} kB")
        deployment.say(how, "on disk", f"{(after.bytes - before.bytes) / number / 1000:.1f} kB")


async def tokens(deployment: Deployment, each: int) -> None:
    """STREAMING runs that stream at TOKENS_PER_SECOND, without a reader, and each with a reader over HTTP."""

    async def stream(thread_id: str, read: bool) -> None:
        handle = await deployment.client.enqueue(thread_id, str(each), agent="streams")
        if read:
            async for _ in deployment.http.handle(thread_id, handle.id).stream():
                pass

    for how, read in (("a token, nobody reads", False), ("a token, one reader", True)):
        before = await deployment.read()
        await limited(lambda n, read=read: stream(f"stream-{read}-{n}", read), STREAMING)
        await deployment.settled()
        after = await deployment.read()
        number = STREAMING * each
        deployment.say(how, "CPU", parts(per(before, after, number), "µs", 1000))
        memory = (after.redis_bytes - before.redis_bytes) / number
        deployment.say(how, "in Redis, until the stream expires", f"{memory:.0f} bytes")


async def forks(deployment: Deployment, number: int) -> None:
    """Forks of a thread with several runs."""
    before = await deployment.read()
    for n in range(number):
        await deployment.client.fork("client-0", f"fork-{n}")
    after = await deployment.read()
    deployment.say("a fork", "duration", f"{1000 * (after.at - before.at) / number:.2f} ms")
    deployment.say("a fork", "CPU", parts(per(before, after, number), "ms"))
    deployment.say("a fork", "on disk", f"{(after.bytes - before.bytes) / number / 1000:.2f} kB")


async def suspended(deployment: Deployment, number: int, seconds: float) -> None:
    """Runs that wait for a human: what each takes, and what all of them cost while nothing happens."""
    deployment.say("an idle deployment", "CPU", parts(await deployment.idle(seconds), "% of a core", 100))
    before = await deployment.read()
    await limited(lambda n: deployment.client.enqueue(f"asks-{n}", TEXT, agent="asks"), number)
    await deployment.settled()
    after = await deployment.read()
    what = "a suspended run"
    deployment.say(what, "in Postgres", f"{(after.bytes - before.bytes) / number / 1000:.1f} kB")
    deployment.say(
        what, "in Redis, until its stream expires", f"{(after.redis_bytes - before.redis_bytes) / number / 1000:.1f} kB"
    )
    idle = parts(await deployment.idle(seconds), "% of a core", 100)
    deployment.say(f"an idle deployment with {number} suspended runs", "CPU", idle)


async def idle_streams(deployment: Deployment, number: int, seconds: float) -> None:
    """Readers of a thread in which nothing happens."""
    what, api = "an idle stream", deployment.pids["api"]
    memory, clients = resident_bytes(api), len(await deployment.redis.client_list())
    await deployment.idle(1)
    async with (
        httpx.AsyncClient(base_url=deployment.api_url, timeout=None, limits=httpx.Limits()) as http,
        AsyncExitStack() as stack,
    ):

        async def open_one(_: int) -> None:
            reply = await stack.enter_async_context(http.stream("GET", "/v1/threads/client-1/stream"))
            reply.raise_for_status()

        await limited(open_one, number)
        share = (await deployment.idle(seconds))["api"]
        more = len(await deployment.redis.client_list()) - clients
        deployment.say(what, "memory of the API process", f"{(resident_bytes(api) - memory) / number / 1000:.0f} kB")
        deployment.say(what, "CPU of the API process", f"{1e6 * share / number:.0f} µs per second")
        deployment.say(what, "connections to Redis", f"{more} for {number} streams")


async def connections(deployment: Deployment) -> None:
    """Connections and memory of the processes, after all of the above."""
    for row in await deployment.database.fetch(CONNECTIONS):
        deployment.say("connections", f"to Postgres, named {row['name']}", str(row["connections"]))
    names = Counter(one["name"] for one in await deployment.redis.client_list())
    for name, number in sorted(names.items()):
        if name.startswith("runyard"):
            deployment.say("connections", f"to Redis, named {name}", str(number))
    for part in ("worker", "api"):
        deployment.say("memory", f"of the {part}", f"{resident_bytes(deployment.pids[part]) / 2**20:.0f} MiB")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def process(*arguments: str, ready: str, **variables: str) -> AsyncIterator[int]:
    """Run a command of runyard until the block ends. ``ready``: the URL that answers 200 when it is ready."""
    started = await asyncio.create_subprocess_exec(
        *RUNYARD, *arguments, env={**os.environ, **variables}, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(START_SECONDS), httpx.AsyncClient() as http:
            while True:
                assert started.returncode is None, f"{arguments} exited with {started.returncode}"
                try:
                    if (await http.get(ready)).status_code == 200:
                        break
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
        yield started.pid
    finally:
        started.terminate()
        await started.wait()


async def measure(postgres: EmbeddedPostgres, redis: EmbeddedRedis, quick: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    with tempfile.TemporaryDirectory() as scratch:
        report.print_environment(console, await environment.describe(Lab(postgres.url, redis.url, Path(scratch))))
    await migrate(postgres.url)
    api_port, worker_port = free_port(), free_port()
    urls = {"RUNYARD_POSTGRES_URL": postgres.url, "RUNYARD_REDIS_URL": redis.url, "RUNYARD_LOG_LEVEL": "error"}
    api_url = f"http://127.0.0.1:{api_port}"
    async with AsyncExitStack() as stack:
        worker = process(
            "worker", "benchmarks.sizing_app:app", ready=f"http://127.0.0.1:{worker_port}/readyz",
            RUNYARD_METRICS_PORT=str(worker_port), **urls,
        )  # fmt: skip
        api = process("api", "--port", str(api_port), "--auth", "off", ready=f"{api_url}/readyz", **urls)
        pids = {"postgres": postgres.pid, "redis": redis.pid}
        pids |= {"worker": await stack.enter_async_context(worker), "api": await stack.enter_async_context(api)}
        client = await stack.enter_async_context(Client.connect(postgres.url, redis=redis.url))
        http = await stack.enter_async_context(Client.connect(api_url))
        server = await stack.enter_async_context(Redis.from_url(redis.url))
        database = await asyncpg.connect(postgres.url)
        stack.push_async_callback(database.close)
        deployment = Deployment(api_url, client, http, pids, database, server)
        await runs(deployment, 100 if quick else 3000)
        await tokens(deployment, 20 if quick else 10 * TOKENS_PER_SECOND)
        await forks(deployment, 50 if quick else 1000)
        await suspended(deployment, 100 if quick else 2000, 2 if quick else 10)
        await idle_streams(deployment, 50 if quick else 500, 2 if quick else 10)
        await connections(deployment)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing")
    parser.add_argument("--quick", action="store_true", help="small numbers, to test that it runs")
    given = parser.parse_args()
    with EmbeddedPostgres() as postgres, EmbeddedRedis() as redis:
        uvloop.run(measure(postgres, redis, given.quick))
