"""The common part of the queue scenarios: the contestants, and the start and warm-up of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

from benchmarks import peers, runyard
from benchmarks.board import Board
from benchmarks.harness import Contestant, Measure, Sample
from benchmarks.lab import Lab
from benchmarks.ports import Queue, RunyardQueue

WARM_UP = range(1, 4)
"""The slots of the jobs that run before a turn, to warm up connections, prepared statements and caches. They are not timed."""
FIRST = WARM_UP.stop
"""The first slot of a turn's own jobs."""
IN_FLIGHT = 64
"""Calls of a producer at once."""
START_LIMIT = 40.0
"""Seconds within which a worker must have executed its first jobs."""


class Started(NamedTuple):
    """A queue that has executed the jobs of the warm-up, and its board."""

    queue: Queue
    board: Board


Turn = Callable[[Lab, peers.QueueContestant, str], Awaitable[Sample | None]]
"""One turn of a queue contestant in a case."""
RunyardTurn = Callable[[Lab, RunyardQueue, Board], Awaitable[Sample]]
"""One turn of an operation that only runyard has, on a warm queue."""


@asynccontextmanager
async def started(lab: Lab, contestant: peers.QueueContestant, slots: int) -> AsyncIterator[Started]:
    """Start the contestant's worker with a board for ``slots`` jobs and warm it up."""
    board = lab.board(FIRST + slots)
    async with contestant.open(lab, board) as queue:
        await warm_up(queue, board)
        yield Started(queue, board)


async def enqueue_all(queue: Queue, keys: Mapping[int, str]) -> None:
    """Enqueue a job for each slot of ``keys`` (slot → key), in order, with IN_FLIGHT calls at a time."""
    remaining = iter(keys.items())

    async def produce(items: Iterator[tuple[int, str]]) -> None:
        for slot, key in items:
            await queue.enqueue(slot, key)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(produce(remaining))


def contestants(turn: Turn, queues: Sequence[peers.QueueContestant], *, agent: str = "noop") -> list[Contestant]:
    """Return the contestants for ``queues``, and runyard with this agent if it is available, with ``turn`` as their measure.

    A worker runs for one turn, so no contestant is measured beside the idle worker of another.
    """

    def contestant(queue: peers.QueueContestant) -> Contestant:
        async def measure(lab: Lab, case: str) -> Sample | None:
            return await turn(lab, queue, case)

        return Contestant(queue.name, _open(measure))

    return [contestant(queue) for queue in [*runyard.queues(agent), *queues]]


def runyard_alone(turn: RunyardTurn, slots: int) -> list[Contestant]:
    """Return runyard with ``turn`` as its measure and a board for ``slots`` jobs, or an empty list if it is not available."""
    side = runyard.side()
    if side is None:
        return []

    async def measure(lab: Lab, _case: str) -> Sample:
        board = lab.board(FIRST + slots)
        async with side.queue(lab, board, slots=peers.SLOTS) as queue:
            await warm_up(queue, board)
            return await turn(lab, queue, board)

    return [Contestant(runyard.NAME, _open(measure))]


async def warm_up(queue: Queue, board: Board) -> None:
    """Execute the jobs of the warm-up."""
    async with asyncio.timeout(START_LIMIT):
        for slot in WARM_UP:
            await queue.enqueue(slot, f"warm-up-{board.path.stem}")
        await board.wait(WARM_UP)


def _open(
    measure: Callable[[Lab, str], Awaitable[Sample | None]],
) -> Callable[[Lab], AbstractAsyncContextManager[Measure]]:
    @asynccontextmanager
    async def open_turns(lab: Lab) -> AsyncIterator[Measure]:
        yield lambda case: measure(lab, case)

    return open_turns
