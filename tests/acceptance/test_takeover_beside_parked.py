"""A takeover takes no longer beside runs that wait for humans (O4, W1)."""

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from tests.support.fleet import SLACK, Fleet

PARKED = 50_000
TAKEOVER_SECONDS = 6.0
FILL = """
WITH made AS (
    INSERT INTO runyard.threads (tenant, thread_id, head_branch)
    SELECT '', 'parked-' || n, nextval('runyard.branch_numbers') FROM generate_series(1, $1::int) n
    RETURNING thread_key, thread_id, head_branch
), branches AS (
    INSERT INTO runyard.branches (branch_id, thread_key, lane) SELECT head_branch, thread_key, '' FROM made
), asked AS (
    INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, run_id, kind, body)
    SELECT '', 'request-' || thread_key, thread_key, 'r', 'question', decode('81a77061796c6f616480', 'hex') FROM made
)
INSERT INTO runyard.runs
    (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, agent, queue, priority, request_hash, branch_id,
     fence, attempt, admitted_at, started_at, suspended_at, changed_at)
SELECT '', thread_id, 'r', thread_key, 'prompt', 'suspended', '', nextval('runyard.lane_numbers'), 'scripted', 'default',
    'normal', '{}', head_branch, nextval('runyard.fences'), 1, now(), now(), now(), now()
FROM made
"""


@pytest.mark.slow
async def test_another_worker_takes_over_within_six_seconds_beside_parked_runs(fleet: Fleet, postgres_url: str) -> None:
    """O4, W1: neither the watch over heartbeats nor the rescue walks over the suspended runs."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("SET synchronous_commit = off")
        await connection.execute(FILL, PARKED, timeout=60)
        await connection.execute("ANALYZE runyard.runs, runyard.threads")
    finally:
        await connection.close()
    assert (await fleet.client.run("parked-1", "r")).status is RunStatus.SUSPENDED
    victim = await fleet.start(slots=3)
    handles = [await fleet.client.enqueue(f"t{n}", "say one | tool add 1 2 | hang | say two") for n in range(3)]
    assert {await fleet.holder(handle.thread_id, handle.id, 3) for handle in handles} == {victim}
    await fleet.start(slots=3)
    killed_at = datetime.now(UTC)
    fleet.processes[victim].kill()
    results = await asyncio.gather(*(handle.result(20) for handle in handles))
    waits = []
    for result in results:
        assert result.ok and (result.run.attempt, result.run.crash_count) == (2, 1)
        times = [message.created_at for message in result.messages if message.created_at and message.created_at > killed_at]
        waits.append((min(times) - killed_at).total_seconds())
    print(f"takeover after {max(waits):.2f} s")
    assert max(waits) <= TAKEOVER_SECONDS + SLACK
