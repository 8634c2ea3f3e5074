"""The run store on Postgres. Each verb is one call of a stored function."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from runyard.domain.explanations import explanation
from runyard.domain.size_limits import check_value
from runyard.domain.states import RunStatus
from runyard.domain.tool_cycles import aborted
from runyard.domain.waits import MAX_CHILD_DEPTH, MAX_CHILDREN, MAX_OPEN_SIGNALS, Wait, check_signal, check_waits
from runyard.errors import DataCorruptedError, InvalidInputError, RunyardError
from runyard.models import AttemptInfo, ErrorInfo, Event, HitlRequest, JsonObject, Message, Run, Usage
from runyard.ports.commands import AcceptRequest, PromptSeries, Write
from runyard.ports.queries import ALL_RUNS, FIRST_PAGE, PageRequest, RunFilter
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Aborted, Accepted, Admitted, Changed, Claim, Ended, Ledger, Page, Responded, Signalled, Step
from runyard.ports.scheduling import EVENTS_PER_READ, Effects, OutsideEvent, requirement

from .. import cursors
from . import codec, contexts, hitl_answers, interim_writes, run_events
from .accepts import Accepts
from .database import Database, milliseconds
from .fan_outs import accept_batch
from .host_connections import accept_on

log = structlog.get_logger("runyard.postgres.runs")


class PostgresRunStore:
    """Runs of one tenant. The verbs of an attempt, ``claim``, ``admit`` and ``run_events`` cover all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant
        self.accepts = Accepts(db, tenant)
        self._interim = interim_writes.batcher(db)

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted:
        """Accept a run. ``connection``: a connection of a host (:mod:`.host_connections`). The run is accepted in the
        transaction of this connection, and workers admit it after the commit. With ``connection``, the call does not repeat a
        statement that waited too long for a lock, but raises LockedError, because the host must repeat its whole
        transaction."""
        batch = codec.candidate_batch(self.tenant, request)
        if connection is not None:
            if batch is not None:
                words = "is stored in several transactions; accept it without connection, or try fewer messages at once"
                raise InvalidInputError(f"a fan-out of {batch.total} messages {words}", field="connection")
            created, row = await accept_on(connection, self.tenant, codec.run_request(request))
            return Accepted(codec.run(row), created)
        if batch is None:
            return await self.accepts.one(request)
        return await self.accepts.accepted(request, await accept_batch(self.db, self.tenant, request, batch))

    async def accept_many(
        self, requests: Sequence[AcceptRequest], series: PromptSeries | None = None
    ) -> list[Accepted | RunyardError]:
        """Accept prompts, up to a thousand in one transaction. Return the run or the error of each, in order."""
        return await self.accepts.many(requests, series or PromptSeries())

    async def admit(self, limit: int = 100) -> Admitted:
        """Admit committed runs that are due, on at most ``limit`` threads of all tenants. The result has the seconds until the
        next run is due."""
        row = await self.db.one("admit", limit)
        return Admitted(codec.effects(row["effects"]), row["next_due"])

    async def claim(self, worker_id: str, refs: Sequence[RunRef], *, wait: float = 0.0) -> list[Claim]:
        """Claim the runs ``refs`` for the worker in one transaction, and return one outcome per run. ``wait``: seconds to wait
        for a locked thread before it is skipped. Raises WorkerDeadError."""
        keys, ids = [ref.thread_key for ref in refs], [ref.run_id for ref in refs]
        rows = await self.db.rows_unless_locked("claim", worker_id, keys, ids, milliseconds(wait))
        return await self._claims(rows)

    async def _claims(self, rows: Sequence[codec.Row]) -> list[Claim]:
        """Return the claims in ``rows``. Fail the claimed runs whose rows cannot be decoded.

        The worker starts no task for such a run. If the store cannot fail the run now, the run stays ``running``. The worker
        later finds that it has no task for this run, and releases the run (W4).
        """
        read = [_claim(row) for row in rows]
        corrupted = [(n, error) for n, (_, error) in enumerate(read) if error is not None]
        ends = await asyncio.gather(*(self._end_corrupted(read[n][0], rows[n], error) for n, error in corrupted))
        claims = [claim for claim, _ in read]
        for (n, _), ended in zip(corrupted, ends, strict=True):
            claims[n] = ended
        return claims

    async def _end_corrupted(self, claim: Claim, row: codec.Row, error: DataCorruptedError) -> Claim:
        """Fail a claimed run whose row cannot be decoded. No worker could ever execute such a run (I1)."""
        assert claim.attempt is not None
        why = ErrorInfo(code=error.code, message=error.message, details=error.details)
        try:
            ended = await self.fail(Write(attempt=claim.attempt), why)
        except RunyardError as refused:
            names = {"thread_id": row["thread_id"], "run_id": claim.ref.run_id}
            log.warning("corrupted_run_not_marked_failed", **names, error=str(refused), cause=error.message)
            return Claim(claim.ref, "ended", effects=claim.effects)
        data: JsonObject = {"status": str(ended.status), "error": why.model_dump(mode="json")}
        event = OutsideEvent(
            claim.ref, row["thread_id"], ended.event_id, f"run.{ended.status}", data, row["agent"], row["queue"]
        )
        effects = claim.effects
        effects += ended.effects
        effects += Effects(events=[event])
        return Claim(claim.ref, "ended", effects=effects)

    async def context(self, attempt: AttemptToken) -> list[Message]:
        """Return the messages that the run sees: its snapshot and its own messages (S5). Raises StaleFenceError."""
        return await contexts.whole(self.db, attempt)

    async def recent(self, attempt: AttemptToken, limit: int, before: Message | None = None) -> list[Message]:
        """Return up to ``limit`` messages of the context, the last one first. ``before``: the last message of the previous
        call. An empty list means that there are no more messages. Raises StaleFenceError."""
        return await contexts.recent(self.db, attempt, limit, before)

    async def ledger(self, attempt: AttemptToken) -> Ledger:
        """Return the steps, the HITL requests and the waits of the run. Also return whether an answer to a request or the end
        of a wait started the attempt."""
        return codec.ledger(await self.db.one("ledger", attempt.thread_key, attempt.run_id, attempt.fence))

    async def append(
        self, attempt: AttemptToken, messages: Sequence[Message], *, first_event: int = 1, usage: Usage | None = None
    ) -> list[Message]:
        """Store messages of the run under the attempt's fence and return them (I3). ``first_event``: the number of the event of
        the first message. ``usage``: the usage of the run so far. Raises StaleFenceError, CancelRequestedError."""
        rows = await self._interim(codec.new_messages(attempt, messages, first_event, usage))
        return codec.messages([row for row in rows if row["seq"] is not None], thread_key=attempt.thread_key)

    async def start_step(self, attempt: AttemptToken, key: str, *, input: str | None = None) -> Step | None:
        """Record that the step ``key`` starts with the arguments ``input``. Return None if this attempt may execute the step.
        Return the step's earlier record if the step is finished, or if another attempt started it."""
        (row,) = await self._interim(codec.step_start(attempt, key, input))
        return codec.step(row) if row["step_key"] is not None else None

    async def finish_step(self, attempt: AttemptToken, key: str, result: Any, *, usage: Usage | None = None) -> None:
        """Record the result of the step ``key``. ``usage``: the usage of the run so far."""
        await self._interim(codec.step_result(attempt, key, result, usage))

    async def complete(self, writes: Sequence[Write], *, wait: float | None = None) -> list[Ended | Exception]:
        """Complete runs in one transaction. The result for a refused completion is an error. ``wait``: seconds to wait for a
        locked thread. After this time, the completions of this thread are refused with LockedError. If ``wait`` is None, the
        whole call raises LockedError after LOCKED_SECONDS."""
        encoded, patience = [codec.attempt_write(write) for write in writes], None if wait is None else milliseconds(wait)
        send = self.db.rows if wait is None else self.db.rows_unless_locked
        if claim_next := [write.attempt.ref for write in writes if write.claim_next]:
            keys, ids = [ref.thread_key for ref in claim_next], [ref.run_id for ref in claim_next]
            rows = await send("complete_and_claim", encoded, keys, ids, patience)
            found = {(row["ended_thread_key"], row["ended_run_id"]): row for row in rows}
            return await self._ended_and_claimed([found[w.attempt.thread_key, w.attempt.run_id] for w in writes], writes)
        rows = await send("complete", encoded, patience)
        found = {(row["thread_key"], row["run_id"]): row for row in rows}
        return [_ended_or_error(found[w.attempt.thread_key, w.attempt.run_id], w.attempt) for w in writes]

    async def _ended_and_claimed(self, rows: Sequence[codec.Row], writes: Sequence[Write]) -> list[Ended | Exception]:
        ends = [_ended_or_error(row, write.attempt, "ended_") for row, write in zip(rows, writes, strict=True)]
        ended = [n for n, end in enumerate(ends) if isinstance(end, Ended) and rows[n]["outcome"] is not None]
        for n, claim in zip(ended, await self._claims([rows[n] for n in ended]), strict=True):
            end = ends[n]
            assert isinstance(end, Ended)
            end.add_next(claim)
        return ends

    async def suspend(self, write: Write, requests: Sequence[HitlRequest], waits: Sequence[Wait] = ()) -> Ended:
        """Suspend the run until one of ``requests`` is answered or one of ``waits`` ends. If one of these has happened
        already, the run stays RUNNING and continues."""
        asked = [codec.new_request(r) for r in requests if r.created_at is None]
        known = [r.request_id for r in requests if r.created_at is not None]
        parked = (asked, known, [codec.new_wait(w) for w in check_waits(waits)])
        row = await self.db.one("suspend", codec.attempt_write(write), *parked)
        return _ended(row, write.attempt)

    async def fail(self, write: Write, error: ErrorInfo) -> Ended:
        """Fail the run with ``error``. Its messages stay stored, but no context contains them."""
        return _ended(await self.db.one("fail", codec.attempt_write(write), codec.error_json(error)), write.attempt)

    async def release(
        self,
        attempt: AttemptToken,
        *,
        delay: float = 0.0,
        error: ErrorInfo | None = None,
        first_event: int | None = 1,
        until_fewer: int | None = None,
        usage: Usage | None = None,
    ) -> Ended:
        """Release the run and queue it again. ``delay``: seconds until the run is due. ``error``: the error that causes the
        retry, or None if the release is no retry. ``first_event``: the number of the attempt's next event, or None if the
        caller is not the attempt. ``until_fewer``: a number for a fork job. The fork job waits until fewer than this number of
        the runs that it started are live. ``usage``: the usage to add to the usage of the run."""
        why = codec.error_json(error) if error else None
        held = (attempt.thread_key, attempt.run_id, attempt.fence)
        used = codec.usage_json(usage)
        return _ended(await self.db.one("release", *held, delay, why, first_event, until_fewer, used), attempt)

    async def isolate(self, attempt: AttemptToken) -> None:
        """Record that the attempt runs alone in its process. Raises StaleFenceError."""
        await self.db.row("isolate", attempt.thread_key, attempt.run_id, attempt.fence)

    async def bury(self, attempt: AttemptToken, how: str) -> Ended:
        """Count the crash of a process in which the run was executed alone. Queue the run again, or end it as dead if it has
        crashed too often without progress. ``how``: the description of the crash, for the run's error. Raises
        StaleFenceError."""
        return _ended(await self.db.one("bury", attempt.thread_key, attempt.run_id, attempt.fence, how), attempt)

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
        """Answer a HITL request. A repetition has no effect (H3, H4)."""
        asked = (self.tenant, thread_id, request_id, response_id)
        responded, effects = await hitl_answers.respond(self.db, asked, answer, answered_by, on_behalf_of)
        responded.effects = codec.effects(effects)
        return responded

    async def start_child(self, attempt: AttemptToken, request: AcceptRequest) -> Accepted:
        """Accept a child of the attempt's run, together with the wait for its end."""
        bounds = (MAX_CHILD_DEPTH, MAX_CHILDREN)
        row = await self.db.one("start_child", self.tenant, codec.run_request(request), attempt.fence, *bounds)
        return Accepted(codec.accepted_run(request, row), row["created"], codec.effects(row["effects"]))

    async def signal(self, thread_id: str, name: str, value: Any, *, signal_id: str, sent_by: str | None = None) -> Signalled:
        """Send a signal to a thread. A repetition with the same id changes nothing."""
        check_signal(name, value, signal_id, sent_by)
        codec.to_json(value)
        sent = (thread_id, signal_id, name, codec.pack(value), sent_by, MAX_OPEN_SIGNALS)
        row = await self.db.one("send_signal", self.tenant, *sent)
        found = codec.signal(row)
        found.check_same(name, value)
        return Signalled(found, row["created"], codec.effects(row["effects"]))

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed:
        """Cancel a run (R10). The call does not wait until a running run has ended. It returns when Postgres has stored the
        cancel. Raises RunEndedError, RunNotFoundError, ThreadNotFoundError."""
        row = await self.db.one("cancel", self.tenant, thread_id, run_id, keep)
        return Changed(codec.run_entry(row), codec.effects(row["effects"]))

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human. ``reason``: a text for the error results of the run's open tool calls, and for
        the run's last message (H8)."""
        words = aborted(reason)
        check_value(words, "reason")
        codec.to_json(words)
        row = await self.db.one("abort_pending", self.tenant, thread_id, run_id, words)
        return Aborted(codec.run_entry(row) if row["run_id"] is not None else None, codec.effects(row["effects"]))

    async def redrive(self, thread_id: str, run_id: str) -> Changed:
        """Queue a failed or dead run again, at the end of its lane."""
        row = await self.db.one("redrive", self.tenant, thread_id, run_id)
        return Changed(codec.run_entry(row), codec.effects(row["effects"]))

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete the content of an ended run whose messages no later run sees."""
        await self.db.row("delete_run", self.tenant, thread_id, run_id)

    async def run(self, thread_id: str, run_id: str) -> Run | None:
        """Return a run of the thread, or a run that the thread inherited completely. Return None if there is no such run."""
        row = await self.db.row("run", self.tenant, thread_id, run_id)
        row = row or await self.db.row("inherited_run", self.tenant, thread_id, run_id)
        return codec.run_with_any_input(row) if row else None

    async def statuses(self, runs: Sequence[tuple[str, str]]) -> list[RunStatus | None]:
        """Return the statuses of ``runs`` in the same order. None stands for an unknown run. ``runs``: pairs of thread id and
        run id."""
        rows = await self.db.rows("run_statuses", self.tenant, [ids[0] for ids in runs], [ids[1] for ids in runs])
        return [RunStatus(row["status"]) if row["status"] is not None else None for row in rows]

    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = EVENTS_PER_READ) -> list[Event]:
        """Return at most ``limit`` events of the run after the id ``after``. The events are made from the rows of the run, not
        read from the event stream. After the last event, the list is empty."""
        return await run_events.read(self.db, ref, after, limit)

    async def last_message_id(self, thread_id: str, run_id: str) -> str | None:
        """Return the id of the last message that the run wrote, or None."""
        found: str | None = await self.db.value("last_message", self.tenant, thread_id, run_id)
        return found

    async def runs(self, where: RunFilter = ALL_RUNS, page: PageRequest = FIRST_PAGE) -> Page[Run]:
        """Return runs, the newest first."""
        after, number = cursors.run(page.cursor) if page.cursor is not None else (None, None)
        rows = await self.db.rows(
            *("runs", self.tenant, where.thread_id, where.status, where.agent, where.since, where.before),
            *(after, number, page.limit, self.db.page_bytes),
        )
        more = rows.pop() if rows and rows[-1]["run_id"] is None else None
        return Page(
            [codec.run_entry(row).without_tracebacks() for row in rows],
            cursors.of_run(more["place_time"], more["place_no"]) if more else None,
        )

    async def explain(self, thread_id: str, run_id: str) -> str:
        """Return one sentence about the run: why it waits, that it runs, or how it ended. Raises RunNotFoundError,
        ThreadNotFoundError."""
        row = await self.db.one("explain", self.tenant, thread_id, run_id)
        return explanation(codec.run_entry(row), row["reason"], codec.from_json(row["facts"]))

    async def attempts(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[AttemptInfo]:
        """Return the run's attempts, the oldest first. Raises RunNotFoundError, ThreadNotFoundError."""
        after = cursors.number(page.cursor) if page.cursor is not None else -1
        rows = await self.db.rows("attempts", self.tenant, thread_id, run_id, after, page.limit, self.db.page_bytes)
        if not rows:
            await self.explain(thread_id, run_id)  # raises an error for an unknown run
        more = bool(rows and rows[-1]["more"])
        found = [codec.attempt_entry(row) for row in (rows[:-1] if more else rows)]
        return Page(found, cursors.encode(found[-1].fence) if more else None)

    async def request(self, request_id: str) -> HitlRequest | None:
        """Return one HITL request, pending or not, or None if it does not exist."""
        row = await self.db.row("request", self.tenant, request_id)
        return codec.request(row) if row else None

    async def answered(self, thread_id: str, response_id: str) -> HitlRequest | None:
        """Return the thread's request with the answer ``response_id``, or None."""
        row = await self.db.row("answered_request", self.tenant, thread_id, response_id)
        return codec.request(row) if row else None

    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, page: PageRequest = FIRST_PAGE
    ) -> Page[HitlRequest]:
        """Return HITL requests, the oldest first. ``pending``: True for unanswered requests only."""
        since, last = cursors.moment(page.cursor) if page.cursor is not None else (None, None)
        rows = await self.db.rows("requests", self.tenant, thread_id, pending, since, last, page.limit, self.db.page_bytes)
        more = bool(rows and rows[-1]["more"])
        found = [codec.request_entry(row) for row in (rows[:-1] if more else rows)]
        if not more:
            return Page(found)
        assert found[-1].created_at is not None
        return Page(found, cursors.encode([found[-1].created_at.isoformat(), found[-1].request_id]))


