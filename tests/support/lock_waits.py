"""Sessions of Postgres that wait for a lock."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND ($1::integer IS NULL OR pid = $1)
"""


async def waiting_sessions(connection: asyncpg.Connection | asyncpg.Pool, pid: int | None = None) -> int:
    """Return the number of sessions of this database that wait for a lock. ``pid``: the only session that counts."""
    await connection.execute("SELECT pg_stat_clear_snapshot()")  # a transaction keeps what it has read of the activity
    return int(await connection.fetchval(WAITING, pid))


async def until_a_session_waits(
    connection: asyncpg.Connection | asyncpg.Pool,
    pid: int | None = None,
    *,
    call: asyncio.Future[Any] | None = None,
    seconds: float = 30.0,
) -> None:
    """Return when a session of this database waits for a lock. ``pid``: the only session that counts. ``call``: the call that
    must wait. Raises AssertionError if ``call`` ends instead, and TimeoutError after ``seconds``, which are more than a slow
    machine needs."""
    async with asyncio.timeout(seconds):
        while not await waiting_sessions(connection, pid):
            assert call is None or not call.done(), "the call did not wait for a lock"
            await asyncio.sleep(0.01)
