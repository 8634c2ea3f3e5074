"""What the runs of a tenant used, by day."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from .errors import InvalidInputError
from .models import Usage

MOST_DAYS: Final = 366
"""Of one report."""
USUAL_DAYS: Final = 30
"""Of a report whose first day is left out."""


class UsageTotal(Usage):
    """What ``runs`` runs that ended used."""

    runs: int = 0


class UsageDay(UsageTotal):
    """What the runs used that ended on ``day``, in UTC."""

    day: date


class UsageReport(BaseModel):
    """What a tenant's runs used that ended from the day ``since`` to the day ``until``, both included, in UTC.

    ``agent``: of its runs only, if it is set.
    ``days``: each of them, the oldest first, also those without a run. ``counted_until``: every run that had ended by then is
    counted, and perhaps some that ended later; None before anything was counted.
    """

    model_config = ConfigDict(extra="forbid")

    since: date
    until: date
    agent: str | None = None
    counted_until: datetime | None = None
    total: UsageTotal
    days: list[UsageDay]

    @classmethod
    def of(cls, since: date, until: date, agent: str | None, found: Iterable[UsageDay], counted_until: datetime | None) -> Self:
        """The report of the days that were ``found``; the others have nothing."""
        by_day = {each.day: each for each in found}
        days = [since + timedelta(days=n) for n in range((until - since).days + 1)]
        total = {name: sum(getattr(each, name) for each in by_day.values()) for name in UsageTotal.model_fields}
        return cls(
            since=since,
            until=until,
            agent=agent,
            counted_until=counted_until,
            total=UsageTotal(**total),
            days=[by_day.get(day) or UsageDay(day=day) for day in days],
        )


def first_day(since: date | None, until: date) -> date:
    """The first day of a report that ends with ``until``. Raises :class:`InvalidInputError` for no days, and for too many."""
    first = until - timedelta(days=USUAL_DAYS - 1) if since is None else since
    days = (until - first).days + 1
    if days < 1:
        raise InvalidInputError(f"since, {first}, is after until, {until}; both days are included", field="since")
    if days > MOST_DAYS:
        words = f"{first} to {until} are {days} days, and a report has {MOST_DAYS} at most; ask in parts"
        raise InvalidInputError(words, field="since")
    return first
