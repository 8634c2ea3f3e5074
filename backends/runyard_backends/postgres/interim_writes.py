"""The writes of attempts before their last writes: concurrent writes of many runs share a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from runyard.support.batching import Batcher, each_its_own
from runyard.support.locked_batching import LockedBatcher

from . import codec
from .database import Database, milliseconds

BATCH: Final = 32
"""Maximum number of writes in one transaction."""
CALLS_IN_FLIGHT: Final = 4
"""Maximum number of transactions at once."""
SLOW_SECONDS: Final = 0.1
"""Seconds for which writes wait for a transaction in flight. Then they are sent in another transaction."""


def batcher(db: Database) -> Batcher[codec.InterimWrite, list[codec.Row]]:
    """Return a batcher of writes. Its answer to a write is the rows of its outcome, at least one.

    A refused write does not affect the other writes. Its caller gets StaleFenceError, CancelRequestedError or LockedError.
    """

    async def store(writes: Sequence[codec.InterimWrite], wait: float) -> Sequence[list[codec.Row]]:
        rows = await db.rows_unless_locked("write_interim", writes, milliseconds(wait))
        return codec.by_write(rows, len(writes))

    async def call(items: Sequence[codec.InterimWrite], *, wait: float) -> Sequence[list[codec.Row] | Exception]:
        # If the transaction fails, each write is sent alone. A repetition of a write changes nothing.
        outcomes = await each_its_own(partial(store, wait=wait), items)
        return [_answer(write, rows) for write, rows in zip(items, outcomes, strict=True)]

    return LockedBatcher(call, lambda w: w.thread_key, limit=BATCH, in_flight=CALLS_IN_FLIGHT, patience=SLOW_SECONDS)


def _answer(write: codec.InterimWrite, rows: list[codec.Row] | Exception) -> list[codec.Row] | Exception:
    if isinstance(rows, Exception):
        return rows
    return codec.refusal(rows[0]["refused"], write.run_id, write.fence) or rows
