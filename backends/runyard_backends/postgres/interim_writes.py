"""The writes of attempts before their last writes: concurrent writes of many runs share a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from runyard.errors import LockedError
from runyard.support.batching import answered, each_its_own
from runyard.support.locked_batching import LockedBatcher

from . import codec
from .database import Database, milliseconds

BATCH: Final = 32
"""Maximum number of writes in one transaction."""
CALLS_IN_FLIGHT: Final = 4
"""Maximum number of transactions at once."""
LARGE_BYTES: Final = 2**18
"""Maximum number of bytes of a write that shares a transaction."""
LARGE_IN_FLIGHT: Final = 2
"""Maximum number of transactions of larger writes at once."""
SLOW_SECONDS: Final = 0.1
"""Seconds for which writes wait for a transaction in flight. Then they are sent in another transaction."""


def batcher(db: Database) -> Callable[[codec.InterimWrite], Awaitable[list[codec.Row]]]:
    """Return a function that sends a write. Its answer is the rows of the write's outcome, at least one.

    A large write has a transaction of its own. Other writes wait neither for its bytes nor for its failure.

    A refused write does not affect the other writes. Its caller gets StaleFenceError, CancelRequestedError or LockedError.
    """

    async def store(writes: Sequence[codec.InterimWrite], wait: float) -> Sequence[list[codec.Row]]:
        rows = await db.rows_unless_locked("write_interim", writes, milliseconds(wait))
        return codec.by_write(rows, len(writes))

    async def call(items: Sequence[codec.InterimWrite], *, wait: float) -> Sequence[list[codec.Row] | Exception]:
        # If the transaction fails, each write is sent alone. A repetition of a write changes nothing.
        try:
            outcomes = await each_its_own(partial(store, wait=wait), items)
        except LockedError:  # the lock is that of a run, and not of a thread
            if len(items) == 1:
                raise
            outcomes = [(await answered(partial(store, wait=wait), [item]))[0] for item in items]
        return [_answer(write, rows) for write, rows in zip(items, outcomes, strict=True)]

    def batches_of(limit: int, in_flight: int) -> LockedBatcher[codec.InterimWrite, list[codec.Row]]:
        return LockedBatcher(call, lambda w: w.thread_key, limit=limit, in_flight=in_flight, patience=SLOW_SECONDS)

    small, large = batches_of(BATCH, CALLS_IN_FLIGHT), batches_of(1, LARGE_IN_FLIGHT)
    return lambda write: (large if write.size > LARGE_BYTES else small)(write)


def _answer(write: codec.InterimWrite, rows: list[codec.Row] | Exception) -> list[codec.Row] | Exception:
    if isinstance(rows, Exception):
        return rows
    return codec.refusal(rows[0]["refused"], write.run_id, write.fence) or rows
