"""A cancelled enqueue on a sync connection of the host ends before the host gets its connection back (R2)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from runyard import Client
from runyard.errors import RunNotFoundError
from tests.support.lock_waits import until_a_session_waits

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def client(postgres_url: str) -> AsyncIterator[Client]:
    async with Client.connect(postgres_url) as client:
        yield client


@pytest.fixture
async def holder(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection whose transaction holds the id of a run."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize("cancels", [1, 2])
async def test_the_statement_ends_and_the_transaction_keeps_nothing(
    client: Client, holder: asyncpg.Connection, postgres_url: str, cancels: int
) -> None:
    """The id is held by another transaction for the whole test, so only a cancellation on the server ends the statement."""
    held = holder.transaction()
    await held.start()
    await client.enqueue("t", "held", "r", connection=holder)
    with closing(psycopg.connect(postgres_url)) as connection:
        call = asyncio.create_task(client.enqueue("t", "cancelled", "r", connection=connection))
        async with asyncio.timeout(20):
            await until_a_session_waits(holder, connection.info.backend_pid, call=call)
            for _ in range(cancels):
                call.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await call
        assert connection.info.transaction_status is TransactionStatus.INERROR
        await held.rollback()
        connection.commit()
    with pytest.raises(RunNotFoundError):
        await client.run("t", "r")


async def test_a_session_that_still_connects_is_waited_for(client: Client, postgres_url: str) -> None:
    """The host would otherwise use its session at the same time as the thread."""
    connecting, go = threading.Event(), threading.Event()

    def connect() -> Any:
        connecting.set()
        assert go.wait(20)
        return psycopg.connect(postgres_url)

    engine = create_engine("postgresql+psycopg://", creator=connect)
    with Session(engine) as session:
        call = asyncio.create_task(client.enqueue("t", "cancelled", "r", connection=session))
        assert await asyncio.to_thread(connecting.wait, 20)
        call.cancel()
        ended, _ = await asyncio.wait({call}, timeout=0.1)
        go.set()
        assert not ended
        with pytest.raises(asyncio.CancelledError):
            await call
        assert session.in_transaction()
        session.commit()
    engine.dispose()
    with pytest.raises(RunNotFoundError):
        await client.run("t", "r")
