"""The time from the commit of a host's transaction to the start of the run. Only runyard has this operation.

Measured: the time from just before COMMIT is sent to the first statement of the run in the worker process. The enqueue itself
happens earlier in the transaction and is not counted.
"""

from __future__ import annotations

import asyncio
import random
import time

from benchmarks.board import Board
from benchmarks.harness import Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import RunyardQueue
from benchmarks.scenarios._queues import FIRST, runyard_alone

SAMPLES = 300
SECONDS = 8.0


async def turn(lab: Lab, queue: RunyardQueue, board: Board) -> Sample:
    values: list[float] = []
    runs: dict[str, int] = {}
    end = time.monotonic() + lab.scaled(SECONDS, SECONDS / 4)
    for slot in range(FIRST, FIRST + SAMPLES):
        await asyncio.sleep(random.uniform(0.005, 0.025))
        key = f"{board.path.stem}-{slot}"
        begin = await queue.enqueue_in_transaction(slot, key)
        await board.wait(range(slot, slot + 1))
        values.append((board[slot] - begin) / 1e6)
        runs[key] = 1
        if time.monotonic() > end:
            break
    return Sample(values, await queue.settle(runs))


SCENARIO = Scenario(
    name="transactional_enqueue",
    title="From the host's commit to the run executing",
    unit="ms",
    better="lower",
    cases=("idle queue",),
    contestants=runyard_alone(turn, SAMPLES),
    rounds=1,
    seconds=15,
)
