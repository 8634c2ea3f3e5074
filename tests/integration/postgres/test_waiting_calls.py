"""Calls that wait for the lock of one thread leave connections to calls for other threads (Q4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from runyard.errors import BackendUnavailableError, LockedError, ThreadBusyError
from runyard.models import HitlRequest, Message, RunOptions, new_id
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard.ports.workers import WorkerInfo
from runyard.support import store_retries
from runyard_backends.postgres.backend import PostgresBackend, connect
from runyard_backends.postgres.database import Database
from tests.support.fleet import SLACK, until
from tests.support.lock_waits import until_a_session_waits, waiting_sessions

POOL = 4
AT_ONCE = 1.0 + SLACK
DEADLINE = 30.0
LOCK = "SELECT 1 FROM runyard.threads WHERE thread_id = 'held' FOR UPDATE"

Verb = Callable[[PostgresBackend, AttemptToken, int], Awaitable[Any]]


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    backend = await connect(postgres_url, max_pool_size=POOL)
    assert isinstance(backend, PostgresBackend)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    yield backend
    await backend.close()


@pytest.fixture
async def host(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


def prompt(thread_id: str, run_id: str, **fields: Any) -> AcceptRequest:
    return AcceptRequest(thread_id=thread_id, run_id=run_id, input=Message.user("hello"), **fields)


async def begin(backend: PostgresBackend, request: AcceptRequest) -> AttemptToken:
    accepted = await backend.runs.accept(request)
    [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
    assert claim.attempt is not None
    return claim.attempt


async def cancel(backend: PostgresBackend, attempt: AttemptToken, n: int) -> Any:
    return await backend.runs.cancel("held", "running")


async def respond(backend: PostgresBackend, attempt: AttemptToken, n: int) -> Any:
    return await backend.runs.respond("yes", request_id="00000000-0000-0000-0000-000000000001")


async def store_message(backend: PostgresBackend, attempt: AttemptToken, n: int) -> Any:
    with suppress(ThreadBusyError):  # the refusal needs the lock, too
        await backend.threads.store_message("held", Message.user(f"stored {n}"))


async def update_thread(backend: PostgresBackend, attempt: AttemptToken, n: int) -> Any:
    return await backend.threads.update_thread("held", title=f"title {n}")


async def append(backend: PostgresBackend, attempt: AttemptToken, n: int) -> Any:
    return await backend.runs.append(attempt, [Message.assistant(f"part {n}")])


async def save_extra(backend: PostgresBackend, attempt: AttemptToken, n: int) -> Any:
    return await backend.checkpointer.save_extra("held", {"n": n})


VERBS: list[Verb] = [cancel, respond, store_message, update_thread, append, save_extra]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
async def test_many_calls_for_a_locked_thread_leave_connections_to_others(
    backend: PostgresBackend, host: asyncpg.Connection, verb: Verb
) -> None:
    asking = await begin(backend, prompt("held", "asking", options=RunOptions(parallel=True)))
    request = HitlRequest(request_id="00000000-0000-0000-0000-000000000001")
    await backend.runs.suspend(Write(attempt=asking), [request])
    attempt = await begin(backend, prompt("held", "running"))
    async with host.transaction():
        await host.execute(LOCK)
        blocked = [asyncio.create_task(verb(backend, attempt, n)) for n in range(5 * POOL)]
        await until_a_session_waits(host)
        for n in range(5):
            async with asyncio.timeout(AT_ONCE):
                assert (await backend.runs.accept(prompt(f"free-{n}", new_id()))).created
        assert not any(task.done() for task in blocked)
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*blocked)


async def test_a_call_gets_a_lock_for_which_others_always_wait(
    backend: PostgresBackend, host: asyncpg.Connection, postgres_url: str
) -> None:
    """A call that only tries whether the lock is free would never get it."""
    await backend.threads.store_message("held", Message.user("hello"))
    stopped = asyncio.Event()

    async def holder() -> None:
        connection = await asyncpg.connect(postgres_url)
        while not stopped.is_set():
            async with connection.transaction():
                await connection.execute(LOCK)
                await connection.execute("SELECT pg_sleep(0.02)")
        await connection.close()

    holders = [asyncio.create_task(holder()) for _ in range(3)]
    await until_a_session_waits(host)
    try:
        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(*(backend.threads.update_thread("held", title=f"{n}") for n in range(3)))
    finally:
        stopped.set()
        await asyncio.gather(*holders)


async def test_calls_that_met_a_lock_use_few_connections(backend: PostgresBackend, host: asyncpg.Connection) -> None:
    await backend.threads.store_message("held", Message.user("hello"))
    async with host.transaction():
        await host.execute(LOCK)
        blocked = [asyncio.create_task(backend.threads.update_thread("held", title=f"{n}")) for n in range(POOL)]
        counts: list[int] = []

        async def few() -> bool:
            counts.append(await waiting_sessions(host))
            return len(counts) > 30 and max(counts[-30:]) == 1  # the first tries are over

        await until(few)
        assert not any(task.done() for task in blocked)
    await asyncio.gather(*blocked)


async def test_a_call_gives_up_in_time(
    backend: PostgresBackend, host: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also calls that find all places taken in which calls wait for locks."""
    monkeypatch.setattr(store_retries, "LOCKED_SECONDS", 0.5)
    await backend.threads.store_message("held", Message.user("hello"))
    async with host.transaction():
        await host.execute(LOCK)
        began = time.monotonic()
        calls = (backend.threads.update_thread("held", title=f"{n}") for n in range(10 * POOL))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - began < 2 + SLACK
    assert all(isinstance(end, BackendUnavailableError) for end in ends), "LockedError, or no connection in this time"
    assert any(isinstance(end, LockedError) for end in ends)
    assert (await backend.threads.update_thread("held", title="after")).title == "after"


