"""What connections to Postgres keep of the tasks that use them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar, copy_context
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from runyard.errors import BackendUnavailableError, InvalidInputError
from runyard_backends.postgres.backend import connect


class History:
    """What a run's contextvars may lead to, those of a library included."""


carried: ContextVar[History] = ContextVar("carried")


async def test_a_statement_holds_nothing_of_the_run_that_prepared_it(postgres_url: str) -> None:
    """A worker of long threads would hold a history for each statement of each connection."""
    backend = await connect(postgres_url, max_pool_size=1)
    seen: list[weakref.ref[History]] = []

    async def ask() -> None:
        history = History()
        seen.append(weakref.ref(history))
        carried.set(history)
        await backend.runs.run("t", "r")

    for _ in range(2):  # the pool itself remembers who used a connection last
        await asyncio.create_task(ask(), context=copy_context())
    gc.collect()
    held = seen[0]()
    await backend.close()
    assert held is None


async def test_a_call_returns_its_connection_without_a_task(postgres_url: str) -> None:
    """Each call would wait for one more task, and a pick-up has two calls one after the other."""
    backend = await connect(postgres_url, max_pool_size=1)
    await backend.runs.run("t", "r")
    loop, started = asyncio.get_running_loop(), []

    def task_of(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        started.append(work)
        return asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(task_of)
    try:
        for _ in range(3):  # the only connection is free again for each
            assert await backend.runs.run("t", "r") is None
    finally:
        loop.set_task_factory(None)
    await asyncio.gather(*(backend.runs.run("t", "r") for _ in range(3)))
    await backend.close()
    assert started == []


async def test_a_connection_may_be_lost_after_its_last_reply(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: the call has its answer, and the next call opens another connection."""
    backend = await connect(postgres_url, max_pool_size=1)
    fetchrow = asyncpg.Connection.fetchrow

    async def lost(self: asyncpg.Connection, *args: Any) -> Any:
        row = await fetchrow(self, *args)
        self.terminate()
        return row

    monkeypatch.setattr(asyncpg.Connection, "fetchrow", lost)
    for _ in range(3):
        assert await backend.runs.run("t", "r") is None
    await backend.close()


async def test_a_database_that_does_not_exist_is_unavailable(postgres_url: str) -> None:
    """A3: readiness reports it, and a process that waits for its database goes on when the database has been made."""
    with pytest.raises(BackendUnavailableError, match="does not exist"):
        await connect(urlunsplit(urlsplit(postgres_url)._replace(path="/not_there")))


async def test_a_password_that_postgres_refuses_makes_it_unavailable(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    wrong = parts._replace(netloc=f"postgres:wrong@{parts.hostname}:{parts.port}")
    with pytest.raises(BackendUnavailableError, match="password"):
        await connect(urlunsplit(wrong))


async def test_postgres_refuses_a_redis_inside_the_process(postgres_url: str) -> None:
    """Another process would find neither its jobs nor its locks."""
    with pytest.raises(InvalidInputError, match="memory://"):
        await connect(postgres_url, redis="fakeredis://")
