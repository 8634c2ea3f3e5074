"""Tests of the schema and the locks of SQLite files, and of files that cannot be used."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runyard import Client
from runyard.checkpointer import SQLiteCheckpointer
from runyard.errors import (
    BackendUnavailableError,
    CapabilityMissingError,
    DataCorruptedError,
    InvalidInputError,
    LockedError,
    SchemaMismatch,
)
from runyard.models import HitlRequest, Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.stores import Backend
from runyard.support.store_retries import LOCKED_SECONDS
from runyard_backends.sql.backend import connect_sqlite
from runyard_backends.sql.database import statements
from runyard_backends.sql.migrate import migrations
from runyard_backends.sql.requests import FIRED_AT_ONCE
from runyard_backends.sql.sqlite import migrate
from runyard_backends.sql.sqlite_path import path_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def backend(file: Path) -> AsyncIterator[Backend]:
    backend = await connect_sqlite(f"sqlite:///{file}")
    yield backend
    await backend.close()


@pytest.mark.parametrize(
    "url",
    [
        *("sqlite:///", "sqlite://", "sqlite://host/x.db", "sqlite:///x.db?mode=ro", "sqlite:///:memory:", "sqlite:///a%00"),
        *("sqlite:x.db", "sqlite:/x.db", "sqlite://[", "sqlite:///x.db?", "sqlite:///x.db#", "sqlite:///x?a/b.db"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError):
        path_of(url)


def test_a_path_is_relative_or_absolute_and_may_have_any_character() -> None:
    assert path_of("sqlite:///a/b.db") == Path("a/b.db")
    assert path_of("sqlite:////a/b.db") == Path("/a/b.db")
    assert path_of("sqlite:////a/100%25%20%3F%23.db") == Path("/a/100% ?#.db")


async def test_a_checkpointer_opens_the_file_of_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a ? # %.db", tmp_path / "b.db"):
        async with SQLiteCheckpointer(path) as checkpointer:
            await checkpointer.append("t", [Message.user("x")])
        assert (tmp_path / path).is_file()
    with pytest.raises(InvalidInputError):
        await checkpointer.load("t")


async def test_a_file_gets_its_schema_once_also_from_many_at_once(file: Path) -> None:
    backends = await asyncio.gather(*(connect_sqlite(f"sqlite:///{file}") for _ in range(6)))
    for n, backend in enumerate(backends):
        await backend.checkpointer.append("t", [Message.user(f"{n}")])
        await backend.close()
    done = await migrate(f"sqlite:///{file}")
    assert (done.before, done.migrations) == (done.after, ())
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # the last process has removed the WAL


async def test_the_tables_of_others_stay(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE threads (id INTEGER)")
        connection.commit()
    async with SQLiteCheckpointer(file) as checkpointer:
        await checkpointer.append("t", [Message.user("x")])
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM threads").fetchone() == (0,)


async def test_a_schema_that_excludes_this_code_is_refused(file: Path) -> None:
    """A newer release may have changed the file so that this code cannot use it."""
    await migrate(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO runyard_schema VALUES (900, 'contraction', 99)")
        connection.commit()
    with pytest.raises(SchemaMismatch):
        await connect_sqlite(f"sqlite:///{file}")


async def test_a_migration_that_fails_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [type(each)(each.version, each.name, each.sql + "\nCREATE TABLE broken (;\n") for each in migrations("sqlite")]
    monkeypatch.setattr("runyard_backends.sql.sqlite.migrations", lambda _: broken)
    with pytest.raises(SchemaMismatch):
        await connect_sqlite(f"sqlite:///{file}")
    monkeypatch.undo()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    await (await connect_sqlite(f"sqlite:///{file}")).close()


async def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"no database" * 1000)
    with pytest.raises(DataCorruptedError):
        await connect_sqlite(f"sqlite:///{tmp_path}/text.db")
    for path in (tmp_path, tmp_path / "missing" / "x.db"):
        with pytest.raises(BackendUnavailableError):
            await connect_sqlite(f"sqlite:///{path}")


async def test_a_file_with_other_tables_is_named(file: Path) -> None:
    await migrate(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("ALTER TABLE runyard_messages RENAME TO taken")
    backend = await connect_sqlite(f"sqlite:///{file}")
    with pytest.raises(SchemaMismatch, match="other tables"):
        await backend.checkpointer.append("t", [Message.user("a")])
    await backend.close()
    with closing(sqlite3.connect(file)) as other, other:
        other.executescript(
            "DROP TABLE runyard_schema; CREATE TABLE runyard_schema (version TEXT, name TEXT, oldest_code TEXT);"
            "INSERT INTO runyard_schema VALUES ('one', 'x', '1')"
        )
    with pytest.raises(SchemaMismatch, match="another program"):
        await connect_sqlite(f"sqlite:///{file}")


async def test_a_closed_store_refuses_calls_and_ends_those_that_run(file: Path) -> None:
    """Calls that wait for the writer are refused, and a call that runs is completed."""
    backend = await connect_sqlite(f"sqlite:///{file}")
    calls = [asyncio.create_task(backend.checkpointer.append("t", [Message.user(str(n))])) for n in range(20)]
    await asyncio.sleep(0)
    await backend.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), BackendUnavailableError}
    for call in (backend.checkpointer.load("t"), backend.checkpointer.append("t", [Message.user("late")])):
        with pytest.raises(BackendUnavailableError, match="closed"):
            await call
    again = await connect_sqlite(f"sqlite:///{file}")
    data = await again.checkpointer.load("t")
    assert len(data.messages if data else []) == sum(result is None for result in results)
    await again.close()


UNCLOSED = """
import asyncio, sys
from runyard.support import backend_urls
from runyard.models import Message

