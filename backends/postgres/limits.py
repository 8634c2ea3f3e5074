"""The deployment's limits on Postgres, where accept and claim read them."""

from __future__ import annotations

from runner.exchange import Effects
from runner.models import Limit, LimitName

from . import codec
from .database import Database


class PostgresLimitStore:
    """Over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def limits(self) -> list[Limit]:
        """All that are set, by name; those without a subject first."""
        return [Limit(**row) for row in await self.db.rows("limits")]

    async def set_limit(self, limit: Limit) -> None:
        """Set a limit in place of the one with the same name and subject."""
        await self.db.row("set_limit", limit.name, limit.subject, limit.most)

    async def clear_limit(self, name: LimitName, subject: str | None = None) -> bool:
        """Take a limit away; whether it was set."""
        return await self.db.row("clear_limit", name, subject) is not None

    async def review_limits(self) -> Effects:
        """Count what waits, and offer what waits for a slot that is free."""
        return codec.effects(await self.db.value("review_limits"))
