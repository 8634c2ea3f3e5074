"""Completions that claim the next runs of their lanes: races with other transactions, and what they read."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence

import asyncpg
import pytest

from runyard.models import Message
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard_backends.postgres import codec
from runyard_backends.postgres.database import statements
from tests.integration.postgres.test_plain_runs import BLOCKS, fill

MANY = 16

numbers: Iterator[int] = itertools.count()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("INSERT INTO runyard.workers (worker_id, queues, agents) VALUES ('w', '{default}', '{}')")
    yield connection
    await connection.close()


async def accept(connection: asyncpg.Connection) -> list[tuple[int, str]]:
    """Accept a run on each thread. Return the runs that may start."""
    requests = [AcceptRequest(thread_id=f"t{n}", run_id=f"r{next(numbers)}", input=Message.user("hi")) for n in range(MANY)]
    rows = await connection.fetch(statements()["accept"], "", [codec.run_request(request) for request in requests], 1000)
    return [(job.thread_key, job.run_id) for row in rows for job in codec.effects(row["effects"]).jobs]


async def claim(connection: asyncpg.Connection, jobs: Sequence[tuple[int, str]]) -> list[asyncpg.Record]:
    keys, ids = [key for key, _ in jobs], [run_id for _, run_id in jobs]
    claims: list[asyncpg.Record] = await connection.fetch(statements()["claim"], "w", keys, ids, 1000)
    assert [claim["outcome"] for claim in claims] == ["claimed"] * len(jobs)
    return claims


async def go_on(connection: asyncpg.Connection, claims: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
    """Complete the claimed runs, and claim the next runs."""
    attempts = [AttemptToken(claim["key"], claim["id"], claim["fence"]) for claim in claims]
    writes = [codec.attempt_write(Write(attempt=a, messages=[Message.assistant("done")])) for a in attempts]
    keys, ids = [attempt.thread_key for attempt in attempts], [attempt.run_id for attempt in attempts]
    ends: list[asyncpg.Record] = await connection.fetch(statements()["complete_and_claim"], writes, keys, ids, 1000)
    assert [end["ended_status"] for end in ends] == ["completed"] * len(writes)
    return ends


async def test_a_worker_that_is_declared_dead_meanwhile_still_ends_its_run(connection: asyncpg.Connection) -> None:
    """W1: The claim of the next run is refused after the end was stored in the same transaction."""
    [first, *_] = await claim(connection, await accept(connection))
    await accept(connection)
    claims = "SELECT runyard.claim_chained('dead', ARRAY[$1::bigint], ARRAY['r0']) AS claims"
    assert await connection.fetchval(claims, first["key"]) == []
    [end] = await go_on(connection, [first])
    assert end["outcome"] == "claimed"


async def test_r6_a_claim_that_fails_does_not_undo_the_end_before_it(connection: asyncpg.Connection) -> None:
    [first, *_] = await claim(connection, await accept(connection))
    await accept(connection)
    await connection.execute("ALTER TABLE runyard.live_runs ADD CONSTRAINT no_chains CHECK (chained_fence IS NULL)")
    [end] = await go_on(connection, [first])
    assert end["outcome"] is None
    [job] = codec.effects(end["ended_effects"]).jobs
    await connection.execute("ALTER TABLE runyard.live_runs DROP CONSTRAINT no_chains")
    await claim(connection, [(job.thread_key, job.run_id)])


async def test_a_claim_that_waits_for_the_thread_finds_the_next_run_taken(
    postgres_url: str, connection: asyncpg.Connection
) -> None:
    """R3, I2: The reconciler had submitted the next run, too. Another worker claims it during the completion."""
    [first, *_] = await claim(connection, await accept(connection))
    await accept(connection)
    other = await asyncpg.connect(postgres_url)
    try:
        await other.execute("INSERT INTO runyard.workers (worker_id, queues, agents) VALUES ('other', '{default}', '{}')")
        transaction = connection.transaction()
        await transaction.start()
        [end] = await go_on(connection, [first])
        taken = statements()["claim"], "other", [end["key"]], [end["id"]], 0
        assert [row["outcome"] for row in await other.fetch(*taken)] == ["skipped"]
        await transaction.commit()
        assert [row["outcome"] for row in await other.fetch(*taken)] == ["busy"]
    finally:
        await other.close()


async def read(connection: asyncpg.Connection, claims: Sequence[asyncpg.Record]) -> tuple[int, list[asyncpg.Record]]:
    """Go on with the lanes. Return the number of blocks that this read, and the new claims."""
    await accept(connection)
    counts = []
    for _ in range(2):
        await connection.execute("SELECT pg_stat_force_next_flush()")
        counts.append(int(await connection.fetchval(BLOCKS)))
        if len(counts) == 1:
            claims = await go_on(connection, claims)
    return counts[1] - counts[0], claims


async def test_what_a_chain_reads_does_not_depend_on_the_size_of_the_tables(
    postgres_url: str, connection: asyncpg.Connection
) -> None:
    """Q3: neither with plans that were made while the tables were empty, nor with new ones."""
    claims: Sequence[asyncpg.Record] = await claim(connection, await accept(connection))
    for _ in range(6):
        _, claims = await read(connection, claims)
    empty, claims = await read(connection, claims)
    later = await asyncpg.connect(postgres_url)
    try:
        await fill(later, runs=20_000, threads=2_000)
        old_plans, claims = await read(connection, claims)
        _, claims = await read(later, claims)
        new_plans, claims = await read(later, claims)
    finally:
        await later.close()
    print(f"blocks of {MANY} chained runs: {empty} on empty tables, then {old_plans} with old and {new_plans} with new plans")
    assert max(old_plans, new_plans) < 2 * empty  # the trees of the indexes are a level higher
