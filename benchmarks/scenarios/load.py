"""The load of a thread of 10,000 messages as typed objects.

Measured: the time of the store's load call, from the query to the last message object. runyard takes part with a flat thread,
and with a thread at the end of 50 forks. In the second case the messages are spread over the thread and its ancestors.

runyard also takes part with a second measurement: the time in which an attempt gets its context on a worker that has read the
thread before. Two messages were added since the worker read the thread. The last contestant reads the text of each of these
messages, too.
"""

from __future__ import annotations

from functools import partial

from benchmarks import runyard
from benchmarks.harness import Contestant, Measure, Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import Store, WorkerStore
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


def next_turn(lab: Lab, store: Store, *, depth: int = 0, used: bool = False) -> Measure:
    built: set[str] = set()

    async def measure(_case: str) -> Sample:
        thread = f"turns-{lab.token}-{depth}-{used}"
        assert isinstance(store, WorkerStore)
        if thread not in built:
            await store.build(thread, MESSAGES, depth=depth)
            built.add(thread)
            await store.turn(thread)
        return Sample([await store.turn(thread, used=used) for _ in range(lab.scaled(LOADS, 2))])

    return measure


def _more() -> list[Contestant]:
    if not (side := runyard.side()):
        return []
    return [
        contestant(f"runyard, {DEPTH} forks deep", side.store, partial(measured, depth=DEPTH)),
        contestant("runyard, next turn", side.store, next_turn),
        contestant(f"runyard, next turn, {DEPTH} forks deep", side.store, partial(next_turn, depth=DEPTH)),
        contestant("runyard, next turn, all messages used", side.store, partial(next_turn, used=True)),
    ]


SCENARIO = Scenario(
    name="load",
    title="Load of a thread, typed",
    unit="ms",
    better="lower",
    cases=("10,000 messages",),
    contestants=[*contestants(measured), *_more()],
    rounds=3,
    seconds=45,
)
