"""Jobs per second through one worker process.

Measured: jobs per second of a batch that one producer process enqueues as fast as possible (16 calls in flight). The time is
from the first call to the end of the last job, and includes the work of the producer and of the worker. Also reported: the rate
of the producer.

runyard accepts, claims, stores a user and an assistant message, and completes. DBOS executes a durable workflow without steps,
and another workflow that stores the two messages as steps. arq and SAQ execute a no-op that stores nothing durable. SAQ glued
to Postgres stores both messages and the run's states by hand.

The keys are threads in runyard and partitions in DBOS. The first case has 200 keys. The second case has 5 keys, so nearly all
runs wait for an earlier run of their key. Queues without an order per key take part in the first case only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

from benchmarks import peers
from benchmarks.harness import Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import Queue
from benchmarks.scenarios._queues import FIRST, contestants, started

IN_FLIGHT = 16
CASES = {"200 threads": 200, "5 threads": 5}


async def turn(lab: Lab, contestant: peers.QueueContestant, case: str) -> Sample | None:
    threads = CASES[case]
    if threads != 200 and not contestant.ordered:
        return None
    jobs = lab.scaled(contestant.jobs, contestant.jobs // 4)
    slots = range(FIRST, FIRST + jobs)
    keys = {slot: f"{threads}-{slot % threads}" for slot in slots}
    async with started(lab, contestant, jobs) as (queue, board):
        begin = time.monotonic()
        await _enqueue_all(queue, keys)
        accepted = time.monotonic() - begin
        await board.wait(slots)
        facts = await queue.settle(Counter(keys.values()))
        seconds = time.monotonic() - begin
    return Sample([jobs / seconds], {"accepted/s": jobs / accepted, **facts})


async def _enqueue_all(queue: Queue, keys: dict[int, str]) -> None:
    """Enqueue a job for each slot of ``keys`` (slot → key), in order, with IN_FLIGHT calls at a time."""
    remaining = iter(keys.items())

    async def produce(items: Iterator[tuple[int, str]]) -> None:
        for slot, key in items:
            await queue.enqueue(slot, key)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(produce(remaining))


SCENARIO = Scenario(
    name="throughput",
    title="Throughput of one worker process",
    unit="jobs/s",
    better="higher",
    cases=tuple(CASES),
    contestants=contestants(
        turn,
        (
            *(peers.ARQ, peers.ARQ_DEFAULT, peers.SAQ, peers.GLUED),
            *(peers.DBOS, peers.DBOS_DEFAULT, peers.DBOS_ORDERED, peers.DBOS_STEPS),
        ),
    ),
    rounds=3,
    seconds=110,
)
