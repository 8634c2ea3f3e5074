"""Ends of attempts: the error that a run records, and the events that announce an end.

The store decides which messages of the run stay. In Postgres, these are the functions in ``write.sql`` and ``end_run.sql``.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ..domain.runs import ErrorInfo
from ..domain.size_limits import MAX_NESTING, JsonObject, check_value
from ..domain.states import RunStatus
from ..errors import InvalidInputError, RunyardError
from ..ports.results import Ended
from .context import Remainder
from .transcript import completed_events, requested_event

MAX_ERROR_CHARACTERS: Final = 10_000
"""Maximum number of characters of a recorded error's message: the run's last event and each list of runs contain it."""

END_EVENTS: Final = {
    RunStatus.COMPLETED: "run.completed",
    RunStatus.FAILED: "run.failed",
    RunStatus.CANCELLED: "run.cancelled",
    RunStatus.DEAD: "run.dead",
    RunStatus.SUSPENDED: "run.suspended",
}


def describe(error: BaseException) -> ErrorInfo:
    """Return the error that a run records, in a form that every store accepts."""
    if isinstance(error, RunyardError):
        fields = error.to_dict()
        return ErrorInfo(code=error.code, message=_message(fields["message"]), details=_details(fields["details"]))
    name = type(error).__name__
    return ErrorInfo(code="agent_error", message=_message(_words(error)) or name, details={"type": name})


def _details(details: JsonObject) -> JsonObject:
    """Return the ``details`` that a run records: ``{}`` if they are too large, because the store would refuse the run's end."""
    try:
        storable: JsonObject = _storable(details)
        check_value(storable, "details")
    except InvalidInputError:
        return {}
    return storable


def _words(value: object) -> str:
    """Return ``str(value)``, or the type's name if ``str`` raises. User code may raise, and so do huge integers."""
    try:
        return str(value)
    except Exception:
        return type(value).__name__


def _message(words: str) -> str:
    text: str = _storable(words if len(words) <= MAX_ERROR_CHARACTERS else words[:MAX_ERROR_CHARACTERS] + " …")
    return text


def _storable(value: Any, levels: int = MAX_NESTING - 1) -> Any:
    """Return ``value`` as JSON that every store accepts.

    NUL characters and lone surrogates become escapes. A value nested more than ``levels`` deep becomes an ellipsis.
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
    """Return the events of an attempt's last write, in order: those of its messages, of its requests, and of the run's status.

    If the run was cancelled, the write stored no messages. The event of the run's status then has the first number.
    """
    events: list[tuple[str, JsonObject]] = []
    if ended.status is not RunStatus.CANCELLED:
        events += completed_events(left.messages)
        events += map(requested_event, left.requests)
    if ended.status not in END_EVENTS:
        return events
    data: JsonObject = {"status": ended.status.value}
    if ended.error is not None:
        data["error"] = ended.error.model_dump(mode="json")
    if ended.status is RunStatus.SUSPENDED:
        data["request_ids"] = [request.request_id for request in left.requests]
    return [*events, (END_EVENTS[ended.status], data)]
