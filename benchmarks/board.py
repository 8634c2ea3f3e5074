"""Time stamps shared by the benchmark and a worker process.

The body of a job must report its start without a log line or a call of Redis, which would disturb the measurement. Both
processes map one file of 64-bit slots, and the body of job ``n`` writes ``time.monotonic_ns()`` to slot ``n``. CLOCK_MONOTONIC
has one origin for all processes of a machine, so the benchmark can subtract times that it read itself.
"""

from __future__ import annotations

import asyncio
import functools
import mmap
import os
import time
from pathlib import Path

ENVIRONMENT = "RUNYARD_BENCH_BOARD"
READY = 0
"""Number of the slot that a worker stamps when the worker has started."""
POLL = 0.001
"""Seconds between two reads of the board by the benchmark."""


class Board:
    """A file at ``path`` with ``slots`` time stamps in nanoseconds. Each is 0 until it is written."""

    def __init__(self, path: Path, slots: int) -> None:
        self.path = path
        path.write_bytes(bytes(8 * slots))
        self._slots = _map(path)

    def __getitem__(self, slot: int) -> int:
        return self._slots[slot]

    async def wait(self, slots: range) -> None:
        """Return when all of ``slots`` are stamped. There is no timeout here: the caller limits the time."""
        for slot in slots:
            while not self._slots[slot]:  # noqa: ASYNC110 -- the stamp comes from another process
                await asyncio.sleep(POLL)


def stamp(slot: int) -> None:
    """Write the current time to ``slot`` of the file that the variable ENVIRONMENT names. Workers call this function."""
    _worker_slots()[slot] = time.monotonic_ns()


def stamped(slot: int) -> int:
    """Return the time stamp in ``slot`` of the file that the variable ENVIRONMENT names, in nanoseconds. Return 0 if there is
    none yet. Workers call this function."""
    return _worker_slots()[slot]


@functools.cache
def _worker_slots() -> memoryview[int]:
    return _map(Path(os.environ[ENVIRONMENT]))


def _map(path: Path) -> memoryview[int]:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
