"""A fork of a thread with fifty thousand runs: the same snapshot as of a short one, in a few rows, without a scan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import pytest

from runyard.models import Message
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.queries import PathRequest
from runyard.ports.refs import RunRef
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_backends.memory import connect as connect_memory
from runyard_backends.postgres.backend import PostgresBackend
from runyard_backends.postgres.backend import connect as connect_postgres
from tests.support.long_thread import LongThread, ScriptedRun

RUNS = 50_000
FEW, TWO_PAGES = 20, 210
"""Rows of one table that a verb, and two pages of fifty, may read or pass over in a thread of more than a hundred thousand."""

NEW_ROWS = """
WITH t AS (SELECT * FROM runyard.threads WHERE thread_id = $1), b AS (SELECT * FROM runyard.branches JOIN t USING (thread_key))
SELECT (SELECT sum(pg_column_size(x.*)) FROM runyard.threads x WHERE thread_id = $1)
     + (SELECT sum(pg_column_size(x.*)) FROM runyard.branches x WHERE branch_id IN (SELECT branch_id FROM b))
     + (SELECT sum(pg_column_size(x.*)) FROM runyard.levels x WHERE branch_id IN (SELECT branch_id FROM b))
     + (SELECT coalesce(sum(pg_column_size(x.*)), 0) FROM runyard.messages x WHERE branch_id IN (SELECT branch_id FROM b))
     + (SELECT coalesce(sum(pg_column_size(x.*)), 0) FROM runyard.runs x WHERE thread_id = $1)
     + (SELECT sum(pg_column_size(x.*)) FROM runyard.outbox x WHERE thread_id = $1)
"""
READ = """
SELECT relname, seq_scan, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) AS rows
FROM pg_stat_user_tables WHERE schemaname = 'runyard' AND relname IN ('messages', 'runs')
"""

pytestmark = pytest.mark.xdist_group("fork at scale")


@dataclass(frozen=True)
class Big:
    """The thread ``big`` on Postgres, and what it was made from."""

    script: LongThread
    backend: PostgresBackend
    connection: asyncpg.Connection


@pytest.fixture(scope="module")
def script() -> LongThread:
    return LongThread(RUNS)


@pytest.fixture
async def big(script: LongThread, module_postgres_url: str) -> AsyncIterator[Big]:
    """Made by the first test that asks; the tests only add to it."""
    backend = await connect_postgres(module_postgres_url, max_pool_size=1)
    assert isinstance(backend, PostgresBackend)
    connection = await asyncpg.connect(module_postgres_url)
    if await backend.threads.thread("big") is None:
        await backend.checkpointer.save_extra("big", {"theme": "dark"})
        await script.copy(connection, "big")
        await connection.execute("VACUUM ANALYZE runyard.messages, runyard.runs, runyard.threads, runyard.branches")
    yield Big(script, backend, connection)
    await connection.close()
    await backend.close()


def points(script: LongThread) -> dict[str, ScriptedRun]:
    """Where the thread is cut."""
    done = script.completed
    return {"first": done[0], "middle": done[len(done) // 2], "overtaken": script.overtaken(), "last": done[-1]}


async def forked(backend: Backend, src: str, run: ScriptedRun) -> list[Message]:
    new = f"{src}-after-{run.number}"
    await backend.threads.fork(ForkRequest(src=src, new=new, cut=Cut(after_run_id=run.id)))
    return (await backend.threads.messages(new)).items


@pytest.mark.parametrize("seed", range(3))
async def test_f1_the_rule_is_the_memory_stores(seed: int, postgres_url: str) -> None:
    """F1, I5: on a thread short enough for the specification, the rule, both stores and the copied rows agree at every run."""
    script = LongThread(40, seed=seed)
    memory, postgres = await connect_memory("memory://"), await connect_postgres(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await script.play(memory, "played")
        await script.play(postgres, "played")
        await postgres.checkpointer.save_extra("copied", {})
        await script.copy(connection, "copied")
        assert any(run.high_water != run.seqs[-1] for run in script.completed)
        for run in script.completed:
            expected = script.snapshot(run)
            for backend, thread in ((memory, "played"), (postgres, "played"), (postgres, "copied")):
                assert [message.id for message in await forked(backend, thread, run)] == expected, (thread, run)
    finally:
        await connection.close()
        await postgres.close()
        await memory.close()


@pytest.mark.slow
async def test_f1_i5_the_snapshot_of_fifty_thousand_runs(big: Big) -> None:
    """F1: messages of no run and of runs that completed not later, up to the high water. I5: what comes later is not seen."""
    assert sum(run.fails for run in big.script.runs) == pytest.approx(0.05 * RUNS, rel=0.2)
    assert sum(message.run is None for message in big.script.messages) > 0.02 * RUNS
    for name, run in points(big.script).items():
        expected = big.script.snapshot(run)
        seen = await forked(big.backend, "big", run)
        assert [message.id for message in seen] == expected, name
        assert [message.text for message in seen] == [f"message {message.seq}" for message in seen]
    last = big.script.completed[-1]
    before = big.script.snapshot(last)
    await big.backend.checkpointer.append("big", [Message.user("later")])
    assert [message.id for message in (await big.backend.threads.messages(f"big-after-{last.number}")).items] == before


@pytest.mark.slow
@pytest.mark.parametrize("point", ["first", "middle", "overtaken", "last"])
async def test_f1_a_fork_writes_a_few_rows(big: Big, point: str) -> None:
    """At most two kilobytes of new rows, however long the thread."""
    run = points(big.script)[point]
    await big.backend.threads.fork(ForkRequest(src="big", new=f"small-{point}", cut=Cut(after_run_id=run.id)))
    assert 0 < await big.connection.fetchval(NEW_ROWS, f"small-{point}") <= 2048


async def rows_read(big: Big, call: Callable[[int], Awaitable[object]], times: int = 8) -> dict[str, float]:
    """Rows of each large table that one call reads on average; none may be read as a whole.

    Rows that an index finds and a condition drops count too. Eight calls: from the sixth on a connection may use plans that
    were made without regard to the arguments.
    """
    before = await table_counts(big)
    for n in range(times):
        await call(n)
    after = await table_counts(big)
    for name, (scans, _) in after.items():
        assert scans == before[name][0], f"{name} was read as a whole"
    return {name: (rows - before[name][1]) / times for name, (_, rows) in after.items()}


async def table_counts(big: Big) -> dict[str, tuple[int, int]]:
    """(whole scans, rows read) by table, everything counted that the backend's only connection did."""
    await big.backend.db.pool.execute("SELECT pg_stat_force_next_flush()")
    return {row["relname"]: (row["seq_scan"], row["rows"]) for row in await big.connection.fetch(READ)}


