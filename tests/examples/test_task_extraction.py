"""examples/task_extraction: a consumer of the feed that reads each message with the messages of its own branch (E5, B2)."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from runyard import Client, Message
from runyard.errors import BackendUnavailableError, CursorExpiredError
from runyard.models import FeedEntry
from runyard.testing.scripted_agent import app as scripted
from runyard.worker.worker import Worker
from tests.examples.programs import EXAMPLES, example

BOUND: Final = 60.0
SEED: Final = 7


@pytest.fixture
def module(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("task_extraction/tasks.py")


class Reader:
    """Records what is extracted, with its context. The task of a message is the whole path to it."""

    def __init__(self) -> None:
        self.contexts: dict[str, list[str]] = {}
        self.times: dict[str, int] = {}

    async def __call__(self, messages: Sequence[Message]) -> list[str]:
        last = messages[-1]
        self.contexts[last.id] = [message.text for message in messages]
        self.times[last.id] = self.times.get(last.id, 0) + 1
        await asyncio.sleep(0)
        return [" > ".join(message.text for message in messages)]


@asynccontextmanager
async def following(module: ModuleType, client: Client, tasks: Any, extract: Any) -> AsyncIterator[None]:
    following = asyncio.create_task(module.follow(client, tasks, extract))
    yield
    following.cancel()
    await asyncio.wait((following,))
    if not following.cancelled() and (error := following.exception()) is not None:
        raise error


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def paths(client: Client, thread_id: str) -> dict[str, list[str]]:
    """Each user message of a thread, by its id, with the texts of the path to it."""
    found: dict[str, list[str]] = {}
    for leaf in (await client.branches(thread_id)).items:
        path = (await client.messages(thread_id, leaf.message_id)).items
        for n, message in enumerate(path):
            if message.role == "user":
                found[message.id] = [each.text for each in path[: n + 1]]
    return found


def stored(tasks: Any) -> dict[str, str]:
    return dict(tasks.db.execute("SELECT message_id, text FROM tasks").fetchall())


@pytest.fixture
async def client(postgres_url: str, redis_url: str) -> AsyncIterator[Client]:
    async with Client.connect(postgres_url, redis=redis_url) as client:
        yield client


async def test_b2_a_message_on_a_side_branch_sees_only_its_branch(module: ModuleType, client: Client, tmp_path: Path) -> None:
    """Stored before the consumer starts, and while it follows; with runs, a failed one among them, and a fork."""
    tasks, reader = module.Tasks(str(tmp_path / "tasks.db")), Reader()
    ids = []
    for n in range(1, 5):
        message = Message(role="user" if n % 2 else "assistant", content=f"M{n}")
        ids.append((await client.store_message("t", message)).id)
    side = await client.store_message("t", "side", ids[1])
    worker = Worker(scripted, client.backend, grace=1)
    running = asyncio.create_task(worker.run())
    async with following(module, client, tasks, reader):
        await until(lambda: side.id in reader.contexts)
        assert reader.contexts[side.id] == ["M1", "M2", "side"]
        again = await client.store_message("t", "again", ids[3])
        deeper = await client.store_message("t", "deeper", side.id)
        await until(lambda: {again.id, deeper.id} <= reader.contexts.keys())
        assert reader.contexts[again.id] == ["M1", "M2", "M3", "M4", "again"]
        assert reader.contexts[deeper.id] == ["M1", "M2", "side", "deeper"]

        for script, run_id, parallel in (("say one", "r1", False), ("fail", "r2", False), ("say beside", "r3", True)):
            await (await client.enqueue("t", script, run_id, parallel=parallel)).result(BOUND)
        fork = await client.fork("t", "f", at_message_id=side.id)
        own = await client.store_message("f", "of the fork")
        await until(lambda: own.id in stored(tasks))
        assert reader.contexts[own.id] == ["M1", "M2", "side", "of the fork"]
        assert fork.parent_thread_id == "t"
    worker.stop()
    await running
    expected = await paths(client, "t")
    expected[own.id] = reader.contexts[own.id]
    assert reader.contexts == expected
    assert {"fail", "say beside"} <= {texts[-1] for texts in reader.contexts.values()}
    assert stored(tasks) == {id: " > ".join(texts) for id, texts in expected.items()}
    assert set(reader.times.values()) == {1}


async def test_a_long_context_is_its_end(module: ModuleType, client: Client, tmp_path: Path) -> None:
    tasks, reader = module.Tasks(str(tmp_path / "tasks.db")), Reader()
    for n in range(module.PAGE + module.CONTEXT_MESSAGES):
        await client.store_message("t", str(n))
    async with following(module, client, tasks, reader):
        await until(lambda: tasks.cursor() is not None and len(reader.contexts) == module.PAGE + module.CONTEXT_MESSAGES)
        late = await client.store_message("t", "late")
        await until(lambda: late.id in reader.contexts)
    most = module.CONTEXT_MESSAGES + 1
    assert all(
        texts == [str(n) for n in range(max(0, int(texts[-1]) - most + 1), int(texts[-1]) + 1)]
        for id, texts in reader.contexts.items()
        if id != late.id
    )
    assert len(reader.contexts[late.id]) == most


async def test_e5_an_error_anywhere_loses_nothing(module: ModuleType, client: Client, tmp_path: Path) -> None:
    """Each message fails once before and once after its extraction: in the threads that are read first, and in the feed."""
    path, reader, failed = str(tmp_path / "tasks.db"), Reader(), set[str]()

    async def failing(messages: Sequence[Message]) -> list[str]:
        id = messages[-1].id
        if f"before {id}" not in failed:
            failed.add(f"before {id}")
            raise RuntimeError
        texts = await reader(messages)
        if f"after {id}" not in failed:
            failed.add(f"after {id}")
            raise RuntimeError
        return texts

    async def fails(times: int) -> None:
        for _ in range(times):
            with pytest.raises(RuntimeError):
                async with asyncio.timeout(BOUND / 6):
                    await module.follow(client, module.Tasks(path), failing)

    first = await client.store_message("t", "first")
    await client.store_message("t", "second")
    await fails(4)
    tasks = module.Tasks(path)
    async with following(module, client, tasks, failing):
        await until(lambda: len(stored(tasks)) == 2 and tasks.cursor() is not None)
    await client.store_message("t", "other", first.id)
    await client.store_message("t", "later")
    await client.store_message("u", "elsewhere")
    await fails(6)
    async with following(module, client, tasks, failing):
        await until(lambda: len(stored(tasks)) == 5)
    expected = {**await paths(client, "t"), **await paths(client, "u")}
    assert stored(tasks) == {id: " > ".join(texts) for id, texts in expected.items()}


async def test_a_run_whose_messages_appear_between_others(module: ModuleType, client: Client, tmp_path: Path) -> None:
    """R13: An external run writes before and after messages that are stored meanwhile."""
    tasks, reader = module.Tasks(str(tmp_path / "tasks.db")), Reader()
    checkpointer = client.backend.checkpointer
    await client.store_message("t", "first")
    async with following(module, client, tasks, reader):
        await until(lambda: len(stored(tasks)) == 1)
        await checkpointer.claim_run("t", "r")
        await checkpointer.append("t", [Message(role="user", content="one", run_id="r")])
        await client.store_message("t", "meanwhile")
        await until(lambda: any(texts[-1] == "meanwhile" for texts in reader.contexts.values()))
        await checkpointer.append("t", [Message(role="user", content="two", run_id="r")])
        await client.store_message("t", "again")
        await checkpointer.mark_run_complete("t", "r")
        await until(lambda: len(stored(tasks)) == 5)
    assert stored(tasks).keys() == (await paths(client, "t")).keys()


async def test_an_outage_and_an_expired_cursor(
    module: ModuleType, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed is followed again after an outage. If it no longer has the entries, every thread is read."""
    tasks, reader = module.Tasks(str(tmp_path / "tasks.db")), Reader()
    tasks.move("0-0")
    faults: list[Exception] = [BackendUnavailableError("down"), CursorExpiredError("pruned")]
    real, followed = Client.follow_feed, []

    async def follow_feed(self: Client, cursor: str | None = None) -> AsyncIterator[FeedEntry]:
        followed.append(cursor)
        if faults:
            raise faults.pop(0)
        async for entry in real(self, end if cursor is None else cursor):
            yield entry

    monkeypatch.setattr(Client, "follow_feed", follow_feed)
    monkeypatch.setattr(module.asyncio, "sleep", lambda _: real_sleep(0))
    real_sleep = asyncio.tasks.sleep
    old = await client.store_message("t", "old")
    end = (await client.feed()).next
    async with following(module, client, tasks, reader):
        await until(lambda: old.id in reader.contexts)
        new = await client.store_message("t", "new")
        await until(lambda: new.id in reader.contexts and tasks.cursor() is not None)
    assert followed == ["0-0", "0-0", None]


