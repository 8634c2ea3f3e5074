"""Queues on Postgres: what waits in them, and which are paused."""

from __future__ import annotations

from datetime import datetime

from runner.exchange import QueueInfo
from runner.models import check_id

from .database import Database


class PostgresQueueStore:
    """Over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def queues(self) -> list[QueueInfo]:
        """Every queue that holds runs, is paused or is served, by name. Costs as much as there are unfinished runs."""
        return [QueueInfo(**row) for row in await self.db.rows("queues")]

    async def pause(self, queue: str) -> datetime:
        """No run of ``queue`` is claimed from here on; since when that is so."""
        since: datetime = await self.db.value("pause", check_id(queue, "queue"))
        return since

    async def resume(self, queue: str) -> bool:
        """Runs of ``queue`` are claimed again; whether it was paused."""
        return await self.db.row("resume", queue) is not None
