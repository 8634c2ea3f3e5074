"""What the leader reads again and again must not grow with the work that waits, or with what has ended."""

import json
from datetime import timedelta

import asyncpg

from runyard.models import Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.queries import PageRequest
from runyard.ports.workers import WorkerInfo
from runyard_backends.cursors import encode
from runyard_backends.postgres.backend import connect

QUEUED = """
INSERT INTO runyard.runs
    (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash, admitted_at,
     changed_at)
SELECT r.tenant, r.thread_id, 'q' || g, r.thread_key, 'prompt', 'queued', '', r.lane_seq + g, 'default', 'normal', '{}',
    r.admitted_at, r.changed_at
FROM runyard.runs r, generate_series(1, 20000) g
"""
ENDED = """
INSERT INTO runyard.runs
    (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash, admitted_at,
     finished_at)
SELECT r.tenant, r.thread_id, 'e' || g, r.thread_key, 'prompt', 'failed', '', r.lane_seq + g, 'default', 'normal', '{}', now(),
    now()
FROM runyard.runs r, generate_series(1, 20000) g
"""
WAITING = """
INSERT INTO runyard.runs
    (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash, admitted_at,
     changed_at, expires_at, run_at)
SELECT r.tenant, r.thread_id, 'w' || g, r.thread_key, 'prompt', 'queued', CASE g % 2 WHEN 0 THEN '' END,
    CASE g % 2 WHEN 0 THEN r.lane_seq + g END, 'default', 'normal', '{}', CASE g % 2 WHEN 0 THEN r.admitted_at END,
    r.changed_at, now() + interval '1 day', now() + interval '1 hour'
FROM runyard.runs r, generate_series(1, 20000) g
"""
ADMIT = "SELECT * FROM runyard.admit(100)"
LANES = """
WITH made AS (
    INSERT INTO runyard.threads (tenant, thread_id, head_branch)
    SELECT '', gen_random_uuid()::text, nextval('runyard.branch_numbers') FROM generate_series(1, $2::int) n
    RETURNING thread_key, thread_id, head_branch
), branches AS (
    INSERT INTO runyard.branches (branch_id, thread_key, lane) SELECT head_branch, thread_key, '' FROM made
)
INSERT INTO runyard.runs
    (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash, branch_id, fence,
     worker_id, attempt, admitted_at, started_at, suspended_at, changed_at)
SELECT '', thread_id, 'r', thread_key, 'prompt', $1, '', nextval('runyard.lane_numbers'), 'default', 'normal', '{}',
    head_branch, nextval('runyard.fences'), $3, 1, now(), now(), CASE $1 WHEN 'suspended' THEN now() END,
    now() - interval '1 minute'
FROM made
"""
"""A lane per run: $1 is their status, $2 their number, $3 their worker or NULL."""
ORPHANS = "SELECT * FROM runyard.orphans('', 1000)"
RECENT = "SELECT * FROM runyard.waiting('0 s', '10 s', NULL, NULL, 500)"
ROTATION = "SELECT * FROM runyard.waiting('0 s', NULL, NULL, NULL, 500)"
QUEUES = "SELECT * FROM runyard.queue_states()"


async def blocks(connection: asyncpg.Connection, statement: str) -> int:
    """How many blocks the statement reads once its plan is made."""
    await connection.fetchval(statement)
    (plan,) = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"))
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


async def pass_blocks(connection: asyncpg.Connection) -> int:
    """How many blocks the reads of one pass of the rescue read."""
    return sum([await blocks(connection, statement) for statement in (ORPHANS, RECENT, ROTATION)])


async def test_a_pass_reads_a_bounded_number_of_waiting_runs(postgres_url: str) -> None:
    """W2, Q3: also of a lane with thousands of runs, and on tables without statistics."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept(AcceptRequest(thread_id="t", run_id="head", input=Message.user("hi")))
        await connection.execute(QUEUED)
        page = await backend.workers.waiting(unchanged=timedelta(0), limit=500)
        assert [job.run_id for job in page.jobs] == ["head"] and page.after is not None
        assert await blocks(connection, ROTATION) < 3000
    finally:
        await connection.close()
        await backend.close()


async def test_pages_of_waiting_runs_that_changed_at_one_moment_have_each_run_once(postgres_url: str) -> None:
    """W2: a host's transaction may accept many runs at one time. The number of the accept orders them."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        for n in range(7):
            await backend.runs.accept(AcceptRequest(thread_id=f"t{n}", run_id=f"r{n}", input=Message.user("hi")))
        await connection.execute("UPDATE runyard.runs SET changed_at = now() - interval '1 minute'")
        pages, after = list[list[str]](), None
        while not pages or after is not None:
            page = await backend.workers.waiting(unchanged=timedelta(0), after=after, limit=3)
            pages.append([job.run_id for job in page.jobs])
            after = page.after
        assert pages == [["r0", "r1", "r2"], ["r3", "r4", "r5"], ["r6"]]
    finally:
        await connection.close()
        await backend.close()