async def test_odd_text_does_not_stop_it(module: ModuleType, client: Client, tmp_path: Path) -> None:
    """Lone surrogates, controls, no text at all, and more text than the model reads."""
    tasks = module.Tasks(str(tmp_path / "tasks.db"))
    for text in ("Please find \ud800.", "Please print \x1b[2J.", "", "Please " + "read " * 10_000):
        await client.store_message("t", text)
    async with following(module, client, tasks, module.by_model):
        await until(lambda: tasks.db.execute("SELECT count(*) FROM messages").fetchone()[0] == 4)
    short, clear, *_, long = sorted(stored(tasks).values(), key=len)
    assert (short, clear) == ("find ?", "print \x1b[2J") and 1000 < len(long) < 5000


async def test_a_deleted_thread_has_no_tasks(module: ModuleType, client: Client, tmp_path: Path) -> None:
    """Also if the id is used again at once."""
    tasks, reader = module.Tasks(str(tmp_path / "tasks.db")), Reader()
    await client.store_message("t", "old")
    await client.store_message("gone", "gone")
    async with following(module, client, tasks, reader):
        await until(lambda: len(stored(tasks)) == 2)
        await client.delete_thread("t")
        await client.delete_thread("gone")
        new = await client.store_message("t", "new")
        await until(lambda: stored(tasks) == {new.id: "new"})


