"""The feed on Postgres. The feed has the entries of the outbox, ordered by transaction and position, up to the oldest open
transaction (the horizon)."""

from __future__ import annotations

from typing import Final

from runyard.models import FeedEntry
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.results import Page

from .. import cursors
from .database import Database

_HIGHEST: Final = 2**63


class PostgresFeed:
    """The feed of one tenant. A cursor is the transaction and the position of the last entry that was read."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def read(self, page: PageRequest = FIRST_PAGE) -> Page[FeedEntry]:
        """Return at most ``page.limit`` entries after ``page.cursor``, or from the oldest entry if ``page.cursor`` is None.
        Raises InvalidCursorError, CursorExpiredError."""
        after = cursors.numbers(page.cursor, 2, below=_HIGHEST) if page.cursor is not None else (None, None)
        rows = await self.db.rows("feed", self.tenant, *after, page.limit)
        entries = [
            FeedEntry(
                cursor=cursors.encode([row["transaction"], row["position"]]),
                type=row["type"],
                thread_id=row["thread_id"],
                run_id=row["run_id"],
                created_at=row["created_at"],
                parent_thread_id=row["parent_thread_id"],
                forked_after_run_id=row["forked_after_run_id"],
                forked_at_seq=row["forked_at_seq"],
                first_seq=row["first_seq"],
                last_seq=row["last_seq"],
                last_message_id=str(row["last_message_id"]) if row["last_message_id"] else None,
            )
            for row in rows
            if row["transaction"] is not None
        ]
        if len(entries) == page.limit and entries:
            return Page(entries, entries[-1].cursor)
        # The reader has all entries of transactions below the horizon. With the horizon as the cursor, the cursor advances even
        # without new entries.
        return Page(entries, cursors.encode([rows[0]["horizon"], 0]))
