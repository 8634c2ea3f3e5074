"""The memory store's feed: what was committed, in order."""

from __future__ import annotations

from backends import cursors
from runner.errors import CursorExpiredError, InvalidCursorError
from runner.exchange import Page
from runner.models import FeedEntry

from .state import Database, Note


class MemoryFeed:
    """Bound to one tenant. A cursor holds the number of the last entry that was read."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def read(self, cursor: str | None = None, *, limit: int = 100) -> Page[FeedEntry]:
        """The next ``limit`` entries."""
        seen = 0
        if cursor is not None:
            [seen] = cursors.numbers(cursor, 1, below=2**63)
            if seen > self.db.numbers:
                raise InvalidCursorError("the cursor is ahead of this database; it was issued by another one", field="cursor")
            if seen < self.db.pruned.get(self.tenant, 0):
                raise CursorExpiredError("entries after this cursor were kept for their time and are gone", cursor=cursor)
        found = [note for note in self.db.notes if note.tenant == self.tenant and note.number > seen][:limit]
        return Page([_entry(note) for note in found], cursors.encode([found[-1].number if found else self.db.numbers]))


def _entry(note: Note) -> FeedEntry:
    return FeedEntry(
        cursor=cursors.encode([note.number]),
        type=note.type,
        thread_id=note.thread_id,
        run_id=note.run_id,
        created_at=note.at,
    )
