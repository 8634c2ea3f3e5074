"""Pruning reads what it deletes, and the oldest entry of a bounded number of tenants."""

from __future__ import annotations

import json
from datetime import timedelta

import asyncpg

from runyard.ports.workers import Retention
from runyard_backends.postgres.backend import connect

TENANTS, EACH = 2000, 40
FILL = """
INSERT INTO runyard.outbox (tenant, thread_id, type, created_at)
SELECT 'tenant-' || lpad(t::text, 5, '0'), 't', 'thread.deleted',
       clock_timestamp() - CASE WHEN t > $1 AND e <= 10 THEN interval '9 days' ELSE interval '0' END
FROM generate_series(1, $2::int) t, generate_series(1, $3::int) e ORDER BY e, t
"""
COUNTED = "INSERT INTO runyard.usage_counter (goal_at, goal, counted) VALUES (now(), pg_current_xact_id(), '9000000000')"
PRUNE = "SELECT runyard.prune('7 days', '7 days', '7 days', 5000)"


async def blocks(connection: asyncpg.Connection) -> int:
    """How many blocks a call reads that has nothing to delete."""
    await connection.fetchval(PRUNE)
    (plan,) = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {PRUNE}"))
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


async def test_a_call_that_deletes_nothing_looks_at_one_entry_of_some_tenants(postgres_url: str) -> None:
    """E5, Q3: whatever the tenants have in their feeds, and however many they are."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(FILL, TENANTS, TENANTS, EACH)
        await connection.execute(COUNTED)
        read = await blocks(connection)
        print(f"blocks: {read}")
        assert read < 6000
    finally:
        await connection.close()


async def test_every_tenant_has_its_turn(postgres_url: str) -> None:
    """E5: The calls go round the tenants: all old entries go, also those of the last tenants, and no others."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(FILL, TENANTS - 3, TENANTS, EACH)
        await connection.execute(COUNTED)
        for _ in range(TENANTS // 500 + 1):
            await backend.workers.prune(Retention(feed=timedelta(days=7)))
        left = await connection.fetch("SELECT tenant, count(*) FROM runyard.outbox GROUP BY tenant HAVING count(*) <> $1", EACH)
        assert sorted(row["count"] for row in left) == [EACH - 10] * 3
    finally:
        await connection.close()
        await backend.close()
