"""Runs that are accepted in sessions of SQLAlchemy, which begins a transaction at its own first statement (R2)."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from runyard import Client
from runyard.errors import InvalidInputError, RunNotFoundError

pytestmark = pytest.mark.asyncio


class Undo(Exception): ...


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("first", [True, False], ids=["enqueue-first", "insert-first"])
async def test_a_run_exists_if_its_session_commits(postgres_url: str, driver: str, first: bool) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql://", f"postgresql+{driver}://"))
    async with Client.connect(postgres_url) as client:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (id text PRIMARY KEY)"))
        for name in ("undone", "kept"):
            try:
                async with AsyncSession(engine) as session, session.begin():
                    for enqueues in (first, not first):
                        if enqueues:
                            await client.enqueue("t", "hi", name, connection=session)
                        else:
                            await session.execute(text(f"INSERT INTO orders VALUES ('{name}')"))
                    if name == "undone":
                        raise Undo
            except Undo:
                pass
        with pytest.raises(RunNotFoundError):
            await client.run("t", "undone")
        assert (await client.run("t", "kept")).run_id == "kept"
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT id FROM orders"))).scalars().all() == ["kept"]
    await engine.dispose()


class OwnSession(AsyncSession):
    """A session as other packages and programs derive it."""


async def test_a_derived_session_is_taken(postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    async with Client.connect(postgres_url) as client:
        async with OwnSession(engine) as session, session.begin():
            await client.enqueue("t", "hi", "r", connection=session)
        assert (await client.run("t", "r")).run_id == "r"
    await engine.dispose()


async def test_a_scoped_session_is_refused_and_its_session_is_taken(postgres_url: str) -> None:
    """A scoped session is another session in another thread or task, whose transaction the host would never commit."""
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    scoped = scoped_session(sessionmaker(engine))
    async with Client.connect(postgres_url) as client:
        with pytest.raises(
            InvalidInputError, match=r"scoped session is a different session.*pass the session itself"
        ) as refused:
            await client.enqueue("t", "hi", "r", connection=scoped)
        assert refused.value.details["field"] == "connection"
        assert not scoped.registry.has()
        await client.enqueue("t", "hi", "r", connection=scoped())
        scoped.commit()
        assert (await client.run("t", "r")).run_id == "r"
    scoped.remove()
    engine.dispose()


async def test_an_async_scoped_session_is_refused_and_its_session_is_taken(postgres_url: str) -> None:
    """In a task of its own, as asyncio.wait_for makes one, an async scoped session is another session."""
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    async with Client.connect(postgres_url) as client:
        with pytest.raises(InvalidInputError, match="pass the session itself"):
            await asyncio.wait_for(client.enqueue("t", "hi", "r", connection=scoped), 20)
        await asyncio.wait_for(client.enqueue("t", "hi", "r", connection=scoped()), 20)
        await scoped.commit()
        assert (await client.run("t", "r")).run_id == "r"
    await scoped.remove()
    await engine.dispose()
