"""Pick-up latency on an idle queue.

Measured: the time from the call that enqueues to the first statement of the job's body in the worker process. The next job is
enqueued after the body of the last one has begun and a random pause has passed. The pause spreads the samples evenly over the
phases of a poller.
"""

from __future__ import annotations

import asyncio
import random
import time

from benchmarks import peers
from benchmarks.harness import Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.scenarios._queues import FIRST, contestants, started

SAMPLES = 300
"""Maximum number of samples per turn."""
SECONDS = 8.0
"""Seconds after which a turn ends."""


async def turn(lab: Lab, contestant: peers.QueueContestant, _case: str) -> Sample:
    values: list[float] = []
    async with started(lab, contestant, SAMPLES) as (queue, board):
        end = time.monotonic() + lab.scaled(SECONDS, SECONDS / 4)
        for slot in range(FIRST, FIRST + SAMPLES):
            await asyncio.sleep(0.005 + random.uniform(0, contestant.poll))
            begin = time.monotonic_ns()
            await queue.enqueue(slot, f"pickup-{slot}")
            await board.wait(range(slot, slot + 1))
            values.append((board[slot] - begin) / 1e6)
            if time.monotonic() > end:
                break
        facts = await queue.settle({f"pickup-{FIRST + n}": 1 for n in range(len(values))})
    return Sample(values, facts)


SCENARIO = Scenario(
    name="pickup",
    title="Pick-up latency on an idle queue",
    unit="ms",
    better="lower",
    cases=("idle queue",),
    contestants=contestants(turn, (peers.ARQ, peers.ARQ_DEFAULT, peers.SAQ, peers.GLUED, peers.DBOS, peers.DBOS_DEFAULT)),
    rounds=2,
    seconds=120,
)
