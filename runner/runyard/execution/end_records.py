"""Ends of attempts: the error that a run records, and the events of an end.

The store decides which messages of the run stay. In Postgres, ``write.sql`` and ``end_run.sql`` have the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import structlog

from ..domain.messages import Usage
from ..domain.runs import ErrorInfo, Run
from ..domain.size_limits import MAX_NESTING, JsonObject, check_value
from ..domain.states import RunStatus
from ..errors import InvalidInputError, RunyardError
from ..ports.results import Ended
from ..support.tracebacks import TracebackFilter, kept_traceback, trace_field
from .remainder import Remainder
from .transcript import completed_events, requested_event

MAX_ERROR_CHARACTERS: Final = 10_000
"""Maximum number of characters of a recorded error's message. The run's last event and lists of runs contain the message."""

GROUP_WORDS: Final = 3
"""Maximum number of exceptions of one group in a recorded error. The messages of further exceptions are left out."""
GROUP_LEVELS: Final = 3
"""Maximum number of nested exception groups that a recorded error describes."""

log = structlog.get_logger("runyard.executor")

END_EVENTS: Final = {
    RunStatus.COMPLETED: "run.completed",
    RunStatus.FAILED: "run.failed",
    RunStatus.CANCELLED: "run.cancelled",
    RunStatus.DEAD: "run.dead",
    RunStatus.SUSPENDED: "run.suspended",
}


def describe(error: BaseException, keep: TracebackFilter | None) -> ErrorInfo:
    """Return the error that a run records, in a form that every store accepts. ``keep``: the filter of its traceback."""
    trace = kept_traceback(error, keep)
    if isinstance(error, RunyardError):
        fields = error.to_dict()
        details = _details(fields["details"])
        return ErrorInfo(code=error.code, message=_message(fields["message"]), details=details, traceback=trace)
    name = type(error).__name__
    return ErrorInfo(code="agent_error", message=_message(_words(error)) or name, details={"type": name}, traceback=trace)


def log_end(run: Run, ended: Ended | None, trace: str | None, used: Usage, seconds: float) -> None:
    """Log one line about the end of an attempt. The level is error if the run failed, and warning before a retry.

    ``ended``: None if another attempt has the run. ``trace``: the traceback to log, or None. ``used``: the
    usage of the attempt. ``seconds``: its duration.
    """
    write: Callable[..., object] = log.info
    fields: dict[str, object] = {}
    if ended is not None and ended.error is not None:
        write = log.error if ended.status is RunStatus.FAILED else log.warning
        fields = {"error": ended.error.headline, "error_code": ended.error.code, **trace_field(trace)}
    write(
        "run_ended",
        agent=run.agent or "default",
        queue=run.queue,
        worker_id=run.worker_id,
        status="lost" if ended is None else ended.status.value,
        seconds=round(seconds, 3),
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        **fields,
    )


def _details(details: JsonObject) -> JsonObject:
    """Return the ``details`` of an error to record. Return ``{}`` if the details are so large that the store would refuse the
    run's end."""
    try:
        storable: JsonObject = _storable(details)
        check_value(storable, "details")
    except InvalidInputError:
        return {}
    return storable


def _words(value: object, levels: int = GROUP_LEVELS) -> str:
    """Return ``str(value)``, or the type's name if ``str`` raises an error.

    ``str`` may call user code, and refuses a huge integer. ``levels``: the number of nested exception groups to describe.
    """
    try:
        return _group_words(value, levels) if isinstance(value, BaseExceptionGroup) and levels else str(value)
    except Exception:
        return type(value).__name__


def _group_words(group: BaseExceptionGroup[BaseException], levels: int) -> str:
    """Return the message of an exception group. Add the class and the message of each of its first GROUP_WORDS exceptions."""
    first = [f"{type(error).__name__}: {_words(error, levels - 1)}" for error in group.exceptions[:GROUP_WORDS]]
    return f"{group}: {'; '.join(first)}"


def _message(words: str) -> str:
    text: str = _storable(words if len(words) <= MAX_ERROR_CHARACTERS else words[:MAX_ERROR_CHARACTERS] + " …")
    return text


def _storable(value: Any, levels: int = MAX_NESTING - 1) -> Any:
    """Return ``value`` as JSON that every store accepts.

    NUL characters and lone surrogates become escapes. A value at a depth of more than ``levels`` becomes an ellipsis.
    """
    match value:
        case dict() | list() | tuple() if levels == 0:
            return "…"
        case None | bool():
            return value
        case int() if value.bit_length() <= 64:
            return value
        case float() if math.isfinite(value):
            return value
        case str():
            return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
        case dict():
            return {_storable(_words(key)): _storable(item, levels - 1) for key, item in value.items()}
        case list() | tuple():
            return [_storable(item, levels - 1) for item in value]
        case _:
            return _storable(_words(value))


def end_events(ended: Ended, left: Remainder) -> list[tuple[str, JsonObject]]:
    """Return the events of an attempt's last write, in this order: the messages, the new requests, the status of the run.

    If the run was cancelled, the write stored no messages. The event of the status then has the first of the reserved numbers.
    """
    events: list[tuple[str, JsonObject]] = []
    if ended.status is not RunStatus.CANCELLED:
        events += completed_events(left.messages)
        events += map(requested_event, left.new_requests)
    if ended.status not in END_EVENTS:
        return events
    data: JsonObject = {"status": ended.status.value}
    if ended.error is not None:
        data["error"] = ended.error.without_traceback().model_dump(mode="json")
    if ended.status is RunStatus.SUSPENDED:
        data["request_ids"] = [request.request_id for request in left.requests]
    return [*events, (END_EVENTS[ended.status], data)]
