"""The verbs of a run read a bounded part of its lane (Q3).

A transaction that stays open keeps the index entries of all runs of the lane that ended since its begin.
"""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from runyard.models import Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.workers import WorkerInfo
from runyard_backends.postgres import codec
from runyard_backends.postgres.backend import connect

ENDED = 1500
END_ALL = """
SELECT count(runyard.cancel('', 't', r.run_id, false))
FROM (SELECT run_id FROM runyard.runs WHERE finished_at IS NULL ORDER BY lane_seq OFFSET 0) r
"""
ACCEPT = "SELECT * FROM runyard.accept_many('', $1::runyard.request[], 0)"
CLAIM = "SELECT * FROM runyard.claim('w', ARRAY[$1::bigint], ARRAY[$2])"
COMPLETE = """
SELECT * FROM runyard.complete(ARRAY(
    SELECT (r.thread_key, r.run_id, r.fence, NULL, NULL, NULL, NULL, 1)::runyard.attempt_write
    FROM runyard.runs r WHERE r.run_id = $1))
"""
HOST_ACCEPT = "SELECT runyard.accept('t', 'hello', run_id => $1)"
ADMIT = "SELECT * FROM runyard.admit(100)"
LIMIT = "INSERT INTO runyard.limits (limit_name, most) VALUES ('queued_per_lane', 100000)"
CANCEL = "SELECT count(runyard.cancel('', 't', $1, false))"


def prompt(run_id: str) -> AcceptRequest:
    return AcceptRequest(thread_id="t", run_id=run_id, input=Message.user("hello"))


async def blocks(connection: asyncpg.Connection, statement: str, *args: Any) -> int:
    (plan,) = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *args))
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


async def verbs(connection: asyncpg.Connection, key: int, name: str) -> list[int]:
    """The blocks that an accept, a claim and the end of two runs read, and the admission of a third one. The second run waits
    behind the first."""
    read = [await blocks(connection, ACCEPT, [codec.run_request(prompt(f"{name}-{n}"))]) for n in range(2)]
    read.append(await blocks(connection, CLAIM, key, f"{name}-0"))
    read += [await blocks(connection, COMPLETE, f"{name}-0"), await blocks(connection, CANCEL, f"{name}-1")]
    await connection.execute(HOST_ACCEPT, f"{name}-2")
    read.append(await blocks(connection, ADMIT))
    await connection.execute(CANCEL, f"{name}-2")
    return read


@pytest.mark.parametrize("limited", [False, True], ids=["", "with a limit"])
async def test_a_verb_reads_no_runs_of_its_lane_that_ended(postgres_url: str, limited: bool) -> None:
    backend = await connect(postgres_url)
    connection, reader = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    try:
        await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
        await backend.threads.store_message("t", Message.user("hello"))
        if limited:
            await connection.execute(LIMIT)
        key = await backend.threads.thread_key("t")
        assert key is not None
        await verbs(connection, key, "first")  # makes the plans
        short = await verbs(connection, key, "short")
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetchval("SELECT count(*) FROM runyard.runs")
            requests = [codec.run_request(prompt(f"r{n}")) for n in range(ENDED)]
            await connection.fetch(ACCEPT, requests)
            await connection.execute(END_ALL)
            long = await verbs(connection, key, "long")
        print(f"blocks read: {short} in a short lane, {long} in a long one")
        assert max(long) < max(short) + ENDED / 10
    finally:
        for one in (connection, reader):
            await one.close()
        await backend.close()
