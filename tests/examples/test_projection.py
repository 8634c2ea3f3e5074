"""examples/projection: a copy in SQLite that is killed again and again, and ends equal to one that was made without a kill."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from runyard import Client, Message, RunStatus, RunyardError
from runyard.errors import CursorExpiredError
from runyard.ports.workers import Retention
from runyard.testing.scripted_agent import app as scripted
from runyard.worker.worker import Worker
from runyard_backends.memory import MemoryWorld, connect
from tests.examples.programs import BOUND, EXAMPLES, example
from tests.support.fleet import Fleet, until

KILLS: Final = 6
TABLES: Final = ("threads", "messages", "heads")
PROGRAM: Final = EXAMPLES / "projection" / "projection.py"
SCRIPTS: Final = ("say hi", "say one | say two", "tool add 1 2", "fail", "sleep 0.05 | say late", "sure?", "say \ud800\0")


def contents(database: sqlite3.Connection) -> dict[str, list[Any]]:
    """The rows of every table but the position."""
    return {table: sorted(database.execute(f"SELECT * FROM {table}").fetchall()) for table in TABLES}


@pytest.fixture
def projection(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("projection/projection.py")


async def truth(client: Client) -> dict[str, list[tuple[int | None, str]]]:
    """Number and id of each message of each thread that has messages."""
    found, cursor = {}, None
    while True:
        page = await client.threads(cursor=cursor)
        for thread in page.items:
            if items := (await client.messages(thread.thread_id)).items:
                found[thread.thread_id] = [(message.seq, message.id) for message in items]
        if (cursor := page.next) is None:
            return found


def projected(database: sqlite3.Connection) -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for thread_id, number, message_id in database.execute(
        "SELECT thread_id, event_number, message_id FROM messages ORDER BY thread_id, event_number"
    ):
        found.setdefault(thread_id, []).append((number, message_id))
    assert {(thread_id, *rows[-1]) for thread_id, rows in found.items()} == set(database.execute("SELECT * FROM heads"))
    assert {(thread_id,) for thread_id in found} == set(database.execute("SELECT thread_id FROM threads"))
    return found


async def rebuilt(projection: ModuleType, client: Client, path: Path) -> dict[str, list[Any]]:
    """What the feed alone amounts to, from its beginning."""
    with closing(projection.opened(str(path))) as database:
        while await projection.step(client, database):
            pass
        return contents(database)


class Load:
    """Conversations that are led, forked, edited, deleted and repaired at random."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client, self.random = client, random.Random(seed)
        self.threads = ["t0"]
        self.stopped = False

    async def act(self) -> None:
        """One random call, which may be refused."""
        client, thread = self.client, self.random.choice(self.threads)
        match self.random.choices(
            ("prompt", "store", "fork", "edit", "respond", "redrive", "delete"), (10, 4, 4, 2, 4, 2, 0.6)
        )[0]:
            case "prompt":
                await client.enqueue(thread, self.random.choice(SCRIPTS))
            case "store":
                await client.store_message(thread, "by the way")
            case "fork":
                messages = (await client.messages(thread)).items
                child = f"t{len(self.threads)}"
                await client.fork(thread, child, at_message_id=self.random.choice(messages).id)
                self.threads.append(child)
            case "edit":
                messages = (await client.messages(thread)).items
                await client.enqueue(thread, "say edited", parent_id=self.random.choice(messages).id)
            case "respond":
                for request in (await client.requests()).items:
                    await client.respond(None, "yes", request.request_id)
            case "redrive":
                failed = (await client.runs(status=RunStatus.FAILED)).items
                run = self.random.choice(failed)
                await client.redrive(run.thread_id, run.run_id)
            case "delete":
                await client.delete_thread(thread, cancel=True)

    async def run(self) -> None:
        """Act until ``stopped`` is set."""
        while not self.stopped:
            with suppress(RunyardError, IndexError):
                await self.act()
            await asyncio.sleep(0.03)

    async def settled(self) -> bool:
        """Whether every run has ended, or waits for a human."""
        live = [await self.client.runs(status=status, limit=1) for status in (RunStatus.QUEUED, RunStatus.RUNNING)]
        return not any(page.items for page in live)


@asynccontextmanager
async def following(fleet: Fleet, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program as a process. It is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), str(path)),
        env={**os.environ, "RUNYARD_POSTGRES_URL": fleet.postgres, "RUNYARD_REDIS_URL": fleet.redis},
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


def position(path: Path) -> Any:
    if not path.exists():
        return None
    with closing(sqlite3.connect(path)) as database, suppress(sqlite3.OperationalError):
        return database.execute("SELECT cursor FROM position").fetchone()


