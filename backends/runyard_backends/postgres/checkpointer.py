"""The checkpointer on Postgres (R13 to R15)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from runyard.domain.size_limits import check_value
from runyard.domain.tool_cycles import aborted
from runyard.models import CheckpointData, HitlRequest, JsonObject, Message, check_id, check_named_once
from runyard.ports.results import Aborted, Responded

from ..checkpointers import StoredThreads
from . import codec, history, hitl_answers
from .database import Database
from .threads import PostgresThreadStore

SHORT_MESSAGES: Final = 200
"""Maximum number of messages of a thread that one call loads with the thread. A longer thread is loaded in a snapshot. Postgres
then sends its first messages while it finds the others."""


class PostgresCheckpointer(StoredThreads):
    """The checkpointer of one tenant."""

    def __init__(self, db: Database, tenant: str) -> None:
        super().__init__(PostgresThreadStore(db, tenant))
        self.db, self.tenant = db, tenant

    async def load(self, thread_id: str) -> CheckpointData | None:
        """Return the thread's data, or None if the thread does not exist. The data has the visible messages of the head's path.
        The data also has the messages of live external runs, and of runs that were never claimed. The messages of a long
        history are decoded at their first use, which raises DataCorruptedError for a damaged message."""
        thread, rows = await self._load(self.db, thread_id, SHORT_MESSAGES)
        if thread is not None and thread.more:
            async with self.db.snapshot() as db:
                thread, _ = await self._load(db, thread_id, 0)
                rows = await db.rows("load_long", self.tenant, thread_id)
        if thread is None:
            return None
        # The rows are sorted here and not in Postgres. Postgres can therefore send the first rows before it has found the last
        # rows. The sort is cheap, because the rows arrive almost in order.
        rows.sort(key=itemgetter("seq"))
        messages = await history.lazily(history.kept(rows, thread_id=thread_id))
        return CheckpointData(messages, thread.extra, thread.parent_thread_id, thread.config)

    async def _load(self, db: Database, thread_id: str, most: int) -> tuple[codec.LoadedThread | None, list[Any]]:
        """Return the thread, and the rows of its messages if it has at most ``most``. Without a thread return None."""
        rows = await db.rows("load", self.tenant, thread_id, most)
        if not rows:
            return None, []
        return codec.loaded_thread({"thread_id": thread_id, "note": rows[0]["note"]}), rows[1:]

    async def append(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Store all ``messages`` or none. Each message names its run, or no run. Skip a message whose id is stored already.
        Raises RunAlreadyCompletedError, RunAlreadyClaimedError."""
        check_id(thread_id, "thread_id")
        check_named_once(messages)
        new = codec.many(messages)
        run_ids = [message.run_id for message in messages]
        await self.db.row("checkpoint_append", self.tenant, thread_id, new, run_ids)

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Merge ``extra`` into the thread's extra. A key of ``extra`` replaces the whole value of that key."""
        check_value(extra, "extra")
        await self.db.row("save_extra", self.tenant, check_id(thread_id, "thread_id"), codec.to_json(extra))

    async def save_pending_request(self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None) -> None:
        """Set the thread's own pending request. ``request``: the request, or None to remove it."""
        if run_id is not None:
            check_id(run_id, "run_id")
        new = codec.new_request(request) if request else None
        await self.db.row("save_pending", self.tenant, check_id(thread_id, "thread_id"), new, run_id)

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """Return the newest pending request of the thread with its run id, or None."""
        row = await self.db.row("pending", self.tenant, thread_id)
        return (codec.request(row), row["run_id"]) if row else None

    async def save_requests(self, thread_id: str, requests: Sequence[HitlRequest], *, run_id: str) -> None:
        """Store requests of an external run. A stored request of the run with the same id stays unchanged. Raises
        InvalidInputError if another run or thread has the id of a request."""
        check_id(run_id, "run_id")
        new = [codec.new_request(request) for request in requests]
        await self.db.row("save_requests", self.tenant, check_id(thread_id, "thread_id"), new, run_id)

    async def remove_request(self, thread_id: str, request_id: str) -> bool:
        """Remove a pending request that a checkpointer stored. Return True if this call removed the request."""
        return bool(await self.db.value("remove_request", self.tenant, thread_id, request_id))

    async def load_requests(self, thread_id: str, *, run_id: str | None = None) -> list[HitlRequest]:
        """Return the pending and answered requests of the run or of the thread, the oldest first."""
        return [codec.request(row) for row in await self.db.rows("load_requests", self.tenant, thread_id, run_id)]

    async def answer_request(
        self,
        thread_id: str,
        answer: Any,
        *,
        request_id: str | None = None,
        response_id: str | None = None,
        answered_by: str | None = None,
    ) -> Responded:
        """Answer a request. A repetition has no effect (H3, H4)."""
        asked = (self.tenant, thread_id, request_id, response_id)
        responded, effects = await hitl_answers.respond(self.db, asked, answer, answered_by)
        await self._notify(effects)
        return responded

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human. ``reason``: a text for the error results of the run's open tool calls, and for
        the run's last message (H8)."""
        row = await self.db.one("abort_pending", self.tenant, thread_id, run_id, aborted(reason))
        await self._notify(row["effects"])
        return Aborted(codec.run_entry(row) if row["run_id"] is not None else None)

    async def _notify(self, effects: str | None) -> None:
        """Send the effects to the workers, because the caller of a checkpointer's method does not apply them."""
        if effects is not None:
            await self.db.row("tell", effects)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Start an external run. Raises RunAlreadyClaimedError, RunAlreadyCompletedError."""
        await self.db.row("claim_external", self.tenant, check_id(thread_id, "thread_id"), check_id(run_id, "run_id"))

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete an external run. A repetition has no effect. Raises RunNotClaimedError, RunAlreadyClaimedError."""
        await self.db.row("complete_external", self.tenant, thread_id, run_id)
