"""Encode the last write of an attempt, and decode the attempt's end."""

from __future__ import annotations

from typing import NamedTuple

from runyard.domain.size_limits import check_value
from runyard.domain.states import RunStatus
from runyard.errors import LockedError, from_dict
from runyard.models import Usage, check_usage
from runyard.ports.commands import Write
from runyard.ports.results import Ended

from ...codec.message_rows import NewMessage, many
from ...codec.values import Row, pack, to_json
from .effects_json import effects
from .run_rows import error_info


class AttemptWrite(NamedTuple):
    """The attributes of a ``runyard.attempt_write``, in their order."""

    thread_key: int
    run_id: str
    fence: int
    messages: list[NewMessage]
    extra: str | None
    usage: str | None
    result: bytes | None
    first_event: int


def attempt_write(write: Write) -> AttemptWrite:
    """Encode a write as a ``runyard.attempt_write``. Raises InvalidInputError if something in the write cannot be stored."""
    check_value(write.extra, "extra")
    check_value(write.result, "result")
    return AttemptWrite(
        thread_key=write.attempt.thread_key,
        run_id=write.attempt.run_id,
        fence=write.attempt.fence,
        messages=many(write.messages),
        extra=to_json(write.extra) if write.extra is not None else None,
        usage=usage_json(write.usage),
        result=pack(write.result) if write.result is not None else None,
        first_event=write.first_event,
    )


def usage_json(usage: Usage | None) -> str | None:
    """Encode a usage that is added to the usage of a run. Raises InvalidInputError for an invalid amount."""
    return to_json(check_usage(usage).__dict__) if usage is not None else None


def ended(row: Row, prefix: str = "") -> Ended:
    """Decode the end of an attempt from a ``runyard.ended``. ``prefix``: the prefix of its columns in the row."""
    return Ended(
        status=RunStatus(row[f"{prefix}status"]),
        event_id=row[f"{prefix}event_id"],
        error=error_info(row[f"{prefix}error"]),
        effects=effects(row[f"{prefix}effects"]),
    )


def refusal(code: str | None, run_id: str, fence: int) -> Exception | None:
    """Return the error of an attempt's write that was refused for the reason ``code``. Return None if ``code`` is None."""
    match code:
        case None:
            return None
        case "locked":
            return LockedError(f"another transaction has locked the thread of run {run_id}; try again", run_id=run_id)
        case "cancel_requested":
            message = f"run {run_id} was cancelled; nothing more is stored"
        case _:
            message = f"the attempt with fence {fence} no longer holds run {run_id}; stop it"
    return from_dict({"code": code, "message": message, "details": {"run_id": run_id, "fence": fence}})
