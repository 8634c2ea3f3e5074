"""A transaction that stays open anywhere on the server holds the feed back, and runyard says which one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import pytest
import structlog

from runyard.ports.stores import Backend
from runyard.ports.workers import FeedDelay, Retention
from runyard.worker import reconciler
from runyard.worker.reconciler import Reconciler
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.health import diagnose
from tests.conftest import Databases

OLDER = "UPDATE runyard.usage_counter SET goal_at = goal_at - interval '2 minutes'"


async def test_the_delay_names_the_transaction_of_another_database(
    postgres_url: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: the leader's metric and log, and the doctor."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    other = await asyncpg.connect(databases.admin_url, server_settings={"application_name": "a nightly job"})
    try:
        while not await connection.fetchval("SELECT count(*) FROM runyard.usage_counter"):
            await backend.usage.count()
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT pg_current_xact_id()")
        pid = await other.fetchval("SELECT pg_backend_pid()")
        await _goal_after(connection, backend)
        await connection.execute(OLDER)
        delay = await backend.usage.count()
        assert 120 <= delay.seconds < 180
        assert (
            delay.holder is not None
            and f"pid {pid} " in delay.holder
            and "(a nightly job), idle in transaction" in delay.holder
        )

        monkeypatch.setattr(reconciler, "log", structlog.get_logger("test"))
        with structlog.testing.capture_logs() as logs:
            leader = Reconciler(backend, lambda: "w", lambda _: None, Retention(), leading=lambda: True)
            for _ in range(2):
                await leader.step()
        [line] = [line for line in logs if line["event"] == "feed_held_back"]
        assert line["transaction"] == delay.holder and line["log_level"] == "warning"
        found = (await diagnose(postgres_url)).feed_delay
        assert found.holder == delay.holder

        await transaction.rollback()
        assert await backend.usage.count() == FeedDelay() or (await diagnose(postgres_url)).feed_delay == FeedDelay()
    finally:
        with suppress(asyncpg.InterfaceError):
            await other.close()
        await connection.close()
        await backend.close()


async def _goal_after(connection: asyncpg.Connection, backend: Backend) -> None:
    """Wait until a round of counting waits for the open transaction."""
    async with asyncio.timeout(30):
        while not await connection.fetchval("SELECT goal > pg_snapshot_xmin(pg_current_snapshot()) FROM runyard.usage_counter"):
            await backend.usage.count()
