"""The cost of a run in the store, without a queue: claim, load, two appends, complete.

Measured: runs per second over 200 threads, with one caller and then with ten. Every message is durable. Each run adds two
messages to its thread.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

from benchmarks.harness import Measure, Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import Store
from benchmarks.scenarios._stores import contestants

CASES = {"1 caller": 1, "10 callers": 10}
THREADS = 200
RUNS = 1_000
"""Runs per turn."""


def measured(lab: Lab, store: Store) -> Measure:
    numbers = itertools.count()

    async def work(run_numbers: Iterator[int]) -> None:
        for number in run_numbers:
            await store.run(f"cost-{lab.token}-{number % THREADS}", f"run-{number}")

    async def measure(case: str) -> Sample:
        runs = lab.scaled(RUNS, RUNS // 5) if CASES[case] > 1 else RUNS // 5
        batch = itertools.islice(numbers, runs)
        begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(CASES[case]):
                group.create_task(work(batch))
        return Sample([runs / (time.monotonic() - begin)])

    return measure


SCENARIO = Scenario(
    name="run_cost",
    title="Runs through the store alone",
    unit="runs/s",
    better="higher",
    cases=tuple(CASES),
    contestants=contestants(measured),
    rounds=3,
    seconds=30,
)
