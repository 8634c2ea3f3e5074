"""The histories that a process keeps in memory: what a turn reads, when a kept history is not used, and how much is kept."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from sys import getsizeof
from typing import Any

import asyncpg
import pytest

from runyard.errors import DataCorruptedError
from runyard.ports.refs import AttemptToken
from runyard_backends.conformance.world import World, call, result, said, user
from runyard_backends.postgres import codec, history, history_cache
from runyard_backends.postgres.backend import PostgresBackend, connect
from runyard_backends.postgres.history_cache import History, HistoryCache
from tests.integration.postgres.test_long_lanes import blocks
from tests.support.histories import CACHE_BYTES, short_histories_are_kept

CONTEXT = "SELECT * FROM runyard.history($1, $2, $3, $4::jsonb, -1, -1, 1000)"
RUNS_OF_LONG = """
INSERT INTO runyard.runs (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash,
    branch_id, first_seq, last_seq, completion_seq, high_water_seq, fence, admitted_at, started_at, finished_at)
SELECT '', 'long', n::text, t.thread_key, 'prompt', 'completed', '', nextval('runyard.lane_numbers'), 'default', 'normal', '{}',
    t.head_branch, 2 * n, 2 * n + 1, n, 2 * n + 1, n, now(), now(), now()
FROM runyard.threads t, generate_series(10, 20000) n WHERE t.thread_id = 'long'
"""


class Reader:
    """A process that reads contexts. ``read``: the numbers of messages that the statements of the last context returned."""

    def __init__(self, backend: PostgresBackend) -> None:
        self.backend, self.world = backend, World(backend, lambda: None)  # type: ignore[arg-type, return-value]
        self.read: list[int] = []
        self.between: Callable[[], Awaitable[None]] | None = None
        self._rows = backend.db.rows
        backend.db.rows = self._counted  # type: ignore[method-assign]

    async def _counted(self, name: str, *args: Any) -> list[Any]:
        rows = await self._rows(name, *args)
        if name == "context":
            self.read.append(len(rows) - 1)
            if self.between is not None:
                between, self.between = self.between, None
                await between()
        return rows

    async def context(self, attempt: AttemptToken) -> list[str]:
        self.read.clear()
        return await self.world.context(attempt)


@pytest.fixture(autouse=True)
def _short() -> Any:
    with short_histories_are_kept():
        yield


@pytest.fixture
async def reader(postgres_url: str) -> AsyncIterator[Reader]:
    backend = await connect(postgres_url, history_cache_bytes=CACHE_BYTES)
    assert isinstance(backend, PostgresBackend)
    yield Reader(backend)
    await backend.close()


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[World]:
    """Another process."""
    backend = await connect(postgres_url)
    yield World(backend, lambda: None)  # type: ignore[arg-type, return-value]
    await backend.close()


async def turns(world: World, *run_ids: str, thread: str = "t") -> None:
    for run_id in run_ids:
        await world.turn(run_id, thread=thread)


async def test_a_turn_reads_only_the_messages_after_the_kept_history(reader: Reader, other: World) -> None:
    await turns(other, "r1", "r2", "r3")
    attempt = await other.start("a", "?")
    assert len(await reader.context(attempt)) == 7 and reader.read == [7]
    assert len(await reader.context(attempt)) == 7 and reader.read == [1]  # its own message
    await other.finish(attempt, said("a!"))
    await turns(other, "r4")
    attempt = await other.start("b", "b?")
    assert (await reader.context(attempt))[-5:] == ["?", "a!", "r4?", "r4!", "b?"] and reader.read == [5]


async def test_a_turn_reads_no_runs_of_other_threads(reader: Reader, other: World, postgres_url: str) -> None:
    """The plan is made while the statistics say that a branch has half of all runs (Q3)."""
    await turns(other, "r1", "r2")
    await other.turn("r1", thread="long")
    attempt = await other.start("a", "?")
    await reader.context(attempt)
    await other.finish(attempt, said("a!"))
    attempt = await other.start("b", "b?")
    held = codec.to_json([each.described for each in reader.backend.db.histories.of_thread(attempt.thread_key).values()])
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(RUNS_OF_LONG)
        await connection.execute("ANALYZE runyard.runs, runyard.completions")
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        context = CONTEXT, attempt.thread_key, attempt.run_id, attempt.fence, held
        await blocks(connection, *context)  # makes the plans
        read = await blocks(connection, *context)
    finally:
        await connection.close()
    assert read < 50


async def test_each_branch_has_its_own_history(reader: Reader, other: World) -> None:
    """Two branches of a thread and a fork are read in turn. Each is read once as a whole."""
    await turns(other, "r1", "r2")
    await other.fork("fork", after_run_id="r2")
    ends = [("t", await other.id_of("r2!")), ("t", await other.id_of("r1!")), ("fork", await other.id_of("r2!", "fork"))]
    read = []
    for n in range(2):
        for place, (thread, parent) in enumerate(ends):
            attempt = await other.start(f"{n}{place}", "?", thread=thread, parent_id=parent)
            await reader.context(attempt)
            read.append(reader.read[0])
            await other.finish(attempt, answer := said("!"))
            ends[place] = (thread, answer.id)
    assert read == [5, 3, 5, 3, 3, 3]


async def test_nothing_is_kept_without_a_size(postgres_url: str, other: World) -> None:
    await turns(other, "r1", "r2")
    attempt = await other.start("a", "?")
    backend = await connect(postgres_url)
    assert isinstance(backend, PostgresBackend)
    try:
        alone = Reader(backend)
        for _ in range(2):
            assert len(await alone.context(attempt)) == 5 and alone.read == [5]
        assert backend.db.histories.size == 0
    finally:
        await backend.close()


async def erased_fork(other: World) -> AttemptToken:
    """Make a thread with a fork, and return an attempt on the fork."""
    await turns(other, "r1", "r2")
    await other.fork("fork", after_run_id="r2")
    return await other.start("a", "?", thread="fork")


ERASED = ["[erased]"] * 4 + ["?"]
BEFORE = ["r1?", "r1!", "r2?", "r2!", "?"]


async def test_an_erasure_after_the_read_and_before_the_history_is_kept(reader: Reader, other: World) -> None:
    """I5: The statement has read the messages. The erasure commits before the process keeps them."""
    attempt = await erased_fork(other)

    async def erase() -> None:
        await other.threads.erase_thread("t")

    reader.between = erase
    assert await reader.context(attempt) == BEFORE
    for _ in range(2):
        assert await reader.context(attempt) == ERASED
    assert reader.read == [1]


async def test_an_erasure_that_has_not_committed(reader: Reader, other: World, postgres_url: str) -> None:
    """I5: Two connections. A read during the transaction of the erasure shows the messages. The first read after its commit
    shows tombstones."""
    attempt = await erased_fork(other)
    assert await reader.context(attempt) == BEFORE
    connection = await asyncpg.connect(postgres_url)
    try:
        key = await other.threads.thread_key("t")
        await connection.execute("SELECT runyard.delete_thread('', 't', false, NULL, true)")
        async with connection.transaction():
            while await connection.fetchval("SELECT runyard.remove_step($1, 100)", key):
                assert await reader.context(attempt) == BEFORE
            assert await reader.context(attempt) == BEFORE and reader.read == [1]
        assert await reader.context(attempt) == ERASED
    finally:
        await connection.close()


async def test_each_step_of_an_erasure_is_seen(reader: Reader, other: World, postgres_url: str) -> None:
    """I5: A large thread is erased in several transactions."""
    attempt = await erased_fork(other)
    connection = await asyncpg.connect(postgres_url)
    try:
        key = await other.threads.thread_key("t")
        await connection.execute("SELECT runyard.delete_thread('', 't', false, NULL, true)")
        left = True
        seen = {tuple(BEFORE)}
        while left:
            left = await connection.fetchval("SELECT runyard.remove_step($1, 1)", key)
            now = await reader.context(attempt)
            stored = await connection.fetchval(
                "SELECT count(*) FROM runyard.messages m JOIN runyard.branches b USING (branch_id)"
                " WHERE b.thread_key = $1 AND m.note IS NULL",
                key,
            )
            assert now == [*["[erased]"] * (4 - stored), *BEFORE[4 - stored :]]
            seen.add(tuple(now))
        assert len(seen) == 5
    finally:
        await connection.close()


async def test_an_erasure_between_the_parts_of_a_read(reader: Reader, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: The read shows some messages from before the erasure. No later read shows these."""
    attempt = await erased_fork(other)
    monkeypatch.setattr(history, "PART_MESSAGES", 2)

    async def erase() -> None:
        await other.threads.erase_thread("t")

    reader.between = erase
    assert await reader.context(attempt) == ["r1?", "r1!", "[erased]", "[erased]", "?"]
    assert await reader.context(attempt) == ERASED


