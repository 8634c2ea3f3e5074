"""The plain path of accept_many, claim and complete: what takes it, and what it reads."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeAlias

import asyncpg
import pytest

from runyard.models import Message, RunOptions
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard_backends.postgres import codec
from runyard_backends.postgres.database import statements
from tests.support.many_runs import STATEMENTS, TENANT, named_statements

MANY = 32
OPTIONS = (RunOptions(), RunOptions(timeout=60.0))
RUN_BY_RUN = ("accept_and_admit", "make_thread", "claim_locked", "end_run")
"""The functions that process one run in the long way of accept_many, claim and complete."""
CALLS = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = 'runyard' AND funcname = ANY ($1)"
BLOCKS = """
SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read) FROM pg_statio_user_tables
WHERE schemaname = 'runyard'
"""

WAITS = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
Waiting: TypeAlias = tuple[asyncpg.Connection, Callable[[], Awaitable[list[bool]]]]
"""A free connection, and a function that ends the wait and says which prompts were accepted."""

numbers: Iterator[int] = itertools.count()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url, server_settings={"track_functions": "pl"})
    await connection.execute("INSERT INTO runyard.workers (worker_id, queues, agents) VALUES ('w', '{default}', '{}')")
    yield connection
    await connection.close()


async def turn(connection: asyncpg.Connection) -> None:
    """Accept, claim and complete a run on each of the threads, in three calls. Half of the runs have options."""
    requests = [
        AcceptRequest(thread_id=f"t{n}", run_id=f"r{next(numbers)}", input=Message.user("hi"), options=OPTIONS[n % 2])
        for n in range(MANY)
    ]
    rows = await connection.fetch(statements()["accept"], "", [codec.run_request(request) for request in requests], 1000)
    assert [row["created"] for row in rows] == [True] * MANY
    jobs = [job for row in rows for job in codec.effects(row["effects"]).jobs]
    keys, ids = [job.thread_key for job in jobs], [job.run_id for job in jobs]
    claims = await connection.fetch(statements()["claim"], "w", keys, ids, 1000)
    assert [claim["outcome"] for claim in claims] == ["claimed"] * MANY
    writes = [
        Write(attempt=AttemptToken(claim["key"], claim["id"], claim["fence"]), messages=[Message.assistant("done")])
        for claim in claims
    ]
    ended = await connection.fetch(statements()["complete"], [codec.attempt_write(write) for write in writes], 1000)
    assert [end["status"] for end in ended] == ["completed"] * MANY


async def spent(connection: asyncpg.Connection, query: str, *args: object) -> int:
    """What one turn adds to a count of the server."""
    counts = []
    for _ in range(2):
        await connection.execute("SELECT pg_stat_force_next_flush()")
        counts.append(int(await connection.fetchval(query, *args)))
        if len(counts) == 1:
            await turn(connection)
    return counts[1] - counts[0]


async def test_usual_runs_are_processed_together(connection: asyncpg.Connection) -> None:
    """Q2: a batch of new runs makes no call for each of its runs, on new threads and on existing ones."""
    assert await spent(connection, CALLS, RUN_BY_RUN) == 0
    assert await spent(connection, CALLS, RUN_BY_RUN) == 0


async def fill(connection: asyncpg.Connection, runs: int, threads: int) -> None:
    """Insert ended runs and their messages. No index is dropped meanwhile, because that would end all plans."""
    sql = named_statements(STATEMENTS)
    await connection.execute(sql["threads"], TENANT, threads)
    await connection.execute(sql["branches"], TENANT)
    await connection.execute(sql["runs"], TENANT, runs, threads)
    await connection.execute(sql["messages"], TENANT, True)


async def test_what_a_turn_reads_does_not_depend_on_the_size_of_the_tables(
    postgres_url: str, connection: asyncpg.Connection
) -> None:
    """Q3: neither with plans that were made while the tables were empty, nor with new ones."""
    for _ in range(3):
        await turn(connection)
    empty = await spent(connection, BLOCKS)
    later = await asyncpg.connect(postgres_url)
    try:
        await fill(later, runs=20_000, threads=2_000)
        old_plans = await spent(connection, BLOCKS)
        await turn(later)
        new_plans = await spent(later, BLOCKS)
    finally:
        await later.close()
    print(f"blocks of a turn of {MANY} runs: {empty} on empty tables, then {old_plans} with old and {new_plans} with new plans")
    assert max(old_plans, new_plans) < 2 * empty  # the trees of the indexes are a level higher


async def test_a_batch_does_not_overtake_runs_that_hosts_accepted(connection: asyncpg.Connection) -> None:
    """R2: what a host's transaction accepted before is admitted first."""
    await turn(connection)
    await connection.execute("SELECT runyard.accept('t0', 'hi', run_id => 'hosted')")
    requests = [AcceptRequest(thread_id=f"t{n}", run_id="later", input=Message.user("hi")) for n in range(2)]
    await connection.fetch(statements()["accept"], "", [codec.run_request(request) for request in requests], 1000)
    lane = "SELECT run_id FROM runyard.live_runs WHERE thread_id = 't0' ORDER BY lane_seq"
    assert [row["run_id"] for row in await connection.fetch(lane)] == ["hosted", "later"]


