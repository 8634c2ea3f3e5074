"""The load of a thread of 10,000 messages as typed objects.

Measured: the time of the store's load call, from the query to the last message object. runyard takes part twice: with a flat
thread, and with a thread at the end of 50 forks. In the second case the messages are spread over the thread and its ancestors.
"""

from __future__ import annotations

from functools import partial

from benchmarks import runyard
from benchmarks.harness import Contestant, Measure, Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import Store
from benchmarks.scenarios._stores import contestant, contestants, milliseconds

MESSAGES = 10_000
DEPTH = 50
LOADS = 8
"""Loads per turn. One more load before the first turn is not counted."""


def measured(lab: Lab, store: Store, *, depth: int = 0) -> Measure:
    built: set[str] = set()

    async def measure(_case: str) -> Sample:
        thread = f"load-{lab.token}-{depth}"
        if thread not in built:
            await store.build(thread, MESSAGES, depth=depth)
            built.add(thread)
            if (loaded := await store.load(thread)) != MESSAGES:
                raise AssertionError(f"loaded {loaded} of {MESSAGES} messages")
        return Sample([await milliseconds(store.load(thread)) for _ in range(lab.scaled(LOADS, 2))])

    return measure


def _at_depth() -> list[Contestant]:
    side = runyard.side()
    return [contestant(f"runyard, {DEPTH} forks deep", side.store, partial(measured, depth=DEPTH))] if side else []


SCENARIO = Scenario(
    name="load",
    title="Load of a thread, typed",
    unit="ms",
    better="lower",
    cases=("10,000 messages",),
    contestants=[*contestants(measured), *_at_depth()],
    rounds=3,
    seconds=25,
)