async def moved(path: Path, before: Any) -> bool:
    """Whether the projection has projected entries of the feed since it was at ``before``."""
    return position(path) not in (None, (None,), before)


async def at_the_end(client: Client, path: Path) -> bool:
    [cursor] = position(path)
    return not (await client.feed(cursor)).items


async def test_a_projection_that_is_killed_ends_equal_to_a_rebuild(
    fleet: Fleet, projection: ModuleType, tmp_path: Path
) -> None:
    """E5: at least once is enough, wherever the program dies."""
    await fleet.start()
    path, load, random_ = tmp_path / "killed.db", Load(fleet.client, 7), random.Random(7)
    loading = asyncio.create_task(load.run())
    for _ in range(KILLS):
        before = position(path)
        async with following(fleet, path) as process:
            await until(partial(moved, path, before), BOUND)
            await asyncio.sleep(random_.uniform(0, 0.3))
            assert process.returncode is None
    load.stopped = True
    await loading
    await until(load.settled, BOUND)

    async with following(fleet, path):
        await until(partial(at_the_end, fleet.client, path), BOUND)
    expected = await truth(fleet.client)
    assert len(expected) > 5 and sum(map(len, expected.values())) > 100
    with closing(sqlite3.connect(path)) as database:
        assert projected(database) == expected
        killed = contents(database)
    assert killed == await rebuilt(projection, fleet.client, tmp_path / "rebuilt.db")
    with closing(projection.opened(str(tmp_path / "surveyed.db"))) as database:
        await projection.survey(fleet.client, database)
        assert killed == contents(database)


