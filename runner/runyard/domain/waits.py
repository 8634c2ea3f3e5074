"""Waits: the times, signals and children for which a suspended run waits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

from pydantic import Field

from ..errors import InvalidInputError, SignalConflictError, SignalInvalidError, SignalTimeoutError
from .base_models import StrictModel
from .derived_ids import digest
from .quoting import brief
from .requests import check_names, misfit
from .size_limits import JsonObject, JsonValue, check_value
from .validation import check_aware, check_id

MAX_WAIT_SECONDS: Final = 10 * 365 * 86400
"""Maximum number of seconds of a sleep, and of the timeout of a question."""
MAX_CHILD_DEPTH: Final = 10
"""Maximum number of levels of children below a run that has no parent."""
MAX_CHILDREN: Final = 1000
"""Maximum number of children of a run."""
MAX_OPEN_SIGNALS: Final = 1000
"""Maximum number of signals of a thread that no run has taken yet."""
MAX_WAITS: Final = 1000
"""Maximum number of waits of a run at one time."""

WaitKind: TypeAlias = Literal["sleep", "signal", "child"]
WaitsFor: TypeAlias = Literal["human", "timer", "signal", "child"]
"""What a suspended run waits for. If the run has a pending question, the value is ``human``, even if it has other waits."""
WAITS_FOR: Final[tuple[WaitsFor, ...]] = get_args(WaitsFor)
Until: TypeAlias = float | timedelta | datetime
"""The end of a wait: seconds or a timedelta from the start of the wait, or a time with a time zone."""


class Wait(StrictModel):
    """A wait of a run for a time, a signal or a child.

    ``wait_id``: the name of the wait in its run, or the run id of the child. ``kind``: whether the run waits for a time, a
    signal or a child. ``name``: the name of the signal, or the id of the child's thread. ``due_at``: the latest end of the
    wait. ``timeout``: seconds to wait. The store adds these seconds to the time of its own clock to compute ``due_at``.
    ``ended_at``: the end of the wait, or None. ``signal_id`` and ``value``: the signal that the wait took.
    """

    wait_id: str
    kind: WaitKind
    name: str | None = None
    due_at: datetime | None = None
    timeout: float | None = Field(None, ge=0, allow_inf_nan=False)
    ended_at: datetime | None = None
    signal_id: str | None = None
    value: JsonValue = None


class Signal(StrictModel):
    """A value that a program sent to a thread under a name.

    ``sent_by``: the name of the sender. Over HTTP, this is the name of the API key. ``run_id``: the run that took the signal,
    or None if no run has taken it.
    """

    signal_id: str
    thread_id: str
    name: str
    value: JsonValue = None
    sent_by: str | None = None
    sent_at: datetime
    run_id: str | None = None

    def check_same(self, name: str, value: JsonValue) -> None:
        """Raise SignalConflictError if a repetition of the signal has another ``name`` or ``value``."""
        same = {"name": self.name == name, "value": digest(self.value) == digest(value)}  # in Python, 1 == True
        differs = [field for field in same if not same[field]]
        if differs:
            raise SignalConflictError(
                f"signal id {self.signal_id!r} is taken by a signal with another {', '.join(differs)}; choose another id",
                signal_id=self.signal_id,
                differs=differs,
            )


def check_signal(name: str, value: JsonValue, signal_id: str, sent_by: str | None) -> None:
    """Raise InvalidInputError if the name or id is invalid, the value exceeds its bounds, or the sender's name is too long."""
    check_id(name, "name")
    check_id(signal_id, "signal_id")
    check_value(value, "value")
    check_names(sent_by=sent_by)


def check_taken(wait: Wait, schema: JsonObject | None) -> JsonValue:
    """Return the value of the signal that ``wait`` took.

    Raises SignalTimeoutError if the wait ended without a signal. Raises SignalInvalidError if the value does not fit
    ``schema``.
    """
    if wait.signal_id is None:
        raise SignalTimeoutError(f"no signal {wait.name!r} came in time", name=wait.name)
    if schema is not None and (found := misfit(schema, wait.value, "value")) is not None:
        message, faults = found
        raise SignalInvalidError(f"signal {wait.name!r}: {message}", name=wait.name, signal_id=wait.signal_id, errors=faults)
    return wait.value


def check_waits(waits: Iterable[Wait]) -> list[Wait]:
    """Return ``waits`` as a list. Raise InvalidInputError for more than MAX_WAITS waits."""
    found = list(waits)
    if len(found) > MAX_WAITS:
        raise InvalidInputError(f"a run has at most {MAX_WAITS} open waits, got {len(found)}", field="waits")
    return found


def end_of_wait(until: Until, field: str) -> tuple[datetime | None, float | None]:
    """Convert ``until`` to ``due_at`` and ``timeout`` of a wait. Exactly one of these two values is None.

    Raises InvalidInputError for a time without a time zone, and for more than MAX_WAIT_SECONDS.
    """
    if isinstance(until, datetime):
        return check_aware(until, field), None
    seconds: object = until.total_seconds() if isinstance(until, timedelta) else until
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise InvalidInputError(
            f"{field} is 0 to {MAX_WAIT_SECONDS} seconds, a timedelta, or a datetime with a time zone; got {brief(until)}",
            field=field,
        )
    return None, float(seconds)
