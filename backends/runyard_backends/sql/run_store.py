"""The run store of a SQL store. It reads external runs and HITL requests, stores answers, and cancels and deletes runs."""

from __future__ import annotations

from typing import Any

from runyard.domain.tool_cycles import aborted
from runyard.models import HitlRequest, Run
from runyard.ports.queries import ALL_RUNS, FIRST_PAGE, PageRequest, RunFilter
from runyard.ports.results import Aborted, Changed, Page, Responded

from ..unsupported import Refusing
from . import external_runs, lists, requests
from .database import Database, Row, Transaction
from .refusals import no_workers


class SqlRunStore(Refusing):
    """The methods of :class:`~runyard.ports.stores.RunStore` that need no worker. They return no effects. Because there is no
    reconciler, each method that returns runs or requests first applies the deadlines of overdue requests (H7)."""

    def __init__(self, db: Database, tenant: str) -> None:
        super().__init__("runs", no_workers(db.name))
        self.db, self.tenant = db, tenant

    async def run(self, thread_id: str, run_id: str) -> Run | None:
        """Return a run, or None for an unknown run."""
        await requests.fire_before_reading(self.db, self.tenant, thread_id)
        row = await self.db.read(lambda tx: self._row(tx, "run", thread_id, run_id))
        return external_runs.decoded(row) if row is not None else None

    async def _row(self, tx: Transaction, name: str, thread_id: str, run_id: str) -> Row | None:
        thread = await tx.row("find_thread", self.tenant, thread_id)
        return await tx.row(name, thread["thread_key"], run_id) if thread is not None else None

    async def last_message_id(self, thread_id: str, run_id: str) -> str | None:
        """Return the id of the last message that the run wrote, or None."""
        row = await self.db.read(lambda tx: self._row(tx, "last_message", thread_id, run_id))
        return row["message_id"] if row is not None else None

    async def runs(self, where: RunFilter = ALL_RUNS, page: PageRequest = FIRST_PAGE) -> Page[Run]:
        """Return runs, the newest first."""
        await requests.fire_before_reading(self.db, self.tenant, where.thread_id)
        return await self.db.read(lambda tx: lists.runs(tx, self.tenant, where, page, self.db.page_bytes))

    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, page: PageRequest = FIRST_PAGE
    ) -> Page[HitlRequest]:
        """Return HITL requests, the oldest first. ``pending``: True to return only unanswered requests."""
        await requests.fire_before_reading(self.db, self.tenant, thread_id)
        return await self.db.read(lambda tx: lists.requests(tx, self.tenant, thread_id, pending, page, self.db.page_bytes))

    async def request(self, request_id: str) -> HitlRequest | None:
        """Return one HITL request, or None for an unknown request."""
        row = await self.db.read(lambda tx: tx.row("request", self.tenant, request_id))
        if row is not None and requests.is_pending(row) and row["deadline_at"] is not None:
            await requests.fire_before_reading(self.db, self.tenant, row["thread_id"])
            row = await self.db.read(lambda tx: tx.row("request", self.tenant, request_id))
        return requests.decoded(row) if row is not None else None

    async def respond(
        self,
        answer: Any,
        *,
        thread_id: str | None = None,
        request_id: str | None = None,
        response_id: str | None = None,
        answered_by: str | None = None,
        on_behalf_of: str | None = None,
    ) -> Responded:
        """Answer the request ``request_id``. Without ``request_id``, answer the thread's only pending request (H3)."""
        return await requests.respond(
            self.db,
            self.tenant,
            answer,
            thread_id=thread_id,
            request_id=request_id,
            response_id=response_id,
            answered_by=answered_by,
            on_behalf_of=on_behalf_of,
        )

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed:
        """Cancel a live run immediately. A cancelled run stays unchanged (R10)."""
        return Changed(await self.db.write(lambda tx: external_runs.cancel(tx, self.tenant, thread_id, run_id, keep)))

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human. The error results of the run's open tool calls, and the run's last message,
        contain ``reason`` (H8)."""
        words = aborted(reason)
        await requests.fire_deadlines(self.db, self.tenant, thread_id)
        return Aborted(await self.db.write(lambda tx: requests.abort(tx, self.tenant, thread_id, run_id, words)))

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete the content of an ended run whose messages no later run sees. Keep what another branch or a fork shows."""
        await self.db.write(lambda tx: external_runs.delete(tx, self.tenant, thread_id, run_id))
