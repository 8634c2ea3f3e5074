"""Usage reports: tokens, cost and time of a tenant's runs by day, for bills and for monitoring."""

from __future__ import annotations

from datetime import date, datetime

from ..domain.quoting import brief
from ..domain.usage_report import UsageReport
from ..domain.validation import ALLOWED_YEARS, check_name
from ..errors import InvalidInputError
from .arguments import Calls


class UsageCalls(Calls):
    """Report the usage of runs."""

    async def usage(self, since: date | None = None, until: date | None = None, *, agent: str | None = None) -> UsageReport:
        """Return the usage of the tenant's runs that ended between two days, in total and by day.

        ``since`` and ``until``: the first and the last day, in UTC. The default of ``until`` is today. The default of ``since``
        is 29 days before ``until``. A report covers at most 366 days. ``agent``: count the runs of this agent only.

        A run counts on the day of its end, whatever its outcome is. A deleted run still counts. The usage after a redrive
        counts on the day on which the run ends again. The report includes a run some seconds after its end. The totals are
        complete up to ``counted_until``.

        Raises InvalidInputError.
        """
        _check_day("since", since)
        _check_day("until", until)
        return await self.backend.usage.report(since, until, agent=self._agent(check_name(agent, "agent")))


def _check_day(name: str, day: object) -> None:
    """Raise InvalidInputError if ``day`` is not a date. A datetime is refused, because its day depends on the time zone."""
    if day is not None and (isinstance(day, datetime) or not isinstance(day, date) or day.year not in ALLOWED_YEARS):
        words = f"{name} is a day (datetime.date) from the year {ALLOWED_YEARS[0]} to {ALLOWED_YEARS[-1]}, got {brief(day)}"
        raise InvalidInputError(words, field=name)
