"""A database with many runs: one tenant that has everything, and thousands of threads, in seconds. Rows are written past the
verbs; what lists, filters and the leader's reads need of them is there.
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
"""Agents: of nearly all runs, and of one in five thousand."""
TAG, RARE_TAG = {"env": "prod"}, {"customer": "7"}
"""Tags: of every thread, and of one in a thousand."""
FORKED = "thread-2"
"""The thread from which every tenth was forked; as many were forked from the next one."""


def named_statements(file: Path) -> dict[str, str]:
    """The statements of a file, by name."""
    parts = re.split(r"^-- name: (\w+)$", file.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


async def fill(connection: asyncpg.Connection, runs: int, threads: int, *, messages: bool = False) -> None:
    """Give the tenant ``runs`` runs on ``threads`` threads. ``messages``: of every run, not only of those on the long one."""
    sql = named_statements(STATEMENTS)
    await connection.execute("SET work_mem = '256MB'; SET maintenance_work_mem = '256MB'; SET synchronous_commit = off")
    await connection.execute(sql["threads"], TENANT, threads, timeout=600)
    await connection.execute(sql["branches"], TENANT, timeout=600)
    await connection.execute("ANALYZE runyard.threads")
    async with without_indexes(connection, "runs", "messages", "hitl_requests", "outbox", "webhook_deliveries"):
        await connection.execute(sql["runs"], TENANT, runs, threads, timeout=600)
        await connection.execute(sql["messages"], TENANT, messages, timeout=600)
        for name in ("requests", "outbox", "deliveries"):
            await connection.execute(sql[name], TENANT, timeout=600)
    await connection.execute(sql["leaves"], timeout=600)
    for name in ("keys", "webhooks"):
        await connection.execute(sql[name])


@asynccontextmanager
async def without_indexes(connection: asyncpg.Connection, *tables: str) -> AsyncIterator[None]:
    """Many rows are written faster, and their indexes built in one go afterwards."""
    indexes = await connection.fetch(named_statements(STATEMENTS)["indexes"], tables)
    for name, _ in indexes:
        await connection.execute(f"DROP INDEX {name}")
    yield
    for _, made in indexes:
        await connection.execute(made, timeout=600)
