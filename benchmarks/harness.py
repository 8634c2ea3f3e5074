"""Run a scenario: in each round every contestant takes a turn. The rounds have a time limit."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.lab import Lab
from benchmarks.ports import Facts

TURN_LIMIT = 60.0
"""Seconds after which one turn of one contestant is aborted."""


@dataclass(frozen=True)
class Sample:
    """The result of one turn. ``values``: the measured values in the scenario's unit. ``facts``: further figures."""

    values: Sequence[float]
    facts: Facts = field(default_factory=dict)


Measure = Callable[[str], Awaitable[Sample | None]]
"""A function that takes one turn in the case of this name. It returns None if the case does not apply to the contestant."""


@dataclass(frozen=True)
class Contestant:
    """A contestant of a scenario. ``open`` prepares the resources of all its turns, and yields the measure. The preparation is
    not timed."""

    name: str
    open: Callable[[Lab], AbstractAsyncContextManager[Measure]]


@dataclass(frozen=True)
class Scenario:
    """A quantity that is measured for every contestant.

    ``unit``: the unit of the values. ``rounds``: the maximum number of rounds. ``seconds``: seconds from the start for which
    new rounds may begin. The first round is always executed. ``quick_cases``: the cases of a quick run. If the list is empty, a
    quick run has all cases.
    """

    name: str
    title: str
    unit: str
    better: Literal["lower", "higher"]
    cases: Sequence[str]
    contestants: Sequence[Contestant]
    rounds: int
    seconds: float
    quick_cases: Sequence[str] = ()


@dataclass
class Record:
    """All turns of one contestant in one case. ``rounds``: the values of each turn. ``error``: the failure that ended them."""

    rounds: list[list[float]] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def values(self) -> list[float]:
        return [value for turn in self.rounds for value in turn]

    def add(self, sample: Sample) -> None:
        self.rounds.append(list(sample.values))
        for name, value in sample.facts.items():
            before = self.facts.get(name, 0.0)
            self.facts[name] = before + value if name.endswith("_total") else max(before, value)

    def fail(self, error: BaseException) -> None:
        """Store and print the failure, so that the other contestants continue."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.error = f"{type(error).__name__}: {error}"
        traceback.print_exception(error, file=sys.stderr)


Outcome = Mapping[str, Mapping[str, Record]]
"""Case → contestant → record. A contestant to which a case does not apply is absent."""


async def run(scenario: Scenario, lab: Lab) -> Outcome:
    """Open every contestant, then let them take turns: A B C, A B C, …

    The turns of a round are close together in time, so a change of the machine's speed affects all contestants equally. After
    ``scenario.seconds`` no further round begins.
    """
    cases = scenario.quick_cases or scenario.cases if lab.quick else scenario.cases
    records = {case: {one.name: Record() for one in scenario.contestants} for case in cases}
    deadline = time.monotonic() + scenario.seconds
    async with AsyncExitStack() as stack:
        measures: dict[str, Measure] = {}
        for contestant in scenario.contestants:
            try:
                measures[contestant.name] = await stack.enter_async_context(contestant.open(lab))
            except Exception as error:
                for case in cases:
                    records[case][contestant.name].fail(error)
        for turn in range(1 if lab.quick else scenario.rounds):
            if turn and time.monotonic() > deadline:
                break
            for case in cases:
                for name, measure in measures.items():
                    await _take_turn(measure, case, records[case][name])
    return {
        case: {name: record for name, record in of_case.items() if record.rounds or record.error}
        for case, of_case in records.items()
    }


async def _take_turn(measure: Measure, case: str, record: Record) -> None:
    if record.error:
        return
    try:
        async with asyncio.timeout(TURN_LIMIT):
            sample = await measure(case)
    except Exception as error:
        record.fail(error)
    else:
        if sample is not None:
            record.add(sample)
