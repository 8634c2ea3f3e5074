"""How long a call of Postgres may take, what bounds a session, and which servers are refused."""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from runyard.errors import BackendUnavailableError
from runyard.ports.commands import Cut
from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.postgres import connecting
from runyard_backends.postgres.backend import PostgresBackend, connect
from runyard_backends.postgres.connecting import Connector, hosts
from runyard_backends.postgres.database import RELEASE_SECONDS, Database
from runyard_backends.postgres.migrate import migrate
from tests.support.failovers import through
from tests.support.fleet import SLACK, until
from tests.support.lock_waits import until_a_session_waits, waiting_sessions

FROZEN = 3.0
"""Seconds of command_timeout while the server does not answer."""


async def seconds_to_fail(call: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    with pytest.raises(BackendUnavailableError):
        await call()
    return time.monotonic() - began


@pytest.mark.xdist_group("failovers")
async def test_calls_of_a_frozen_server_end_in_time(postgres_url: str, postgres_server: EmbeddedPostgres) -> None:
    """More calls than connections: some wait for a reply, some for a connection, some connect, and some are transactions."""
    backend = await connect(postgres_url, max_pool_size=4, command_timeout=FROZEN)
    assert isinstance(backend, PostgresBackend)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: backend.runs.run("t", "r"),
        lambda: backend.runs.admit(),
        lambda: backend.checkpointer.load("t"),
        lambda: backend.threads.cut_messages("t", Cut(after_run_id="r")),
        lambda: backend.threads.erase_thread("t"),
        lambda: backend.workers.beat("w"),
        lambda: backend.check(),
    ]
    await asyncio.gather(*(backend.runs.run("t", "r") for _ in range(2)))
    postgres_server.pause()
    try:
        took = await asyncio.gather(*(seconds_to_fail(call) for call in calls * 2))
        first = took[:]
        took += await asyncio.gather(*(seconds_to_fail(call) for call in calls))
    finally:
        postgres_server.resume()
    print([f"{seconds:.2f}" for seconds in took])
    assert min(first) >= FROZEN - 0.1
    assert max(took) <= FROZEN + 1 + SLACK

    async def answers() -> bool:
        with suppress(BackendUnavailableError):
            return await backend.runs.run("t", "r") is None
        return False

    await until(answers)
    await asyncio.gather(*(backend.runs.run("t", "r") for _ in range(20)))
    await backend.close()


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    """With one connection."""
    database = await Database.connect(postgres_url, max_pool_size=1, command_timeout=1.0)
    yield database
    await database.close()


async def test_a_call_waits_for_a_connection_no_longer_than_for_a_reply(database: Database) -> None:
    async with database.pool.acquire():
        for call in (lambda: database.value("schema_version"), lambda: database.check_writable()):
            assert await seconds_to_fail(call) < 1.5 + SLACK
    assert await database.value("schema_version")


async def test_a_call_that_is_cancelled_leaves_no_statement_behind(postgres_url: str) -> None:
    """The caller is free at once, and the next call has the same connection."""
    database, host = await Database.connect(postgres_url, max_pool_size=1), await asyncpg.connect(postgres_url)
    pid = await database.pool.fetchval("SELECT pg_backend_pid()")
    try:
        async with host.transaction():
            await host.execute("LOCK TABLE runyard.schema_versions")
            waiting = asyncio.create_task(database.value("schema_version"))
            await until_a_session_waits(host, pid)
            waiting.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert time.monotonic() - began < 1 + SLACK
            assert await waiting_sessions(host, pid) == 0
        assert await database.pool.fetchval("SELECT pg_backend_pid()") == pid
    finally:
        await host.close()
        await database.close()


