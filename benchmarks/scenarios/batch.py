"""The accept of 10,000 prompts while no worker runs.

Measured: prompts per second of one client process, from the first call to the last reply. ``runyard`` calls ``enqueue_many``
once. ``one by one`` calls ``enqueue`` for each prompt, with 64 calls in flight. The jobs are in Redis when the calls return. In
the first case the prompts belong to 200 threads that have runs already. In the second case each prompt creates its thread.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

from benchmarks import runyard
from benchmarks.harness import Contestant, Measure, Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import Intake
from benchmarks.scenarios._queues import IN_FLIGHT

PROMPTS = 10_000
CASES = {"200 threads": 200, "10,000 new threads": 10**9}
"""Case → number of threads. Each slot of the second case has a thread of its own."""

Enqueue = Callable[[Intake, range, int], Awaitable[None]]


async def together(intake: Intake, slots: range, threads: int) -> None:
    await intake.enqueue_many(slots, threads)


async def one_by_one(intake: Intake, slots: range, threads: int) -> None:
    async def produce(remaining: Iterator[int]) -> None:
        for slot in remaining:
            await intake.enqueue(slot, threads)

    remaining = iter(slots)
    await asyncio.gather(*(produce(remaining) for _ in range(IN_FLIGHT)))


def contestant(name: str, enqueue: Enqueue) -> Contestant:
    @asynccontextmanager
    async def opened(lab: Lab) -> AsyncIterator[Measure]:
        side = runyard.side()
        assert side is not None
        number = lab.scaled(PROMPTS, PROMPTS // 10)
        firsts = itertools.count(0, number)
        async with side.intake(lab) as intake:
            await intake.enqueue_many(range(-200, 0), 200)  # the threads of the first case

            async def measure(case: str) -> Sample:
                first = next(firsts)
                begin = time.monotonic()
                await enqueue(intake, range(first, first + number), CASES[case])
                return Sample([number / (time.monotonic() - begin)])

            yield measure

    return Contestant(name, opened)


SCENARIO = Scenario(
    name="batch",
    title="Accept of 10,000 prompts",
    unit="prompts/s",
    better="higher",
    cases=tuple(CASES),
    contestants=[contestant(runyard.NAME, together), contestant("runyard, one by one", one_by_one)]
    if runyard.side() is not None
    else [],
    rounds=3,
    seconds=60,
)
