"""Encode waits for the stored functions, and decode waits and signals from rows."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from runyard.domain.waits import Signal, Wait

from ...codec.damaged_rows import named
from ...codec.values import Row, unpack


class NewWait(NamedTuple):
    """The attributes of a ``runyard.new_wait``, in their order."""

    wait_id: str
    kind: str
    name: str | None
    due_at: datetime | None
    timeout: float | None


def new_wait(wait: Wait) -> NewWait:
    """Encode a wait as a ``runyard.new_wait``."""
    return NewWait(wait.wait_id, wait.kind, wait.name, wait.due_at, wait.timeout)


@named("wait")
def wait(row: Row) -> Wait:
    """Decode a wait from its row, with the signal that it took."""
    return Wait(
        wait_id=row["wait_id"],
        kind=row["kind"],
        name=row["name"],
        due_at=row["due_at"],
        ended_at=row["ended_at"],
        signal_id=row["signal_id"],
        value=unpack(row["value"]) if row["value"] is not None else None,
    )


@named("signal")
def signal(row: Row) -> Signal:
    """Decode a signal from its row, with the column ``thread_id``."""
    return Signal(
        signal_id=row["signal_id"],
        thread_id=row["thread_id"],
        name=row["name"],
        value=unpack(row["value"]),
        sent_by=row["sent_by"],
        sent_at=row["sent_at"],
        run_id=row["run_id"],
    )
