"""What a tenant used, by day: for bills and for watching."""

from __future__ import annotations

from datetime import date, datetime

from ..errors import InvalidInputError
from ..models import check_name
from ..usage import UsageReport
from .base import YEARS, Calls


class UsageCalls(Calls):
    """Ask what runs used."""

    async def usage(self, since: date | None = None, until: date | None = None, *, agent: str | None = None) -> UsageReport:
        """What the tenant's runs used that ended from the day ``since`` to the day ``until``, both included, in UTC: in all and
        day by day. Left out, ``until`` is today, and ``since`` the day that makes 30 days; 366 are the most.

        ``agent``: of its runs only; those that name none count for the agent ``default``. Each run counts on the day of its
        end, whatever that was, and stays counted when it is deleted. What a run uses after it was redriven counts on the day of
        its next end. Totals follow within seconds: ``counted_until`` says up to when they are complete.

        Raises InvalidInputError.
        """
        _check_day("since", since)
        _check_day("until", until)
        return await self.backend.usage.report(since, until, agent=check_name(agent, "agent"))


def _check_day(name: str, day: object) -> None:
    """Raises InvalidInputError. A datetime is a date to Python, and would mean another day elsewhere."""
    if day is not None and (isinstance(day, datetime) or not isinstance(day, date) or day.year not in YEARS):
        words = f"{name} is a day (datetime.date) from the year {YEARS[0]} to {YEARS[-1]}, got {day!r:.80}"
        raise InvalidInputError(words, field=name)