async def main():
    store = await backend_urls.connect(sys.argv[1])
    await store.checkpointer.append("t", [Message.user("hi")])
    return store

store = asyncio.run(main())
"""
"""A program that ends without closing its store."""


async def test_a_program_ends_although_it_did_not_close_its_store(file: Path) -> None:
    """R6: a thread of an open connection does not keep the process alive, and what was acknowledged is stored."""
    command = [sys.executable, "-c", UNCLOSED, f"sqlite:///{file}"]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=30)
    async with SQLiteCheckpointer(file) as checkpointer:
        assert [message.text for message in (await checkpointer.load("t")).messages] == ["hi"]


async def test_a_busy_file_is_waited_for_within_a_bound(file: Path) -> None:
    """R15: A write waits for the writer of another process, and raises LockedError after ``busy_seconds``. Reads do not
    wait."""
    backend = await connect_sqlite(f"sqlite:///{file}", busy_seconds=0.3)
    await backend.checkpointer.append("t", [Message.user("a")])
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with pytest.raises(LockedError):
            await backend.checkpointer.append("t", [Message.user("b")])
        assert 0.2 < time.monotonic() - begun < 5
        data = await backend.checkpointer.load("t")
        assert data is not None and [message.text for message in data.messages] == ["a"]
        other.execute("ROLLBACK")
    await backend.checkpointer.append("t", [Message.user("c")])
    assert [m.text for m in (await backend.threads.messages("t")).items] == ["a", "c"]
    await backend.close()


async def test_a_cancelled_call_leaves_the_file_usable(backend: Backend) -> None:
    """R15: A call that is cancelled at any step is stored whole or not at all. It holds no lock afterwards."""
    for n in range(60):
        task = asyncio.create_task(backend.checkpointer.append("t", [Message.user(f"{n} {k}") for k in range(3)]))
        for _ in range(n):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await backend.checkpointer.append("t", [Message.user("last")])
    messages = (await backend.threads.messages("t")).items
    assert len(messages) % 3 == 1 and messages[-1].text == "last"
    assert [message.seq for message in messages] == [*range(1, len(messages) + 1)]


async def test_readers_and_writers_at_once(backend: Backend) -> None:
    """R15: Each read sees only whole writes."""

    async def write(n: int) -> int:
        await backend.checkpointer.append("t", [Message.user(f"{n}") for _ in range(2)])
        return 0

    async def read() -> int:
        data = await backend.checkpointer.load("t")
        return len(data.messages) if data is not None else 0

    found = await asyncio.gather(*(read() if n % 2 else write(n) for n in range(80)))
    assert {count % 2 for count in found} == {0} and await read() == 80


async def test_r14_what_needs_workers_is_refused_with_the_name_of_the_method(backend: Backend) -> None:
    """R14: Every call that needs a worker, Redis or another part raises CapabilityMissingError with store and method."""
    request = AcceptRequest(thread_id="t", run_id="r", input=Message.user("x"))
    refused = {
        "runs.accept": backend.runs.accept(request),
        "runs.claim": backend.runs.claim("w", []),
        "runs.explain": backend.runs.explain("t", "r"),
        "workers.workers": backend.workers.workers(),
        "feed.read": backend.feed.read(),
        "usage.report": backend.usage.report(),
        "limits.limits": backend.limits.limits(),
        "webhooks.webhooks": backend.webhooks.webhooks(),
        "queues.queues": backend.queues.queues(),
        "keys.keys": backend.keys.keys(),
        "scheduler.submit": backend.scheduler.submit([]),
        "events.forget": backend.events.forget([1]),
        "streams.thread_cursor": backend.streams.thread_cursor("t"),
    }
    for method, call in refused.items():
        with pytest.raises(CapabilityMissingError, match=method) as error:
            await call
        assert error.value.details["backend"] == "SQLite"
    with pytest.raises(CapabilityMissingError):
        async for _ in backend.streams.follow_thread("t"):
            pass
    with pytest.raises(CapabilityMissingError):
        async for _ in backend.notifications():
            pass
    with pytest.raises(CapabilityMissingError):
        await Client(backend).enqueue("t", "hello")


async def test_a_client_reads_and_forks_without_workers(backend: Backend) -> None:
    """R14: The calls of a client that need no worker work."""
    client = Client(backend)
    await backend.checkpointer.claim_run("t", "r")
    await backend.checkpointer.append("t", [Message.user("q", run_id="r")])
    await backend.checkpointer.mark_run_complete("t", "r")
    await client.fork("t", "c", after_run_id="r")
    assert [m.text for m in (await client.messages("c")).items] == ["q"]
    assert [t.thread_id for t in (await client.threads()).items] == ["t", "c"]
    assert (await client.lineage("c")).ancestors[0].thread_id == "t"
    await client.delete_thread("t")
    assert [m.text for m in (await client.messages("c")).items] == ["q"]


async def test_lone_surrogates_are_refused_where_text_is_stored_as_text(backend: Backend) -> None:
    """A2: An extra, a title and an id with a lone surrogate are refused. A message may have one."""
    await backend.checkpointer.append("t", [Message.user("\ud800")])
    with pytest.raises(InvalidInputError):
        await backend.checkpointer.save_extra("t", {"k": "\ud800"})
    with pytest.raises(InvalidInputError):
        await backend.threads.update_thread("t", title="\ud800")
    with pytest.raises(InvalidInputError):
        await backend.checkpointer.load("\ud800")
    data = await backend.checkpointer.load("t")
    assert data is not None and (data.extra, data.messages[0].text) == ({}, "\ud800")


async def test_h7_lists_do_not_wait_for_a_writer(file: Path, backend: Backend) -> None:
    """H7: Neither for one of this process nor for one of another process. The next list applies the deadlines."""
    store: Any = backend.checkpointer
    await store.claim_run("t", "r")
    await store.save_requests("t", [HitlRequest(timeout=0, on_deadline={"fail": True})], run_id="r")
    reads = backend.runs
    async with asyncio.timeout(LOCKED_SECONDS / 2):
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert len((await reads.requests()).items) == 1
            writing = asyncio.create_task(store.append("u", [Message.user("x")]))
            await asyncio.sleep(0)  # the call begins
            assert [run.status for run in (await reads.runs()).items] == ["running"]
            other.execute("ROLLBACK")
        await writing
        assert [run.status for run in (await reads.runs()).items] == ["failed"]


async def test_h7_a_list_applies_a_bounded_number_of_deadlines(file: Path, backend: Backend) -> None:
    """H7: A list has a bounded cost, however many requests are overdue. It finds them by an index."""
    store: Any = backend.checkpointer
    for n in range(FIRED_AT_ONCE + 1):
        overdue = HitlRequest(request_id=f"q{n}", timeout=0, on_deadline={"answer": n})
        await store.save_requests(f"t{n}", [overdue], run_id="r")
    assert [request.request_id for request in (await backend.runs.requests()).items] == [f"q{FIRED_AT_ONCE}"]
    assert (await backend.runs.requests()).items == []
    with closing(sqlite3.connect(file)) as other:
        (plan,) = other.execute(f"EXPLAIN QUERY PLAN {statements()['overdue']}", ("", 1, 1)).fetchall()
    assert "USING INDEX runyard_requests_overdue" in plan[3] or "USING COVERING INDEX runyard_requests_overdue" in plan[3], plan