async def kept_by(reader: Reader, attempt: AttemptToken) -> History:
    await reader.context(attempt)
    (kept,) = reader.backend.db.histories.of_thread(attempt.thread_key).values()
    return kept


@pytest.mark.parametrize(
    "change",
    [{"generation": "1:0"}, {"cutoff": 99}, {"branch_id": 10**6}],
    ids=["of a server that was restarted", "of a state that was lost", "of another branch"],
)
async def test_a_history_of_another_state_is_not_used(reader: Reader, other: World, change: dict[str, Any]) -> None:
    await turns(other, "r1", "r2")
    attempt = await other.start("a", "?")
    kept = await kept_by(reader, attempt)
    reader.backend.db.histories = HistoryCache(CACHE_BYTES)
    reader.backend.db.histories.keep(dataclasses.replace(kept, **change))
    assert await reader.context(attempt) == BEFORE and reader.read == [5]
    assert await reader.context(attempt) == BEFORE and reader.read == [1]


async def test_a_history_whose_last_message_was_replaced_is_not_used(reader: Reader, other: World, postgres_url: str) -> None:
    """A backup was restored into the running server, and other messages got the numbers."""
    await turns(other, "r1", "r2")
    attempt = await other.start("a", "?")
    await kept_by(reader, attempt)
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(
            "UPDATE runyard.messages SET message_id = gen_random_uuid(),"
            " payload = (SELECT payload FROM runyard.messages WHERE seq = 1)"
            " WHERE seq IN (2, 4)"
        )
    finally:
        await connection.close()
    assert await reader.context(attempt) == ["r1?", "r1?", "r2?", "r1?", "?"]