async def test_a_batch_gives_a_thread_its_agent(connection: asyncpg.Connection) -> None:
    """The first run that names an agent gives it to its thread (see `set_thread_agent`)."""
    await turn(connection)
    requests = [AcceptRequest(thread_id=f"t{n}", run_id="named", input=Message.user("hi"), agent="support") for n in range(2)]
    await connection.fetch(statements()["accept"], "", [codec.run_request(request) for request in requests], 1000)
    agents = await connection.fetch(
        "SELECT agent FROM runyard.threads WHERE thread_id IN ('t0', 't1', 't2') ORDER BY thread_id"
    )
    assert [row["agent"] for row in agents] == ["support", "support", None]


async def accept(connection: asyncpg.Connection, *requests: AcceptRequest, patience: int = 1000) -> list[asyncpg.Record]:
    rows = [codec.run_request(request) for request in requests]
    return await connection.fetch(statements()["accept"], "", rows, patience)


def prompt(thread: str, run: str, agent: str | None = None) -> AcceptRequest:
    return AcceptRequest(thread_id=thread, run_id=run, input=Message.user("hi"), agent=agent)


async def test_a_batch_makes_its_threads_as_single_prompts_do(connection: asyncpg.Connection) -> None:
    """R1: the agents of threads and runs, the lanes and the jobs."""
    agents = itertools.product((None, "a", "ns/", "ns/b"), repeat=3)
    prompts = [prompt(f"t{n}", f"r{m}", agent) for n, three in enumerate(agents) for m, agent in enumerate(three)]
    query = """
        SELECT t.agent AS of_thread, r.agent, r.queue, r.lane, r.status, r.lane_seq IS NOT NULL AS admitted, b.lane AS of_branch
        FROM runyard.threads t JOIN runyard.runs r USING (thread_key) JOIN runyard.branches b ON b.branch_id = t.head_branch
        ORDER BY r.thread_id, r.lane_seq
    """
    found = []
    for batches in ([prompts], [[one] for one in prompts]):
        rows = [row for batch in batches for row in await accept(connection, *batch)]
        jobs = sorted(job.run_id for row in rows for job in codec.effects(row["effects"]).jobs)
        found.append((jobs, [tuple(row) for row in await connection.fetch(query)]))
        await connection.execute("TRUNCATE runyard.threads, runyard.branches, runyard.runs, runyard.live_runs")
    assert found[0] == found[1] and len(found[0][1]) == len(prompts)


async def test_a_refused_prompt_of_a_batch_makes_no_thread(connection: asyncpg.Connection) -> None:
    """A prompt without a message needs a message to answer."""
    empty = AcceptRequest(thread_id="empty", run_id="r")
    rows = await accept(connection, empty, prompt("new", "r"))
    assert {row["n"]: row["refused"] is None for row in rows} == {1: False, 2: True}
    assert [row["thread_id"] for row in await connection.fetch("SELECT thread_id FROM runyard.threads")] == ["new"]


