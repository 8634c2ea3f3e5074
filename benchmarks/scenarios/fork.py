"""Forks of a thread after its last run, at four lengths.

Measured: the time of the store's fork call. Each call makes a new thread, and calls do not overlap. All runs of the source are
completed, and each has two messages. The first fork of a source is not counted. Also reported: the bytes of the rows of the new
thread.
"""

from __future__ import annotations

import itertools
import time

from benchmarks.harness import Measure, Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import Store
from benchmarks.scenarios._stores import contestants, milliseconds

CASES = {"100 messages": 100, "1,000 messages": 1_000, "10,000 messages": 10_000, "100,000 messages": 100_000}
SAMPLES = 60
"""Maximum number of forks per turn."""
SECONDS = 2.0
"""Seconds after which a turn ends. A turn has at least one sample."""


def measured(lab: Lab, store: Store) -> Measure:
    last_runs: dict[str, str] = {}
    numbers = itertools.count()

    async def measure(case: str) -> Sample:
        source = f"fork-source-{lab.token}-{CASES[case]}"

        def copy() -> str:
            return f"{source}-copy-{next(numbers)}"

        if source not in last_runs:
            last_runs[source] = await store.build(source, CASES[case])
            await store.fork(source, copy(), after_run_id=last_runs[source])
        values: list[float] = []
        end = time.monotonic() + SECONDS
        while not values or (len(values) < SAMPLES and time.monotonic() < end):
            new = copy()
            values.append(await milliseconds(store.fork(source, new, after_run_id=last_runs[source])))
        return Sample(values, {"row bytes": float(await store.row_bytes(new))})

    return measure


SCENARIO = Scenario(
    name="fork",
    title="Fork of a thread",
    unit="ms",
    better="lower",
    cases=tuple(CASES),
    quick_cases=tuple(CASES)[:3],
    contestants=contestants(measured),
    rounds=3,
    seconds=60,
)