async def test_a_pass_reads_no_ended_runs_of_a_long_lane(postgres_url: str) -> None:
    """W2, Q3: a transaction that stays open keeps the index entries of all runs of the lane that ended since its begin."""
    backend = await connect(postgres_url)
    connection, reader = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept(AcceptRequest(thread_id="t", run_id="head", input=Message.user("hi")))
        await connection.execute(QUEUED)
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetchval("SELECT count(*) FROM runyard.runs")
            await connection.execute(
                "DELETE FROM runyard.runs WHERE accept_no IN (SELECT accept_no FROM runyard.runs ORDER BY lane_seq LIMIT 2000)"
            )
            assert await blocks(connection, ROTATION) < 5000
    finally:
        for one in (connection, reader):
            await one.close()
        await backend.close()


async def test_what_a_pass_reads_does_not_depend_on_what_is_parked_or_runs(postgres_url: str) -> None:
    """W1, W2, Q3: death and rescue do not wait for a walk over suspended runs and the runs of live workers."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        for worker_id in ("live", "dead"):
            await backend.workers.register(WorkerInfo(worker_id=worker_id, queues=["default"]))
        await connection.execute(LANES, "queued", 5_000, None)
        await connection.execute(LANES, "running", 10, "dead")
        alone = await pass_blocks(connection)
        await connection.execute(LANES, "suspended", 20_000, None)
        await connection.execute(LANES, "running", 5_000, "live")
        beside = await pass_blocks(connection)
        print(f"blocks per pass: {alone}, and beside 20,000 parked and 5,000 running runs: {beside}")
        assert beside < 5000
        assert beside < alone * 1.3 + 100
        await connection.execute("UPDATE runyard.workers SET dead_at = now() WHERE worker_id = 'dead'")
        assert len((await backend.workers.orphans()).orphans) == 10
        assert await blocks(connection, ORPHANS) < 200
    finally:
        await connection.close()
        await backend.close()


async def test_a_page_of_queues_counts_the_parked_runs_of_its_queues(postgres_url: str) -> None:
    """A2: What the parked runs wait for is not counted for the queues of other pages."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(LANES, "suspended", 20_000, None)
        await connection.execute(
            "UPDATE runyard.live_runs SET queue = 'other' WHERE accept_no = (SELECT min(accept_no) FROM runyard.live_runs)"
        )
        page = await backend.queues.queues(PageRequest(limit=1, cursor=encode("default")))
        assert [(info.queue, info.waits_for) for info in page.items] == [("other", {"human": 1})]
        assert await blocks(connection, "SELECT * FROM runyard.suspended_runs_v2('{other}')") < 20
    finally:
        await connection.close()
        await backend.close()


async def test_delayed_runs_are_found_by_an_index(postgres_url: str) -> None:
    """Q3, R11: delayed runs and those that may expire are found by an index, also on tables without statistics."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept(AcceptRequest(thread_id="t", run_id="head", input=Message.user("hi")))
        await connection.execute(WAITING)
        assert 3000 < ((await backend.runs.admit()).next_due or 0) <= 3600
        assert await blocks(connection, ADMIT) < 100
    finally:
        await connection.close()
        await backend.close()


async def test_counting_what_waits_reads_nothing_that_has_ended(postgres_url: str) -> None:
    """Q3: the gauges of queues cost what is unfinished, however long the history is."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept(AcceptRequest(thread_id="t", run_id="head", input=Message.user("hi")))
        await connection.execute(ENDED)
        assert [(info.queue, info.queued) for info in (await backend.queues.queues()).items] == [("default", 1)]
        assert await blocks(connection, QUEUES) < 100
    finally:
        await connection.close()
        await backend.close()
