"""The feed on Postgres: the outbox in the order of (transaction, position), never past an open transaction."""

from __future__ import annotations

from typing import Final

from backends import cursors
from runner.exchange import Page
from runner.models import FeedEntry

from .database import Database

_HIGHEST: Final = 2**63


class PostgresFeed:
    """Bound to one tenant. A cursor is a place: the transaction and position of the last entry that was read."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def read(self, cursor: str | None = None, *, limit: int = 100) -> Page[FeedEntry]:
        """The next ``limit`` entries. Raises InvalidCursorError, CursorExpiredError."""
        after = cursors.numbers(cursor, 2, below=_HIGHEST) if cursor is not None else (None, None)
        rows = await self.db.rows("feed", self.tenant, *after, limit)
        entries = [
            FeedEntry(
                cursor=cursors.encode([row["transaction"], row["position"]]),
                type=row["type"],
                thread_id=row["thread_id"],
                run_id=row["run_id"],
                created_at=row["created_at"],
            )
            for row in rows
            if row["transaction"] is not None
        ]
        if len(entries) == limit and entries:
            return Page(entries, entries[-1].cursor)
        # All of every transaction below the horizon was read, so a reader of a quiet feed moves on with the time.
        return Page(entries, cursors.encode([rows[0]["horizon"], 0]))
