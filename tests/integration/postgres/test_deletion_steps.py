"""The rows of a large deleted thread are removed in short transactions. The first one makes the thread invisible (D1 to D3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard.errors import BackendUnavailableError, LockedError, RunNotFoundError, ThreadNotFoundError
from runyard.models import Message
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, ThreadRequest
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.workers import Retention
from runyard.support import locked_batching, store_retries
from runyard_backends.postgres.backend import PostgresBackend, connect
from tests.support.fleet import SLACK
from tests.support.long_thread import LongThread

LONG = LongThread(3000)
TABLES = ("threads", "branches", "levels", "labels", "messages", "runs", "removals", "hitl_requests", "steps", "attempts")


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    backend = await connect(postgres_url, max_pool_size=4)
    assert isinstance(backend, PostgresBackend)
    yield backend
    await backend.close()


@pytest.fixture
async def server(backend: PostgresBackend, postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database with the long thread ``t``."""
    connection = await asyncpg.connect(postgres_url)
    await backend.threads.create_thread(ThreadRequest(thread_id="t"))
    await LONG.copy(connection, "t")
    yield connection
    await connection.close()


async def mark(server: asyncpg.Connection, erase: bool = False) -> list[int]:
    """Make the first transaction of a deletion, as a caller that stops after it."""
    row = await server.fetchrow("SELECT unremoved FROM runyard.delete_thread('', 't', true, NULL, $1)", erase)
    assert row is not None
    return list(row["unremoved"])


async def left(server: asyncpg.Connection) -> dict[str, int]:
    """The number of rows in each table that has rows."""
    counts = {table: await server.fetchval(f"SELECT count(*) FROM runyard.{table}") for table in TABLES}
    return {table: count for table, count in counts.items() if count}


async def leader_removes(backend: PostgresBackend, server: asyncpg.Connection) -> None:
    for _ in range(100):
        if not await backend.workers.prune(Retention()):
            return
    raise AssertionError("pruning does not end")


async def test_a_deletion_removes_all_rows(backend: PostgresBackend, server: asyncpg.Connection) -> None:
    """B9: Also its labels."""
    await backend.threads.set_label("t", "main")
    await backend.threads.delete_thread("t")
    assert await left(server) == {}


async def test_a_step_is_bounded(backend: PostgresBackend, server: asyncpg.Connection) -> None:
    [key] = await mark(server)
    steps = 0
    before = await left(server)
    while await server.fetchval("SELECT runyard.remove_step($1, 1000)", key):
        after = await left(server)
        assert sum(before.get(table, 0) - after.get(table, 0) for table in ("runs", "messages")) <= 1000
        before, steps = after, steps + 1
    assert steps >= (len(LONG.runs) + len(LONG.messages)) // 1000 - 1 and await left(server) == {}


async def test_a_deleted_thread_is_invisible_at_once_and_the_leader_removes_it(
    backend: PostgresBackend, server: asyncpg.Connection
) -> None:
    """The caller stopped after the first step."""
    last = max(run.id for run in LONG.runs)
    assert await backend.runs.run("t", last) is not None
    assert await mark(server) and (await left(server))["runs"] > 1000
    assert await backend.threads.thread("t") is None and (await backend.threads.threads()).items == []
    assert await backend.runs.run("t", last) is None
    for where in (RunFilter(), RunFilter(thread_id="t"), RunFilter(status="failed"), RunFilter(agent="default")):
        assert (await backend.runs.runs(where, PageRequest(limit=10))).items == []
    for call in (backend.runs.explain, backend.runs.attempts, backend.runs.redrive, backend.runs.cancel):
        with pytest.raises((RunNotFoundError, ThreadNotFoundError)):
            await call("t", last)
    await leader_removes(backend, server)
    assert await left(server) == {}


