"""What must not grow with the rows: pick-up, takeover, idle processes, lists, and the plans of statements."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg

from runyard import Client
from runyard.client.run_handle import RunHandle
from runyard.domain.states import RunStatus
from runyard.ports.queries import PageRequest, RunFilter
from runyard_backends.postgres.backend import PostgresBackend, connect
from tests.support.fleet import Fleet

HELD: Final = 3
"""Runs in the middle of which a worker is when it is killed; it has no more slots."""
SCRIPT: Final = "say one | tool add 1 2 | hang | say two"
SCANNED: Final = """
SELECT relname, seq_scan FROM pg_stat_user_tables t WHERE schemaname = 'runyard'
AND (SELECT reltuples FROM pg_class c WHERE c.oid = t.relid) > 10000
"""


@asynccontextmanager
async def fleet_of(postgres: str, redis: str) -> AsyncIterator[Fleet]:
    """A client and no workers yet; workers that are left at the end are killed."""
    async with Client.connect(postgres, redis=redis) as client:
        fleet = Fleet(postgres, redis, client, client.backend, {"RUNYARD_LOG_LEVEL": "error"})
        try:
            yield fleet
        finally:
            await fleet.stop()


async def pickups(fleets: Sequence[Fleet], prefix: str, runs: int) -> list[float]:
    """The median of the seconds from the acceptance of a run to its claim, per fleet, by the clock of Postgres.

    The fleets take turns, so that whatever else the machine does delays them alike.
    """
    waits: list[list[float]] = [[] for _ in fleets]
    for n in range(runs):
        for fleet, of_fleet in zip(fleets, waits, strict=True):
            handle = await fleet.client.enqueue(f"{prefix}-{n}", "say hi")
            run = (await handle.result(30)).run
            assert run.started_at is not None and run.accepted_at is not None
            of_fleet.append((run.started_at - run.accepted_at).total_seconds())
    return [statistics.median(of_fleet) for of_fleet in waits]


async def takeover(fleet: Fleet, prefix: str, phase: float) -> list[float]:
    """Kill a worker with kill -9. Return the seconds until each of its runs goes on, on a worker that is there already.

    ``phase``: seconds to wait before the kill. The runs begin with the worker's first heartbeat, and the time of a takeover
    depends on how long before the kill the last heartbeat was.
    """
    victim = await fleet.start(slots=HELD)
    handles, held = list[RunHandle](), list[RunHandle]()
    while not held:  # the other worker may take any of them
        batch = [await fleet.client.enqueue(f"{prefix}-{len(handles) + n}", SCRIPT) for n in range(HELD)]
        held += [handle for handle in batch if await fleet.holder(handle.thread_id, handle.id, 3) == victim]
        handles += batch
    await asyncio.sleep(phase)
    killed_at = datetime.now(UTC)
    fleet.processes[victim].kill()
    waits = list(await asyncio.gather(*(_resumed_after(handle, killed_at) for handle in held)))
    for handle in handles:
        if handle not in held:
            await handle.cancel()
    return waits


async def _resumed_after(handle: RunHandle, killed_at: datetime) -> float:
    result = await handle.result(120)
    assert result.ok and (result.run.attempt, result.run.crash_count) == (2, 1)
    return min((m.created_at - killed_at).total_seconds() for m in result.messages if m.created_at and m.created_at > killed_at)


def cpu_seconds(pids: list[int]) -> float:
    """The processor time of processes and of their children, from /proc."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(") ", 1)[1].split()
        except OSError:  # the process ended
            continue
        if int(stat.parent.name) in pids or int(fields[1]) in pids:
            total += int(fields[11]) + int(fields[12])
    return total / ticks


async def idle_shares(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """The share of a core that each process uses, with its children."""
    before = {name: cpu_seconds([pid]) for name, pid in pids.items()}
    began = time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - began
    return {name: (cpu_seconds([pid]) - before[name]) / passed for name, pid in pids.items()}


async def list_seconds(url: str, tenant: str, thread: str) -> dict[str, float]:
    """The best of five times of each list and filter."""
    backend = await connect(url, max_pool_size=1)
    try:
        mine = PostgresBackend(backend.db, None, tenant, "")
        page = PageRequest(limit=50)
        lists: dict[str, Callable[[], Awaitable[Any]]] = {
            **{f"runs {s}": lambda s=s: mine.runs.runs(RunFilter(status=s), page) for s in RunStatus},  # type: ignore[misc]
            "runs": lambda: mine.runs.runs(RunFilter(), page),
            "runs of an agent": lambda: mine.runs.runs(RunFilter(agent="scripted"), page),
            "runs of a thread": lambda: mine.runs.runs(RunFilter(thread_id=thread), page),
            "suspended runs of a thread": lambda: mine.runs.runs(RunFilter(thread_id=thread, status=RunStatus.SUSPENDED), page),
            "threads": lambda: mine.threads.threads(page=page),
            "messages": lambda: mine.threads.messages(thread),
            "branches": lambda: mine.threads.branches(thread, page),
            "pending requests": lambda: mine.runs.requests(page=page),
            "requests": lambda: mine.runs.requests(pending=False, page=page),
            "requests of a thread": lambda: mine.runs.requests(thread_id=thread, page=page),
            "feed": lambda: mine.feed.read(page),
            "webhook deliveries": lambda: mine.webhooks.deliveries(page=page),
        }
        times = {}
        for name, call in lists.items():
            best = float("inf")
            for _ in range(7):  # a connection keeps a plan for all arguments from the sixth call on
                began = time.perf_counter()
                await call()
                best = min(best, time.perf_counter() - began)
            times[name] = best
        return times
    finally:
        await backend.close()


async def scanned(url: str) -> dict[str, int]:
    """How often each large table was read from its start to its end."""
    connection = await asyncpg.connect(url)
    try:
        return {row["relname"]: row["seq_scan"] for row in await connection.fetch(SCANNED)}
    finally:
        await connection.close()
