"""Usage reports on Postgres. A report reads totals, which the leader counts from the outbox."""

from __future__ import annotations

from datetime import date

from runyard.domain.usage_report import UsageDay, UsageReport, first_day
from runyard.ports.workers import FeedDelay

from .database import Database


class PostgresUsageStore:
    """Usage of one tenant. ``count`` covers all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def report(self, since: date | None = None, until: date | None = None, *, agent: str | None = None) -> UsageReport:
        """Return the usage of the runs that ended from the day ``since`` to the day ``until``, both included. The default is
        the last 30 days. ``agent``: count runs of this agent only. The call reads one row per day."""
        if until is None:
            until = await self.db.value("today")
        since = first_day(since, until)
        rows = await self.db.rows("usage", self.tenant, agent or "", since, until)
        found = [
            UsageDay(
                day=row["day"],
                runs=row["runs"],
                requests=int(row["requests"]),
                input_tokens=int(row["input_tokens"]),
                output_tokens=int(row["output_tokens"]),
                cost=float(row["cost"]),
                seconds=float(row["seconds"]),
            )
            for row in rows
            if row["day"] is not None
        ]
        return UsageReport.of(since, until, agent, found, rows[0]["counted_until"])

    async def count(self, limit: int = 5000) -> FeedDelay:
        """Add the next entries of the outbox to the totals, about ``limit`` of them."""
        row = await self.db.one("count_usage", limit)
        return FeedDelay(row["seconds"], row["holder"])