async def test_a_batch_makes_no_thread_with_runs_of_a_host(connection: asyncpg.Connection) -> None:
    """R2, L3: the thread gets the agent of the run that the host accepted before."""
    await connection.execute("SELECT runyard.accept('t', 'hi', run_id => 'hosted', agent => 'a')")
    await accept(connection, prompt("t", "later", "b"), prompt("u", "r"))
    lane = "SELECT run_id FROM runyard.live_runs WHERE thread_id = 't' ORDER BY lane_seq"
    assert [row["run_id"] for row in await connection.fetch(lane)] == ["hosted", "later"]
    assert await connection.fetchval("SELECT agent FROM runyard.threads WHERE thread_id = 't'") == "a"


async def test_a_batch_waits_for_the_removal_of_a_thread(connection: asyncpg.Connection) -> None:
    """H8: a run of the new thread could not be told from a run of the deleted thread."""
    await connection.execute(
        "INSERT INTO runyard.removals (thread_key, tenant, thread_id, erase, runs_hidden) VALUES (1, '', 't', false, false)"
    )
    rows = await accept(connection, prompt("t", "r"), prompt("u", "r"))
    assert {row["n"]: row["refused"] is None for row in rows} == {1: False, 2: True}


@pytest.fixture
async def waiting(postgres_url: str, connection: asyncpg.Connection) -> AsyncIterator[Waiting]:
    """A batch for the threads `a` and `z` that waits for another transaction, which makes the thread `a`."""
    other, watcher = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    transaction = other.transaction()
    await transaction.start()
    await accept(other, prompt("a", "x"))
    prompts = prompt("a", "r"), prompt("z", "r", "b"), prompt("z", "r2")
    batch = asyncio.ensure_future(accept(connection, *prompts, patience=60_000))
    while not await watcher.fetchval(WAITS, connection.get_server_pid()):
        pass

    async def outcome() -> list[bool]:
        await transaction.rollback()
        return [row["refused"] is None for row in sorted(await batch, key=lambda row: row["n"])]

    yield watcher, outcome
    await watcher.close()
    await other.close()


async def test_a_thread_that_is_deleted_during_the_wait_of_a_batch(waiting: Waiting) -> None:
    """H8: a prompt of the new thread is no repetition of a run of the deleted thread."""
    meanwhile, outcome = waiting
    await accept(meanwhile, prompt("z", "r", "b"))
    await meanwhile.execute("""
        WITH gone AS (UPDATE runyard.threads SET deleted_at = now() WHERE thread_id = 'z' RETURNING thread_key)
        INSERT INTO runyard.removals (thread_key, tenant, thread_id, erase, runs_hidden)
        SELECT thread_key, '', 'z', false, false FROM gone
    """)
    assert await outcome() == [True, False, False]


async def test_a_run_that_a_host_accepts_during_the_wait_of_a_batch(waiting: Waiting) -> None:
    """R2, L3: the host's run is first, and its agent is that of the thread."""
    meanwhile, outcome = waiting
    await meanwhile.execute("SELECT runyard.accept('z', 'hi', run_id => 'hosted', agent => 'a')")
    assert await outcome() == [True, True, True]
    lane = "SELECT run_id FROM runyard.live_runs WHERE thread_id = 'z' ORDER BY lane_seq"
    assert [row["run_id"] for row in await meanwhile.fetch(lane)] == ["hosted", "r", "r2"]
    assert await meanwhile.fetchval("SELECT agent FROM runyard.threads WHERE thread_id = 'z'") == "a"


async def test_a_thread_that_another_transaction_makes_delays_only_itself(
    connection: asyncpg.Connection, postgres_url: str
) -> None:
    """Q4: the batch does not wait for the end of the other transaction."""
    other = await asyncpg.connect(postgres_url)
    async with other.transaction():
        await accept(other, prompt("t", "r"))
        rows = await accept(connection, prompt("s", "r"), prompt("t", "r"), prompt("u", "r"))
        assert {row["n"]: row["refused"] is None for row in rows} == {1: True, 2: False, 3: True}
    [again] = await accept(connection, prompt("t", "r"))
    assert again["created"] is False
    await other.close()
