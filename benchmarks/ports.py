"""The interface between contestants and scenarios.

A scenario uses only these protocols, so it measures the same calls of every contestant.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from benchmarks.board import Board
from benchmarks.lab import Lab

Facts = Mapping[str, float]
"""Figures that are reported with the samples, by name. Over the rounds, figures whose name ends in ``_total`` are added up; of
every other figure the largest is kept."""


class Queue(Protocol):
    """A queue served by one worker process, whose job bodies stamp the board."""

    async def enqueue(self, slot: int, key: str) -> None:
        """Enqueue a job whose body calls ``board.stamp(slot)``. Return when the job is accepted.

        Jobs of one ``key`` run one after another if the contestant supports an order per key.
        """
        ...

    async def settle(self, keys: Mapping[str, int]) -> Facts:
        """Return when the jobs of all ``keys`` (key → number of jobs) are finished.

        The scenario calls it once all bodies have begun. A durable contestant waits until its store confirms the end.
        """
        ...


class Store(Protocol):
    """A store of threads, messages and runs, without a queue."""

    async def build(self, thread_id: str, messages: int, *, depth: int = 0) -> str:
        """Make a thread with ``messages`` messages in completed runs of two messages. Return the id of the last run.

        The content comes from ``benchmarks.fixtures``. ``depth``: the number of ancestor threads. The messages are spread over
        the thread and its ancestors. The call is not timed.
        """
        ...

    async def fork(self, source: str, new: str, *, after_run_id: str) -> None:
        """Make thread ``new`` from the snapshot of ``source`` after the run."""
        ...

    async def load(self, thread_id: str) -> int:
        """Load the whole thread as typed messages. Return their number."""
        ...

    async def run(self, thread_id: str, run_id: str) -> None:
        """Execute a run: claim, load, append a user message, append an assistant message, complete."""
        ...

    async def row_bytes(self, thread_id: str) -> int:
        """Return the size in bytes of the rows that belong to this thread alone."""
        ...


@runtime_checkable
class WorkerStore(Store, Protocol):
    """A store that also executes runs as a worker does."""

    async def turn(self, thread_id: str, *, used: bool = False) -> float:
        """Execute a run. Return the milliseconds in which its attempt gets its context. ``used``: whether the text of each
        message is read in this time."""
        ...


class RunyardQueue(Queue, Protocol):
    """The operations that only runyard has."""

    async def ask(self, slot: int, key: str) -> None:
        """Enqueue a run that stamps ``slot``, asks for an approval, and stamps ``slot + 1`` after the answer.

        Returns when the run is suspended.
        """
        ...

    async def answer(self, slot: int, key: str) -> None:
        """Respond to the request of the run that ``ask`` enqueued with this ``slot``."""
        ...

    async def enqueue_in_transaction(self, slot: int, key: str) -> int:
        """Enqueue inside an open transaction and commit. Return ``time.monotonic_ns()`` just before COMMIT."""
        ...

    async def cpu_seconds(self) -> float:
        """Return the processor time of the worker."""
        ...


class Intake(Protocol):
    """A client that accepts runs while no worker runs."""

    async def enqueue_many(self, slots: range, threads: int) -> None:
        """Enqueue a run for each of ``slots`` in one call, over ``threads`` threads."""
        ...

    async def enqueue(self, slot: int, threads: int) -> None:
        """Enqueue the run of ``slot`` over ``threads`` threads."""
        ...


class Conversation(Protocol):
    """A store of a conversation, and the turns that continue it."""

    async def build(self, thread_id: str, messages: int) -> str:
        """Make a thread with ``messages`` messages, as in :class:`Store`. The call is not timed."""
        ...

    async def run(self, thread_id: str, run_id: str) -> None:
        """Continue the thread by a turn: load it, add a user message and an assistant message."""
        ...


class RunyardSide(Protocol):
    """The module ``benchmarks.runyard_side``."""

    MAIN_CONNECTION: str
    """The Redis client name of a worker's main connection, which the worker's main loop uses."""

    def queue(
        self, lab: Lab, board: Board, *, slots: int, agent: str = "noop", workers: int = 1, database: str = "runyard"
    ) -> AbstractAsyncContextManager[RunyardQueue]:
        """Migrate a database, start worker processes with ``slots`` slots each, and connect a client. Jobs are runs of
        ``agent``."""
        ...

    def intake(self, lab: Lab) -> AbstractAsyncContextManager[Intake]:
        """Migrate a database and connect a client."""
        ...

    async def fill(self, lab: Lab, database: str, runs: int) -> None:
        """Migrate a database and store ``runs`` ended runs in it."""
        ...

    def store(self, lab: Lab) -> AbstractAsyncContextManager[Store]:
        """Migrate a database and connect a store."""
        ...
