"""A run enqueued in the host's own transaction exists exactly if that commits (R1, R2, R11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from runyard import Client, errors
from runyard.domain.states import RunStatus
from runyard_backends.redis import RedisServer
from tests.support.fleet import Fleet
from tests.support.lock_waits import until_a_session_waits

BOUND = 60.0

ACCEPT = "SELECT runyard.accept(%s, %s, run_id => %s)"


@pytest.fixture
async def client(fleet: Fleet) -> Client:
    """A client with one worker behind it."""
    await fleet.start()
    return fleet.client


@pytest.fixture
async def host(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The host's own connection."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def psycopg_host(postgres_url: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
    """The host's own connection, of another driver."""
    connection = await psycopg.AsyncConnection.connect(postgres_url)
    yield connection
    await connection.close()


async def nothing_of(client: Client, thread_id: str, run_id: str) -> None:
    """The run is not there, and whatever a worker might have begun meanwhile it has finished."""
    for n in range(2):
        await (await client.enqueue("meanwhile", f"other work {n}")).result(BOUND)
    with pytest.raises(errors.RunNotFoundError):
        await client.run(thread_id, run_id)
    with pytest.raises(errors.ThreadNotFoundError):
        await client.thread(thread_id)
    assert run_id not in {run.run_id for run in (await client.runs()).items}


async def test_asyncpg_runs_after_the_commit_and_only_then(client: Client, host: asyncpg.Connection) -> None:
    async with host.transaction():
        handle = await client.enqueue("order", "thanks", "r1", connection=host)
        await nothing_of(client, "order", "r1")
    assert (await handle.result(BOUND)).text == "thanks"


async def test_asyncpg_rolled_back_it_never_was(client: Client, host: asyncpg.Connection) -> None:
    with pytest.raises(ZeroDivisionError):
        async with host.transaction():
            await client.enqueue("order", "never", "r1", connection=host)
            raise ZeroDivisionError
    await nothing_of(client, "order", "r1")
    assert (await client.enqueue("order", "other words", "r1")).created, "the id is free"


async def test_several_runs_of_one_transaction_keep_their_order(client: Client, host: asyncpg.Connection) -> None:
    """R3: also behind a run that was accepted on its own."""
    first = await client.enqueue("order", "sleep 0.2 | zero", "r0")
    async with host.transaction():
        handles = [await client.enqueue("order", text, connection=host) for text in ("one", "two", "three")]
    for handle in (first, *handles):
        assert (await handle.result(BOUND)).ok
    said = [message.text for message in (await client.messages("order")).items if message.role == "assistant"]
    assert said == ["zero", "one", "two", "three"]


async def test_r2_asyncpg_the_same_id_twice_is_one_run(client: Client, host: asyncpg.Connection) -> None:
    for _ in range(2):
        async with host.transaction():
            for _ in range(2):
                handle = await client.enqueue("order", "thanks", "r1", connection=host)
    result = await handle.result(BOUND)
    assert (result.text, result.run.attempt) == ("thanks", 1)
    assert not (await client.enqueue("order", "thanks", "r1")).created
    assert len((await client.messages("order")).items) == 2


async def test_r2_asyncpg_other_content_under_the_same_id(client: Client, host: asyncpg.Connection) -> None:
    """The refusal breaks the transaction, as an error of any statement does; a savepoint keeps the rest of it."""
    await (await client.enqueue("order", "thanks", "r1")).result(BOUND)
    async with host.transaction():
        with pytest.raises(errors.RunConflictError) as caught:
            async with host.transaction():
                await client.enqueue("order", "other words", "r1", connection=host)
        assert caught.value.details["differs"] == ["message"]
        kept = await client.enqueue("order", "still here", connection=host)
    assert (await kept.result(BOUND)).text == "still here"


async def test_r2_two_transactions_with_one_id(client: Client, host: asyncpg.Connection, postgres_url: str) -> None:
    """The second waits for the first and takes its place if that one is rolled back."""
    other = await asyncpg.connect(postgres_url)
    try:
        first = host.transaction()
        await first.start()
        await client.enqueue("order", "thanks", "r1", connection=host)
        async with other.transaction():
            second = asyncio.create_task(client.enqueue("order", "other words", "r1", connection=other))
            await until_a_session_waits(host, other.get_server_pid(), call=second)
            await first.rollback()
            handle = await asyncio.wait_for(second, BOUND)
    finally:
        await other.close()
    assert (await handle.result(BOUND)).text == "other words"


