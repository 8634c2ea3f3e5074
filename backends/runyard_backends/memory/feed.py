"""The feed in memory: entries in the order of their commits."""

from __future__ import annotations

from runyard.errors import CursorExpiredError, InvalidCursorError
from runyard.models import FeedEntry
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.results import Page

from .. import cursors
from .state import Database, Note


class MemoryFeed:
    """The feed of one tenant. A cursor holds the number of the last entry that was read."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def read(self, page: PageRequest = FIRST_PAGE) -> Page[FeedEntry]:
        """Return up to ``page.limit`` entries after ``page.cursor`` (None: from the oldest entry kept)."""
        seen = 0
        if (cursor := page.cursor) is not None:
            [seen] = cursors.numbers(cursor, 1, below=2**63)
            if seen > self.db.numbers:
                raise InvalidCursorError("the cursor is ahead of this database; it was issued by another one", field="cursor")
            if seen < self.db.pruned.get(self.tenant, 0):
                raise CursorExpiredError("entries after this cursor were pruned; read the feed without a cursor", cursor=cursor)
        found = [note for note in self.db.notes if note.tenant == self.tenant and note.number > seen][: page.limit]
        return Page([_entry(note) for note in found], cursors.encode([found[-1].number if found else self.db.numbers]))


def _entry(note: Note) -> FeedEntry:
    return FeedEntry(
        cursor=cursors.encode([note.number]),
        type=note.type,
        thread_id=note.thread_id,
        run_id=note.run_id,
        created_at=note.at,
    )
