"""A database with many runs on thousands of threads of one tenant, made in seconds.

The rows are inserted without the verbs. They have all values that lists, filters and the reads of the leader need.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

STATEMENTS = Path(__file__).with_suffix(".sql")
TENANT = "full"
LONG = "thread-1"
"""The thread that has a tenth of all runs."""
COMMON, RARE = "default", "archive"
"""The agent of nearly all runs, and the agent of one run in five thousand."""
TAG, RARE_TAG = {"env": "prod"}, {"customer": "7"}
"""The tags of every thread, and the tags of one thread in a thousand."""
FORKED = "thread-2"
"""The source of every tenth thread. The thread after it is the source of as many forks."""


def named_statements(file: Path) -> dict[str, str]:
    """Return the statements of a file, by name."""
    parts = re.split(r"^-- name: (\w+)$", file.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


async def fill(
    connection: asyncpg.Connection, runs: int, threads: int, *, messages: bool = False, tenant: str = TENANT
) -> None:
    """Insert ``runs`` runs on ``threads`` threads. ``messages``: insert messages of every run, not only of the runs of LONG."""
    sql = named_statements(STATEMENTS)
    await connection.execute("SET work_mem = '256MB'; SET maintenance_work_mem = '256MB'; SET synchronous_commit = off")
    await connection.execute(sql["threads"], tenant, threads, timeout=600)
    await connection.execute(sql["branches"], tenant, timeout=600)
    await connection.execute("ANALYZE runyard.threads")
    async with without_indexes(connection, "runs", "messages", "hitl_requests", "outbox", "webhook_deliveries"):
        await connection.execute(sql["runs"], tenant, runs, threads, timeout=600)
        await connection.execute(sql["messages"], tenant, messages, timeout=600)
        for name in ("requests", "outbox", "deliveries"):
            await connection.execute(sql[name], tenant, timeout=600)
    for name in ("leaves", "next_numbers", "keys", "webhooks"):
        await connection.execute(sql[name], timeout=600)


@asynccontextmanager
async def without_indexes(connection: asyncpg.Connection, *tables: str) -> AsyncIterator[None]:
    """Drop the indexes of the tables inside the block, and build them after it. Inserting many rows is faster so."""
    indexes = await connection.fetch(named_statements(STATEMENTS)["indexes"], tables)
    for name, _ in indexes:
        await connection.execute(f"DROP INDEX {name}")
    yield
    for _, made in indexes:
        await connection.execute(made, timeout=600)
