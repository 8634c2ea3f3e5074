"""What connections to Postgres keep of the tasks that use them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar, copy_context
from urllib.parse import urlsplit, urlunsplit

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
