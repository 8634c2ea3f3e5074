"""One turn on a thread of 10,000 messages.

Measured: the time of a turn that loads the whole thread, adds a user message and an assistant message, and stores both. runyard
claims a run, loads, appends twice and completes the run. LangGraph invokes a graph with one node, which returns the assistant
message, on its own Postgres saver. ``LangGraph on RunyardSaver`` invokes the same graph on runyard's saver. The messages are
those of ``load``. A store builds its thread before the first turn, and one turn is not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from benchmarks import peers, runyard
from benchmarks.harness import Contestant, Measure, Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.ports import Conversation
from benchmarks.scenarios._stores import milliseconds

MESSAGES = 10_000
TURNS = 5
"""Turns of a contestant in each round."""


def contestant(name: str, open_conversation: Callable[[Lab], AbstractAsyncContextManager[Conversation]]) -> Contestant:
    @asynccontextmanager
    async def opened(lab: Lab) -> AsyncIterator[Measure]:
        thread, messages = f"turn-{lab.token}", lab.scaled(MESSAGES, MESSAGES // 10)
        numbers = itertools.count()
        async with open_conversation(lab) as conversation:
            await conversation.build(thread, messages)
            await conversation.run(thread, f"turn-{next(numbers)}")

            async def measure(_case: str) -> Sample:
                runs = [f"turn-{next(numbers)}" for _ in range(lab.scaled(TURNS, 2))]
                return Sample([await milliseconds(conversation.run(thread, run)) for run in runs])

            yield measure

    return Contestant(name, opened)


def _ours() -> list[Contestant]:
    side = runyard.side()
    return (
        [contestant(runyard.NAME, side.store), contestant("LangGraph on RunyardSaver", peers.graph_on_runyard)] if side else []
    )


SCENARIO = Scenario(
    name="turn_10k",
    title="One turn on a thread of 10,000 messages",
    unit="ms",
    better="lower",
    cases=("10,000 messages",),
    contestants=[*_ours(), contestant("LangGraph", peers.graph), contestant("cubeloop", peers.cubeloop_store)],
    rounds=3,
    seconds=60,
)
