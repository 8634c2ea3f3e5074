"""Make the results of jobs from the outcomes of their ended runs."""

from __future__ import annotations

from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

from runyard.client.client import Client
from runyard.client.run_handle import RunResult
from runyard.domain.quoting import brief
from runyard.domain.states import RunStatus
from runyard.events.run_outcome import path_to_root
from runyard.models import Run

from .arq_codec import CANCELLED, JobOutcome

TEXT_BYTES: Final = 64 * 2**10
"""Approximate bytes of messages that are read for the text of a result. If they contain no assistant message, further messages
are read."""


async def outcome_of(client: Client, run: Run) -> JobOutcome:
    """Return the outcome of a run that has ended. Raises ResultExpiredError."""
    run = run.without_tracebacks()  # any producer of the database can read results
    started, finished = _ms(run.started_at or run.accepted_at), _ms(run.finished_at or run.accepted_at)
    if run.status is RunStatus.COMPLETED:
        result = await client.result_of(run, TEXT_BYTES)
        value: dict[str, Any] = {"thread_id": run.thread_id, "run_id": run.run_id, "status": str(run.status)}
        value |= {"text": result.text or await _earlier_text(client, result), "value": result.value}
    elif run.error is not None:
        value = run.error.model_dump(mode="json")
    else:
        value = cancelled(run.run_id)
    return JobOutcome(run.status is RunStatus.COMPLETED, value, started, finished, run.attempt)


def cancelled(run_id: str) -> dict[str, Any]:
    """Return the failure of a job whose run was cancelled."""
    return {"code": CANCELLED, "message": f"run {brief(run_id)} was cancelled", "details": {}}


async def _earlier_text(client: Client, result: RunResult) -> str:
    """Return the text of the run's last assistant message, read page by page. Return "" in two cases: ``result`` has all
    messages of the run, or ``result`` has the last assistant message."""
    if "messages" not in result.omitted or any(message.role == "assistant" for message in result.messages):
        return ""
    before = result.messages[0].parent_id
    async with aclosing(path_to_root(client.backend.threads, result.run.thread_id, before)) as path:
        async for message in path:
            if message.run_id != result.run.run_id:
                break
            if message.role == "assistant":
                return message.text
    return ""


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
