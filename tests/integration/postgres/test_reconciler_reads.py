"""What the leader reads again and again must not grow with the work that waits, or with what has ended."""

import json
from datetime import timedelta

import asyncpg

from runyard.models import Message
from runyard.ports.commands import AcceptRequest
from runyard_backends.postgres.backend import connect

QUEUED = """
INSERT INTO runyard.runs
    (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash, admitted_at,
     changed_at)
SELECT r.tenant, r.thread_id, 'q' || g, r.thread_key, 'prompt', 'queued', '', r.lane_seq + g, 'default', 'normal', '{}',
    r.admitted_at, r.changed_at
FROM runyard.runs r, generate_series(1, 20000) g
"""
ENDED = """
INSERT INTO runyard.runs
    (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash, admitted_at,
     finished_at)
SELECT r.tenant, r.thread_id, 'e' || g, r.thread_key, 'prompt', 'failed', '', r.lane_seq + g, 'default', 'normal', '{}', now(),
    now()
FROM runyard.runs r, generate_series(1, 20000) g
"""
WAITING = """
INSERT INTO runyard.runs
    (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash, admitted_at,
     changed_at, expires_at, run_at)
SELECT r.tenant, r.thread_id, 'w' || g, r.thread_key, 'prompt', 'queued', CASE g % 2 WHEN 0 THEN '' END,
    CASE g % 2 WHEN 0 THEN r.lane_seq + g END, 'default', 'normal', '{}', CASE g % 2 WHEN 0 THEN r.admitted_at END,
    r.changed_at, now() + interval '1 day', now() + interval '1 hour'
FROM runyard.runs r, generate_series(1, 20000) g
"""
ADMIT = "SELECT * FROM runyard.admit(100)"
HEADS = "SELECT * FROM runyard.heads('0 s', 0, '', 1000)"
QUEUES = "SELECT * FROM runyard.queues()"


async def blocks(connection: asyncpg.Connection, statement: str) -> int:
    """How many blocks the statement reads once its plan is made."""
    await connection.fetchval(statement)
    (plan,) = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"))
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


async def test_a_pass_reads_lane_heads_only(postgres_url: str) -> None:
    """W2, Q3: the reconciler walks lane heads, not the queues behind them, also on tables without statistics."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept(AcceptRequest(thread_id="t", run_id="head", input=Message.user("hi")))
        await connection.execute(QUEUED)
        assert [head.job.run_id for head in await backend.workers.heads(unchanged=timedelta(0))] == ["head"]
        assert await blocks(connection, HEADS) < 100
    finally:
        await connection.close()
        await backend.close()


async def test_delayed_runs_are_found_by_an_index(postgres_url: str) -> None:
    """Q3, R11: delayed runs and those that may expire are found by an index, also on tables without statistics."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept(AcceptRequest(thread_id="t", run_id="head", input=Message.user("hi")))
        await connection.execute(WAITING)
        assert 3000 < ((await backend.runs.admit()).next_due or 0) <= 3600
        assert await blocks(connection, ADMIT) < 100
    finally:
        await connection.close()
        await backend.close()


async def test_counting_what_waits_reads_nothing_that_has_ended(postgres_url: str) -> None:
    """Q3: the gauges of queues cost what is unfinished, however long the history is."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept(AcceptRequest(thread_id="t", run_id="head", input=Message.user("hi")))
        await connection.execute(ENDED)
        assert [(info.queue, info.queued) for info in await backend.queues.queues()] == [("default", 1)]
        assert await blocks(connection, QUEUES) < 100
    finally:
        await connection.close()
        await backend.close()
