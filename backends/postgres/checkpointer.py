"""The documented checkpointer on Postgres (semantics: R13 to R15)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from runner.bounds import check_value
from runner.exchange import Aborted, Cut, ForkRequest, Responded
from runner.models import CheckpointData, HitlRequest, JsonObject, Message, check_id, check_named_once
from runner.repair import aborted

from . import codec, history, hitl
from .database import Database
from .threads import PostgresThreadStore


class PostgresCheckpointer:
    """Bound to one tenant."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant
        self._threads = PostgresThreadStore(db, tenant)

    async def load(self, thread_id: str) -> CheckpointData | None:
        """What counts on the head's path, and what was said so far in runs that no worker has: external, or not claimed.

        None for an unknown thread."""
        async with self.db.snapshot() as db:
            row = await db.row("thread", self.tenant, thread_id)
            if row is None:
                return None
            rows = await db.rows("load", self.tenant, thread_id)
        # Here and not in SQL: rows are read while Postgres makes the next ones, and they come in nearly the right order.
        rows.sort(key=itemgetter("seq"))
        messages = await history.messages(rows, thread_id=thread_id)
        thread = codec.thread(row)
        return CheckpointData(messages, thread.extra, thread.parent_thread_id)

    async def append(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Append each message under its own run id, or none. Raises RunAlreadyCompletedError, RunAlreadyClaimedError."""
        check_id(thread_id, "thread_id")
        check_named_once(messages)
        new = codec.many(messages)
        run_ids = [message.run_id for message in messages]
        await self.db.row("checkpoint_append", self.tenant, thread_id, new, run_ids)

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Merge into the thread's extra at the top level."""
        check_value(extra, "extra")
        await self.db.row("save_extra", self.tenant, check_id(thread_id, "thread_id"), codec.to_json(extra))

    async def save_pending_request(self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None) -> None:
        """Keep one pending request; None clears it and its run id."""
        new = codec.new_request(request) if request else None
        await self.db.row("save_pending", self.tenant, check_id(thread_id, "thread_id"), new, run_id)

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """The pending request and its run id, read together."""
        row = await self.db.row("pending", self.tenant, thread_id)
        return (codec.request(row), row["run_id"]) if row else None

    async def load_pending_request(self, thread_id: str) -> HitlRequest | None:
        """The pending request, or None."""
        pending = await self.load_pending(thread_id)
        return pending[0] if pending else None

    async def load_pending_run_id(self, thread_id: str) -> str | None:
        """The run id of the pending request; None without one."""
        pending = await self.load_pending(thread_id)
        return pending[1] if pending else None

    async def save_requests(self, thread_id: str, requests: Sequence[HitlRequest], *, run_id: str) -> None:
        """Keep requests of an external run beside each other; one with a known id stays as it is."""
        new = [codec.new_request(request) for request in requests]
        await self.db.row("save_requests", self.tenant, check_id(thread_id, "thread_id"), new, run_id)

    async def load_requests(self, thread_id: str, *, run_id: str | None = None) -> list[HitlRequest]:
        """Requests that wait or were answered, of the run or of the thread, the oldest first."""
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
        """Answer a request once (semantics: H3, H4)."""
        asked = (self.tenant, thread_id, request_id, response_id)
        responded, effects = await hitl.respond(self.db, asked, answer, answered_by)
        await self._tell(effects)
        return responded

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human, in the words of ``reason`` (semantics: H8)."""
        row = await self.db.one("abort_pending", self.tenant, thread_id, run_id, aborted(reason))
        await self._tell(row["effects"])
        return Aborted(codec.run_entry(row) if row["run_id"] is not None else None)

    async def _tell(self, effects: str | None) -> None:
        """Nobody takes the effects of a checkpointer's verbs from its answers, so the workers are told."""
        if effects is not None:
            await self.db.row("tell", effects)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Begin an external run. Raises RunAlreadyClaimedError, RunAlreadyCompletedError."""
        await self.db.row("claim_external", self.tenant, check_id(thread_id, "thread_id"), check_id(run_id, "run_id"))

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete an external run; again is a no-op. Raises RunNotClaimedError, RunAlreadyClaimedError."""
        await self.db.row("complete_external", self.tenant, thread_id, run_id)

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Message]:
        """What a fork after the run would see. Raises ThreadNotFoundError, RunNotCompletedError."""
        messages, _ = await self._threads.cut_messages(thread_id, Cut(after_run_id=after_run_id))
        return messages

    async def fork(
        self, src_thread_id: str, new_thread_id: str, *, after_run_id: str, metadata: JsonObject | None = None
    ) -> None:
        """Fork after a completed run to a thread that is not there yet (semantics: F1, F4)."""
        cut = Cut(after_run_id=after_run_id)
        request = ForkRequest(src=src_thread_id, new=new_thread_id, cut=cut, metadata=metadata)
        (await self._threads.fork(request)).require_new()
