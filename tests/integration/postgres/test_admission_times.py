"""A run is never admitted before it was accepted, by the times that are stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard import Client

HOST = "SELECT runyard.accept('t', 'hi', run_id => 'r')"


@pytest.fixture
async def verb(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The connection of a verb whose transaction has begun, and with it its ``now()``, before the run is accepted."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("BEGIN")
    await connection.fetchval("SELECT now()")
    yield connection
    await connection.close()


async def in_order(connection: asyncpg.Connection) -> bool:
    ordered: bool = await connection.fetchval("SELECT bool_and(accepted_at <= admitted_at) FROM runyard.runs")
    return ordered


async def test_a_run_of_a_client_is_admitted_when_it_is_accepted(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with Client.connect(postgres_url) as client:
        for number in range(3):
            await client.enqueue(f"t{number}", "hi")
        assert await connection.fetchval("SELECT bool_and(accepted_at = admitted_at) FROM runyard.runs")
    await connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT runyard.admit(100)",
        "SELECT runyard.cancel('', 't', 'r', false)",
    ],
)
async def test_a_run_of_a_host_is_admitted_after_it_was_accepted(
    verb: asyncpg.Connection, postgres_url: str, statement: str
) -> None:
    """Although the transaction that admits it began before."""
    host = await asyncpg.connect(postgres_url)
    await host.execute(HOST)
    await verb.execute(statement)
    await verb.execute("COMMIT")
    assert await in_order(host)
    await host.close()


async def test_a_run_that_is_redriven_is_admitted_after_it_was_accepted(verb: asyncpg.Connection, postgres_url: str) -> None:
    host = await asyncpg.connect(postgres_url)
    async with Client.connect(postgres_url) as client:
        await client.enqueue("t", "hi", run_id="r")
    await host.execute("UPDATE runyard.runs SET status = 'failed', finished_at = now()")
    await verb.execute("SELECT runyard.redrive('', 't', 'r')")
    await verb.execute("COMMIT")
    assert await in_order(host)
    await host.close()


async def test_an_admission_reads_no_other_threads(postgres_url: str) -> None:
    """Also when the planner knows that the table of threads has many rows, and for each kind of what may be due."""
    connection = await asyncpg.connect(postgres_url)
    async with Client.connect(postgres_url) as client:
        await client.enqueue("t", "hi")
        await connection.execute(
            "INSERT INTO runyard.threads (tenant, thread_id, head_branch)"
            " SELECT '', 'other ' || n, -n FROM generate_series(1, 3000) n"
        )
        await connection.execute("ANALYZE runyard.threads, runyard.runs")
        for expires in (None, 1e-9):
            await client.enqueue("u", "hi", agent="nobody's", expires_in=expires)
            await connection.execute(HOST.replace("'t'", f"'of {expires}'"))
            async with connection.transaction():
                await connection.fetchval("SELECT runyard.admit(100)")
                read = await connection.fetchrow(
                    "SELECT seq_scan, coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'threads'"
                )
            assert read is not None and read[0] == 0 and read[1] < 20, tuple(read)
    await connection.close()