class TestWhileADeletedThreadIsRemoved:
    """Its id cannot be taken until its runs are removed or hidden (D1). Calls that would make the thread again wait."""

    @staticmethod
    async def delete(backend: PostgresBackend, host: asyncpg.Connection) -> int:
        """Make and delete the thread `held`. Return its number; all but the first step of its removal is to do."""
        await backend.threads.store_message("held", Message.user("hello"))
        row = await host.fetchrow("SELECT * FROM runyard.delete_thread('', 'held', true, NULL, true)")
        assert row is not None
        [key] = row["unremoved"]
        return int(key)

    @staticmethod
    async def remove(host: asyncpg.Connection, key: int) -> None:
        while await host.fetchval("SELECT runyard.remove_step($1, 100)", key):
            pass

    @pytest.mark.parametrize("verb", ["append", "save_extra", "save_requests", "claim_run"])
    async def test_the_checkpointer_waits(self, backend: PostgresBackend, host: asyncpg.Connection, verb: str) -> None:
        key = await self.delete(backend, host)
        checkpointer = backend.checkpointer
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "append": lambda: checkpointer.append("held", [Message.user("again")]),
            "save_extra": lambda: checkpointer.save_extra("held", {"n": 1}),
            "save_requests": lambda: checkpointer.save_requests("held", [HitlRequest(request_id=new_id())], run_id="r"),
            "claim_run": lambda: checkpointer.claim_run("held", "r"),
        }
        call = asyncio.ensure_future(calls[verb]())
        await asyncio.wait([call], timeout=0.2)
        assert not call.done()
        await self.remove(host, key)
        async with asyncio.timeout(DEADLINE):
            await call
        assert await backend.threads.thread("held") is not None

    async def test_the_cancel_of_a_hosted_run_waits(self, backend: PostgresBackend, host: asyncpg.Connection) -> None:
        await host.execute("SELECT runyard.accept('held', 'hello', run_id => 'hosted')")
        key = await self.pending(host)
        call = asyncio.ensure_future(backend.runs.cancel("held", "hosted"))
        await asyncio.wait([call], timeout=0.2)
        assert not call.done()
        await host.execute("DELETE FROM runyard.removals WHERE thread_key = $1", key)
        async with asyncio.timeout(DEADLINE):
            assert (await call).run.status == "cancelled"

    async def test_a_hosted_accept_is_repeated_without_a_wait(self, host: asyncpg.Connection) -> None:
        await host.execute("SELECT runyard.accept('held', 'hello', run_id => 'hosted')")
        await self.pending(host)
        assert await host.fetchval("SELECT runyard.accept('held', 'hello', run_id => 'hosted')") == "hosted"
        with pytest.raises(asyncpg.PostgresError, match="still being removed"):
            await host.execute("SELECT runyard.accept('held', 'hello', run_id => 'another')")

    @staticmethod
    async def pending(host: asyncpg.Connection) -> int:
        """Record that a thread `held` is being removed, as a deletion does that commits after the host's accept began."""
        return int(
            await host.fetchval(
                "INSERT INTO runyard.removals (thread_key, tenant, thread_id, erase, runs_hidden) "
                "VALUES (0, '', 'held', false, false) RETURNING thread_key"
            )
        )


async def test_calls_get_connections_in_the_order_of_their_waits(postgres_url: str) -> None:
    """Q4: a task that makes one call after the other takes no connection from a call that waits for one."""
    database = await Database.connect(postgres_url, min_pool_size=1, max_pool_size=1)
    answered = 0

    async def busy() -> None:
        nonlocal answered
        while True:
            await database.check_writable()
            answered += 1

    task = asyncio.create_task(busy())
    try:
        for _ in range(3):
            await asyncio.sleep(0)  # the task has the connection, or waits before this call
            before = answered
            async with asyncio.timeout(AT_ONCE):
                await database.check_writable()
            assert answered - before <= 2
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.close()
