"""What all calls share: a backend, and a commit followed by its effects."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from ..effects import apply
from ..errors import InvalidInputError
from ..exchange import Effects
from ..legible import brief
from ..models import PRIORITIES, Message, Priority, RunOptions, check_message
from ..ports import Backend
from ..webhooks.models import check_url

MOST: Final = 1000
"""Entries of a page, where they are bounded."""
YEARS: Final = range(1970, 9000)
"""Of moments that callers name."""


class Calls:
    """Base of the calls; ``backend`` is bound to one tenant. ``app_version`` is recorded with accepted runs."""

    backend: Backend
    app_version: str | None

    async def _apply(self, effects: Effects) -> None:
        await apply(effects, self.backend)


def as_message(message: str | Message | None) -> Message | None:
    """A string is the words of the user. Raises InvalidInputError for what is neither text nor a message."""
    if message is None:
        return None
    return Message.user(message) if isinstance(message, str) else check_message(message)


def options(**fields: Any) -> RunOptions:
    """RunOptions, with a value out of range told as InvalidInputError."""
    try:
        return RunOptions(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(f"{name}: {first['msg'].lower()}, got {brief(first['input'])}", field=name) from None


def aware(moment: datetime | None, name: str = "run_at") -> datetime | None:
    """``moment`` if it names an instant: a naive one would mean another time on another host. The calendar ends a while after
    the last that is taken, so that something can be added to it."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidInputError(f"{name} needs a time zone, got {moment.isoformat()}; use datetime.now(UTC)", field=name)
    if moment.year not in YEARS:
        raise InvalidInputError(f"{name} is from the year {YEARS[0]} to {YEARS[-1]}, got {moment.isoformat()}", field=name)
    return moment


def due(delay: float | None, run_at: datetime | None) -> float | None:
    """``delay`` in seconds if it makes sense beside ``run_at``."""
    if delay is None:
        return None
    if run_at is not None:
        raise InvalidInputError("give run_at or delay, not both", field="delay")
    if not 0 <= delay < 10 * 365 * 86400:
        raise InvalidInputError(f"delay is seconds from now on, at most ten years; got {delay}", field="delay")
    return delay


def check_limit(limit: int, most: int | None = None) -> None:
    """Raise InvalidInputError if no page has so many entries."""
    if limit < 1 or (most is not None and limit > most):
        raise InvalidInputError(f"limit is 1 {f'to {most}' if most else 'or more'}, got {brief(limit)}", field="limit")


def urgency(priority: Priority) -> Priority:
    """``priority`` if there is such a class: no worker would ever look at another one."""
    if priority not in PRIORITIES:
        raise InvalidInputError(f"priority is one of {', '.join(PRIORITIES)}, got {brief(priority)}", field="priority")
    return priority


def told(webhook: str | None) -> str | None:
    """``webhook`` if it is a URL that can be told of a run's end."""
    return check_url(webhook, "webhook") if webhook is not None else None