@pytest.mark.timeout(3 * BOUND)
async def test_e5_killed_at_random_it_loses_nothing(
    module: ModuleType, client: Client, postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    """SIGKILL at random moments, while messages arrive on random branches. Every message has the tasks of its branch, once."""
    chosen, database = random.Random(SEED), tmp_path / "tasks.db"
    tasks = module.Tasks(str(database))
    environment = {"RUNYARD_POSTGRES_URL": postgres_url, "RUNYARD_REDIS_URL": redis_url}
    words = (
        "Please book a table in Lisbon.",
        "And the same in Porto.",
        "Please wait. Please listen.",
        "hm",
    )
    ids: dict[str, list[str]] = {"a": [], "b": [], "c": []}

    async def write(many: int) -> None:
        for _ in range(many):
            thread, parent = chosen.choice(list(ids)), None
            if ids[thread] and chosen.random() < 0.3:
                parent = chosen.choice(ids[thread])
            message = Message(role=chosen.choice(["user", "user", "assistant"]), content=chosen.choice(words))
            ids[thread].append((await client.store_message(thread, message, parent)).id)

    def read() -> int:
        return int(tasks.db.execute("SELECT count(*) FROM messages").fetchone()[0])

    async def run(least: int) -> None:
        """Run the program until it has read ``least`` messages, and kill it."""
        command = (sys.executable, str(EXAMPLES / "task_extraction" / "tasks.py"), str(database))
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **environment}, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(BOUND):
                while read() < least:
                    assert process.returncode is None
                    await asyncio.sleep(chosen.random() * 0.01)
        finally:
            process.kill()
            await process.wait()

    for _ in range(3):
        await write(60)
        await asyncio.gather(run(read() + chosen.randrange(1, 60)), write(20))
    total = sum(map(len, ids.values()))
    await run(total)
    assert read() == total

    for thread in ids:
        expected = {}
        for leaf in (await client.branches(thread, limit=1000)).items:
            path = (await client.messages(thread, leaf.message_id)).items
            for n, message in enumerate(path):
                if message.role == "user" and message.id not in expected:
                    expected[message.id] = await module.by_model(path[max(0, n - module.CONTEXT_MESSAGES) : n + 1])
        found: dict[str, list[str]] = {id: [] for id in expected}
        rows = sqlite3.connect(database).execute(
            "SELECT message_id, text FROM tasks WHERE thread_id = ? ORDER BY message_id, number", (thread,)
        )
        for id, text in rows:
            found[id].append(text)
        assert found == expected
        assert any("Lisbon, in Porto" in text for texts in expected.values() for text in texts)


async def test_task_extraction_example(postgres_url: str, redis_url: str, tmp_path: Path, client: Client) -> None:
    """As its docstring starts it: with a worker, and prompts of people."""
    async with example("task_extraction/tasks.py", tmp_path, postgres_url, redis_url) as program:
        await (await client.enqueue("t1", "Please book a table in Lisbon.")).result(BOUND)
        await program.said("t1: 'book a table in Lisbon'")
        await (await client.enqueue("t1", "And the same in Porto.")).result(BOUND)
        await program.said("t1: 'book a table in Lisbon, in Porto'")
