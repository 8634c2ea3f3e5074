"""All writes of an attempt except the last one. Concurrent writes of several runs share a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from runyard.support.batching import each_its_own
from runyard.support.locked_batching import SLOW_SECONDS, LockedBatcher

from . import codec
from .database import Database, milliseconds

BATCH: Final = 32
"""Maximum number of writes in one transaction."""
CALLS_IN_FLIGHT: Final = 4
"""Maximum number of simultaneous transactions."""
LARGE_BYTES: Final = 2**18
"""Maximum number of bytes of a write that shares a transaction."""
LARGE_IN_FLIGHT: Final = 2
"""Maximum number of simultaneous transactions of larger writes."""


def batcher(db: Database) -> Callable[[codec.InterimWrite], Awaitable[list[codec.Row]]]:
    """Return a function that sends a write and returns the rows of the write's outcome, at least one.

    A large write has a separate transaction. Other writes wait neither for its bytes nor for its failure.

    A refused write does not affect the other writes. The caller of a refused write gets StaleFenceError, CancelRequestedError
    or LockedError.
    """

    async def store(writes: Sequence[codec.InterimWrite], wait: float) -> Sequence[list[codec.Row]]:
        rows = await db.rows_unless_locked("write_interim", writes, milliseconds(wait))
        return codec.by_write(rows, len(writes))

    async def call(items: Sequence[codec.InterimWrite], *, wait: float) -> Sequence[list[codec.Row] | Exception]:
        # If the transaction fails, its halves are sent. A repetition of a write changes nothing. If another transaction has
        # locked a run, LockedError is raised. If only the thread is locked, the outcomes of the thread's writes say this.
        outcomes = await each_its_own(partial(store, wait=wait), items, lambda write: write.thread_key)
        return [_answer(write, rows) for write, rows in zip(items, outcomes, strict=True)]

    def batches_of(limit: int, in_flight: int) -> LockedBatcher[codec.InterimWrite, list[codec.Row]]:
        return LockedBatcher(call, lambda w: w.thread_key, limit=limit, in_flight=in_flight, patience=SLOW_SECONDS)

    small, large = batches_of(BATCH, CALLS_IN_FLIGHT), batches_of(1, LARGE_IN_FLIGHT)
    return lambda write: (large if write.size > LARGE_BYTES else small)(write)


def _answer(write: codec.InterimWrite, rows: list[codec.Row] | Exception) -> list[codec.Row] | Exception:
    if isinstance(rows, Exception):
        return rows
    return codec.refusal(rows[0]["refused"], write.run_id, write.fence) or rows
