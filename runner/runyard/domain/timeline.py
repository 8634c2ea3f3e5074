"""The timeline of a run: its attempts, model requests, tools, steps, HITL requests and waits, with times and short contents.

A store makes the timeline from the rows of the run. Contents are shortened to :data:`SHORT_CHARACTERS` characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic import Field, FiniteFloat, ValidationError

from ..errors import RunTimeoutError
from .base_models import StrictModel
from .list_entries import entry
from .messages import Message, ToolCallPart, Usage, model_name
from .requests import HitlRequest
from .runs import AttemptInfo, ErrorInfo, Run
from .states import RunStatus
from .waits import Wait

EntryType = Literal["attempt", "message", "model_request", "tool", "step", "request", "sleep", "signal", "child"]

SHORT_CHARACTERS: Final = 300
"""Maximum number of characters of an input or an output in a timeline."""
ANSWER_CHARACTERS: Final = 4_000
"""Maximum number of characters of the answer in a timeline."""
LARGE_RESULT_BYTES: Final = 65_536
"""Maximum number of bytes of a step's result or a signal's value.

The timeline shows the beginning of a value up to this size, and leaves out a larger value.
"""
TIMELINE_BYTES: Final = 2**20
"""Approximate maximum number of stored bytes that are read for one page of a timeline. A larger entry is alone on its page."""


class TimelineEntry(StrictModel):
    """One entry of a run's timeline.

    ``at``: the time by which entries are ordered. ``started_at``: the start, or None if unknown. ``ended_at``: the end, or
    None if unknown or not reached. ``seconds``: the time from ``started_at`` to ``ended_at``. ``fence``: the fence of the
    attempt.

    - ``attempt``: ``name`` is the worker, ``status`` the outcome, ``error`` the error with its traceback.
    - ``model_request``: an answer of a model. The start of this entry is the end of the run's previous entry. ``name`` is the
      model, ``status`` the stop reason, ``output`` the text and the tool calls, ``usage`` the tokens and the cost.
    - ``tool``: the result of a tool call, from the call until the result is stored. ``id`` is the id of the call, ``name`` the
      tool, ``input`` the arguments, ``output`` the result, ``status`` ``ok`` or ``error``.
    - ``step``: ``id`` is the step's key. ``input`` is the arguments of the function. Arguments that are not JSON are shown by
      the names of their types. ``status`` is ``started`` or ``done``. A step without a result is ``failed`` if the agent
      returned or raised an error. Such a step is ``unfinished`` if its attempt timed out, was interrupted or was suspended
      before the step had a result. ``error`` is the error of a candidate of a fan-out.
    - ``request``: a question to a human, from the question to the answer. ``name`` is its kind, ``input`` the question,
      ``output`` the answer, ``status`` ``pending``, ``answered`` or ``closed``.
    - ``sleep``, ``signal``, ``child``: a wait of the run, from its start to its end. ``status`` is ``waiting``, ``ended``,
      ``cancelled`` if a cancel of the run ended the wait before it was due, ``timeout`` for a signal that did not come in
      time, or the status of the child. ``input``: the time at which the wait ends at the latest. For a signal, ``name`` is its
      name and ``output`` its value. For a child, ``id`` is its run and ``name`` its thread.
    - ``message``: any other message of the run. ``name`` is its role, ``output`` its text.
    """

    type: EntryType
    id: str
    at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: FiniteFloat | None = None
    fence: int | None = None
    name: str | None = None
    status: str | None = None
    input: str | None = None
    output: str | None = None
    usage: Usage | None = None
    error: ErrorInfo | None = None


class Timeline(StrictModel):
    """A run and a page of its timeline.

    ``run``: the run with the traceback of its error, but without the large values that lists leave out. ``error``: the error of
    the run. A fork job without its own error has here the error of its probe (``fork_once``) or of its judge (``fork_many``),
    or None. ``answer``: the beginning of the last message, if an assistant wrote it. ``queued_seconds``: the time from the due
    time to the first attempt. ``running_seconds``: the time of the attempts. ``parked_seconds``: the time after suspensions,
    until the next attempt. ``waiting_seconds``: the time after errors, releases and crashes, until the next attempt. These
    times grow until the run ends. ``entries``: the entries of the page. A message with several tool results has one entry per
    result, and these entries count as one entry of the page. ``next``: the cursor of the next page, or None.
    """

    run: Run
    error: ErrorInfo | None = None
    answer: str | None = None
    queued_seconds: FiniteFloat = 0.0
    running_seconds: FiniteFloat = 0.0
    parked_seconds: FiniteFloat = 0.0
    waiting_seconds: FiniteFloat = 0.0
    entries: list[TimelineEntry] = Field(default_factory=list)
    next: str | None = None


def listed(run: Run) -> Run:
    """Return a copy of ``run`` without large values, but with the traceback of its error."""
    return entry(run).model_copy(update={"error": run.error})


def error_of(run: Run) -> ErrorInfo | None:
    """Return the error of a run, or of the probe or the judge in its result.

    If a probe or a judge fails, its fork job still completes. In this case the error is in the result of the fork job.
    """
    verdict = run.result.get("verdict") if isinstance(run.result, dict) else None
    return run.error or _error_in(run.result) or _error_in(verdict)


def of_attempt(attempt: AttemptInfo, at: datetime) -> TimelineEntry:
    """Return the entry of an attempt."""
    return _timed(
        TimelineEntry(
            type="attempt",
            id=str(attempt.fence),
            at=at,
            started_at=attempt.started_at,
            ended_at=attempt.ended_at,
            fence=attempt.fence,
            name=attempt.worker_id,
            status=attempt.outcome,
            error=attempt.error,
        )
    )


def of_message(
    message: Message, at: datetime, since: datetime | None, fence: int | None, calls: Mapping[str, ToolCallPart]
) -> list[TimelineEntry]:
    """Return the entries of a message.

    ``since``: the time at which the work for the message began. ``calls``: the tool calls of the previous message, by id.
    """
    if message.tool_results:
        return [
            _timed(
                TimelineEntry(
                    type="tool",
                    id=result.call_id,
                    at=at,
                    started_at=since,
                    ended_at=at,
                    fence=fence,
                    name=call.name if (call := calls.get(result.call_id)) is not None else result.name,
                    status="error" if result.is_error else "ok",
                    input=short(call.arguments) if call is not None else None,
                    output=short([part.model_dump(exclude_none=True) for part in result.parts] or result.content),
                )
            )
            for result in message.tool_results
        ]
    asked = message.role == "assistant" and message.usage is not None
    return [
        _timed(
            TimelineEntry(
                type="model_request" if asked else "message",
                id=message.id,
                at=at,
                started_at=since if asked else None,
                ended_at=at,
                fence=fence,
                name=(model_name(message) or None) if asked else message.role,
                status=message.stop_reason,
                output=short(words_of(message)),
                usage=message.usage,
            )
        )
    ]


def of_step(
    key: str,
    at: datetime,
    times: tuple[datetime | None, datetime | None],
    fence: int,
    result: Any,
    *,
    done: bool,
    input: str | None = None,
    attempt: AttemptInfo | None = None,
    omitted: int | None = None,
) -> TimelineEntry:
    """Return the entry of a step. ``times``: the start and the end of the step. ``input``: the arguments of the step.

    ``attempt``: the attempt that started a step without a result. ``omitted``: the number of bytes of a result that was not
    read.
    """
    return _timed(
        TimelineEntry(
            type="step",
            id=key,
            at=at,
            started_at=times[0],
            ended_at=times[1],
            fence=fence,
            name=key.rpartition("/")[2].partition("#")[0],
            status="done" if done else _status_of_open(attempt),
            input=input,
            output=f"({omitted} bytes)" if omitted is not None else short(result) if done else None,
            error=_error_in(result),
        )
    )


def _status_of_open(attempt: AttemptInfo | None) -> str:
    """Return the status of a step that has no result. ``attempt``: the attempt that started the step."""
    if attempt is None or attempt.outcome == "running":
        return "started"
    timed_out = attempt.error is not None and attempt.error.code == RunTimeoutError.code
    return "failed" if attempt.outcome in ("completed", "failed", "retried") and not timed_out else "unfinished"


def of_request(request: HitlRequest, at: datetime, *, closed: bool) -> TimelineEntry:
    """Return the entry of a request to a human. ``closed``: whether the run of the request ended without an answer."""
    answered = request.answered_at is not None
    question = request.payload.get("question")
    return _timed(
        TimelineEntry(
            type="request",
            id=request.request_id,
            at=at,
            started_at=at,
            ended_at=request.answered_at,
            name=request.kind,
            status="answered" if answered else "closed" if closed else "pending",
            input=short(question if isinstance(question, str) else request.payload),
            output=short(request.answer) if answered else None,
        )
    )


def of_wait(wait: Wait, at: datetime, run: Run, *, child: str | None, omitted: int | None = None) -> TimelineEntry:
    """Return the entry of a wait of ``run``. ``at``: the start of the wait. ``child``: the status of the child.

    ``omitted``: the number of bytes of a signal's value that was not read.
    """
    taken = wait.signal_id is not None
    due = wait.due_at is not None and wait.ended_at is not None and wait.due_at <= wait.ended_at
    if taken or wait.ended_at is None:
        status = "ended" if taken else "waiting"
    elif run.status is RunStatus.CANCELLED and wait.ended_at == run.finished_at and not due:
        status = "cancelled"
    else:
        status = "timeout" if wait.kind == "signal" else "ended"
    return _timed(
        TimelineEntry(
            type=wait.kind,
            id=wait.wait_id,
            at=at,
            started_at=at,
            ended_at=wait.ended_at,
            name=wait.name,
            status=child or status,
            input=f"until {wait.due_at.isoformat(timespec='seconds')}" if wait.due_at and wait.kind != "child" else None,
            output=f"({omitted} bytes)" if omitted is not None else short(wait.value) if taken else None,
        )
    )


def answer_of(last: Message | None) -> str | None:
    """Return the beginning of a run's last message, or None if no assistant wrote it."""
    return short(last.text, ANSWER_CHARACTERS) if last is not None and last.role == "assistant" else None