async def test_r11_asyncpg_due_later(client: Client, host: asyncpg.Connection) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    async with host.transaction():
        soon = await client.enqueue("soon", "now", run_at=due, connection=host)
        late = await client.enqueue("late", "never", delay=3600, connection=host)
    run = (await soon.result(BOUND)).run
    assert run.started_at is not None and run.started_at >= due
    assert await late.status() is RunStatus.QUEUED
    assert (await late.run()).attempt == 0
    async with host.transaction():
        prompt = await client.enqueue("late", "at once", connection=host)
    assert (await prompt.result(BOUND)).text == "at once", "a run that is not due holds nobody up"


async def test_psycopg_runs_after_the_commit_and_only_then(
    client: Client, psycopg_host: psycopg.AsyncConnection[tuple[Any, ...]]
) -> None:
    cursor = await psycopg_host.execute(ACCEPT, ("order", "thanks", "r1"))
    assert await cursor.fetchone() == ("r1",)
    await nothing_of(client, "order", "r1")
    await psycopg_host.commit()
    assert (await client.handle("order", "r1").result(BOUND)).text == "thanks"


async def test_psycopg_rolled_back_it_never_was(client: Client, psycopg_host: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    await psycopg_host.execute(ACCEPT, ("order", "never", "r1"))
    await psycopg_host.rollback()
    await nothing_of(client, "order", "r1")


async def test_r2_psycopg_the_same_id_twice_is_one_run_and_other_content_a_conflict(
    client: Client, psycopg_host: psycopg.AsyncConnection[tuple[Any, ...]]
) -> None:
    for _ in range(2):
        await psycopg_host.execute(ACCEPT, ("order", "thanks", "r1"))
        await psycopg_host.execute(ACCEPT, ("order", "thanks", "r1"))
        await psycopg_host.commit()
    result = await client.handle("order", "r1").result(BOUND)
    assert (result.text, result.run.attempt) == ("thanks", 1)
    with pytest.raises(psycopg.DatabaseError) as caught:
        await psycopg_host.execute(ACCEPT, ("order", "other words", "r1"))
    assert caught.value.sqlstate == "RY000"
    assert caught.value.diag.message_hint == errors.RunConflictError.code
    assert json.loads(caught.value.diag.message_detail or "")["run_id"] == "r1"
    await psycopg_host.rollback()
    assert len((await client.messages("order")).items) == 2


async def test_r11_psycopg_due_later_with_an_agent_and_metadata(
    client: Client, psycopg_host: psycopg.AsyncConnection[tuple[Any, ...]]
) -> None:
    cursor = await psycopg_host.execute(
        "SELECT runyard.accept('order', 'thanks', agent => 'scripted', run_at => now() + interval '1.5 seconds', "
        "metadata => '{\"order\": 7}', options => '{\"max_attempts\": 3}'), now() + interval '1.5 seconds'"
    )
    row = await cursor.fetchone()
    assert row is not None
    await psycopg_host.commit()
    run = (await client.handle("order", row[0]).result(BOUND)).run
    assert run.started_at is not None and run.started_at >= row[1]
    assert (run.agent, run.metadata, run.options.max_attempts) == ("scripted", {"order": 7}, 3)


async def test_r11_what_nobody_serves_expires(client: Client, host: asyncpg.Connection, redis_url: str) -> None:
    """R2, R11: by SQL and by the client; whoever waits is told, and Redis keeps nothing of it."""
    accept = "SELECT runyard.accept('t1', 'hi', run_id => 'r', queue => 'nobody', options => $1::jsonb)"
    for wrong in ("0", "1e-400", '"1"', "true", "315360001"):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await host.execute(accept, f'{{"expires_in": {wrong}}}')
        assert (refused.value.sqlstate, refused.value.hint) == ("RY000", "invalid_input"), wrong
    await host.execute(accept, '{"expires_in": 0.5}')
    await host.execute(accept, '{"expires_in": 0.5}')
    with pytest.raises(asyncpg.PostgresError) as conflict:
        await host.execute(accept, "{}")
    assert conflict.value.hint == "run_conflict"
    await client.enqueue("t2", "hi", "r", queue="nobody", expires_in=0.5)
    for thread in ("t1", "t2"):
        handle = client.handle(thread, "r")
        result = await handle.result(timeout=BOUND)
        with pytest.raises(errors.RunExpiredError):
            result.raise_for_status()
        assert [event.type async for event in handle.stream()] == ["run.queued", "run.failed"]
        assert "did not start in time" in await handle.explain()
    server = RedisServer(redis_url)
    async with asyncio.timeout(BOUND):
        while await server.command("KEYS", "*nobody*") or await server.command("KEYS", "*:job:*"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await server.close()