@pytest.mark.xdist_group("failovers")
async def test_a_second_cancel_leaves_no_task_behind(database: Database, postgres_server: EmbeddedPostgres) -> None:
    """The first cancel waits until the frozen server has cancelled the statement. The second cancel interrupts this wait."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await database.value("schema_version")
    call = asyncio.create_task(database.value("schema_version"))
    postgres_server.pause()
    try:
        for _ in range(2):
            await asyncio.sleep(0.05)
            call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(RELEASE_SECONDS + 0.2)
    finally:
        postgres_server.resume()
    gc.collect()
    assert complaints == []


async def test_a_cancel_stays_a_cancel_if_the_connection_is_closed(database: Database) -> None:
    with pytest.raises(asyncio.CancelledError):
        async with database.snapshot() as bound:
            bound._bound.terminate()  # type: ignore[attr-defined]  # as the driver does if it cannot cancel the statement
            raise asyncio.CancelledError


async def test_a_session_has_timeouts(database: Database, postgres_url: str) -> None:
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")

    async def shown(of: Database) -> list[str]:
        return [await of.pool.fetchval(f"SHOW {name}") for name in names]

    assert await shown(database) == ["100ms", "2s", "10s"]
    chosen = await Database.connect(f"{postgres_url}?lock_timeout=7000", max_pool_size=1)
    assert await shown(chosen) == ["7s", "31s", "10s"]
    await chosen.close()


async def test_a_lock_is_waited_for_a_bounded_time(database: Database, postgres_url: str) -> None:
    host = await asyncpg.connect(postgres_url)
    async with host.transaction():
        await host.execute("LOCK TABLE runyard.schema_versions")
        with pytest.raises(BackendUnavailableError, match="lock"):
            await database.value("schema_version")
    await host.close()


async def test_a_transaction_whose_client_is_silent_ends(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen client holds no lock for long."""
    monkeypatch.setattr(connecting, "IDLE_IN_TRANSACTION_SECONDS", 1.0)
    database = await Database.connect(postgres_url, max_pool_size=1)
    host = await asyncpg.connect(postgres_url)

    async def free() -> bool:
        return not await host.fetchval("SELECT count(*) FROM pg_locks WHERE relation = 'runyard.leases'::regclass")

    with pytest.raises(BackendUnavailableError):
        async with database.transaction() as held:
            await held.value("lead", "w", 1.0)
            assert not await free()
            await until(free)
            await held.value("lead", "w", 1.0)
    assert await database.value("schema_version")
    await host.close()
    await database.close()


async def test_a_connection_that_takes_no_writes_is_closed(database: Database) -> None:
    """SQLSTATE 25006: behind a pooler, the server behind a connection may change."""
    pid = await database.pool.fetchval("SELECT pg_backend_pid()")
    await database.pool.execute("SET default_transaction_read_only = on")
    with pytest.raises(BackendUnavailableError, match="read-only"):
        await database.value("lead", "w", 1.0)

    async def leads() -> bool:
        with suppress(BackendUnavailableError):
            return bool(await database.value("lead", "w", 1.0))
        return False

    await until(leads)
    assert await database.pool.fetchval("SELECT pg_backend_pid()") != pid
    await database.pool.execute("SET default_transaction_read_only = on")
    assert await database.value("schema_version")
    with pytest.raises(BackendUnavailableError, match="read-only"):
        await database.check_writable()


