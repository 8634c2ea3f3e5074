"""Verbs on HITL requests read a few rows, also before the first ANALYZE of the table. ``-s`` shows the plans."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from runyard.models import HitlRequest, Message
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard.ports.workers import WorkerInfo
from runyard_backends.postgres.backend import PostgresBackend, connect
from runyard_backends.postgres.database import statements

ROWS = 100_000
MORE = 60
"""Blocks that a statement may read more with ROWS other requests: the upper levels of the indexes."""
FILL = """
INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, run_id, kind, body, answered_at, created_at)
SELECT '', 'other' || g, t.thread_key, 'other', 'question', '\\x80', CASE WHEN g % 2 = 0 THEN now() END,
    now() + g * interval '1 ms'
FROM generate_series(1, $1::int) g, runyard.threads t WHERE t.thread_id = 'other'
"""
SUSPEND = """
SELECT * FROM runyard.suspend_v2(
    ROW({thread_key}, 'r', {fence}, '{{}}', NULL, NULL, NULL, 90)::runyard.attempt_write, '{{}}',
    ARRAY['q0', 'q1', 'q2', 'q3'], '{{}}')
"""
ASKED = """
SELECT 1 FROM unnest(ARRAY['q0', 'q1', 'q2', 'q3']) a(request_id) CROSS JOIN LATERAL (
    SELECT 1 FROM runyard.hitl_requests h
    WHERE h.tenant = '' AND h.request_id = a.request_id AND h.answered_at IS NOT NULL LIMIT 1) x
"""


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    backend = await connect(postgres_url)
    assert isinstance(backend, PostgresBackend)
    yield backend
    await backend.close()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("ALTER TABLE runyard.hitl_requests SET (autovacuum_enabled = off)")
    yield connection
    await connection.close()


async def waiting(backend: PostgresBackend) -> AttemptToken:
    """Return the second attempt of a run of thread ``t``, which has three pending requests."""
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    for thread in ("other", "t"):
        accepted = await backend.runs.accept(AcceptRequest(thread_id=thread, run_id="r", input=Message.user("hi")))
    [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
    assert claim.attempt is not None
    asked = [HitlRequest(request_id=f"q{n}", payload={"question": "?"}) for n in range(4)]
    await backend.runs.suspend(Write(attempt=claim.attempt), asked)
    await backend.runs.respond("yes", request_id="q0")
    [claim] = await backend.runs.claim("w", [claim.ref])
    assert claim.attempt is not None
    return claim.attempt


async def plan_of(connection: asyncpg.Connection, statement: str, *arguments: Any) -> tuple[int, str]:
    """Return the blocks that a statement reads, and its plan. The statement changes nothing."""
    given = f"({', '.join(repr(value) for value in arguments)})" if arguments else ""
    await connection.execute(f"PREPARE asked AS {statement}")
    try:
        found, text = [], ""
        for _ in range(2):
            change = connection.transaction()
            await change.start()
            explained = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked{given}")
            await change.rollback()
            plan = json.loads(explained)[0]["Plan"]
            found.append(int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"]))
        rows = await connection.fetch(f"EXPLAIN EXECUTE asked{given}")
        text = "\n".join(row[0] for row in rows)
    finally:
        await connection.execute("DEALLOCATE asked")
    return min(found), text


@pytest.mark.parametrize("plans", ["auto", "force_generic_plan"])
async def test_requests_of_others_cost_nothing_before_statistics(
    backend: PostgresBackend, connection: asyncpg.Connection, plans: str
) -> None:
    attempt = await waiting(backend)
    await connection.execute(f"SET plan_cache_mode = {plans}")
    asked: dict[str, tuple[str, tuple[str, ...]]] = {
        "suspend_v2": (SUSPEND.format(thread_key=attempt.thread_key, fence=attempt.fence), ()),
        "asked of suspend_v2": (ASKED, ()),
        "pending": (statements()["pending"], ("", "t")),
        "request_for": ("SELECT * FROM runyard.request_for('', 't', 'q1', NULL)", ()),
    }
    before = {name: await plan_of(connection, statement, *given) for name, (statement, given) in asked.items()}
    await connection.execute(FILL, ROWS)
    after = {name: await plan_of(connection, statement, *given) for name, (statement, given) in asked.items()}
    assert await connection.fetchval("SELECT reltuples FROM pg_class WHERE oid = 'runyard.hitl_requests'::regclass") == -1
    for name, (blocks, plan) in after.items():
        print(f"\n{name}: {before[name][0]} blocks empty, {blocks} with {ROWS} rows\n{before[name][1]}\n{plan}")
        assert blocks <= before[name][0] + MORE, (name, plan)


async def test_the_only_pending_request_of_a_thread_is_found_by_the_thread(
    backend: PostgresBackend, connection: asyncpg.Connection
) -> None:
    """Without an id of a request. The other thread of the tenant has many pending requests."""
    await waiting(backend)
    await connection.execute("UPDATE runyard.hitl_requests SET answered_at = now() WHERE request_id IN ('q1', 'q2')")
    one = "SELECT request_id FROM runyard.request_for('', 't', NULL, NULL)"
    before, _ = await plan_of(connection, one)
    await connection.execute(FILL, ROWS)
    after, _ = await plan_of(connection, one)
    assert await connection.fetchval(one) == "q3" and after <= before + MORE
    pending = await connection.fetchrow(statements()["pending"], "", "t")
    assert pending is not None and pending["request_id"] == "q3" and pending["thread_id"] == "t"
