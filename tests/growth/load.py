"""A large deployment, made in a few minutes: runs that wait for humans, runs that wait for a worker, and runs that ended."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from tests.support.many_runs import named_statements, without_indexes

TABLES: Final = ("runs", "messages", "hitl_requests", "live_runs", "unsuccessful_runs", "completions")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is loaded. ``parked``: suspended runs. ``queued``: runs of a queue that no worker serves."""

    parked: int = 1_000_000
    queued: int = 100_000
    ended: int = 1_000_000
    threads: int = 50_000
    tenants: int = 2_000

    @classmethod
    def from_environment(cls) -> Sizes:
        """The sizes, where ``RUNYARD_GROWTH_PARKED`` and so on do not say others."""
        given = {name: os.environ.get(f"RUNYARD_GROWTH_{name.upper()}") for name in cls.__dataclass_fields__}
        return cls(**{name: int(value) for name, value in given.items() if value})


async def load(url: str, sizes: Sizes) -> float:
    """Fill the database, whose role must be a superuser. Return the seconds that it took."""
    began = time.monotonic()
    sql = named_statements(Path(__file__).with_suffix(".sql"))
    connection = await asyncpg.connect(url, command_timeout=1800)
    try:
        await connection.execute("SET session_replication_role = replica; SET synchronous_commit = off; SET work_mem = '256MB'")
        await connection.execute("SET maintenance_work_mem = '512MB'; SET max_parallel_maintenance_workers = 0")
        await connection.execute(sql["threads"], sizes.threads, sizes.tenants)
        await connection.execute(sql["branches"])
        await connection.execute("ANALYZE runyard.threads")
        first = await connection.fetchval("SELECT min(thread_key) FROM runyard.threads WHERE thread_id = 'thread-1'")
        async with without_indexes(connection, *TABLES):
            await connection.execute(sql["ended"], sizes.ended, first, sizes.threads)
            await connection.execute(sql["messages"])
            await connection.execute(sql["outbox"])
            await connection.execute(sql["parked"], sizes.parked, first, sizes.threads)
            await connection.execute(sql["requests"])
            await connection.execute(sql["queued"], sizes.queued, first, sizes.threads)
            for name in ("live", "completions", "unsuccessful"):
                await connection.execute(sql[name])
        await connection.execute(sql["next"], sizes.ended)
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    return time.monotonic() - began
