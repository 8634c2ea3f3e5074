"""What a contestant offers to the scenarios.

A scenario knows only these protocols, so every contestant does the same work under the same clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from benchmarks.board import Board
from benchmarks.lab import Lab

Facts = Mapping[str, float]
"""Figures reported beside the samples. Over rounds, names in ``_total`` add up; others keep the largest."""


class Queue(Protocol):
    """A queue served by one worker process whose job bodies stamp the board."""

    async def enqueue(self, slot: int, key: str) -> None:
        """Returns when the job is accepted. Its body does ``board.stamp(slot)``.

        Jobs of one ``key`` run one after another where the contestant has such a notion.
        """
        ...

    async def settle(self, keys: Mapping[str, int]) -> Facts:
        """Returns when the jobs of all ``keys`` (key → number of jobs) are finished for good.

        Called once all bodies have begun. A durable contestant waits here until its store says so.
        """
        ...


class Store(Protocol):
    """A store of threads, messages and runs, without a queue."""

    async def build(self, thread_id: str, messages: int, *, depth: int = 0) -> str:
        """Makes a thread with ``messages`` messages in completed runs of two; returns the last run's id.

        Content comes from ``benchmarks.fixtures``. ``depth`` is the number of ancestor threads that
        the messages are spread over. Not timed.
        """
        ...

    async def fork(self, source: str, new: str, *, after_run_id: str) -> None:
        """Makes thread ``new`` from the snapshot of ``source`` after the run."""
        ...

    async def load(self, thread_id: str) -> int:
        """Loads the whole thread as typed messages; returns their number."""
        ...

    async def run(self, thread_id: str, run_id: str) -> None:
        """claim, load, append a user message, append an assistant message, complete."""
        ...

    async def row_bytes(self, thread_id: str) -> int:
        """The size of the rows that belong to this thread alone, in bytes."""
        ...


class RunyardQueue(Queue, Protocol):
    """What only runyard is asked to do."""

    async def ask(self, slot: int, key: str) -> None:
        """Enqueues a run that stamps ``slot``, asks for an approval, and once answered stamps ``slot + 1``.

        Returns when the run is suspended.
        """
        ...

    async def answer(self, slot: int, key: str) -> None:
        """Responds to the request of the run that ``ask`` enqueued with this ``slot``."""
        ...

    async def enqueue_in_transaction(self, slot: int, key: str) -> int:
        """Enqueues inside an open transaction; returns ``time.monotonic_ns()`` read just before COMMIT."""
        ...


class RunyardSide(Protocol):
    """The module ``benchmarks.runyard_side``."""

    MAIN_CONNECTION: str
    """The Redis client name of a worker's main connection, the one its job loop uses."""

    def queue(self, lab: Lab, board: Board, *, slots: int) -> AbstractAsyncContextManager[RunyardQueue]:
        """Migrates a database, starts one worker process with ``slots`` slots, connects a client."""
        ...

    def store(self, lab: Lab) -> AbstractAsyncContextManager[Store]:
        """Migrates a database and connects."""
        ...