async def test_the_program_by_its_command(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """B4, F1: as its docstring says it."""
    async with (
        example("projection/projection.py", tmp_path, postgres_url, redis_url) as program,
        Client.connect(postgres_url, redis=redis_url) as client,
    ):
        await program.said("following the feed")
        await (await client.enqueue("t1", "I am Devansh", "r1")).result(BOUND)
        await client.fork("t1", "t2", message="what is my name", run_id="r2")
        await client.handle("t2", "r2").result(BOUND)
        path = tmp_path / "example" / "projection.db"

        async def shown() -> bool:
            with closing(sqlite3.connect(path)) as database:
                rows = database.execute("SELECT text FROM messages WHERE thread_id = 't2' ORDER BY event_number")
                return [text for (text,) in rows] == [
                    "I am Devansh",
                    "You told me 1 things.",
                    "what is my name",
                    "You are Devansh.",
                ]

        await until(shown)


@pytest.fixture
async def client() -> Client:
    return Client(await connect(world=MemoryWorld()))


@pytest.fixture
async def worker(client: Client) -> AsyncIterator[Worker]:
    serving = Worker(scripted, client.backend, grace=1)
    running = asyncio.create_task(serving.run())
    await serving.started.wait()
    yield serving
    serving.stop()
    await running


@pytest.fixture
def database(projection: ModuleType) -> Any:
    with closing(projection.opened(":memory:")) as database:
        yield database


async def catch_up(projection: ModuleType, client: Client, database: sqlite3.Connection) -> None:
    while await projection.step(client, database):
        pass
    assert projected(database) == await truth(client)


async def test_messages_that_come_back_before_later_ones(
    projection: ModuleType, client: Client, worker: Worker, database: sqlite3.Connection, tmp_path: Path
) -> None:
    """A redriven run completes after a later one: its first messages are in the middle of the history."""
    await failed_before_later(client)
    await client.fork("t", "c", at_message_id=(await client.messages("t")).items[-1].id)
    await catch_up(projection, client, database)
    assert [message.text for message in (await client.messages("t")).items] == ["begin", "say later", "later"]
    await redriven(client)
    await client.delete_thread("c")
    await client.fork("t", "c", at_message_id=(await client.messages("t")).items[-1].id)
    await catch_up(projection, client, database)
    texts = [text for (text,) in database.execute("SELECT text FROM messages WHERE thread_id = 'c' ORDER BY event_number")]
    assert texts == ["begin", FIRST, "first", "say later", "later", "again"]
    assert contents(database) == await rebuilt(projection, client, tmp_path / "rebuilt.db")


FIRST: Final = "say first | fail transient | say again"


async def failed_before_later(client: Client) -> None:
    await client.store_message("t", "begin")
    await (await client.enqueue("t", FIRST, "r1")).result(BOUND)
    await (await client.enqueue("t", "say later", "r2")).result(BOUND)


async def redriven(client: Client) -> None:
    await client.redrive("t", "r1")
    assert (await client.handle("t", "r1").result(BOUND)).ok


async def test_a_fork_that_is_edited_where_it_inherited(
    projection: ModuleType, client: Client, worker: Worker, database: sqlite3.Connection, tmp_path: Path
) -> None:
    """B4: rows of the branch that was left go, and come back with it."""
    ids = [(await client.store_message("t", str(n))).id for n in range(6)]
    await client.fork("t", "c", at_message_id=ids[4])
    await catch_up(projection, client, database)
    for parent in (ids[1], ids[4], ids[0], ids[3]):
        await client.store_message("c", "edited", parent)
        await catch_up(projection, client, database)
    assert contents(database) == await rebuilt(projection, client, tmp_path / "rebuilt.db")


async def test_a_survey_finds_what_was_erased(
    projection: ModuleType, client: Client, database: sqlite3.Connection, tmp_path: Path
) -> None:
    """I5: no entry of the feed names the forks whose inherited messages an erasure blanks."""
    for n in range(3):
        await client.store_message("s", f"secret {n}")
    await client.fork("s", "f", at_seq=2)
    await client.store_message("f", "own")
    await client.fork("f", "g", at_seq=2)
    await catch_up(projection, client, database)
    await client.erase_thread("s")
    await catch_up(projection, client, database)
    await projection.survey(client, database)
    assert "secret" not in str(contents(database))
    assert contents(database) == await rebuilt(projection, client, tmp_path / "rebuilt.db")


class Died(BaseException):
    """The end of the program at a chosen place."""


@pytest.mark.parametrize("name", ["project", "write", "move"])
@pytest.mark.parametrize("after", [False, True])
async def test_dying_at_any_step_loses_no_entry(
    projection: ModuleType,
    client: Client,
    database: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    after: bool,
) -> None:
    """E5: before or after each step of a page with three threads."""
    for thread in ("a", "b", "c"):
        await client.store_message(thread, "x")
    step, dead = getattr(projection, name), 0

    for deadly in range(1, 4):
        calls = 0

        def count(at_end: bool, deadly: int = deadly) -> None:
            nonlocal calls, dead
            calls += not at_end
            if calls == deadly and at_end == after:
                dead += 1
                raise Died

        def dying(*arguments: Any, count: Any = count) -> None:
            count(False)
            step(*arguments)
            count(True)

        async def dying_later(*arguments: Any, count: Any = count) -> None:
            count(False)
            await step(*arguments)
            count(True)

        monkeypatch.setattr(projection, name, dying_later if name == "project" else dying)
        with suppress(Died):
            await projection.step(client, database)
        monkeypatch.setattr(projection, name, step)
        await catch_up(projection, client, database)
        for thread in ("a", "b", "c"):
            await client.store_message(thread, "y")
    assert dead == (1 if name == "move" else 3)


async def test_what_a_fork_inherited_is_read_once(
    projection: ModuleType, client: Client, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(50):
        await client.store_message("t", str(n))
    await client.fork("t", "c", at_seq=50)
    await catch_up(projection, client, database)
    await client.store_message("c", "own")
    _, found, kept = await projection.read(client, database, "c")
    assert ([message.text for message in found], kept) == (["own"], 50)


async def test_a_deleted_thread_and_another_with_its_id(
    projection: ModuleType, client: Client, database: sqlite3.Connection, tmp_path: Path
) -> None:
    for n in range(4):
        await client.store_message("t", str(n))
    await client.fork("t", "c", at_seq=2)
    await catch_up(projection, client, database)
    await client.delete_thread("c")
    await client.fork("t", "c", at_seq=3)
    await client.delete_thread("t")
    await catch_up(projection, client, database)
    await client.store_message("t", "another")
    await catch_up(projection, client, database)
    assert contents(database) == await rebuilt(projection, client, tmp_path / "rebuilt.db")


async def test_text_that_is_none(projection: ModuleType, client: Client, worker: Worker, database: sqlite3.Connection) -> None:
    """What an agent may store does not stop the projection for ever."""
    await client.backend.checkpointer.append("t", [Message.assistant("\ud800 \0 end")])
    await catch_up(projection, client, database)
    [(text,)] = database.execute("SELECT text FROM messages").fetchall()
    assert text == "? \0 end"


async def test_entries_that_were_pruned_are_made_up_for(
    projection: ModuleType, client: Client, database: sqlite3.Connection
) -> None:
    """E5: by reading every thread once; and threads that were deleted meanwhile go."""
    await client.store_message("old", "x")
    await client.store_message("gone", "x")
    await catch_up(projection, client, database)
    await client.store_message("old", "y")
    await client.delete_thread("gone")
    await client.store_message("new", "x")
    await client.backend.workers.prune(Retention(feed=timedelta(0)))
    with pytest.raises(CursorExpiredError):
        await projection.step(client, database)
    following = asyncio.create_task(projection.follow(client, database))

    async def complete() -> bool:
        return projected(database) == await truth(client)

    await until(complete)
    await client.store_message("new", "y")
    await until(complete)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
