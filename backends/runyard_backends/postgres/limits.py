"""The deployment's limits on Postgres. The stored functions of accept and claim read them."""

from __future__ import annotations

from runyard.models import Limit, LimitName
from runyard.ports.scheduling import Effects

from . import codec
from .database import Database


class PostgresLimitStore:
    """Store of the deployment's limits. The store belongs to no tenant."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def limits(self) -> list[Limit]:
        """Return all limits that are set, in the order of their names. Among limits with the same name, the limit without a
        subject comes first."""
        return [Limit(**row) for row in await self.db.rows("limits")]

    async def set_limit(self, limit: Limit) -> None:
        """Set a limit. Replace the limit with the same name and subject."""
        await self.db.row("set_limit", limit.name, limit.subject, limit.most)

    async def clear_limit(self, name: LimitName, subject: str | None = None) -> bool:
        """Remove a limit. Return True if the limit was set."""
        return await self.db.row("clear_limit", name, subject) is not None

    async def review_limits(self) -> Effects:
        """Count the waiting runs. Return the jobs of waiting runs for which a permit is free."""
        return codec.effects(await self.db.value("review_limits"))
