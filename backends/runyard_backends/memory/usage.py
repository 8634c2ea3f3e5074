"""The memory store of usage. The store counts each run when the run ends."""

from __future__ import annotations

from datetime import UTC, date

from runyard.domain.usage_report import UsageDay, UsageReport, first_day
from runyard.models import Usage
from runyard.ports.workers import FeedDelay

from .state import Database, RunState, ThreadState


class MemoryUsageStore:
    """Usage of one tenant."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def report(self, since: date | None = None, until: date | None = None, *, agent: str | None = None) -> UsageReport:
        """Return the usage of the runs that ended from the day ``since`` to the day ``until``, both included. ``until``: by
        default today. ``since``: by default 29 days before ``until``. ``agent``: count runs of this agent only."""
        if until is None:
            until = self.db.now().astimezone(UTC).date()
        since = first_day(since, until)
        found = [
            each
            for (tenant, name, day), each in self.db.usage.items()
            if tenant == self.tenant and name == agent and since <= day <= until
        ]
        return UsageReport.of(since, until, agent, found, self.db.now())

    async def count(self, limit: int = 5000) -> FeedDelay:
        """Do nothing, because each run is counted when it ends."""
        return FeedDelay()


def count_run(db: Database, thread: ThreadState, run: RunState) -> None:
    """Add the usage of an ending run to the totals of the day. If a redriven run ends again, add only the usage since its
    previous end. Each agent has a total. The total with the agent None is for all agents together."""
    used, first = run.run.usage, run.counted is None
    day = db.now().astimezone(UTC).date()
    for agent in (None, run.run.agent or "default") if run.run.fence is not None else (None,):
        total = db.usage.setdefault((thread.tenant, agent, day), UsageDay(day=day))
        total.runs += first
        for name in Usage.model_fields:
            before = getattr(run.counted, name, 0)
            setattr(total, name, getattr(total, name) + getattr(used, name) - before)
    run.counted = used
