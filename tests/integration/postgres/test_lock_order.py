"""Verbs that lock many threads take them in one order, so that none of their transactions is undone to break a deadlock.

The store sends such a transaction again, so a deadlock shows as a second of silence and in the server's own count alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from itertools import count
from typing import TypeVar

import asyncpg
import pytest

from runyard.models import Limit, Message
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import Effects
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_backends.postgres.accepts import encoded
from runyard_backends.postgres.backend import PostgresBackend, connect
from runyard_backends.postgres.database import milliseconds
from tests.support.lock_waits import until_a_session_waits

SECONDS = float(os.environ.get("RUNYARD_TEST_LOCKS", "2"))
THREADS = 24
WAIT = 20.0
"""Seconds for which a batch waits for a locked thread: more than a test needs."""
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

T = TypeVar("T")


@pytest.fixture
async def server(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database that looks for deadlocks at once."""
    connection = await asyncpg.connect(postgres_url)
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '5ms'")
    yield connection
    await connection.close()


async def deadlocks(server: asyncpg.Connection) -> int:
    """How many there were in this database; other connections report theirs when they end."""
    async with asyncio.timeout(30):
        while await server.fetchval(OTHERS):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return int(await server.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))


def shuffled(items: Collection[T]) -> list[T]:
    return random.sample(list(items), len(items))


class Rounds:
    """Rounds of all these verbs at once on the same threads, each given them in an order of its own. A run that may start is
    claimed in the next round and completed in the one after."""

    def __init__(self, backend: Backend, server: asyncpg.Connection) -> None:
        self.runs, self.server = backend.runs, server
        self.offered: set[RunRef] = set()
        self.held: list[AttemptToken] = []
        self.completed = 0

    async def go(self, names: list[str], n: int) -> None:
        hosted = [(name, f"hosted-{n}") for name in names]
        await self.server.executemany("SELECT runyard.accept($1, 'hello', run_id => $2)", shuffled(hosted))
        offered, self.offered = self.offered, set()
        held, self.held = self.held, []
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(self._admit())
            group.create_task(self._complete(shuffled(held)))
            group.create_task(self._claim(shuffled(offered)))
            for name in shuffled(names):
                group.create_task(self._accept(name, f"asked-{n}"))

    async def _admit(self) -> None:
        self._offer((await self.runs.admit()).effects)

    async def _accept(self, name: str, run_id: str) -> None:
        request = AcceptRequest(thread_id=name, run_id=run_id, input=Message.user("hello"))
        self._offer((await self.runs.accept(request)).effects)

    async def _claim(self, refs: list[RunRef]) -> None:
        for claim in await self.runs.claim("w", refs):
            self._offer(claim.effects)
            if claim.attempt is not None:
                self.held.append(claim.attempt)
            elif claim.outcome == "skipped":
                self.offered.add(claim.ref)

    async def _complete(self, attempts: list[AttemptToken]) -> None:
        for ended in await self.runs.complete([Write(attempt=attempt) for attempt in attempts]):
            assert not isinstance(ended, Exception)
            self._offer(ended.effects)
        self.completed += len(attempts)

    def _offer(self, effects: Effects) -> None:
        self.offered |= {job.ref for job in effects.jobs}


Call = Callable[[], Awaitable[object]]


async def accepts(backend: PostgresBackend, threads: list[str]) -> Call:
    requests = [AcceptRequest(thread_id=thread, run_id="r", input=Message.user("hi")) for thread in threads]
    rows = [encoded(request).row for request in requests]
    return partial(backend.db.rows_unless_locked, "accept", "", rows, milliseconds(WAIT))


async def claims(backend: PostgresBackend, threads: list[str]) -> Call:
    return partial(backend.runs.claim, "w", [await queued(backend, thread) for thread in threads], wait=WAIT)


async def completions(backend: PostgresBackend, threads: list[str]) -> Call:
    claimed = await backend.runs.claim("w", [await queued(backend, thread) for thread in threads])
    attempts = sorted((claim.attempt for claim in claimed if claim.attempt), key=lambda attempt: -attempt.thread_key)
    return partial(backend.runs.complete, [Write(attempt=attempt) for attempt in attempts], wait=WAIT)


async def queued(backend: PostgresBackend, thread: str) -> RunRef:
    accepted = await backend.runs.accept(AcceptRequest(thread_id=thread, run_id="r", input=Message.user("hi")))
    return accepted.effects.jobs[0].ref


@pytest.mark.parametrize(
    ("verb", "one_by_one"),
    [(accepts, False), (accepts, True), (claims, False), (completions, False), (completions, True)],
)
async def test_a_batch_locks_its_threads_by_their_keys(
    postgres_url: str, verb: Callable[[PostgresBackend, list[str]], Awaitable[Call]], one_by_one: bool
) -> None:
    """O5: a batch in descending order has locked the other threads while it waits for the one with the highest key.

    With a limit of the deployment, batches process their runs one by one, and claims wait for no thread.
    """
    backend = await connect(postgres_url, max_pool_size=4)
    assert isinstance(backend, PostgresBackend)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    if one_by_one:
        await backend.limits.set_limit(Limit(name="running_per_agent", most=1000))
    threads = [f"t{n}" for n in range(4)]
    holder, reader = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    try:
        for thread in threads:
            await backend.threads.store_message(thread, Message.user("hello"))
        batch = await verb(backend, threads[::-1])
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM runyard.threads WHERE thread_id = $1 FOR UPDATE", threads[-1])
            call = asyncio.ensure_future(batch())
            await until_a_session_waits(reader, call=call)
            assert await reader.fetch("SELECT thread_id FROM runyard.threads FOR UPDATE SKIP LOCKED") == []
        await call
    finally:
        await holder.close()
        await reader.close()
        await backend.close()


@pytest.mark.parametrize("fresh", [False, True], ids=["known", "made meanwhile"])
async def test_admit_and_the_batches_never_deadlock(postgres_url: str, server: asyncpg.Connection, fresh: bool) -> None:
    """O5: one lock order; ``admit`` over all threads beside batched accepts, claims and completions of the same ones."""
    backend = await connect(postgres_url, max_pool_size=8)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    rounds = Rounds(backend, server)
    until = time.monotonic() + SECONDS
    try:
        for name in shuffled(range(THREADS)):  # so that the order of their keys is not that of their names
            await backend.threads.store_message(f"t-{name}", Message.user("hello"))
        for n in count():
            await rounds.go([f"t{n if fresh else ''}-{name}" for name in range(THREADS)], n)
            if time.monotonic() > until and rounds.completed > THREADS:
                break
    finally:
        await backend.close()
    assert rounds.completed > THREADS
    assert await deadlocks(server) == 0


async def test_a_deletion_takes_runs_before_their_steps(postgres_url: str, server: asyncpg.Connection) -> None:
    """As prune does, which locks no thread."""
    backend = await connect(postgres_url)
    try:
        await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
        accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hello")))
        [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
        assert claim.attempt is not None
        await backend.runs.finish_step(claim.attempt, "step", "done")
        await backend.runs.complete([Write(attempt=claim.attempt)])
        async with server.transaction():
            await server.execute("SELECT FROM runyard.runs FOR UPDATE")
            deleting = asyncio.create_task(backend.threads.delete_thread("t"))
            await until_a_session_waits(server, call=deleting)
            await server.execute("DELETE FROM runyard.steps")
        await deleting
    finally:
        await backend.close()
    assert await deadlocks(server) == 0
