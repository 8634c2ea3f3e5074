"""Accepts of one tenant: requests that arrive together share a transaction. Repetitions return the existing run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

import structlog

from runyard.errors import BackendUnavailableError, RunNotFoundError, RunyardError, from_dict
from runyard.models import Run
from runyard.ports.commands import MAX_PROMPTS_PER_CALL, AcceptRequest, PromptSeries
from runyard.ports.results import Accepted, outage_of
from runyard.support.batching import each_its_own
from runyard.support.garbage_collector import held_back
from runyard.support.locked_batching import LockedBatcher
from runyard.support.turns import turn

from . import codec
from .database import Database, milliseconds

log = structlog.get_logger("runyard.accepts")

ACCEPT_BATCH: Final = 32
"""Maximum number of single accepts in one transaction."""
ACCEPT_MANY_BYTES: Final = 16 * 2**20
"""Maximum number of bytes of the prompts in one transaction of ``accept_many``. A larger prompt has its own transaction."""


class Encoded(NamedTuple):
    """A request and its ``runyard.request``. ``series``: the calls of :meth:`Accepts.many` to which the request belongs."""

    request: AcceptRequest
    row: codec.RunRequest
    series: PromptSeries


class Accepts:
    """Accepts runs of one tenant.

    A single accept never shares a transaction with the prompts of :meth:`many`. It therefore does not wait for a transaction of
    a thousand runs.
    """

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant
        self._single: LockedBatcher[Encoded, codec.Row] = LockedBatcher(
            self.rows_apart, _thread_of, limit=ACCEPT_BATCH, in_flight=2
        )
        self._placing = asyncio.Lock()
        self._many: LockedBatcher[Encoded, codec.Row] = LockedBatcher(
            self._rows_of_calls, _thread_of, limit=MAX_PROMPTS_PER_CALL, size=_bytes_of, most_bytes=ACCEPT_MANY_BYTES
        )

    async def one(self, request: AcceptRequest) -> Accepted:
        """Accept a run. Raises the errors of the request."""
        return await self.accepted(request, await self._single(encoded(request)))

    async def many(self, requests: Sequence[AcceptRequest], series: PromptSeries) -> list[Accepted | RunyardError]:
        """Accept prompts, and return one outcome per prompt, in order.

        The requests are encoded and queued while another call is executed. The prompts of one thread keep their order, even
        over two calls of this method. The event loop runs between the prompts.
        """
        async with self._placing:  # a later call with fewer prompts would otherwise take its places first
            items = await _encoded(requests, series)
            sent = [item if isinstance(item, RunyardError) else self._many(item) for item in items]
        await asyncio.gather(*(future for future in sent if not isinstance(future, RunyardError)), return_exceptions=True)
        existing = await self._existing(requests, sent)
        outcomes: list[Accepted | RunyardError] = []
        since = monotonic()
        with held_back(len(requests), made=0) as pause:
            for request, future in zip(requests, sent, strict=True):
                try:
                    if isinstance(future, RunyardError):
                        raise future
                    outcomes.append(await self._one_of_many(request, future.result(), existing))
                except RunyardError as error:
                    outcomes.append(error)
                except Exception as error:  # raised, it would hide the outcomes of the other prompts
                    log.error("accept_failed", thread_id=request.thread_id, run_id=request.run_id, exc_info=error)
                    outcomes.append(RunyardError(f"the prompt was not accepted because of {type(error).__name__}; see the log"))
                since = await pause.turn(since)
        return outcomes

    async def _existing(
        self, requests: Sequence[AcceptRequest], sent: Sequence[asyncio.Future[codec.Row] | RunyardError]
    ) -> dict[tuple[str, str], Run | RunyardError] | RunyardError:
        """Return the existing runs of repeated prompts, by thread and run id. The returned runs lack their large values, so
        that a thousand of them fit into memory. Return the error if they cannot be read."""
        answered = [
            (request.thread_id, request.run_id)
            for request, future in zip(requests, sent, strict=True)
            if not isinstance(future, RunyardError) and future.exception() is None and not future.result()["created"]
        ]
        if not answered:
            return {}
        threads, runs = zip(*dict.fromkeys(answered), strict=True)
        try:
            rows = await self.db.rows("run_entries", self.tenant, list(threads), list(runs))
        except RunyardError as error:
            return error
        existing: dict[tuple[str, str], Run | RunyardError] = {}
        since = monotonic()
        for row in rows:
            try:
                existing[row["thread_id"], row["run_id"]] = codec.run_entry(row).without_tracebacks()
            except RunyardError as error:  # a damaged run is the outcome of its prompt only
                existing[row["thread_id"], row["run_id"]] = error
            since = await turn(since)
        return existing

    async def _one_of_many(
        self, request: AcceptRequest, row: codec.Row, existing: dict[tuple[str, str], Run | RunyardError] | RunyardError
    ) -> Accepted:
        """Return the run that ``row`` accepted. If ``request`` repeats an earlier request, return the existing run.
        ``existing``: the result of :meth:`_existing`."""
        if row["created"]:
            return await self.accepted(request, row)
        if isinstance(existing, RunyardError):
            raise existing
        run = existing.get((request.thread_id, request.run_id))
        if isinstance(run, RunyardError):
            raise run
        if run is None:
            raise RunNotFoundError("the run existed before, but has just been deleted; send the prompt again")
        return Accepted(run, False, codec.effects(row["effects"]))

    async def accepted(self, request: AcceptRequest, row: codec.Row) -> Accepted:
        """Return the run that ``row`` accepted. If ``request`` repeats an earlier request, return the existing run. Raises the
        error of a refusal."""
        if row["refused"] is not None:
            raise _refusal(row)
        effects = codec.effects(row["effects"])
        if row["created"]:
            return Accepted(codec.accepted_run(request, row), True, effects)
        return Accepted(codec.run(await self.db.one("run", self.tenant, request.thread_id, request.run_id)), False, effects)

    async def rows_apart(self, items: Sequence[Encoded], *, wait: float) -> Sequence[codec.Row | Exception]:
        """Accept requests in one transaction, and return a row or an error for each. If the transaction fails, the requests are
        accepted in smaller transactions. A bad request then fails alone."""
        rows = await each_its_own(partial(self.rows, wait=wait), items)
        return [row if isinstance(row, Exception) or row["refused"] is None else _refusal(row) for row in rows]

    async def _rows_of_calls(self, items: Sequence[Encoded], *, wait: float) -> Sequence[codec.Row | Exception]:
        """Accept requests as :meth:`rows_apart` does. Do not send the requests of a series that lost an earlier
        transaction."""
        lost = [item.series.lost for item in items]
        sent = [item for item, error in zip(items, lost, strict=True) if error is None]
        try:
            rows = await self.rows_apart(sent, wait=wait) if sent else ()
        except BackendUnavailableError as error:
            rows = [error] * len(sent)
        for item, row in zip(sent, rows, strict=True):
            item.series.lost = item.series.lost or outage_of([row])
        answers = iter(rows)
        return [next(answers) if error is None else error for error in lost]

    async def rows(self, items: Sequence[Encoded], *, wait: float) -> Sequence[codec.Row]:
        """Accept requests in one transaction, and return their rows."""
        return await self.db.rows_unless_locked("accept", self.tenant, [item.row for item in items], milliseconds(wait))


def encoded(request: AcceptRequest, series: PromptSeries | None = None) -> Encoded:
    return Encoded(request, codec.run_request(request), series or PromptSeries())


async def _encoded(requests: Sequence[AcceptRequest], series: PromptSeries) -> list[Encoded | RunyardError]:
    """Return the ``runyard.request`` of each request of a call, or the error of a wrong value."""
    since = monotonic()
    items: list[Encoded | RunyardError] = []
    with held_back(len(requests), made=0) as pause:
        for request in requests:
            try:
                items.append(encoded(request, series))
            except RunyardError as error:
                items.append(error)
            since = await pause.turn(since)
    return items


def _thread_of(item: Encoded) -> str:
    return item.request.thread_id


def _bytes_of(item: Encoded) -> int:
    return len(item.row.input or b"") + len(item.row.metadata)


def _refusal(row: codec.Row) -> RunyardError:
    return from_dict(codec.from_json(row["refused"]))
