"""The thread store of a SQL store. It reads and writes message trees, makes forks, and deletes threads."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from runyard.domain.states import RunStatus
from runyard.domain.validation import check_label
from runyard.models import Branch, JsonObject, Message, Thread, check_id, check_uuid
from runyard.ports.branches import ImportLock
from runyard.ports.commands import Cut, ForkRequest, ThreadChanges, ThreadRequest
from runyard.ports.queries import ALL_THREADS, FIRST_PAGE, WHOLE_PATH, PageRequest, PathRequest, ThreadFilter
from runyard.ports.results import Created, Forked, Page
from runyard.ports.scheduling import Effects

from .. import cursors
from ..codec.message_rows import new_message
from ..lineage import ancestors
from . import cuts, deletion, forks, lists, threads, tree, views, writes
from .database import Database, Row, Transaction


class SqlThreadStore:
    """Threads of one tenant. The methods return no effects, because there are no workers and no event streams."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def thread(self, thread_id: str) -> Thread | None:
        """Return the thread, or None if it does not exist."""
        row = await self.db.read(lambda tx: tx.row("thread", self.tenant, thread_id))
        return threads.decoded(row) if row is not None else None

    async def thread_key(self, thread_id: str) -> int | None:
        """Return the number of the thread's row, or None if the thread does not exist."""
        row = await self.db.read(lambda tx: tx.row("find_thread", self.tenant, thread_id))
        return row["thread_key"] if row is not None else None

    async def threads(self, where: ThreadFilter = ALL_THREADS, page: PageRequest = FIRST_PAGE) -> Page[Thread]:
        """Return threads, the oldest first."""
        return await self.db.read(lambda tx: lists.threads(tx, self.tenant, where, page, self.db.page_bytes))

    async def ancestors(self, thread_id: str, limit: int) -> Page[Thread]:
        """Return ancestors of the thread, the nearest first. Raises ThreadNotFoundError."""

        async def read(tx: Transaction) -> Page[Thread]:
            thread = await threads.found(tx, self.tenant, thread_id)
            return await ancestors(lambda key: threads.parent(tx, self.tenant, key), thread["thread_key"], limit)

        return await self.db.read(read)

    async def create_thread(self, request: ThreadRequest) -> Created:
        """Make an empty thread. If an earlier equal request made the thread, return this thread. Raises
        ThreadAlreadyExistsError."""
        return await self.db.write(lambda tx: threads.created(tx, self.tenant, request))

    async def update_thread(
        self, thread_id: str, *, expected: datetime | None = None, **changes: Unpack[ThreadChanges]
    ) -> Thread:
        """Set the given fields, and clear the fields that are None. Merge a given ``extra`` or ``config``. Raises
        ThreadNotFoundError, PreconditionFailedError."""
        return await self.db.write(lambda tx: threads.updated(tx, self.tenant, thread_id, changes, expected))

    async def messages(self, thread_id: str, path: PathRequest = WHOLE_PATH) -> Page[Message]:
        """Return the path to ``leaf_id``. Without ``leaf_id``, return the head's path (B2)."""
        leaf_id = check_uuid(path.leaf_id, "leaf_id") if path.leaf_id is not None else None
        of_branch, after = cursors.numbers(path.cursor, 2, below=2**63) if path.cursor is not None else (None, None)

        async def read(tx: Transaction) -> tuple[int, list[views.MessageRow], bool]:
            thread = await threads.found(tx, self.tenant, thread_id)
            branch_id = await self._branch(tx, thread, of_branch)
            if leaf_id is not None:
                view = (await cuts.at_message(tx, thread, leaf_id)).view
            else:
                view = await views.of_branch(tx, thread["thread_key"], branch_id)
            if path.limit is None and after is None:
                rows = await views.rows_of(tx, view)
                return branch_id, rows[::-1] if path.newest_first else rows, False
            many = (
                {"limit": 2**31, "budget": 2**62} if path.limit is None else {"limit": path.limit, "budget": self.db.page_bytes}
            )
            part, more = await views.page_of(tx, view, after=after, newest_first=path.newest_first, **many)
            return branch_id, part, more

        branch_id, rows, more = await self.db.read(read)
        messages = await views.messages(rows, thread_id)
        for message, row in zip(messages, rows, strict=True):
            message.run_status = RunStatus(row[10]) if row[10] is not None else None
        return Page(messages, cursors.encode([branch_id, rows[-1][0]]) if more and rows else None)

    async def _branch(self, tx: Transaction, thread: Row, branch_id: int | None) -> int:
        """Return the branch of a cursor if the thread has this branch. Otherwise return the head."""
        row = await tx.row("branch", branch_id) if branch_id is not None else None
        head: int = thread["head_branch"]
        return row["branch_id"] if row is not None and row["thread_key"] == thread["thread_key"] else head

    async def cut_messages(self, thread_id: str, cut: Cut) -> tuple[list[Message], JsonObject]:
        """Return the messages that a fork at ``cut`` would see, and the extra that it would have."""
        rows, extra = await self.db.read(lambda tx: forks.cut_messages(tx, self.tenant, thread_id, cut))
        messages = await views.messages(rows, thread_id)
        return [*messages, *(forks.closed(messages) if cut.repair else [])], extra

    async def branches(self, thread_id: str, page: PageRequest = FIRST_PAGE, *, labelled: bool = False) -> Page[Branch]:
        """Return the branches of the tree, each with its leaf, in the order of the leaves' creation (B3)."""
        after = cursors.moment(page.cursor) if page.cursor is not None else None
        found, more = await self.db.read(
            lambda tx: tree.leaves(tx, self.tenant, thread_id, after, page.limit, labelled=labelled)
        )
        return Page(found, cursors.encode([found[-1].created_at.isoformat(), found[-1].message_id]) if more else None)

    async def branch_keys(self, thread_id: str) -> list[int]:
        """Return the keys of the thread's branches, in the order in which they were opened."""

        async def read(tx: Transaction) -> list[int]:
            thread = await threads.found(tx, self.tenant, thread_id)
            return sorted(key for (key,) in await tx.tuples("branches_of_thread", thread["thread_key"]))

        return await self.db.read(read)

    async def branch_at(self, thread_id: str, place: int) -> tuple[int | None, int]:
        """Return the key at the index ``place`` of :meth:`branch_keys`, and the number of branches. The key is None if the
        thread has no branch at this index."""
        keys = await self.branch_keys(thread_id)
        return (keys[place] if place < len(keys) else None), len(keys)

    async def branch_messages(self, thread_id: str, branch: int, *, after: int = 0, limit: int = 500) -> list[Message]:
        """Return the messages that are stored on the branch, of all runs, in order. Inherited messages are omitted."""

        async def read(tx: Transaction) -> list[views.MessageRow]:
            thread = await threads.found(tx, self.tenant, thread_id)
            row = await tx.row("branch", branch)
            if row is None or row["thread_key"] != thread["thread_key"]:
                return []
            return await views.stored_after(tx, branch, after, limit, self.db.page_bytes)

        return await views.messages(await self.db.read(read), thread_id)

    async def set_head(self, thread_id: str, message_id: str) -> None:
        """Make the branch that ends at a message the head. If no branch ends there, open one."""
        at = check_uuid(message_id, "message_id")
        await self.db.write(lambda tx: forks.set_head(tx, self.tenant, thread_id, at))

    async def lock_imports(self) -> ImportLock:
        """Take the lock of the tenant's imports. Raises LockedError if another import holds the lock."""
        return await self.db.lock_imports(self.tenant)

    async def set_label(self, thread_id: str, label: str, message_id: str | None = None) -> None:
        """Give a label to the branch that stores a message, or to the head (B9)."""
        at = check_uuid(message_id, "message_id") if message_id is not None else None
        named = check_label(label)
        await self.db.write(lambda tx: tree.set_label(tx, self.tenant, thread_id, named, at))

    async def remove_label(self, thread_id: str, label: str) -> None:
        """Remove a label."""
        named = check_label(label)
        await self.db.write(lambda tx: tree.remove_label(tx, self.tenant, thread_id, named))

    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message:
        """Store a message without a run. Make the thread if it does not exist (B1)."""
        check_id(thread_id, "thread_id")
        parent = check_uuid(parent_id, "parent_id") if parent_id is not None else None
        expected = check_uuid(expected_leaf, "expected_leaf") if expected_leaf is not None else None
        new = new_message(message)
        by_caller = message.by_caller()
        writes.check_sizes([by_caller])
        return await self.db.write(lambda tx: forks.store(tx, self.tenant, thread_id, new, by_caller, parent, expected))

    async def fork(self, request: ForkRequest) -> Forked:
        """Fork a thread, in a time that does not depend on its length (F1 to F8). If an earlier equal request made the fork,
        return this fork."""
        return await self.db.write(lambda tx: forks.fork(tx, self.tenant, request))

    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete the thread. Its forks keep the messages that they see. ``cancel`` has no effect, because live external runs do
        not prevent the deletion."""
        await self.db.write(lambda tx: deletion.delete(tx, self.tenant, thread_id, expected, erase=False), long=True)
        return Effects()

    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete the thread. Replace its messages in forks by tombstones."""
        await self.db.write(lambda tx: deletion.delete(tx, self.tenant, thread_id, expected, erase=True), long=True)
        return Effects()
