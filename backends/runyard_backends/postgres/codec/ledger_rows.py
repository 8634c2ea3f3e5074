"""Decode the records of earlier attempts of a run from the row of the statement ``ledger``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from runyard.ports.results import Ledger

from ...codec.request_rows import request
from ...codec.values import Row
from .run_rows import step
from .wait_rows import wait

_STEP: Final = ("step_key", "done", "result", "fence", "outcome")
_REQUEST: Final = (
    "request_id", "kind", "body", "deadline_at", "thread_id", "run_id", "agent", "created_at", "answer", "response_id",
    "answered_by", "on_behalf_of", "answered_at", "received",
)  # fmt: skip
_WAIT: Final = ("wait_id", "kind", "name", "due_at", "ended_at", "signal_id", "value")


def ledger(row: Row) -> Ledger:
    """Decode a ledger. Raises DataCorruptedError, which names the damaged entry."""
    requests = list(_named(_REQUEST, row["requests"]))
    waits = {entry["wait_id"]: wait(entry) for entry in _named(_WAIT, row["waits"])}
    return Ledger(
        steps={entry["step_key"]: step(entry) for entry in _named(_STEP, row["steps"])},
        requests={entry["request_id"]: request(entry) for entry in requests},
        waits=waits,
        received=frozenset(entry["request_id"] for entry in requests if entry["received"]),
        resumes=bool(requests or waits) and row["outcome_before"] == "suspended",
        retries=row["outcome_before"] == "retried",
    )


def _named(columns: tuple[str, ...], records: list[Any]) -> Iterator[dict[str, Any]]:
    """Give the values of each record the names of their columns."""
    return (dict(zip(columns, record, strict=True)) for record in records)