def words_of(message: Message) -> str:
    """Return the text of a message and its tool calls, and the types of parts without text."""
    shown = [message.text] if message.text else []
    for part in message.content:
        if isinstance(part, ToolCallPart):
            shown.append(f"{part.name}({short(part.arguments)})")
        elif part.type not in ("text", "thinking", "tool_result"):
            shown.append(f"[{part.type}]")
    return " ".join(shown)


def short(value: Any, most: int = SHORT_CHARACTERS) -> str:
    """Return the first ``most`` characters of a text, or of another value as JSON."""
    text = value if isinstance(value, str) else ""
    if not isinstance(value, str):
        for piece in _JSON.iterencode(value):
            text += piece
            if len(text) > most:
                break
    return text if len(text) <= most else text[: most - 1] + "…"


_JSON: Final = json.JSONEncoder(ensure_ascii=False, default=str)


def durations(run: Run, attempts: list[AttemptInfo], now: datetime) -> dict[str, float]:
    """Return the seconds of a :class:`Timeline`, by the names of its fields."""
    found = dict.fromkeys(("queued_seconds", "running_seconds", "parked_seconds", "waiting_seconds"), 0.0)
    if run.kind == "external":
        return found
    until = run.finished_at or now
    first = attempts[0].started_at if attempts else None
    found["queued_seconds"] = _seconds(max(filter(None, (run.run_at, run.accepted_at))), first or until)
    for n, attempt in enumerate(attempts):
        found["running_seconds"] += _seconds(attempt.started_at, attempt.ended_at or now)
        if (name := _GAPS.get(attempt.outcome)) is not None:
            following = attempts[n + 1].started_at if n + 1 < len(attempts) else until
            found[name] += _seconds(attempt.ended_at, following)
    return found


_GAPS: Final = {
    "suspended": "parked_seconds",
    "retried": "waiting_seconds",
    "released": "waiting_seconds",
    "lost": "waiting_seconds",
}
"""The outcome of an attempt → the field of :class:`Timeline` that counts the time until the next attempt."""


def _seconds(since: datetime | None, until: datetime | None) -> float:
    return max(until - since, timedelta()).total_seconds() if since is not None and until is not None else 0.0


def _timed(entry: TimelineEntry) -> TimelineEntry:
    if entry.started_at is not None and entry.ended_at is not None:
        entry.seconds = _seconds(entry.started_at, entry.ended_at)
    return entry


def _error_in(result: Any) -> ErrorInfo | None:
    """Return the error in the record of a fan-out's candidate, or None."""
    if not (isinstance(result, dict) and isinstance(result.get("error"), dict) and "stop_reason" in result):
        return None
    try:
        return ErrorInfo.model_validate(result["error"], extra="ignore")
    except ValidationError:
        return None
