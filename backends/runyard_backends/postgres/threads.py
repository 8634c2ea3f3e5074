"""The thread store on Postgres: message trees, forks, deletion."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Unpack

from runyard.domain.size_limits import check_value
from runyard.domain.states import RunStatus
from runyard.domain.threads import segments
from runyard.domain.tool_cycles import FORKED, closing
from runyard.domain.validation import MAX_LABELS, check_label, check_name
from runyard.errors import BackendUnavailableError, InvalidInputError, ThreadNotFoundError
from runyard.models import Branch, JsonObject, Message, Thread, check_id, check_tags, check_uuid, open_tool_calls
from runyard.ports.commands import Cut, ForkRequest, ThreadChanges, ThreadRequest
from runyard.ports.queries import ALL_THREADS, FIRST_PAGE, WHOLE_PATH, PageRequest, PathRequest, ThreadFilter
from runyard.ports.results import Created, Forked, Page
from runyard.ports.scheduling import Effects

from .. import cursors
from ..lineage import ancestors
from . import codec, history
from .database import Database
from .import_lock import PostgresImportLock

log = logging.getLogger("runyard.postgres")

_LAST: Final = 2**63 - 1
REMOVAL_ROWS: Final = 1000
"""Maximum number of runs and messages that one transaction of a deletion examines."""


class PostgresThreadStore:
    """Threads of one tenant."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant
        self._telling: set[asyncio.Task[object]] = set()

    async def thread(self, thread_id: str) -> Thread | None:
        """Return the thread, or None if it does not exist."""
        row = await self.db.row("thread", self.tenant, thread_id)
        return codec.thread(row) if row else None

    async def thread_key(self, thread_id: str) -> int | None:
        """Return the number of the thread's row, or None if the thread does not exist."""
        row = await self.db.row("thread", self.tenant, thread_id)
        return row["thread_key"] if row else None

    async def threads(self, where: ThreadFilter = ALL_THREADS, page: PageRequest = FIRST_PAGE) -> Page[Thread]:
        """Return threads, in the order in which they were made, or the newest first."""
        order = where.newest_first
        after = cursors.thread(page.cursor, newest_first=order) if page.cursor is not None else None
        having = codec.to_json(dict(where.tags)) if where.tags else None
        filters = (self.tenant, where.parent_thread_id, where.agent, having)
        rows = await self.db.rows("threads", *filters, after, order, page.limit, self.db.page_bytes)
        more = rows.pop() if rows and rows[-1]["thread_id"] is None else None
        following = cursors.of_thread(more["place"], newest_first=order) if more else None
        return Page([codec.thread_entry(row) for row in rows], following)

    async def ancestors(self, thread_id: str, limit: int) -> Page[Thread]:
        """Return ancestors of the thread, the nearest first. Raises ThreadNotFoundError."""
        key = await self.thread_key(thread_id)
        if key is None:
            raise ThreadNotFoundError(f"there is no thread {thread_id!r}", thread_id=thread_id)
        return await ancestors(self._parent, key, limit)

    async def _parent(self, key: int) -> tuple[int, Thread] | None:
        if (row := await self.db.row("parent", key)) is None:
            return None
        thread = codec.thread(row)
        return row["thread_key"], thread if row["deleted_at"] is None else thread.tombstone(row["deleted_at"])

    async def create_thread(self, request: ThreadRequest) -> Created:
        """Make an empty thread. If an equal request made the thread before, return it. Raises ThreadAlreadyExistsError."""
        values = (
            *(self.tenant, request.thread_id, request.hash, request.agent, request.title),
            codec.to_json(check_tags(request.tags, request.title)),
            codec.to_json(request.extra),
            codec.to_json(request.config),
        )
        row = await self.db.one("create_thread", *values)
        return Created(codec.thread(row), row["created"])

    async def update_thread(
        self, thread_id: str, *, expected: datetime | None = None, **changes: Unpack[ThreadChanges]
    ) -> Thread:
        """Set the given fields, and clear the fields that are None. Merge a given ``extra`` or ``config``. Raises
        ThreadNotFoundError, PreconditionFailedError."""
        check_name(changes.get("agent"), "agent")
        for name in ("title", "extra", "config"):
            check_value(changes.get(name), name)
        if (tags := changes.get("tags")) is not None:
            changes["tags"] = check_tags(tags)
        return codec.thread(await self.db.one("update_thread", self.tenant, thread_id, codec.to_json(changes), expected))

    async def messages(self, thread_id: str, path: PathRequest = WHOLE_PATH) -> Page[Message]:
        """Return the path to ``leaf_id``. Without ``leaf_id``, return the path to the end of the head. This path includes the
        messages of a live run (B2)."""
        leaf_id, limit, newest_first = path.leaf_id, path.limit, path.newest_first
        if leaf_id is not None:
            check_uuid(leaf_id, "leaf_id")
        branch, last = cursors.numbers(path.cursor, 2, below=2**63) if path.cursor is not None else (None, None)
        after, before = (-1 if last is None or newest_first else last), (last if newest_first and last is not None else _LAST)
        place = (self.tenant, thread_id, leaf_id, after, before)
        if limit is None:
            found = await history.path(await self._path(place, branch), thread_id=thread_id)
            return Page(found[::-1] if newest_first else found)
        rows = await self.db.rows("page", *place, limit + 1, newest_first, branch, self.db.page_bytes)
        shown = rows[:limit]
        more = cursors.encode([shown[-1]["branch"], shown[-1]["seq"]]) if shown and len(shown) < shown[0]["found"] else None
        return Page(await history.path(shown, thread_id=thread_id), more)

    async def _path(self, place: tuple[str, str, str | None, int, int], branch: int | None) -> Sequence[codec.Row]:
        """Read all messages of a path in parts. All parts show one state of the thread."""
        tenant, thread_id, leaf_id, after, before = place
        size = (history.PART_MESSAGES, False)
        part = await self.db.rows("page", *place, *size, branch, self.db.page_bytes)
        if not history.more_after(part):
            return part
        rows: list[codec.Row] = []
        async with self.db.snapshot() as db:
            while True:
                part = await db.rows("page", tenant, thread_id, leaf_id, after, before, *size, branch, self.db.page_bytes)
                rows += part
                if not history.more_after(part):
                    return rows
                after, branch = part[-1]["seq"], part[-1]["branch"]

    async def cut_messages(self, thread_id: str, cut: Cut) -> tuple[list[Message], JsonObject]:
        """Return the messages that a fork at ``cut`` would see, and the extra that it would have."""
        asked = codec.to_json(codec.cut_json(cut))
        async with self.db.snapshot() as db:
            extra = (await db.one("cut", self.tenant, thread_id, asked))["extra"]
            rows = await db.rows("cut_messages", self.tenant, thread_id, asked)
        messages = await history.messages(rows, thread_id=thread_id)
        if cut.repair and (calls := open_tool_calls(messages)):
            messages += closing(calls, FORKED)
        return messages, codec.from_json(extra)

    async def branches(self, thread_id: str, page: PageRequest = FIRST_PAGE, *, labelled: bool = False) -> Page[Branch]:
        """Return the branches of the tree, each with its leaf, in the order of the leaves' creation (B3)."""
        since, last = cursors.message(page.cursor) if page.cursor is not None else (None, None)
        rows = await self.db.rows("branches", self.tenant, thread_id, labelled, since, last, page.limit + 1)
        found = [
            Branch(
                message_id=row["message_id"],
                depth=row["depth"],
                created_at=row["created_at"],
                run_id=row["run_id"],
                run_status=RunStatus(row["run_status"]) if row["run_status"] else None,
                head=row["head"],
                trunk=row["trunk"],
                labels=row["labels"],
                path=segments([*(row["inherited"] or ()), (row["segment"], row["until_seq"])]),
            )
            for row in rows[: page.limit]
        ]
        more = cursors.encode([found[-1].created_at.isoformat(), found[-1].message_id]) if len(rows) > page.limit else None
        return Page(found, more)

    async def branch_keys(self, thread_id: str) -> list[int]:
        """Return the keys of the thread's branches, in the order in which they were opened."""
        return [row["branch_id"] for row in await self.db.rows("branch_keys", self.tenant, thread_id)]

    async def branch_at(self, thread_id: str, place: int) -> tuple[int | None, int]:
        """Return the key at the index ``place`` of :meth:`branch_keys`, and the number of branches. The key is None if the
        thread has no branch at this index."""
        row = await self.db.one("branch_at", self.tenant, thread_id, place)
        return row["branch_id"], row["branches"]

    async def branch_messages(self, thread_id: str, branch: int, *, after: int = 0, limit: int = 500) -> list[Message]:
        """Return the messages that are stored on the branch, of all runs, in order. Inherited messages are omitted."""
        place = (self.tenant, thread_id, branch, after, limit, self.db.page_bytes)
        return await history.messages(await self.db.rows("branch_messages", *place), thread_id=thread_id)

    async def set_head(self, thread_id: str, message_id: str) -> None:
        """Make the branch that ends at a message the head. If no branch ends there, open one."""
        await self.db.row("set_head", self.tenant, thread_id, check_uuid(message_id, "message_id"))

    async def lock_imports(self) -> PostgresImportLock:
        """Take the lock of the tenant's imports. Raises LockedError if another import holds it."""
        return await PostgresImportLock.take(self.db, self.tenant)

    async def set_label(self, thread_id: str, label: str, message_id: str | None = None) -> None:
        """Give a label to the branch that stores a message, or to the head (B9)."""
        named = check_uuid(message_id, "message_id") if message_id is not None else None
        await self.db.row("set_label", self.tenant, thread_id, check_label(label), named, MAX_LABELS)

    async def remove_label(self, thread_id: str, label: str) -> None:
        """Remove a label."""
        await self.db.row("remove_label", self.tenant, thread_id, check_label(label))

    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message:
        """Store a message without a run. Make the thread if it does not exist (B1)."""
        check_id(thread_id, "thread_id")
        for name, value in (("parent_id", parent_id), ("expected_leaf", expected_leaf)):
            if value is not None:
                check_uuid(value, name)
        new = codec.new_message(message)
        row = await self.db.one("store_message", self.tenant, thread_id, new, parent_id, expected_leaf)
        (stored,) = codec.messages([row], thread_id=thread_id)
        if (row["role"], row["payload"]) != new[1:3] and not stored.says(message):
            text = f"message id {stored.id} is taken on thread {thread_id} by another message; use another id"
            raise InvalidInputError(text, thread_id=thread_id, message_id=stored.id)
        return stored

    async def fork(self, request: ForkRequest) -> Forked:
        """Fork a thread (F1 to F8). The time for the fork does not depend on the length of the thread. If an equal request
        made the fork before, return it."""
        asked = codec.fork_json(request) | {"tags": check_tags(request.tags, request.title)}
        row = await self.db.one("fork", self.tenant, codec.to_json(asked), request.fork_hash)
        return Forked(codec.thread(row), row["created"])

    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete the thread. Its forks keep the messages that they see. ``cancel``: True to cancel live runs first. Raises
        ThreadBusyError if a run is live and ``cancel`` is False."""
        return await self._remove(thread_id, cancel, expected, erase=False)

    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete the thread. Replace its messages in forks by tombstones."""
        return await self._remove(thread_id, cancel, expected, erase=True)

    async def _remove(self, thread_id: str, cancel: bool, expected: datetime | None, *, erase: bool) -> Effects:
        """Delete the thread in one transaction. Remove the rows of a large thread in further transactions. If this process
        stops or a further transaction fails, the leader removes the remaining rows. After such a failure, the call does not
        raise an error and returns the effects. If the caller is cancelled, a worker applies the effects."""
        row = await self.db.one("delete_thread", self.tenant, thread_id, cancel, expected, erase)
        try:
            for key in row["unremoved"]:
                while await self.db.value("remove_step", key, REMOVAL_ROWS):
                    pass
        except BackendUnavailableError as error:
            log.warning("thread_removal_interrupted thread_id=%s error=%s", thread_id, error)
        except Exception:
            log.exception("thread_removal_interrupted thread_id=%s", thread_id)
        except asyncio.CancelledError:
            telling = asyncio.create_task(self.db.row("tell", row["effects"]))
            self._telling.add(telling)
            telling.add_done_callback(self._told)
            raise
        return codec.effects(row["effects"])

    def _told(self, telling: asyncio.Task[object]) -> None:
        self._telling.discard(telling)
        if not telling.cancelled() and (error := telling.exception()) is not None:
            log.warning("deletion_not_announced error=%s", error)  # the reconciler finds the runs later