async def test_many_repeated_calls_open_few_connections(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes no writes for a second or longer is asked a few times; calls in between fail at once."""
    backend = await connect(postgres_url)
    host = await asyncpg.connect(postgres_url)
    name = urlsplit(postgres_url).path[1:]
    opened, failed, original = 0, 0, asyncpg.connect

    async def counted(*args: Any, **options: Any) -> asyncpg.Connection:
        nonlocal opened
        opened += 1
        return await original(*args, **options)

    monkeypatch.setattr(asyncpg, "connect", counted)
    await host.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await host.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'runyard'")
    began = time.monotonic()

    async def repeat() -> None:
        nonlocal failed
        while time.monotonic() < began + 1 or failed < 150:
            with suppress(BackendUnavailableError):
                await backend.runs.admit()
                continue
            failed += 1
            await asyncio.sleep(0.01)

    await asyncio.gather(*(repeat() for _ in range(20)))
    seconds = time.monotonic() - began
    assert opened <= 100 * seconds, f"{opened} connections for {failed} calls in {seconds:.1f} s"
    await host.execute("SET default_transaction_read_only = off")
    await host.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")

    async def admits() -> bool:
        with suppress(BackendUnavailableError):
            await backend.runs.admit()
            return True
        return False

    await until(admits)
    await host.close()
    await backend.close()


async def test_a_pooler_that_refuses_the_timeouts_is_used_without_them(postgres_url: str) -> None:
    """PgBouncer refuses parameters of a session that it does not know. Everything works, also a migration."""
    async with AsyncExitStack() as stack:
        pooler = await asyncio.start_server(_refusing(urlsplit(postgres_url).port or 0), "127.0.0.1")
        stack.push_async_callback(pooler.wait_closed)
        stack.callback(pooler.close)
        url = through(postgres_url, pooler.sockets[0].getsockname()[1])
        backend = await connect(url, max_pool_size=2)
        assert isinstance(backend, PostgresBackend)
        stack.push_async_callback(backend.close)
        assert await backend.workers.lead("w", 1.0)
        assert await backend.db.pool.fetchval("SHOW lock_timeout") == "0"
        assert (await migrate(url)).migrations == ()


def _refusing(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server that ends connections whose first packet names a timeout, as PgBouncer does, and forwards others to ``port``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            first = await _packet(reader)
            if first == struct.pack("!i", 80877103):  # SSLRequest
                writer.write(b"N")
                first = await _packet(reader)
            if b"_timeout\0" in first:
                fields = b"SFATAL\0C08P01\0Munsupported startup parameter: lock_timeout\0\0"
                writer.write(b"E" + struct.pack("!i", len(fields) + 4) + fields)
            else:
                answers, upstream = await asyncio.open_connection("127.0.0.1", port)
                upstream.write(struct.pack("!i", len(first) + 4) + first)
                await asyncio.wait(
                    [asyncio.create_task(_copy(reader, upstream)), asyncio.create_task(_copy(answers, writer))],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                upstream.close()
        writer.close()

    return serve


async def _packet(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(size - 4)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()


async def test_a_url_that_chooses_its_servers_is_obeyed(postgres_url: str) -> None:
    host = await asyncpg.connect(postgres_url)
    await host.execute(f"ALTER DATABASE {urlsplit(postgres_url).path[1:]} SET default_transaction_read_only = on")
    with pytest.raises(BackendUnavailableError, match="read-only"):
        await connect(postgres_url)
    reader = await connect(f"{postgres_url}?target_session_attrs=any")
    assert await reader.runs.run("t", "r") is None
    await reader.close()
    await host.close()


async def test_hosts_in_the_query_of_a_url_are_tried_in_turn(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    login = f"user={parts.username}&password={parts.password}"
    url = f"postgresql://{parts.path}?host=127.0.0.1,127.0.0.1&port=1,{parts.port}&{login}"
    backend = await connect(url)
    assert await backend.runs.run("t", "r") is None
    await backend.close()


async def test_a_host_that_cannot_be_reached_does_not_delay_the_others(postgres_url: str) -> None:
    """A host that accepts and says nothing, one that refuses, and the server."""
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1")
    parts = urlsplit(postgres_url)
    login, _, place = parts.netloc.rpartition("@")
    first = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    url = parts._replace(netloc=f"{login}@{first},127.0.0.1:1,{place}").geturl()
    async with asyncio.timeout(30):  # the silent host would be waited for a minute
        connection = await Connector(url, "runyard-test", {})()
    assert await connection.fetchval("SHOW application_name") == "runyard-test"
    await connection.close()
    silent.close()


def test_hosts_of_a_url() -> None:
    assert hosts("postgresql://me:p%40ss@a:1,b,[::1]:3/app?sslmode=require") == [
        f"postgresql://me:p%40ss@{host}/app?sslmode=require" for host in ("a:1", "b", "[::1]:3")
    ]
    assert hosts("postgresql:///app") == ["postgresql:///app"]
