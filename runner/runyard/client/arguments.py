"""The base class of the client's calls, and the checks of the arguments of these calls."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from ..domain.agent_names import qualified
from ..domain.messages import Message, check_message
from ..domain.quoting import brief
from ..domain.runs import DEFAULT_OPTIONS, PRIORITIES, Priority, RunOptions
from ..domain.validation import first_problem
from ..domain.webhooks import check_url
from ..errors import InvalidInputError
from ..ports.scheduling import Effects
from ..ports.stores import Backend
from .apply_effects import apply_effects

MAX_PAGE_SIZE: Final = 1000
"""Maximum value of the argument ``limit`` of the calls that return pages."""


class Calls:
    """Base class of the calls. ``backend`` is bound to one tenant. ``app_version`` is recorded with accepted runs.

    ``namespace``: the namespace of the agents in arguments (:mod:`runyard.domain.agent_names`), or the empty text.
    """

    backend: Backend
    app_version: str | None
    namespace: str

    def _agent(self, name: str | None) -> str | None:
        """Return the name of an agent with its namespace. None stays None."""
        return None if name is None else qualified(self.namespace, name)

    async def _apply(self, effects: Effects) -> None:
        await apply_effects(effects, self.backend)


def as_message(message: str | Message | None) -> Message | None:
    """Return a string as a user message, and a message or None unchanged. Raise InvalidInputError for any other value."""
    if message is None:
        return None
    return Message.user(message) if isinstance(message, str) else check_message(message)


def options(**fields: Any) -> RunOptions:
    """Return RunOptions with ``fields``. Raise InvalidInputError, with the name of the field, if a value is out of range."""
    default = DEFAULT_OPTIONS.__dict__
    if all(value is default[name] or value == default[name] for name, value in fields.items()):
        return DEFAULT_OPTIONS
    try:
        return RunOptions(**fields)
    except ValidationError as error:
        name, problem, value = first_problem(error)
        raise InvalidInputError(f"{name}: {problem.lower()}, got {brief(value)}", field=name) from None


def check_delay(delay: float | None, run_at: datetime | None) -> float | None:
    """Return ``delay`` (seconds). Raise InvalidInputError if ``delay`` is out of range, or if ``run_at`` is given too."""
    if delay is None:
        return None
    if run_at is not None:
        raise InvalidInputError("give run_at or delay, not both", field="delay")
    try:
        fits = 0 <= delay < 10 * 365 * 86400
    except TypeError:
        fits = False
    if not fits:
        raise InvalidInputError(f"delay is a number of seconds, from 0 to ten years; got {brief(delay)}", field="delay")
    return delay


def check_priority(priority: Priority) -> Priority:
    """Return ``priority``.

    Raise InvalidInputError for an unknown priority, because no worker claims a run with an unknown priority.
    """
    if priority not in PRIORITIES:
        raise InvalidInputError(f"priority is one of {', '.join(PRIORITIES)}, got {brief(priority)}", field="priority")
    return priority


def check_webhook_url(webhook: str | None) -> str | None:
    """Return ``webhook``, a URL that receives the run's end, or None. Raise InvalidInputError for an invalid URL."""
    return check_url(webhook, "webhook") if webhook is not None else None
