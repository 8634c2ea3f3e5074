"""A heartbeat over a connection of its own, as the heartbeat process sends it (W1, W3)."""

from __future__ import annotations

import pytest

from runyard.errors import BackendUnavailableError, WorkerDeadError
from runyard.ports.workers import WorkerInfo
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.single_heartbeat import send_heartbeat


async def test_a_heartbeat_is_recorded_while_it_is_permitted(postgres_url: str) -> None:
    """W1: permission is asked for when the connection is open, because to connect may take a while."""
    backend = await connect(postgres_url)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    [before] = await backend.workers.workers()
    assert not await send_heartbeat(postgres_url, "w", lambda: False)
    assert [worker.heartbeat_at for worker in await backend.workers.workers()] == [before.heartbeat_at]
    separator = "&" if "?" in postgres_url else "?"  # PgBouncer needs the setting
    assert await send_heartbeat(f"{postgres_url}{separator}statement_cache_size=0", "w", lambda: True)
    [after] = await backend.workers.workers()
    assert before.heartbeat_at is not None and after.heartbeat_at is not None and after.heartbeat_at > before.heartbeat_at
    await backend.close()


async def test_a_worker_that_was_declared_dead_or_has_left_gets_none(postgres_url: str) -> None:
    """W1: death is final."""
    backend = await connect(postgres_url)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    [worker] = await backend.workers.workers()
    assert worker.heartbeat_at is not None and await backend.workers.mark_dead("w", worker.heartbeat_at)
    for worker_id in ("w", "unknown"):
        with pytest.raises(WorkerDeadError):
            await send_heartbeat(postgres_url, worker_id, lambda: True)
    assert [worker.worker_id for worker in await backend.workers.workers()] == ["w"]
    await backend.close()


async def test_without_a_server_there_is_no_heartbeat() -> None:
    with pytest.raises(BackendUnavailableError):
        await send_heartbeat("postgresql://nobody:secret@127.0.0.1:1/nothing", "w", lambda: True)
