"""The checkpointer on a SQL store (R13 to R15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runyard.domain.size_limits import check_value
from runyard.domain.tool_cycles import aborted
from runyard.models import CheckpointData, HitlRequest, JsonObject, Message, check_id, check_named_once
from runyard.ports.results import Aborted, Responded

from ..checkpointers import StoredThreads
from ..codec.message_rows import many
from ..codec.request_rows import new_request
from ..codec.values import from_json, to_json
from . import external_runs, threads, views, writes
from . import requests as hitl
from .database import Database, Row, Transaction
from .thread_store import SqlThreadStore


class SqlCheckpointer(StoredThreads):
    """The checkpointer of one tenant. It implements :class:`~runyard.ports.stores.Checkpointer` and
    :class:`~runyard.ports.stores.RequestStore`."""

    def __init__(self, db: Database, tenant: str) -> None:
        super().__init__(SqlThreadStore(db, tenant))
        self.db, self.tenant = db, tenant

    async def load(self, thread_id: str) -> CheckpointData | None:
        """Return the thread's data, or None if the thread does not exist. The data has the visible messages of the head's path.
        The data also has the messages of live runs, and of runs that were never claimed."""

        async def read(tx: Transaction) -> tuple[Row, list[views.MessageRow]] | None:
            thread = await tx.row("thread", self.tenant, thread_id)
            if thread is None:
                return None
            before = await views.rows_of(tx, await views.inherited(tx, thread["head_branch"]))
            return thread, [*before, *await tx.tuples("loaded", thread["thread_key"], thread["head_branch"])]

        if (found := await self.db.read(read)) is None:
            return None
        thread, rows = found
        messages = await views.messages(rows, thread_id)
        return CheckpointData(messages, from_json(thread["extra"]), thread["parent_thread_id"], from_json(thread["config"]))

    async def append(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Store all ``messages`` or none. Each message names its run, or no run. Skip a message whose id is stored already.
        Raises RunAlreadyCompletedError, RunAlreadyClaimedError."""
        check_id(thread_id, "thread_id")
        check_named_once(messages)
        new, run_ids = many(messages), [message.run_id for message in messages]
        writes.check_sizes(messages)
        await self.db.write(lambda tx: writes.append(tx, self.tenant, thread_id, new, run_ids))

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Merge ``extra`` into the thread's extra. A key of ``extra`` replaces the whole value of that key."""
        check_value(extra, "extra")
        to_json(extra)
        await self.db.write(lambda tx: threads.save_extra(tx, self.tenant, thread_id, extra))

    async def save_pending_request(self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None) -> None:
        """Replace the pending requests of the thread by ``request``. If ``request`` is None, only remove them."""
        if run_id is not None:
            check_id(run_id, "run_id")
        new = new_request(request) if request is not None else None
        await self.db.write(lambda tx: hitl.save_pending(tx, self.tenant, thread_id, new, run_id))

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """Return the newest pending request of the thread with its run id, or None."""
        found = await hitl.load_pending(self.db, self.tenant, thread_id)
        return (found, found.run_id) if found is not None else None

    async def save_requests(self, thread_id: str, requests: Sequence[HitlRequest], *, run_id: str) -> None:
        """Store requests of an external run. A stored request of the run with the same id stays unchanged. Raises
        InvalidInputError if another run or thread has a request with one of the ids."""
        check_id(run_id, "run_id")
        new = [new_request(request) for request in requests]
        await self.db.write(lambda tx: hitl.save_many(tx, self.tenant, thread_id, new, run_id))

    async def load_requests(self, thread_id: str, *, run_id: str | None = None) -> list[HitlRequest]:
        """Return the pending and answered requests of the run or of the thread, the oldest first."""
        return await hitl.load(self.db, self.tenant, thread_id, run_id)

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
        asked = {"thread_id": thread_id, "request_id": request_id, "response_id": response_id, "answered_by": answered_by}
        return await hitl.respond(self.db, self.tenant, answer, **asked)

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human. The error results of the run's open tool calls, and the run's last message,
        contain ``reason`` (H8)."""
        words = aborted(reason)
        await hitl.fire_deadlines(self.db, self.tenant, thread_id)
        return Aborted(await self.db.write(lambda tx: hitl.abort(tx, self.tenant, thread_id, run_id, words)))

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Start an external run. Raises RunAlreadyClaimedError, RunAlreadyCompletedError."""
        check_id(run_id, "run_id")
        await self.db.write(lambda tx: external_runs.claim(tx, self.tenant, thread_id, run_id))

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete an external run. A repetition has no effect. Raises RunNotClaimedError."""
        await self.db.write(lambda tx: external_runs.complete(tx, self.tenant, thread_id, run_id))
