"""Jobs per second through one worker process.

Measured: jobs per second of a batch that one producer process enqueues as fast as possible (64 calls in flight). The time is
from the first call to the end of the last job, and includes the work of the producer and of the worker. Also reported: the rate
of the producer.

runyard accepts, claims, stores a user and an assistant message, and completes. DBOS executes a durable workflow without steps,
and another workflow that stores the two messages as steps. arq and SAQ execute a no-op that stores nothing durable. SAQ glued
to Postgres stores both messages and the run's states by hand.

The keys are threads in runyard and partitions in DBOS. The first case has 200 keys. The second case has 5 keys, so nearly all
runs wait for an earlier run of their key. Queues without an order per key take part in the first case only.
"""

from __future__ import annotations

import time
from collections import Counter

from benchmarks import peers
from benchmarks.harness import Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.scenarios._queues import FIRST, contestants, enqueue_all, started

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
        await enqueue_all(queue, keys)
        accepted = time.monotonic() - begin
        await board.wait(slots)
        facts = await queue.settle(Counter(keys.values()))
        seconds = time.monotonic() - begin
    return Sample([jobs / seconds], {"accepted/s": jobs / accepted, **facts})


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
