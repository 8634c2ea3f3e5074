"""Tests of the schema, of deadlocks, lock waits, broken connections and refused values on MariaDB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import pytest

from runyard.errors import (
    BackendUnavailableError,
    CapabilityMissingError,
    InvalidInputError,
    LockedError,
    SchemaMismatch,
    SchemaUninitialized,
)
from runyard.models import HitlRequest, Message
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.stores import Backend
from runyard_backends.sql import mysql
from runyard_backends.sql.backend import connect_mysql
from runyard_backends.sql.mysql import LOCK_WAIT_SECONDS, migrate, options_of
from tests.support.mariadb import PrivateMariaDB


@pytest.fixture
async def backend(mysql_url: str) -> AsyncIterator[Backend]:
    backend = await connect_mysql(mysql_url, max_pool_size=6)
    yield backend
    await backend.close()


@pytest.fixture
async def other(mariadb_server: PrivateMariaDB, mysql_url: str) -> AsyncIterator[Any]:
    """A connection of another program to the database."""
    database = urlsplit(mysql_url).path[1:]
    connection = await asyncmy.connect(unix_socket=str(mariadb_server.socket), user="root", db=database, autocommit=True)
    yield connection
    await connection.ensure_closed()


@pytest.mark.parametrize(
    "url",
    [
        *("mysql://h", "mysql://h/", "mysql://h:x/db", "mysql://h/db?charset=latin1", "mysql://h/a/b", "mysql://h/db#x"),
        *("mysql://h/db?ssl=true&ssl=false", "mysql://h/db?ssl=yes"),
    ],
)
def test_a_url_that_is_no_database_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        options_of(url.replace("//", "//me:s3cret@"))
    assert "s3cret" not in str(error.value)


def test_a_url_names_user_password_and_database() -> None:
    found = options_of("mysql://m%40e:p%2F@host:3307/d%20b")
    assert found == {"host": "host", "port": 3307, "user": "m@e", "password": "p/", "db": "d b"}


async def test_a_database_without_a_schema(mariadb_server: PrivateMariaDB) -> None:
    """A database gets its schema from `migrate`. Calls of `migrate` may be repeated, and may run at the same time."""
    url = mariadb_server.url(await mariadb_server.create())
    with pytest.raises(SchemaUninitialized):
        await connect_mysql(url)
    done = await asyncio.gather(*(migrate(url) for _ in range(3)))
    assert sorted(len(each.migrations) for each in done) == [0, 0, 1]
    backend = await connect_mysql(url)
    await backend.check()
    await backend.close()
    await mariadb_server.run(f"INSERT INTO {urlsplit(url).path[1:]}.runyard_schema VALUES (900, 'contraction', 99)")
    with pytest.raises(SchemaMismatch):
        await connect_mysql(url)


async def test_sessions_do_not_depend_on_the_settings_of_the_server(mariadb_server: PrivateMariaDB, mysql_url: str) -> None:
    """A page of a read needs one state of the database, and a time needs a clock without repeated hours."""
    before = "SET GLOBAL tx_isolation = '{}', GLOBAL time_zone = '{}'"
    await mariadb_server.run(before.format("READ-COMMITTED", "+02:00"))
    try:
        database = await mysql.connect_database(mysql_url)

        async def read(tx: Any) -> list[Any]:
            return list(await (await tx.execute("SELECT @@tx_isolation, @@time_zone")).fetchall())

        assert await database.read(read) == [("REPEATABLE-READ", "+00:00")]
        await database.close()
    finally:
        await mariadb_server.run(before.format("REPEATABLE-READ", "SYSTEM"))


async def test_an_interrupted_migration_is_repeated(mariadb_server: PrivateMariaDB) -> None:
    """The server commits each table. A migration that ended between two tables is completed by the next migration."""
    url = mariadb_server.url(name := await mariadb_server.create())
    await migrate(url)
    await mariadb_server.run(f"DROP TABLE {name}.runyard_requests", f"DELETE FROM {name}.runyard_schema")
    assert (await migrate(url)).migrations == ("0001_checkpoints",)
    await (await connect_mysql(url)).close()


async def test_servers_and_accounts_that_refuse(mariadb_server: PrivateMariaDB) -> None:
    for url in (
        "mysql://me:s3cret@127.0.0.1:1/db",
        f"mysql://nobody:s3cret@localhost/db?unix_socket={mariadb_server.socket}",
        f"mysql://root@localhost/missing?unix_socket={mariadb_server.socket}",
    ):
        with pytest.raises(BackendUnavailableError) as error:
            await connect_mysql(url)
        assert "s3cret" not in str(error.value)


async def test_verbs_on_one_thread_at_once_wait_for_each_other(backend: Backend) -> None:
    """R15: Concurrent appends to one thread and to new threads leave no gap. No call fails."""
    await asyncio.gather(*(backend.checkpointer.append("t", [Message.user(f"{n}")]) for n in range(40)))
    messages = (await backend.threads.messages("t")).items
    assert [message.seq for message in messages] == [*range(1, 41)]
    await asyncio.gather(*(backend.checkpointer.append(f"new{n % 10}", [Message.user(f"{n}")]) for n in range(40)))
    assert len((await backend.threads.threads()).items) == 11


async def test_a_deadlock_is_tried_again(backend: Backend, other: Any) -> None:
    """A deletion that the server rolls back because of a deadlock is repeated and takes effect."""
    await backend.checkpointer.append("t", [message := Message.user("x")])
    await backend.threads.fork(ForkRequest(src="t", new="c", cut=Cut(at_message_id=message.id)))
    cursor = other.cursor()
    await cursor.execute("BEGIN")
    await cursor.execute("UPDATE runyard_threads SET title = 'weight' WHERE thread_id = 'c'")
    deleting = asyncio.create_task(backend.threads.delete_thread("c"))  # locks t, then waits for c
    waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    async with asyncio.timeout(30):
        while True:
            await cursor.execute(waiting)
            if (await cursor.fetchall())[0][0]:
                break
            await asyncio.sleep(0.12)  # the server renews this table ten times a second
    for _ in range(20):  # the transaction that has changed more rows is not the victim
        await cursor.execute("UPDATE runyard_threads SET title = CONCAT(title, 'x') WHERE thread_id = 'c'")
    await cursor.execute("UPDATE runyard_threads SET title = 'locked' WHERE thread_id = 't'")
    await other.commit()
    await deleting
    assert await backend.threads.thread("c") is None


async def test_a_thread_that_stays_locked_is_waited_for_within_a_bound(
    backend: Backend, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "LOCKED_SECONDS", 1.0)
    await backend.checkpointer.append("t", [Message.user("a")])
    cursor = other.cursor()
    await cursor.execute("BEGIN")
    await cursor.execute("SELECT * FROM runyard_threads WHERE thread_id = 't' FOR UPDATE")
    with pytest.raises(LockedError):
        await backend.checkpointer.append("t", [Message.user("b")])
    assert [m.text for m in (await backend.threads.messages("t")).items] == ["a"]
    await other.rollback()
    await backend.checkpointer.append("t", [Message.user("c")])
    assert [m.text for m in (await backend.threads.messages("t")).items] == ["a", "c"]


async def test_h7_lists_do_not_wait_for_locked_threads(backend: Backend, other: Any) -> None:
    """H7: A list applies the deadlines of other threads. It shows a locked thread as it was."""
    store: Any = backend.checkpointer
    for thread in ("t", "u"):
        await store.claim_run(thread, "r")
        overdue = HitlRequest(request_id=f"of {thread}", timeout=0, on_deadline={"fail": True})
        await store.save_requests(thread, [overdue], run_id="r")
    cursor = other.cursor()
    await cursor.execute("BEGIN")
    await cursor.execute("SELECT * FROM runyard_threads WHERE tenant = '' AND thread_id = 't' AND is_live = 1 FOR UPDATE")
    async with asyncio.timeout(LOCK_WAIT_SECONDS):
        assert [request.thread_id for request in (await backend.runs.requests()).items] == ["t"]
        assert {run.thread_id: run.status for run in (await backend.runs.runs()).items} == {"t": "running", "u": "failed"}
        run = await backend.runs.run("t", "r")
    assert run is not None and run.status == "running"
    await other.rollback()
    assert (await backend.runs.requests()).items == []


async def test_connections_that_the_server_closed_are_replaced(backend: Backend, other: Any) -> None:
    await asyncio.gather(*(backend.checkpointer.append(f"t{n}", [Message.user("x")]) for n in range(6)))
    cursor = other.cursor()
    await cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = DATABASE()")
    for (connection_id,) in await cursor.fetchall():
        await cursor.execute(f"KILL {connection_id}")
    await backend.checkpointer.append("t", [Message.user("after")])
    assert [m.text for m in (await backend.threads.messages("t")).items] == ["after"]


async def test_calls_get_connections_in_the_order_of_their_waits(mysql_url: str) -> None:
    """A task that makes one call after the other takes no connection from a call that waits for one."""
    backend = await connect_mysql(mysql_url, min_pool_size=1, max_pool_size=1)
    answered = 0

    async def busy() -> None:
        nonlocal answered
        while True:
            await backend.check()
            answered += 1

    task = asyncio.create_task(busy())
    try:
        for _ in range(3):
            await asyncio.sleep(0)  # the task has the connection, or waits before this call
            before = answered
            async with asyncio.timeout(30):
                await backend.check()
            assert answered - before <= 2
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await backend.close()


async def test_a_cancelled_call_holds_no_lock(backend: Backend) -> None:
    """R15: A call that is cancelled at any step is stored whole or not at all. Its connection is not used again."""
    for n in range(40):
        task = asyncio.create_task(backend.checkpointer.append("t", [Message.user(f"{n} {k}") for k in range(3)]))
        for _ in range(n):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await backend.checkpointer.append("t", [Message.user("last")])
    messages = (await backend.threads.messages("t")).items
    assert len(messages) % 3 == 1 and [message.seq for message in messages] == [*range(1, len(messages) + 1)]


async def test_values_that_the_server_refuses(backend: Backend) -> None:
    """A2: A value that is too long for its column is refused with every sql_mode of the server. Nothing is stored."""
    with pytest.raises(InvalidInputError):
        await backend.checkpointer.append("t", [Message.user("x", run_id="r" * 300)])
    assert await backend.threads.thread("t") is None


async def test_a_message_that_is_larger_than_a_packet(backend: Backend) -> None:
    """A2: A message for which the server would close the connection is refused by a typed error."""
    backend.db.packet = 2**20  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match="max_allowed_packet"):
        await backend.checkpointer.append("t", [Message.user("x" * 2**20)])
    await backend.checkpointer.append("t", [Message.user("y" * 2**19)])
    assert len((await backend.threads.messages("t")).items) == 1


async def test_r14_what_needs_workers_is_refused(backend: Backend) -> None:
    with pytest.raises(CapabilityMissingError, match=r"workers\.workers") as error:
        await backend.workers.workers()
    assert error.value.details["backend"] == "MySQL"


async def test_a_deletion_may_take_longer_than_other_verbs(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: The time of a deletion grows with the thread, so that the bound of other verbs does not end it."""
    for thread in ("deleted", "erased"):
        await backend.checkpointer.append(thread, [Message.user("x")])
    monkeypatch.setattr(mysql, "COMMAND_SECONDS", 0.0)
    with pytest.raises(BackendUnavailableError):
        await backend.checkpointer.append("deleted", [Message.user("y")])
    await backend.threads.delete_thread("deleted")
    await backend.threads.erase_thread("erased")
    monkeypatch.undo()
    assert (await backend.threads.threads()).items == []
