"""The migration that records which signals the attempts of an earlier schema have received."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo
from runyard.ports.commands import Write
from runyard_backends.conformance.waits import park, signal
from runyard_backends.conformance.world import World
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.migrate import Release


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    backend = await connect(postgres_url)
    yield World(backend, None)  # type: ignore[arg-type]
    await backend.close()


async def test_k2_a_migration_notes_the_signals_that_runs_have_received(world: World, postgres_url: str) -> None:
    """Each thread has a signal ``paid``. After the end of the run, only a signal that no attempt had is open again."""
    attempts = {}
    for thread in ("goes on", "waits again", "retried", "unread", "failed", "completed"):
        attempts[thread] = await world.start("r", thread=thread)
        if thread != "unread":
            await world.runs.signal(thread, "paid", 1, signal_id="s")
        ended = await park(world, attempts[thread], signal())
        assert ended.status is (RunStatus.SUSPENDED if thread == "unread" else RunStatus.RUNNING)
    await world.runs.signal("unread", "paid", 1, signal_id="s")
    await park(world, attempts["waits again"], signal("other", "later"))
    await world.runs.release(attempts["retried"])
    await world.runs.fail(Write(attempt=attempts["failed"]), ErrorInfo(code="x", message="x"))
    await world.finish(attempts["completed"])

    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("UPDATE runyard.waits SET received_by = NULL")
        [migration] = [each for each in Release.installed().migrations if each.name == "received_signals"]
        noted = await connection.execute(migration.sql[migration.sql.index("UPDATE runyard.waits") :])
        assert noted == "UPDATE 4", "not the waits of runs that have ended for ever"
        await world.runs.redrive("failed", "r")
        await world.finish(attempts["goes on"])
        for thread in ("waits again", "retried", "unread", "failed"):
            await world.runs.cancel(thread, "r")
        free = await connection.fetch(
            "SELECT t.thread_id FROM runyard.signals s JOIN runyard.threads t USING (thread_key) WHERE s.wait_id IS NULL"
        )
        assert [row["thread_id"] for row in free] == ["unread"]
    finally:
        await connection.close()
