"""The rows that callers of deletions have left, and effects that they did not wait for (D1, Q3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import asyncpg
import pytest

from runyard.models import Message
from runyard.ports.commands import Cut, ForkRequest, ThreadRequest
from runyard.ports.workers import Retention, WorkerInfo
from runyard_backends.postgres.backend import PostgresBackend, connect
from tests.support.fleet import until
from tests.support.long_thread import LongThread

STUCK = 120
STATEMENT_SECONDS = 2.0
FAILS = """CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$;
           CREATE TRIGGER fail BEFORE UPDATE OR DELETE ON runyard.removals FOR EACH ROW
           WHEN (OLD.thread_id LIKE 'stuck%') EXECUTE FUNCTION fail()"""


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    """Its statements end after STATEMENT_SECONDS."""
    backend = await connect(f"{postgres_url}?statement_timeout={STATEMENT_SECONDS * 1000:.0f}", max_pool_size=4)
    assert isinstance(backend, PostgresBackend)
    yield backend
    await backend.close()


@pytest.fixture
async def server(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def leave(backend: PostgresBackend, server: asyncpg.Connection, thread_id: str) -> int:
    """Delete a thread as a caller that stops after the first transaction. Return the thread's key."""
    await backend.threads.store_message(thread_id, Message.user("hello"))
    [key] = await server.fetchval("SELECT unremoved FROM runyard.delete_thread('', $1, true, NULL, true)", thread_id)
    return int(key)


async def test_threads_that_are_never_removed_do_not_starve_the_others(
    backend: PostgresBackend, server: asyncpg.Connection
) -> None:
    await server.execute(FAILS.format("RAISE 'too large' USING ERRCODE = 'program_limit_exceeded';"))
    for n in range(STUCK):
        await leave(backend, server, f"stuck-{n}")
    free = await leave(backend, server, "free")
    for _ in range(50):
        await backend.workers.prune(Retention())
        if not await server.fetchval("SELECT count(*) FROM runyard.removals WHERE thread_key = $1", free):
            return
    raise AssertionError("the thread is never removed")


async def test_a_removal_that_takes_too_long_undoes_no_pruning(backend: PostgresBackend, server: asyncpg.Connection) -> None:
    await server.execute(FAILS.format("PERFORM pg_sleep(20); RETURN NEW;"))
    await leave(backend, server, "stuck")
    await backend.workers.register(WorkerInfo(worker_id="dead", queues=["default"]))
    await server.execute("UPDATE runyard.workers SET dead_at = now() - interval '9 days'")
    assert await backend.workers.prune(Retention())
    assert await server.fetchval("SELECT count(*) FROM runyard.workers") == 0


async def test_the_effects_of_a_deletion_are_returned_whatever_fails_later(
    backend: PostgresBackend, server: asyncpg.Connection
) -> None:
    """The error is none of those that runyard knows."""
    await backend.threads.store_message("stuck", Message.user("hello"))
    key = await backend.threads.thread_key("stuck")
    await server.execute(FAILS.format("RAISE 'unknown' USING ERRCODE = 'P0001';"))
    effects = await backend.threads.erase_thread("stuck")
    assert effects.deleted == [key]


async def test_the_workers_are_told_of_a_deletion_whose_caller_was_cancelled(
    backend: PostgresBackend, server: asyncpg.Connection
) -> None:
    """R10: the caller cannot carry out the effects any more. A step of the removal waits for a fork."""
    message = await backend.threads.store_message("t", Message.user("hello"))
    key = await backend.threads.thread_key("t")
    await backend.threads.fork(ForkRequest(src="t", new="fork", cut=Cut(at_message_id=message.id)))

    async def steps() -> bool:
        return bool(await server.fetchval("SELECT count(*) FROM runyard.removals WHERE after_fork > 0"))

    async with aclosing(backend.notifications()) as notifications:
        await anext(notifications)  # connected
        async with server.transaction():
            await server.execute("SELECT 1 FROM runyard.threads WHERE thread_id = 'fork' FOR UPDATE")
            deleting = asyncio.create_task(backend.threads.erase_thread("t"))
            await until(steps)
            deleting.cancel()
            async with asyncio.timeout(30):
                assert (await anext(notifications)).deleted == [key]
        assert deleting.cancelled()


async def test_the_first_transaction_of_a_deletion_is_as_long_for_any_thread(
    backend: PostgresBackend, server: asyncpg.Connection
) -> None:
    """Q3: it holds the locks of the thread and of its ancestors. Nobody has analysed the tables."""
    read = []
    for runs in (1000, 8000):
        await backend.threads.create_thread(ThreadRequest(thread_id=f"t-{runs}"))
        await LongThread(runs).copy(server, f"t-{runs}")
        statement = f"SELECT * FROM runyard.delete_thread('', 't-{runs}', true, NULL)"
        (plan,) = json.loads(await server.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"))
        read.append(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])
        print(f"{runs} runs: {read[-1]} blocks in {plan['Execution Time']:.0f} ms")
    assert read[1] < 1.5 * read[0]
