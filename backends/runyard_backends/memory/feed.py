"""The feed in memory: entries in the order of their commits."""

from __future__ import annotations

from runyard.errors import CursorExpiredError, InvalidCursorError
from runyard.models import FeedEntry
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.results import Page

from .. import cursors
from .state import Database, Note


class MemoryFeed:
    """The feed of one tenant. A cursor contains the number of the last entry that was read."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def read(self, page: PageRequest = FIRST_PAGE) -> Page[FeedEntry]:
        """Return at most ``page.limit`` entries after ``page.cursor``, or from the oldest kept entry if ``page.cursor`` is
        None."""
        seen = 0
        if (cursor := page.cursor) is not None:
            [seen] = cursors.numbers(cursor, 1, below=2**63)
            if seen > self.db.numbers:
                raise InvalidCursorError("another database issued this cursor", field="cursor")
            if seen < self.db.pruned.get(self.tenant, 0):
                raise CursorExpiredError("entries after this cursor were pruned; read the feed without a cursor", cursor=cursor)
        found = [note for note in self.db.notes if note.tenant == self.tenant and note.number > seen][: page.limit]
        return Page([_entry(self.db, note) for note in found], cursors.encode([found[-1].number if found else self.db.numbers]))


def _entry(db: Database, note: Note) -> FeedEntry:
    thread = db.by_key(note.thread_key)
    fork = thread.thread if thread is not None and note.type == "thread.forked" else None
    run = thread.runs.get(note.run_id or "") if thread is not None else None
    own = run.own() if run is not None and run.run.deleted_at is None else []
    return FeedEntry(
        cursor=cursors.encode([note.number]),
        type=note.type,
        thread_id=note.thread_id,
        run_id=note.run_id,
        created_at=note.at,
        parent_thread_id=fork.parent_thread_id if fork is not None else None,
        forked_after_run_id=fork.forked_after_run_id if fork is not None else None,
        forked_at_seq=fork.forked_at_seq if fork is not None else None,
        first_seq=own[0].seq if own else None,
        last_seq=own[-1].seq if own else None,
        last_message_id=own[-1].id if own else None,
    )
