"""Decode runs, their attempts and their steps from rows."""

from __future__ import annotations

from typing import Any, Literal

from runyard.domain.runs import DEFAULT_OPTIONS
from runyard.domain.size_limits import check_value
from runyard.domain.states import RunStatus
from runyard.models import AttemptInfo, ErrorInfo, Message, Run, RunOptions, Usage, stored_messages
from runyard.ports.results import Step

from ...codec.damaged_rows import entry, named
from ...codec.values import Row, from_json, to_json, unpack


@named("run")
def run(row: Row) -> Run:
    """Decode a run."""
    return Run(
        thread_id=row["thread_id"],
        run_id=row["run_id"],
        kind=row["kind"],
        status=RunStatus(row["status"]),
        agent=row["agent"],
        queue=row["queue"],
        priority=row["priority"],
        lane=row["lane"],
        attempt=row["attempt"],
        error_count=row["error_count"],
        crash_count=row["crash_count"],
        input=_input(row),
        parent_id=str(row["parent_id"]) if row["parent_id"] else None,
        after_run_id=row["after_run_id"],
        options=_options(row["options"]),
        run_at=row["run_at"],
        expires_at=row["expires_at"],
        accepted_at=row["accepted_at"],
        admitted_at=row["admitted_at"],
        started_at=row["started_at"],
        suspended_at=row["suspended_at"],
        waiting_for=_waiting_for(row["waiting_for"]),
        finished_at=row["finished_at"],
        cancel_requested_at=row["cancel_requested_at"],
        completion_seq=row["completion_seq"],
        fence=row["fence"],
        worker_id=row["worker_id"] if row["finished_at"] is None else None,
        app_version=row["app_version"],
        error=error_info(row["error"]),
        result=unpack(row["result"]) if row["result"] is not None else None,
        usage=Usage.model_validate(from_json(row["usage"]), extra="ignore") if row["usage"] else Usage(),
        metadata=from_json(row["metadata"]),
        trace_context=row["trace_context"],
        event_id=row["event_id"],
        deleted_at=row["emptied_at"],
        omitted=row.get("omitted") or [],
    )


run_with_any_input = entry(run, input=None, stored_input=None)
"""Decode a run even if its input cannot be decoded. The input is in the row of a message, so the run's own row is not
damaged."""

run_entry = entry(run, input=None, options="{}", error=None, result=None, usage=None, metadata="{}")


@named("attempt")
def _attempt(row: Row) -> AttemptInfo:
    return AttemptInfo(
        fence=row["fence"],
        worker_id=row["worker_id"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"],
        error=error_info(row["error"]),
    )


attempt_entry = entry(_attempt, error=None)


def _waiting_for(waits_for: str | None) -> Literal["answer", "wait"] | None:
    """Return ``Run.waiting_for``. ``waits_for``: ``human``, ``timer``, ``signal``, ``child`` or None."""
    return "answer" if waits_for == "human" else "wait" if waits_for is not None else None


def _options(text: str) -> RunOptions:
    return DEFAULT_OPTIONS if text == "{}" else RunOptions.model_validate_json(text)


def _input(row: Row) -> Message | None:
    payload = row["input"] if row["input"] is not None else row.get("stored_input")
    if row["input_id"] is None or payload is None:
        return None
    return stored_messages([{**unpack(payload), "id": str(row["input_id"]), "role": row["input_role"]}])[0]


def error_json(error: ErrorInfo) -> str:
    """Encode the error of a run for its column."""
    said = {name: value for name, value in error.__dict__.items() if value is not None}
    check_value(said, "error")
    return to_json(said)


def error_info(text: str | None) -> ErrorInfo | None:
    """Decode the error of a run from its column."""
    return None if text is None else ErrorInfo.model_validate_json(text)


@named("extra")
def claimed_extra(row: Row) -> dict[str, Any]:
    """Return the extra with which a claimed run starts: the extra of the thread, merged with the extra of the run's earlier
    attempts."""
    extra: dict[str, Any] = from_json(row["thread_extra"]) | (from_json(row["extra"]) or {})
    return extra


@named("step")
def step(row: Row) -> Step:
    """Decode a step of a run."""
    result = unpack(row["result"]) if row["result"] is not None else None
    return Step(row["step_key"], row["done"], result, row["fence"], row["outcome"])
