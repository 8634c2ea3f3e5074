"""Runs with two tool calls, a hundred at once, through one worker process.

Measured: runs per second of a batch that one producer enqueues over 100 threads (64 calls in flight). The worker may execute
100 runs at once. The time is from the first call to the end of the last run.

A run of runyard stores six messages: the prompt, a call, its result, a second call, its result, and the answer. The ledger
records the start and the end of each tool. DBOS executes a workflow of six steps and records the result of each: the prompt, a
call, a tool, a second call, a second tool, and the answer. It records no start of a step.
"""

from __future__ import annotations

import time
from collections import Counter

from benchmarks import peers
from benchmarks.harness import Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.scenarios._queues import FIRST, contestants, enqueue_all, started

THREADS = 100


async def turn(lab: Lab, contestant: peers.QueueContestant, _case: str) -> Sample:
    jobs = lab.scaled(contestant.jobs, contestant.jobs // 4)
    slots = range(FIRST, FIRST + jobs)
    keys = {slot: f"tools-{slot % THREADS}" for slot in slots}
    async with started(lab, contestant, jobs) as (queue, board):
        begin = time.monotonic()
        await enqueue_all(queue, keys)
        await board.wait(slots)
        facts = await queue.settle(Counter(keys.values()))
        seconds = time.monotonic() - begin
    return Sample([jobs / seconds], facts)


SCENARIO = Scenario(
    name="tools",
    title="Runs with two tool calls, 100 at once",
    unit="runs/s",
    better="higher",
    cases=("two tools",),
    contestants=contestants(turn, (peers.DBOS_TOOLS, peers.DBOS_TOOLS_ORDERED), agent="tools"),
    rounds=3,
    seconds=60,
)
