"""Usage reports: the usage of a tenant's runs, by day."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from ..errors import InvalidInputError
from .messages import Usage

MAX_DAYS: Final = 366
"""Maximum number of days in one report."""
DEFAULT_DAYS: Final = 30
"""Number of days in a report without ``since``."""


class UsageTotal(Usage):
    """The total usage of ended runs. ``runs``: the number of these runs."""

    runs: int = 0


class UsageDay(UsageTotal):
    """The total usage of the runs that ended on ``day``, in UTC."""

    day: date


class UsageReport(BaseModel):
    """The usage of a tenant's runs that ended between the days ``since`` and ``until``, in UTC. Both days are included.

    ``agent``: the agent whose runs are counted, or None for the runs of all agents. ``days``: all days, the oldest first. Days
    without a run are included. ``counted_until``: every run that ended before this time is counted. ``counted_until`` is None
    if no run was counted yet. Some runs that ended later may be counted too.
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
        """Return a report with the days in ``found``. All other days have zeros."""
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
    """Return the first day of a report. Raise InvalidInputError if the report would have no day or too many days."""
    first = until - timedelta(days=DEFAULT_DAYS - 1) if since is None else since
    days = (until - first).days + 1
    if days < 1:
        raise InvalidInputError(f"since, {first}, is after until, {until}; both days are included", field="since")
    if days > MAX_DAYS:
        words = f"{first} to {until} are {days} days, and a report has {MAX_DAYS} at most; split the period"
        raise InvalidInputError(words, field="since")
    return first
