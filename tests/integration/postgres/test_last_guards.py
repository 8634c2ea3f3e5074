"""What the database refuses by itself, should a stored function ever forget to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard import Client


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize("status", ["running", "suspended"])
async def test_a_lane_has_one_active_run(postgres_url: str, connection: asyncpg.Connection, status: str) -> None:
    """I2: the partial unique index live_runs_active."""
    async with Client.connect(postgres_url) as client:
        for run_id in ("r1", "r2"):
            await client.enqueue("t", "hi", run_id)
    await connection.execute("UPDATE runyard.live_runs SET status = $1 WHERE run_id = 'r1'", status)
    with pytest.raises(asyncpg.UniqueViolationError, match="live_runs_active"):
        await connection.execute("UPDATE runyard.live_runs SET status = $1 WHERE run_id = 'r2'", status)


TABLES = ("runs", "threads", "messages", "attempts", "hitl_requests", "outbox", "webhooks", "webhook_deliveries")


async def test_no_row_has_a_time_that_python_cannot_read(postgres_url: str, connection: asyncpg.Connection) -> None:
    """A2: the driver reads rows before any code of runyard can tell a damaged one, so that a list would fail as a whole."""
    columns = await connection.fetch(
        """SELECT c.table_name, c.column_name FROM information_schema.columns c
        WHERE c.table_schema = 'runyard' AND c.data_type = 'timestamp with time zone' AND c.table_name = ANY ($1)""",
        TABLES,
    )
    assert len(columns) > 25
    await connection.execute("SELECT runyard.accept('t', 'hi')")
    await _rows(connection)
    for table, column in columns:
        for time in ("infinity", "-infinity", "20000-01-01", "0044-03-15 BC", "1969-12-31T00:00:00Z"):
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.execute(f"UPDATE runyard.{table} SET {column} = '{time}'")


@pytest.mark.parametrize("count", ["attempt", "error_count", "crash_count"])
async def test_counts_of_a_run_can_grow(connection: asyncpg.Connection, count: str) -> None:
    """I1: a sum out of range would stop a claim, and the leader's reads for every tenant."""
    await connection.execute("SELECT runyard.accept('t', 'hi')")
    for number in (-1, 2**31 - 1):
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(f"UPDATE runyard.runs SET {count} = {number}")


async def _rows(connection: asyncpg.Connection) -> None:
    """Insert a row into each of TABLES that has none."""
    await connection.execute(
        """
        INSERT INTO runyard.threads (tenant, thread_id, head_branch) VALUES ('', 't', 1);
        INSERT INTO runyard.messages (branch_id, seq, message_id, role) VALUES (1, 1, gen_random_uuid(), 'user');
        INSERT INTO runyard.attempts (accept_no, fence, outcome) VALUES (1, 1, 'lost');
        INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, kind, body) VALUES ('', 'q', 1, 'question', '');
        INSERT INTO runyard.outbox (tenant, thread_id, type) VALUES ('', 't', 'run.failed');
        INSERT INTO runyard.webhooks (webhook_id, url, events) VALUES ('w', 'http://a', '{run.failed}');
        INSERT INTO runyard.webhook_deliveries (tenant, url, type, thread_id) VALUES ('', 'http://a', 'run.failed', 't');
        """
    )
