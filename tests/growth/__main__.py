"""``make growth``: loads a large deployment and checks that speed and idle load are those of a small one.

Ends with 1 if a bound is exceeded. ``RUNYARD_GROWTH_PARKED``, ``_QUEUED``, ``_ENDED``, ``_THREADS`` and ``_TENANTS`` set the
sizes.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

import asyncpg

from runyard.support.logging import configure
from runyard.worker.heartbeat import HEARTBEAT_SECONDS
from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis
from runyard_backends.postgres.migrate import migrate
from tests.growth import checks
from tests.growth.load import Sizes, load

TAKEOVERS = 5
"""Workers that are killed, spread evenly over the second between two heartbeats."""
PICKUPS = 60
TAKEOVER_P50, TAKEOVER_MAX = 3.0, 6.0
"""Seconds from kill -9 to the next message of a run."""
PICKUP_RATIO = 1.3
"""Pick-up in the full database, relative to the empty one; medians."""
IDLE_SHARE, IDLE_SECONDS = 0.03, 20.0
"""Share of a core that Postgres and the leader may each use, and seconds for which it is measured."""
SETTLE_SECONDS = 600.0
"""Seconds for the rescue to look at every queued run once, and for autovacuum."""
LIST_SECONDS = 0.02


class Report:
    """Prints each figure with its bound, and remembers whether one was exceeded."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def note(self, what: str, value: float, most: float, unit: str) -> None:
        good = value <= most
        print(f"{'ok  ' if good else 'FAIL'} {what}: {value:.3f} {unit}, at most {most:.3f}", flush=True)
        if not good:
            self.broken.append(what)


async def settled(pids: dict[str, int]) -> dict[str, float]:
    """The idle shares, once they are within the bound or the time is over."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        shares = await checks.idle_shares(pids, IDLE_SECONDS)
        if max(shares.values()) <= IDLE_SHARE or time.monotonic() > deadline:
            return shares


async def check(postgres: EmbeddedPostgres, redis: EmbeddedRedis, other_redis: EmbeddedRedis, sizes: Sizes) -> Report:
    """Load the deployment and check it. A second database, with another Redis, stays empty for comparison."""
    report = Report()
    full, empty = postgres.url, await second_database(postgres.url)
    await migrate(full)
    await migrate(empty)
    print(f"loaded {sizes} in {await load(full, sizes):.0f} s", flush=True)
    before = await checks.scanned(full)
    for name, seconds in (await checks.list_seconds(full, "tenant-7", "thread-7")).items():
        report.note(f"list: {name}", seconds * 1000, LIST_SECONDS * 1000, "ms")
    async with checks.fleet_of(full, redis.url) as fleet, checks.fleet_of(empty, other_redis.url) as small:
        leader = await fleet.start(slots=20)
        began = time.monotonic()
        shares = await settled({"Postgres": postgres.pid, "the leader": leader})
        print(f"idle after {time.monotonic() - began:.0f} s", flush=True)
        for name, share in shares.items():
            report.note(f"idle: {name}", share * 100, IDLE_SHARE * 100, "% of a core")
        await small.start(slots=20)
        await checks.pickups([fleet, small], "warm", 10)
        slow, quick = await checks.pickups([fleet, small], "measured", PICKUPS)
        report.note("pick-up, median", slow * 1000, PICKUP_RATIO * quick * 1000, "ms")
        phases = [HEARTBEAT_SECONDS * n / TAKEOVERS for n in range(TAKEOVERS)]
        waits = [wait for phase in phases for wait in await checks.takeover(fleet, f"taken-{phase:.1f}", phase)]
        report.note("takeover, median", statistics.median(waits), TAKEOVER_P50, "s")
        report.note("takeover, longest", max(waits), TAKEOVER_MAX, "s")
    after = await checks.scanned(full)
    for table, scans in after.items():
        report.note(f"sequential scans: {table}", scans - before[table], 0, "")
    return report


async def second_database(url: str) -> str:
    """Make a database beside the one at ``url``, and give the server the settings of a server of this size."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE DATABASE small")
        for setting in ("max_wal_size = '4GB'", "checkpoint_timeout = '30min'"):
            await connection.execute(f"ALTER SYSTEM SET {setting}")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()
    return f"{url.rpartition('/')[0]}/small"


def main() -> int:
    """Return the exit code."""
    configure("warning", "console")
    with EmbeddedPostgres(durable=False) as postgres, EmbeddedRedis() as redis, EmbeddedRedis() as other_redis:
        report = asyncio.run(check(postgres, redis, other_redis, Sizes.from_environment()))
    print(f"broken: {', '.join(report.broken)}" if report.broken else "all bounds hold")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
