"""The thread store on Postgres: message trees, forks, deletion."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from backends import cursors
from runner.bounds import check_value
from runner.errors import InvalidInputError
from runner.exchange import Created, Cut, Effects, Forked, ForkRequest, Page, ThreadRequest
from runner.models import Branch, JsonObject, Message, Thread, check_id, check_name, check_tags, open_tool_calls
from runner.repair import FORKED, closing
from runner.states import RunStatus
from runner.unset import UNSET, Unset

from . import codec, history
from .database import Database

_LAST: Final = 2**63 - 1


class PostgresThreadStore:
    """Bound to one tenant."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def thread(self, thread_id: str) -> Thread | None:
        """The thread, or None."""
        row = await self.db.row("thread", self.tenant, thread_id)
        return codec.thread(row) if row else None

    async def thread_key(self, thread_id: str) -> int | None:
        """The thread's surrogate key, or None."""
        row = await self.db.row("thread", self.tenant, thread_id)
        return row["thread_key"] if row else None

    async def threads(
        self,
        *,
        parent_thread_id: str | None = None,
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Threads in the order in which they were made."""
        after = cursors.number(cursor) if cursor is not None else 0
        having = codec.to_json(dict(tags)) if tags else None
        rows = await self.db.rows("threads", self.tenant, parent_thread_id, agent, having, after, limit, self.db.page_bytes)
        more = rows.pop() if rows and rows[-1]["thread_id"] is None else None
        return Page([codec.thread_entry(row) for row in rows], cursors.encode(more["place"]) if more else None)

    async def create_thread(self, request: ThreadRequest) -> Created:
        """Make an empty thread; the same request again finds it. Raises ThreadAlreadyExistsError."""
        row = await self.db.one(
            "create_thread",
            *(self.tenant, check_id(request.thread_id, "thread_id"), request.hash),
            *(check_name(request.agent, "agent"), request.title),
            codec.to_json(check_tags(request.tags, request.title)),
            codec.to_json(request.extra),
            codec.to_json(request.config),
        )
        return Created(codec.thread(row), row["created"])

    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | Unset | None = UNSET,
        tags: Mapping[str, str] | Unset | None = UNSET,
        extra: JsonObject | Unset | None = UNSET,
        expected: datetime | None = None,
    ) -> Thread:
        """Set what is given, clear what is None; extra is merged. Raises ThreadNotFoundError, PreconditionFailedError."""
        patch: dict[str, Any] = {"title": title, "extra": extra, "tags": tags}
        if extra is not UNSET:
            check_value(extra, "extra")
        if title is not UNSET:
            check_value(title, "title")
        if tags is not UNSET and tags is not None:
            patch["tags"] = check_tags(tags)
        given = codec.to_json({name: value for name, value in patch.items() if value is not UNSET})
        return codec.thread(await self.db.one("update_thread", self.tenant, thread_id, given, expected))

    async def messages(
        self,
        thread_id: str,
        leaf_id: str | None = None,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> Page[Message]:
        """The path to ``leaf_id``; without it, everything that counts on the head's path (semantics: B2)."""
        if leaf_id is not None:
            codec.check_uuid(leaf_id, "leaf_id")
        branch, last = cursors.numbers(cursor, 2, below=2**63) if cursor is not None else (None, None)
        after, before = (-1 if last is None or newest_first else last), (last if newest_first and last is not None else _LAST)
        place = (self.tenant, thread_id, leaf_id, after, before)
        if limit is None:
            found = await history.messages(await self.db.rows("path", *place, branch), thread_id=thread_id)
            return Page(found[::-1] if newest_first else found)
        rows = await self.db.rows("page", *place, limit + 1, newest_first, branch, self.db.page_bytes)
        shown = rows[:limit]
        more = cursors.encode([shown[-1]["branch"], shown[-1]["seq"]]) if shown and len(shown) < shown[0]["found"] else None
        return Page(await history.messages(shown, thread_id=thread_id), more)

    async def cut_messages(self, thread_id: str, cut: Cut) -> tuple[list[Message], JsonObject]:
        """What a fork at ``cut`` would see, and its extra."""
        asked = codec.to_json(codec.cut_json(cut))
        async with self.db.snapshot() as db:
            extra = (await db.one("cut", self.tenant, thread_id, asked))["extra"]
            rows = await db.rows("cut_messages", self.tenant, thread_id, asked)
        messages = await history.messages(rows, thread_id=thread_id)
        if cut.repair and (calls := open_tool_calls(messages)):
            messages += closing(calls, FORKED)
        return messages, codec.from_json(extra)

    async def branches(self, thread_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[Branch]:
        """The leaves of the tree, by age (semantics: B3)."""
        since, last = cursors.moment(cursor) if cursor is not None else (None, None)
        if last is not None:
            codec.check_uuid(last, "cursor")
        rows = await self.db.rows("branches", self.tenant, thread_id, since, last, limit + 1)
        found = [
            Branch(
                message_id=row["message_id"],
                depth=row["depth"],
                created_at=row["created_at"],
                run_id=row["run_id"],
                run_status=RunStatus(row["run_status"]) if row["run_status"] else None,
            )
            for row in rows[:limit]
        ]
        more = cursors.encode([found[-1].created_at.isoformat(), found[-1].message_id]) if len(rows) > limit else None
        return Page(found, more)

    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message:
        """Store a message without a run, creating the thread if need be (semantics: B1)."""
        check_id(thread_id, "thread_id")
        for name, value in (("parent_id", parent_id), ("expected_leaf", expected_leaf)):
            if value is not None:
                codec.check_uuid(value, name)
        new = codec.new_message(message)
        row = await self.db.one("store_message", self.tenant, thread_id, new, parent_id, expected_leaf)
        (stored,) = codec.messages([row], thread_id=thread_id)
        if (row["role"], row["payload"]) != new[1:3] and not stored.says(message):
            text = f"message id {stored.id} is taken on thread {thread_id} by another message; use a fresh one"
            raise InvalidInputError(text, thread_id=thread_id, message_id=stored.id)
        return stored

    async def fork(self, request: ForkRequest) -> Forked:
        """Fork in constant time (semantics: F1 to F8)."""
        check_id(request.new, "new thread id")
        asked = codec.fork_json(request) | {"tags": check_tags(request.tags, request.title)}
        row = await self.db.one("fork", self.tenant, codec.to_json(asked), request.fork_hash)
        return Forked(codec.thread(row), row["created"])

    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete; what forks see of the thread stays. Raises ThreadBusyError unless ``cancel``."""
        return codec.effects(await self.db.value("delete_thread", self.tenant, thread_id, cancel, expected))

    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Replace the content of the thread's messages wherever they are seen, then delete it."""
        async with self.db.transaction() as db:
            await db.row("erase_content", self.tenant, thread_id)
            return codec.effects(await db.value("delete_thread", self.tenant, thread_id, cancel, expected))