@pytest.mark.slow
@pytest.mark.parametrize("point", ["first", "middle", "overtaken", "last"])
async def test_f1_a_fork_reads_a_few_rows(big: Big, point: str) -> None:
    run = points(big.script)[point]

    async def fork(n: int) -> None:
        await big.backend.threads.fork(ForkRequest(src="big", new=f"plan-{point}-{n}", cut=Cut(after_run_id=run.id)))

    assert max((await rows_read(big, fork)).values()) <= FEW


@pytest.mark.slow
@pytest.mark.parametrize("newest_first", [True, False])
async def test_b2_a_page_reads_a_page(big: Big, newest_first: bool) -> None:
    """The last page, the first one and one in the middle, of the thread and of a fork that owns no message."""
    threads = big.backend.threads
    half = big.script.completed[len(big.script.completed) // 2]
    await threads.fork(ForkRequest(src="big", new=f"paged-{newest_first}", cut=Cut(after_run_id=half.id)))
    for thread in ("big", f"paged-{newest_first}"):

        async def two_pages(n: int, thread: str = thread) -> None:
            page = await threads.messages(thread, PathRequest(limit=50, newest_first=newest_first))
            assert len(page.items) == 50
            page = await threads.messages(thread, PathRequest(limit=50, newest_first=newest_first, cursor=page.next))
            assert len(page.items) == 50

        assert max((await rows_read(big, two_pages)).values()) <= TWO_PAGES


@pytest.mark.slow
async def test_r3_accept_claim_and_complete_read_a_few_rows(big: Big) -> None:
    """The lane's head and what is not admitted are found by their indexes, whatever is finished already."""
    runs = big.backend.runs
    await big.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    key = await big.backend.threads.thread_key("big")
    assert key is not None

    async def prompt(n: int) -> None:
        await runs.accept(AcceptRequest(thread_id="big", run_id=f"plan-{n}", input=Message.user("hi")))
        [claim] = await runs.claim("w", [RunRef(key, f"plan-{n}")])
        assert claim.attempt is not None
        [ended] = await runs.complete([Write(attempt=claim.attempt, messages=[Message.assistant("hello")])])
        assert not isinstance(ended, Exception)

    assert max((await rows_read(big, prompt)).values()) <= FEW

    async def look(n: int) -> None:
        await runs.admit()
        await big.backend.workers.orphans()
        await big.backend.workers.waiting(unchanged=timedelta(0))

    assert max((await rows_read(big, look)).values()) <= FEW


@pytest.mark.slow
async def test_b4_f6_a_cut_at_a_message_reads_a_few_rows(big: Big) -> None:
    """Whether a tool cycle is open at a message is told by the messages with calls and results, not by the whole path."""
    threads, runs = big.backend.threads, big.backend.runs
    [leaf] = (await threads.messages("big", PathRequest(limit=1, newest_first=True))).items

    async def prompt(n: int) -> None:
        accepted = await runs.accept(
            AcceptRequest(thread_id="big", run_id=f"at-leaf-{n}", input=Message.user("hi"), parent_id=leaf.id)
        )
        await runs.cancel("big", accepted.run.run_id)

    async def fork(n: int) -> None:
        await threads.fork(ForkRequest(src="big", new=f"at-leaf-{n}", cut=Cut(at_message_id=leaf.id)))

    assert max((await rows_read(big, prompt)).values()) <= FEW
    assert max((await rows_read(big, fork)).values()) <= FEW
