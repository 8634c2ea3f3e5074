"""How attempts end: which errors are worth another one, how long until it, and the events that announce the end."""

from __future__ import annotations

import math
import random
from typing import Any, Final

from .agents.context import Remainder
from .agents.transcript import completed_events, requested_event
from .app import AgentSpec
from .bounds import MAX_NESTING, check_value
from .errors import BackendUnavailableError, InvalidInputError, RunyardError
from .exchange import Ended
from .models import ErrorInfo, JsonObject, RetryPolicy, RunOptions
from .states import RunStatus

LONGEST: Final = 10 * 365 * 86400.0
"""Seconds that a run waits for its next attempt, or that an attempt lasts: a moment farther away may have no date."""
LONGEST_ASKED: Final = 3600.0
"""Seconds for which an error may put the next attempt off."""
LONGEST_MESSAGE: Final = 10_000
"""Characters of an error's message that a run records: it is told in the run's last event and wherever the run is listed."""
END_EVENTS: Final = {
    RunStatus.COMPLETED: "run.completed",
    RunStatus.FAILED: "run.failed",
    RunStatus.CANCELLED: "run.cancelled",
    RunStatus.DEAD: "run.dead",
    RunStatus.SUSPENDED: "run.suspended",
}


UNSERVED_DELAY: Final = 5.0
"""Seconds after which a run is offered again whose agent this worker does not have."""


def effective_options(options: RunOptions, spec: AgentSpec | None) -> RunOptions:
    """The run's options, with those of its agent where the run leaves the default."""
    if spec is None:
        return options
    default = RunOptions()
    fields = {
        "timeout": options.timeout if options.timeout is not None else spec.timeout,
        "max_attempts": options.max_attempts if options.max_attempts != default.max_attempts else spec.max_attempts,
        "retry": spec.retry if spec.retry is not None and options.retry == default.retry else options.retry,
    }
    return options.model_copy(update=fields)


def retryable(error: BaseException) -> bool:
    """False for what another attempt would only repeat: refusals of runyard itself, and errors with ``retryable = False``."""
    declared = getattr(error, "retryable", None)
    if isinstance(declared, bool):
        return declared
    return not isinstance(error, RunyardError) or isinstance(error, BackendUnavailableError) or error.http_status >= 500


def describe(error: BaseException) -> ErrorInfo:
    """What a run records about the error that it ended with. Whatever the error says, the record can be stored."""
    if isinstance(error, RunyardError):
        told = error.to_dict()
        return ErrorInfo(code=error.code, message=_message(told["message"]), details=_details(told["details"]))
    name = type(error).__name__
    return ErrorInfo(code="agent_error", message=_message(_words(error)) or name, details={"type": name})


def _details(details: JsonObject) -> JsonObject:
    """What of ``details`` a run records: nothing where they are too large, else the end of the run could not be written."""
    try:
        told: JsonObject = _storable(details)
        check_value(told, "details")
    except InvalidInputError:
        return {}
    return told


def _words(value: object) -> str:
    """What ``value`` says, or its type's name: user code may raise, and Python writes down no number of thousands of digits."""
    try:
        return str(value)
    except Exception:
        return type(value).__name__


def _message(words: str) -> str:
    told: str = _storable(words if len(words) <= LONGEST_MESSAGE else words[:LONGEST_MESSAGE] + " …")
    return told


def _storable(value: Any, levels: int = MAX_NESTING - 1) -> Any:
    """``value`` as JSON that every store takes: NUL characters and lone surrogates are shown as escapes, and what is nested
    more than ``levels`` deep as an ellipsis."""
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


def backoff(policy: RetryPolicy, errors_before: int, error: BaseException | None = None) -> float:
    """Seconds until the next attempt (semantics: R11), and not before ``error`` says that it makes sense (``retry_after``)."""
    delay = min(policy.initial * policy.factor ** min(errors_before, 64), policy.maximum, LONGEST)
    asked = getattr(error, "retry_after", None)
    least = min(asked, LONGEST_ASKED) if isinstance(asked, int | float) and asked > 0 else 0.0
    return max(least, delay * (1 + random.uniform(-policy.jitter, policy.jitter)))


def end_events(ended: Ended, left: Remainder) -> list[tuple[str, JsonObject]]:
    """The events of an attempt's last write, in order: its messages, its requests, the run's own.

    A write that a cancel overtook stored none of its messages; the store then gives the run's event the first number.
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
