"""The deployment's limits, for operators (semantics: R16)."""

from __future__ import annotations

from pydantic import ValidationError

from ..errors import InvalidInputError
from ..models import LIMITS, Limit, LimitName
from .base import Calls


class LimitCalls(Calls):
    """Limits hold for every tenant and every process, from the next accept and the next claim on."""

    async def limits(self) -> list[Limit]:
        """The limits that are set."""
        return await self.backend.limits.limits()

    async def set_limit(self, name: LimitName, most: int, *, subject: str | None = None) -> Limit:
        """Allow at most ``most`` (of runs, bytes or seconds), in place of what was set before for the same ``subject``.

        ``name``: ``queued``, ``queued_per_tenant`` and ``queued_per_lane`` refuse what would wait beyond them with
        QueueFullError; ``queued_seconds``: runs that have not started so many seconds after they were due fail with
        ``run_expired``; ``message_bytes`` refuses larger messages with MessageTooLargeError; ``running_per_agent`` and
        ``running_per_tenant`` let runs wait until a slot is free. ``subject``: one agent or tenant, whose limit is another than
        that of each.

        Raises InvalidInputError.
        """
        try:
            limit = Limit(name=name, subject=subject, most=most)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InvalidInputError(
                f"limits are {', '.join(LIMITS)}, 0 or more, and only those per tenant or agent have a subject: {first['msg']}",
                field=".".join(map(str, first["loc"])) or "subject",
            ) from None
        await self.backend.limits.set_limit(limit)
        return limit

    async def clear_limit(self, name: LimitName, *, subject: str | None = None) -> bool:
        """Take a limit away; False if it was not set."""
        return await self.backend.limits.clear_limit(name, subject)
