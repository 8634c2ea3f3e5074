"""The time from the human's answer to the resumed run. Only runyard has this operation.

Measured: the time from the call that responds to the first statement after the answered question, in the worker process. The
run is suspended and holds no worker when the answer is given.
"""

from __future__ import annotations

import time

from benchmarks.board import Board
from benchmarks.harness import Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import RunyardQueue
from benchmarks.scenarios._queues import FIRST, runyard_alone

SAMPLES = 200
SECONDS = 8.0


async def turn(lab: Lab, queue: RunyardQueue, board: Board) -> Sample:
    values: list[float] = []
    runs: dict[str, int] = {}
    end = time.monotonic() + lab.scaled(SECONDS, SECONDS / 4)
    for asked in range(FIRST, FIRST + 2 * SAMPLES, 2):
        answered, key = asked + 1, f"{board.path.stem}-{asked}"
        await queue.ask(asked, key)
        begin = time.monotonic_ns()
        await queue.answer(asked, key)
        await board.wait(range(answered, answered + 1))
        values.append((board[answered] - begin) / 1e6)
        runs[key] = 1
        if time.monotonic() > end:
            break
    return Sample(values, await queue.settle(runs))


SCENARIO = Scenario(
    name="respond_resume",
    title="From respond to the run executing again",
    unit="ms",
    better="lower",
    cases=("suspended run",),
    contestants=runyard_alone(turn, 2 * SAMPLES),
    rounds=1,
    seconds=15,
)