def _claim(row: codec.Row) -> tuple[Claim, DataCorruptedError | None]:
    """Return the claim in ``row``, and the error if the claimed run cannot be decoded."""
    ref = RunRef(row["key"], row["id"])
    claim = Claim(ref, row["outcome"], retry_in=row["retry_in"], effects=codec.effects(row["effects"]))
    if claim.outcome == "claimed":
        claim.attempt = AttemptToken(ref.thread_key, ref.run_id, row["fence"])
        try:
            claim.run = codec.run(row)
            claim.fork = codec.fork_request(row)
            claim.extra = codec.claimed_extra(row)
            claim.config = codec.from_json(row["config"])
        except DataCorruptedError as error:
            return claim, error
        claim.tenant = row["tenant"]
        claim.leaf_id = row["leaf_id"]
        claim.takeover = row["takeover"]
        claim.version_before = row["version_before"]
    elif claim.outcome == "unserved":
        claim.requires = requirement(row["agent"])
    elif claim.outcome == "other_version":
        claim.requires = requirement(row["agent"], row["version_before"])
    return claim, None


def _ended_or_error(row: codec.Row, attempt: AttemptToken, prefix: str = "") -> Ended | Exception:
    return codec.refusal(row[f"{prefix}refused"], attempt.run_id, attempt.fence) or codec.ended(row, prefix)


def _ended(row: codec.Row, attempt: AttemptToken) -> Ended:
    outcome = _ended_or_error(row, attempt)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