async def test_the_id_is_taken_again_only_when_the_old_runs_are_hidden(
    backend: PostgresBackend, server: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2, R2: a new run under the id of an old one is never taken for the old one."""
    request = AcceptRequest(thread_id="t", run_id=max(run.id for run in LONG.runs), input=Message.user("new"))
    await mark(server)
    with monkeypatch.context() as patched:
        patched.setattr(locked_batching, "LOCKED_SECONDS", 0.1)
        patched.setattr(store_retries, "LOCKED_SECONDS", 0.1)
        with pytest.raises(LockedError):
            await backend.runs.accept(request)
        with pytest.raises(LockedError):
            await backend.runs.accept(request, connection=server)
        with pytest.raises(LockedError):
            await backend.threads.create_thread(ThreadRequest(thread_id="t"))
    accepting = asyncio.create_task(backend.runs.accept(request))
    await leader_removes(backend, server)
    assert (await accepting).created
    assert [run.run_id for run in (await backend.runs.runs()).items] == [request.run_id]


@pytest.mark.parametrize("erase", [False, True], ids=["deleted", "erased"])
async def test_forks_keep_their_messages(backend: PostgresBackend, server: asyncpg.Connection, erase: bool) -> None:
    """D1, D3, I5: whoever makes the steps; and the last fork takes all rows with it."""
    run = LONG.overtaken()
    await backend.threads.fork(ForkRequest(src="t", new="fork", cut=Cut(after_run_id=run.id)))
    await mark(server, erase)
    await leader_removes(backend, server)
    messages = (await backend.threads.messages("fork")).items
    assert [message.id for message in messages] == LONG.snapshot(run)
    assert {message.text == "[erased]" for message in messages} == {erase}
    assert (await left(server))["messages"] == len(messages)
    await backend.threads.delete_thread("fork")
    assert await left(server) == {}


async def test_an_erasure_is_one_call_that_holds_no_lock_after_a_step(
    backend: PostgresBackend, server: asyncpg.Connection
) -> None:
    """A fork that a transaction has locked delays the erasure of its extra, and nobody else."""
    await backend.checkpointer.save_extra("t", {"secret": 1})
    await backend.checkpointer.claim_run("t", "x")
    await backend.checkpointer.mark_run_complete("t", "x")
    await backend.threads.fork(ForkRequest(src="t", new="fork", cut=Cut(after_run_id="x")))
    await backend.threads.create_thread(ThreadRequest(thread_id="other"))
    async with server.transaction():
        await server.execute("SELECT 1 FROM runyard.threads WHERE thread_id = 'fork' FOR UPDATE")
        erasing = asyncio.create_task(backend.threads.erase_thread("t"))
        async with asyncio.timeout(30):
            while await backend.threads.thread("t") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await backend.threads.store_message("other", Message.user("hello"))
        assert not erasing.done()
    await erasing
    fork = await backend.threads.thread("fork")
    assert fork is not None and fork.extra == {}


async def save_extra_of_all_runs(server: asyncpg.Connection, words: int = 1) -> None:
    """Give each completed run of ``t`` an extra of its own, of ``words`` times 32 bytes."""
    await server.execute(
        "UPDATE runyard.runs SET extra = jsonb_build_object('secret', repeat(md5(run_id), $1)) "
        "WHERE completion_seq IS NOT NULL",
        words,
    )
    await server.execute("UPDATE runyard.completions SET with_extra = true")


async def extras(server: asyncpg.Connection) -> dict[str, bool]:
    """For each fork, whether it has a secret."""
    rows = await server.fetch(
        "SELECT thread_id, base_extra ? 'secret' OR extra ? 'secret' AS told FROM runyard.threads WHERE deleted_at IS NULL"
    )
    return {row["thread_id"]: row["told"] for row in rows}


async def test_a_thread_that_cannot_be_removed_stops_no_other(backend: PostgresBackend, server: asyncpg.Connection) -> None:
    """The leader removes the rows of other threads, and prunes everything else."""
    await server.execute(
        """CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE 'too large' USING ERRCODE = 'program_limit_exceeded'; END $$;
           CREATE TRIGGER fail BEFORE UPDATE ON runyard.removals FOR EACH ROW
           WHEN (OLD.thread_id = 't') EXECUTE FUNCTION fail()"""
    )
    await backend.threads.create_thread(ThreadRequest(thread_id="other"))
    await mark(server, erase=True)
    await server.execute("SELECT runyard.delete_thread('', 'other', true, NULL, true)")
    await leader_removes(backend, server)
    assert [row[0] for row in await server.fetch("SELECT thread_id FROM runyard.threads")] == ["t"]
    await server.execute("DROP TRIGGER fail ON runyard.removals")
    await leader_removes(backend, server)
    assert await left(server) == {}


async def test_an_extra_that_changes_often_is_erased_in_a_short_time(
    backend: PostgresBackend, server: asyncpg.Connection
) -> None:
    await save_extra_of_all_runs(server, words=320)
    await backend.threads.fork(ForkRequest(src="t", new="fork", cut=Cut(after_run_id=LONG.overtaken().id)))
    began = time.monotonic()
    await backend.threads.erase_thread("t")
    assert time.monotonic() - began < 3 * (1 + SLACK)
    assert await extras(server) == {"fork": False}
    assert await server.fetchval("SELECT count(*) FROM runyard.runs WHERE extra ? 'secret'") == 0


async def test_a_fork_that_is_made_during_an_erasure_keeps_no_erased_extra(
    backend: PostgresBackend, server: asyncpg.Connection
) -> None:
    """D3: a fork of a fork reads the extra of a run of the erased thread."""
    await save_extra_of_all_runs(server)
    run = LONG.overtaken()
    await backend.threads.fork(ForkRequest(src="t", new="fork", cut=Cut(after_run_id=run.id)))
    [key] = await mark(server, erase=True)
    for number in range(100):
        await server.fetchval("SELECT runyard.remove_step($1, 500)", key)
        erased = await server.fetchval("SELECT after_fork = $1 FROM runyard.removals", 2**63 - 1)
        if number == 0 or erased:
            await backend.threads.fork(ForkRequest(src="fork", new=f"fork-{number}", cut=Cut(after_run_id=run.id)))
        if erased:
            break
    await leader_removes(backend, server)
    told = await extras(server)
    assert len(told) == 3 and not any(told.values())


async def test_the_leader_locks_one_fork_in_a_transaction(backend: PostgresBackend, server: asyncpg.Connection) -> None:
    await save_extra_of_all_runs(server)
    for number in range(3):
        await backend.threads.fork(ForkRequest(src="t", new=f"fork-{number}", cut=Cut(after_run_id=LONG.overtaken().id)))
    await mark(server, erase=True)
    cleaned = 0
    while cleaned < 3:
        assert await backend.workers.prune(Retention())
        now = list((await extras(server)).values()).count(False)
        assert now - cleaned <= 1
        cleaned = now


@pytest.mark.parametrize("failure", ["locked", "unavailable"])
async def test_a_deletion_that_the_leader_must_end_returns_its_effects(
    backend: PostgresBackend, server: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """The thread is deleted after the first transaction. Its live runs must be cancelled and its streams deleted."""
    await backend.threads.fork(ForkRequest(src="t", new="fork", cut=Cut(after_run_id=LONG.overtaken().id)))
    key = await backend.threads.thread_key("t")
    with monkeypatch.context() as patched:
        patched.setattr(store_retries, "LOCKED_SECONDS", 0.1)
        if failure == "unavailable":

            async def no_answer(*_: object) -> None:
                raise BackendUnavailableError("no answer")

            patched.setattr(backend.threads.db, "value", no_answer)
        async with server.transaction():
            await server.execute("SELECT 1 FROM runyard.threads WHERE thread_id = 'fork' FOR UPDATE")
            effects = await backend.threads.erase_thread("t")
    assert effects.deleted == [key] and (await left(server))["removals"] == 1
    await leader_removes(backend, server)
    assert "removals" not in await left(server)