def a_history(thread_key: int, branch_id: int, rows: int = 100, payload: int = 1000) -> History:
    return History(thread_key, branch_id, [({"seq": 1}, {})] * rows, 1, "x", 1, "g", rows * payload)


def test_the_histories_used_last_are_kept() -> None:
    cache = HistoryCache(300_000)
    for number in (1, 2, 3):
        cache.keep(a_history(number, number))
    cache.keep(a_history(1, 1))  # used again
    cache.keep(a_history(4, 4))
    assert [bool(cache.of_thread(number)) for number in (1, 2, 3, 4)] == [True, False, True, True]
    assert cache.size == 300_000
    cache.keep(a_history(3, 3, rows=500))  # larger than all together may be
    assert not cache.of_thread(3) and cache.size == 200_000


def test_a_thread_keeps_a_few_branches() -> None:
    cache = HistoryCache(10**9)
    for branch_id in range(100):
        cache.keep(a_history(1, branch_id))
    assert list(cache.of_thread(1)) == list(range(100 - history_cache.MAX_BRANCHES, 100))
    assert cache.size == history_cache.MAX_BRANCHES * 100_000


def test_short_histories_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_cache, "MIN_MESSAGES", 64)
    cache = HistoryCache(10**9)
    cache.keep(a_history(1, 1, rows=63))
    assert not cache.of_thread(1)


def bytes_of(kept: History) -> int:
    """Return the bytes of the objects that a history has, each rounded up as Python's allocator does."""
    objects = {id(each): each for pair in kept.rows for each in (pair, pair[0], *pair[0]) if each is not None}
    for row, _ in kept.rows:
        objects |= {id(each): each for column in (row["calls"], row["results"]) for each in column or ()}
    return 8 * len(kept.rows) + sum(-(-getsizeof(each) // 16) * 16 for each in objects.values())


async def test_many_long_threads_take_bounded_memory(postgres_url: str, other: World) -> None:
    """A process that serves many long threads keeps at most the bytes of its setting. It counts the bytes that objects take."""
    for n in range(8):
        messages = [user(f"{n} {m} " + "x" * (m % 700), metadata={"n": m}) for m in range(400)]
        await other.checkpointer.append(f"t{n}", messages)
        await other.turn("r" * 200, thread=f"t{n}")
    limit = 1_500_000
    backend = await connect(postgres_url, history_cache_bytes=limit)
    assert isinstance(backend, PostgresBackend)
    try:
        attempts = [await other.start("a", "?", thread=f"t{n}") for n in range(8)]
        histories = backend.db.histories
        for attempt in attempts * 3:
            await backend.runs.context(attempt)
            taken = sum(bytes_of(kept) for each in attempts for kept in histories.of_thread(each.thread_key).values())
            assert 0.95 < histories.size / taken < 1.1
            assert histories.size <= limit
        kept_now = [bool(histories.of_thread(attempt.thread_key)) for attempt in attempts]
        assert kept_now[-2:] == [True, True] and not any(kept_now[:4])
    finally:
        await backend.close()


async def test_the_bytes_of_tombstones_are_counted(reader: Reader, other: World) -> None:
    """A message without a payload has a note, and the ids of its tool calls and results."""
    attempt = await other.start("r1", "?")
    for n in range(100):
        ids = [f"{n}-{m}" for m in range(5)]
        await other.runs.append(attempt, [call(*ids), result(*ids)])
    await other.finish(attempt)
    await other.fork("fork", after_run_id="r1")
    await other.threads.erase_thread("t")
    kept = await kept_by(reader, await other.start("a", "?", thread="fork"))
    assert 0.9 < kept.size / bytes_of(kept) < 1.2


async def test_a_damaged_message_of_a_long_history(reader: Reader, other: World, postgres_url: str) -> None:
    """R15: The first use of the message raises the error. The other messages can be read."""
    await turns(other, "r1")
    attempt = await other.start("a", "?")
    damaged = await other.id_of("r1!")
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("UPDATE runyard.messages SET payload = '\\xc1' WHERE message_id = $1", damaged)
    finally:
        await connection.close()
    messages = await reader.backend.runs.context(attempt)
    assert [messages[0].text, messages[2].text] == ["r1?", "?"]
    for _ in range(2):
        with pytest.raises(DataCorruptedError, match=damaged) as refused:
            _ = messages[1].content
        assert refused.value.details["thread_key"] == attempt.thread_key


async def test_concurrent_turns_of_a_thread(reader: Reader, other: World) -> None:
    """Reads at the same time each return the whole, and leave one history."""
    await turns(other, "r1", "r2")
    attempt = await other.start("a", "?")
    assert await asyncio.gather(*(reader.context(attempt) for _ in range(5))) == [BEFORE] * 5
    assert len(reader.backend.db.histories.of_thread(attempt.thread_key)) == 1
