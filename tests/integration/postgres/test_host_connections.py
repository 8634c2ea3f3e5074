"""Runs that are accepted on connections of the host's own drivers: with its rows or not at all (R2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from django.conf import settings as django_settings
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from runyard import Client, Message
from runyard.errors import InvalidInputError, RunConflictError, RunNotFoundError

pytestmark = pytest.mark.asyncio

INSERT = "INSERT INTO orders VALUES ('{}')"
SAID = Message.user('Ünï "quoted" \\ text \U0001f600')
HOW: dict[str, Any] = {"metadata": {"n": [1, 2.5, "\u00e4", None]}, "timeout": 3.0, "max_attempts": 2, "delay": 60.0}


@pytest.fixture
async def client(postgres_url: str) -> AsyncIterator[Client]:
    async with Client.connect(postgres_url) as client:
        async with client.backend.db.pool.acquire() as connection:  # type: ignore[attr-defined]
            await connection.execute("CREATE TABLE orders (id text PRIMARY KEY)")
        yield client


class Undo(Exception): ...


async def check(client: Client, name: str) -> None:
    """Only the run whose transaction was committed exists, with all that was given."""
    with pytest.raises(RunNotFoundError):
        await client.run("t", f"{name}-undone")
    run = await client.run("t", f"{name}-kept")
    assert run.input is not None and run.input.text == SAID.text and run.input.id == SAID.id
    assert (run.metadata, run.options.timeout, run.options.max_attempts) == (HOW["metadata"], 3.0, 2)
    assert run.run_at is not None
    rows = await client.backend.db.pool.fetch("SELECT id FROM orders")  # type: ignore[attr-defined]
    assert [row["id"] for row in rows] == [f"{name}-kept"]


async def test_psycopg(client: Client, postgres_url: str) -> None:
    """The sync and the async connection, each with a rollback and a commit; a repetition; a refusal."""
    with psycopg.connect(postgres_url) as connection:
        for name in ("sync-undone", "sync-kept"):
            connection.execute(INSERT.format(name))  # type: ignore[arg-type]
            handle = await client.enqueue("t", SAID, name, connection=connection, **HOW)
            assert handle.created
            connection.rollback() if name == "sync-undone" else connection.commit()
        again = await client.enqueue("t", SAID, "sync-kept", connection=connection, **HOW)
        assert not again.created
        with pytest.raises(RunConflictError) as refused:
            await client.enqueue("t", "another", "sync-kept", connection=connection)
        assert refused.value.details["differs"] == ["message"]
    await check(client, "sync")


async def test_asyncpg_with_codecs_of_the_host(client: Client, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    for name in ("p-undone", "p-kept"):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(INSERT.format(name))
        await client.enqueue("t", SAID, name, connection=connection, **HOW)
        await (transaction.rollback() if name == "p-undone" else transaction.commit())
    await connection.close()
    await check(client, "p")


async def test_times_are_in_utc_whatever_the_host_loads(client: Client, postgres_url: str) -> None:
    """Django without time zones loads the local time of the session, without its offset."""

    class Naive(TimestamptzLoader):
        def load(self, data: Any) -> datetime:
            return super().load(data).replace(tzinfo=None)

    with psycopg.connect(postgres_url, options="-c timezone=Asia/Tokyo") as connection:
        connection.adapters.register_loader("timestamptz", Naive)
        handle = await client.enqueue("t", "hi", "r", connection=connection, delay=60.0)
        assert connection.execute("SELECT now()").fetchone()[0].tzinfo is None  # type: ignore[index]
    accepted, stored = handle.accepted, await client.run("t", "r")
    assert accepted is not None
    assert accepted.accepted_at == stored.accepted_at and accepted.run_at == stored.run_at
    assert accepted.accepted_at.tzinfo is not None and accepted.accepted_at.utcoffset() == timedelta(0)


async def test_psycopg_async(client: Client, postgres_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        for name in ("a-undone", "a-kept"):
            await connection.execute(INSERT.format(name))  # type: ignore[arg-type]
            await client.enqueue("t", SAID, name, connection=connection, **HOW)
            await (connection.rollback() if name == "a-undone" else connection.commit())
    await check(client, "a")


async def test_sqlalchemy_sync_session_and_connection(client: Client, postgres_url: str) -> None:
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        await client.enqueue("t", SAID, "y-undone", connection=session, **HOW)
        session.rollback()
    with engine.connect() as connection:
        await client.enqueue("t", SAID, "y-kept", connection=connection, **HOW)
        connection.execute(text(INSERT.format("y-kept")))
        connection.commit()
    engine.dispose()
    await check(client, "y")


@contextmanager
def django_database(url: str) -> Iterator[None]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
    from django.db import connections

    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": database}, USE_TZ=True)
    before = dict(connections.settings)
    connections.settings["default"].update(database)
    try:
        yield
    finally:
        connections.close_all()
        del connections["default"]
        connections.settings.update(before)


async def test_django(client: Client, postgres_url: str) -> None:
    """A view is sync, and its thread owns the connection."""

    def view() -> None:
        with django_database(postgres_url), Client.sync(postgres_url) as sync:
            from django.db import connection, transaction

            for name in ("d-undone", "d-kept"):
                try:
                    with transaction.atomic():
                        connection.cursor().execute(INSERT.format(name))
                        sync.enqueue("t", SAID, name, connection=connection, **HOW)
                        if name == "d-undone":
                            raise Undo
                except Undo:
                    pass

    await asyncio.to_thread(view)
    await check(client, "d")


async def test_an_engine_that_is_derived_from_that_of_django(client: Client, postgres_url: str) -> None:
    """The engines of other packages, for metrics or maps, are subclasses in modules of their own."""

    def view() -> None:
        with django_database(postgres_url), Client.sync(postgres_url) as sync:
            from django.db import connection
            from django.db.backends.postgresql.base import DatabaseWrapper

            class Measured(DatabaseWrapper):  # type: ignore[misc]
                pass

            Measured.__module__ = "measured.backends.base"
            derived = Measured(connection.settings_dict, "default")
            try:
                for name in ("m-undone", "m-kept"):
                    derived.set_autocommit(False)
                    derived.cursor().execute(INSERT.format(name))
                    sync.enqueue("t", SAID, name, connection=derived, **HOW)
                    derived.rollback() if name == "m-undone" else derived.commit()
            finally:
                derived.close()

    await asyncio.to_thread(view)
    await check(client, "m")


async def test_anything_else_is_refused(client: Client) -> None:
    for wrong in ("postgresql://h/db", object(), create_engine("sqlite://")):
        with pytest.raises(InvalidInputError, match="connection is an open connection of asyncpg or psycopg 3") as refused:
            await client.enqueue("t", "hi", connection=wrong)
        assert refused.value.details["field"] == "connection"
    with create_engine("sqlite://").connect() as connection, pytest.raises(InvalidInputError, match="got sqlalchemy"):
        await client.enqueue("t", "hi", connection=connection)
