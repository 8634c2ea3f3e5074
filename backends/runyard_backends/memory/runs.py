"""The memory store of runs: the verbs of a run, and the reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from runyard.domain.list_entries import entry
from runyard.domain.states import RunStatus
from runyard.domain.tool_cycles import aborted
from runyard.domain.waits import Wait
from runyard.errors import (
    CapabilityMissingError,
    HitlAmbiguousError,
    HitlNotAllowedError,
    InvalidInputError,
    RunEndedError,
    RunNotFoundError,
    RunyardError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
    WorkerDeadError,
)
from runyard.models import AttemptInfo, ErrorInfo, Event, HitlRequest, Message, Run, Usage, check_usage, check_uuid
from runyard.ports.commands import AcceptRequest, PromptSeries, Write
from runyard.ports.queries import ALL_RUNS, FIRST_PAGE, PageRequest, RunFilter
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Aborted, Accepted, Admitted, Changed, Claim, Ended, Ledger, Page, Responded, Signalled, Step
from runyard.ports.scheduling import EVENTS_PER_READ, Effects

from . import (
    agents,
    chains,
    children,
    deletion,
    execution,
    explain,
    hitl_answers,
    lanes,
    limits,
    redrive,
    same_request,
    signals,
    steps,
    suspension,
    tree,
    waits,
)
from .run_pages import page_of_attempts, page_of_requests, page_of_runs
from .state import Database, RunState, ThreadState, copy_run
from .values import check_error, check_json, check_messages


class MemoryRunStore:
    """Runs of one tenant. ``claim``, ``admit``, ``run_events`` and the verbs of an attempt cover all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted:
        """Accept the run of ``request``, and admit it if it is due. If the request is a repetition, return the existing run."""
        if connection is not None:
            raise CapabilityMissingError(
                "the memory backend has no transactions of the host", backend="memory", method="accept(connection=)"
            )
        request = self._checked(request)
        find = self.db.get if request.kind in lanes.FORK_KINDS else self.db.find
        thread = find(self.tenant, request.thread_id)
        effects = lanes.admit_thread(self.db, thread) if thread else Effects()
        if thread and (run := same_request.existing_run(thread, request)):
            return Accepted(copy_run(run.run), False, effects)
        if thread is None:
            # Check the request on a temporary thread first, because a refused request must not create a thread.
            self._judge(Database(self.db.now).create(self.tenant, request.thread_id), request)
            thread = self.db.create(self.tenant, request.thread_id)
        run = self._judge(thread, request)
        thread.runs[run.id] = run
        agents.note_agent(thread, run.run)
        thread.thread.updated_at = self.db.now()
        if run.due_at <= self.db.now():
            effects += lanes.admit_run(self.db, thread, run)
        return Accepted(copy_run(run.run), True, effects)

    async def accept_many(
        self, requests: Sequence[AcceptRequest], series: PromptSeries | None = None
    ) -> list[Accepted | RunyardError]:
        """Accept prompts, and return the run or the error of each, in order. An existing run lacks its large values."""
        outcomes: list[Accepted | RunyardError] = []
        for request in requests:
            try:
                accepted = await self.accept(request)
            except RunyardError as error:
                outcomes.append(error)
            else:
                outcomes.append(accepted if accepted.created else replace(accepted, run=entry(accepted.run)))
        return outcomes

    def _checked(self, request: AcceptRequest) -> AcceptRequest:
        check_json(request.metadata, "metadata")
        parent = check_uuid(request.parent_id, "parent_id") if request.parent_id is not None else None
        message = check_messages([request.input])[0] if request.input else None
        fork = request.fork
        if fork is not None and fork.fan is not None:
            fork = replace(fork, fan=replace(fork.fan, messages=check_messages(fork.fan.messages)))
        return replace(request, parent_id=parent, input=message, fork=fork)

    def _judge(self, thread: ThreadState, request: AcceptRequest) -> RunState:
        """Make the run of ``request``, or raise if the thread cannot accept it. Do not change the thread."""
        lanes.check_id_free(thread, request.run_id)
        if request.parent_id is not None:
            tree.check_parent(thread, request.parent_id)
        run = lanes.new_run(self.db, thread, request, request.parent_id)
        fan = request.fork.fan if request.fork else None
        limits.check_size(self.db, fan.messages if fan else [request.input] if request.input else [])
        limits.check_room(self.db, thread, run, lanes.lane_for(thread, run.run))
        if request.kind in lanes.FORK_KINDS:
            self._refuse_asking(run)
            self._fix_cut(thread, run)
        if run.due_at <= self.db.now():
            lanes.check_lane(thread, run)
            if request.kind == "prompt" and request.input is None:
                lanes.check_something_to_run(thread, run)
        return run

    def _refuse_asking(self, run: RunState) -> None:
        """Raise HitlNotAllowedError if the agent of a probe can ask humans, because no human can answer a probe (F9)."""
        fan = run.fork.fan if run.fork else None
        probes = run.run.kind == "fork_once" or (fan is not None and not fan.threads)
        for agent in (run.run.agent if probes else None, fan.judge if fan else None):
            if agent is not None and self.db.asks.get(agent):
                raise HitlNotAllowedError(f"agent {agent!r} asks humans; nobody can answer a probe", agent=agent)

    def _fix_cut(self, thread: ThreadState, run: RunState) -> None:
        """Determine the cut of a fork job when the job is accepted (F4). Check the id of its new thread (F5)."""
        fork = run.fork
        if fork is None:
            raise InvalidInputError(f"a run of kind {run.run.kind!r} needs a fork request", field="fork")
        existing = self.db.find(self.tenant, fork.new)
        made = existing is not None and existing.fork_hash == fork.fork_hash
        if fork.cut.at_message_id is None and fork.cut.at_seq is None:
            after = fork.cut.after_run_id or tree.last_completed(thread)
            run.fork = replace(fork, cut=replace(fork.cut, after_run_id=after))
            run.run.after_run_id = after
            waits = lanes.waits_for(thread, run)
            if not made and not waits:
                tree.cut_after(thread, after)
        elif not made:
            tree.resolve(thread, fork.cut)
        if existing is not None and not made and run.run.kind == "fork":
            raise ThreadAlreadyExistsError(f"thread {fork.new!r} exists", thread_id=fork.new)

    async def admit(self, limit: int = 1000) -> Admitted:
        """Admit the due runs, apply the deadlines of HITL requests and waits, and fail the expired runs. One call covers at
        most ``limit`` threads. The result has the seconds until the next due time, deadline or expiry."""
        effects = Effects()
        threads = [t for t in self.db.threads.values() if not t.deleted]
        due_kinds = (lanes.due, hitl_answers.overdue, waits.overdue, children.doomed, lanes.expired)
        due_ones = [t for t in threads if any(kind(self.db, t) for kind in due_kinds)]
        for thread in due_ones[:limit]:
            effects += lanes.admit_thread(self.db, thread)
            effects += hitl_answers.fire_deadlines(self.db, thread)
            effects += children.cancel_doomed(self.db, thread)
            for run in lanes.expired(self.db, thread):
                effects += lanes.expire(self.db, thread, run)
        now, due = self.db.now(), []
        for thread in self.db.threads.values():
            if not thread.deleted:
                due += [r.due_at for r in thread.runs.values() if r.lane_seq is None and r.run.status is RunStatus.QUEUED]
                due += [r.request.deadline_at for r in hitl_answers.pending_of(self.db, thread) if r.request.deadline_at]
                due += [s.wait.due_at for s in waits.open_of(self.db, thread) if s.wait.due_at]
                waiting = [r.run for r in thread.runs.values() if r.run.status is RunStatus.QUEUED and not r.run.attempt]
                due += [run.expires_at for run in waiting if run.expires_at]
        return Admitted(effects, max(0.0, (min(due) - now).total_seconds()) if due else None)

    async def claim(self, worker_id: str, refs: Sequence[RunRef], *, wait: float = 0.0) -> list[Claim]:
        """Claim the runs ``refs`` for the worker, and return one outcome per run. ``wait`` has no effect, because no
        thread is ever locked. Raises WorkerDeadError if the worker is not registered or was declared dead."""
        worker = self.db.workers.get(worker_id)
        if worker is None or worker.dead_at is not None:
            raise WorkerDeadError(f"worker {worker_id!r} is not registered, or was declared dead", worker_id=worker_id)
        return [execution.claim(self.db, worker_id, ref) for ref in refs]

    async def context(self, attempt: AttemptToken) -> list[Message]:
        _, run = execution.reader(self.db, attempt)
        return tree.grouped([*run.context, *run.own()])

    async def recent(self, attempt: AttemptToken, limit: int, before: Message | None = None) -> list[Message]:
        _, run = execution.reader(self.db, attempt)
        return tree.last_of([*run.context, *run.own()], limit, before)

    async def ledger(self, attempt: AttemptToken) -> Ledger:
        thread, run = execution.reader(self.db, attempt)
        asked = [r for r in self.db.requests_of(thread) if r.request.run_id == run.id]
        waited = {s.wait.wait_id: s.wait.model_copy(deep=True) for s in waits.of_run(self.db, thread, run.id)}
        before = next((a.outcome for a in run.attempts[-2:-1]), None)
        requests = {r.request.request_id: r.request.model_copy(deep=True) for r in asked}
        received = frozenset(r.request.request_id for r in asked if r.received_by == attempt.fence)
        return Ledger(steps.without_answers(run), requests, waited, received, before == "suspended", before == "retried")

    async def append(
        self, attempt: AttemptToken, messages: Sequence[Message], *, first_event: int = 1, usage: Usage | None = None
    ) -> list[Message]:
        thread, run = execution.writer(self.db, attempt)
        check_usage(usage or Usage())
        stored = execution.append(self.db, thread, run, messages, first_event)
        execution.raise_usage(run, usage)
        return tree.copies(stored)

    async def start_step(self, attempt: AttemptToken, key: str, *, input: str | None = None) -> Step | None:
        return steps.start(execution.writer(self.db, attempt)[1], attempt, key, self.db.now(), input)

    async def finish_step(self, attempt: AttemptToken, key: str, result: Any, *, usage: Usage | None = None) -> None:
        _, run = execution.writer(self.db, attempt)
        check_usage(usage or Usage())
        steps.finish(run, attempt, key, result, self.db.now())
        execution.raise_usage(run, usage)

    async def complete(self, writes: Sequence[Write], *, wait: float | None = None) -> list[Ended | Exception]:
        results: list[Ended | Exception] = []
        for write in writes:
            try:
                results.append(execution.finish(self.db, write, RunStatus.COMPLETED))
            except RunyardError as error:
                results.append(error)
        for write, ended in zip(writes, results, strict=True):
            if write.claim_next and isinstance(ended, Ended):  # the next runs see all runs that this call completes
                chains.claim_next(self.db, write.attempt, ended)
        return results

    async def suspend(self, write: Write, requests: Sequence[HitlRequest], waits: Sequence[Wait] = ()) -> Ended:
        return suspension.suspend(self.db, write, requests, waits)

    async def fail(self, write: Write, error: ErrorInfo) -> Ended:
        return execution.finish(self.db, write, RunStatus.FAILED, check_error(error))

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
        return execution.release(self.db, attempt, delay, error and check_error(error), first_event, until_fewer, usage)

    async def isolate(self, attempt: AttemptToken) -> None:
        execution.isolate(self.db, attempt)

    async def bury(self, attempt: AttemptToken, how: str) -> Ended:
        return execution.bury(self.db, attempt, how)

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
        """Answer the request ``request_id``. Without it, answer the thread's only pending request (H3)."""
        thread = hitl_answers.thread_of(self.db, self.tenant, thread_id, request_id)
        effects = lanes.admit_thread(self.db, thread)
        effects += hitl_answers.fire_deadlines(self.db, thread)
        state = hitl_answers.choose(self.db, thread, request_id, response_id)
        result = hitl_answers.respond(self.db, thread, state, answer, response_id, answered_by, on_behalf_of)
        effects += result.effects
        result.effects = effects
        return result

    async def start_child(self, attempt: AttemptToken, request: AcceptRequest) -> Accepted:
        """Accept a child of the attempt's run, together with the wait for its end."""
        _, parent = execution.writer(self.db, attempt)
        children.check(self.db, self.tenant, parent, request)
        accepted = await self.accept(request)
        children.begin_wait(self.db, attempt.ref, request)
        parent.progress = True
        return accepted

    async def signal(self, thread_id: str, name: str, value: Any, *, signal_id: str, sent_by: str | None = None) -> Signalled:
        """Send a signal to a thread. A repetition with the same id changes nothing."""
        return signals.signal(self.db, self.db.get(self.tenant, thread_id), name, value, signal_id, sent_by)

    def _get(self, thread_id: str, run_id: str) -> tuple[ThreadState, RunState]:
        thread = self.db.get(self.tenant, thread_id)
        if run := thread.runs.get(run_id):
            return thread, run
        raise RunNotFoundError(f"thread {thread_id!r} has no run {run_id!r}", thread_id=thread_id, run_id=run_id)

    def _seen(self, thread_id: str, run_id: str) -> tuple[ThreadState, RunState]:
        return tree.seen_run(self.db, self.db.get(self.tenant, thread_id), run_id)

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed:
        """Cancel a live run. A cancelled run stays unchanged (R10)."""
        thread, run = self._get(thread_id, run_id)
        effects = lanes.admit_thread(self.db, thread)
        if run.live:
            effects += lanes.cancel_run(self.db, thread, run, keep=keep)
        elif run.run.status is not RunStatus.CANCELLED:
            raise RunEndedError(f"run {run_id!r} is {run.run.status}", run_id=run_id, status=str(run.run.status))
        return Changed(copy_run(run.run), effects)

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human. ``reason``: a text for the error results of the run's open tool calls, and for
        the run's last message (H8)."""
        words = check_json(aborted(reason), "reason")
        thread = self.db.get(self.tenant, thread_id)
        effects = lanes.admit_thread(self.db, thread)
        if run_id is not None:
            self._get(thread_id, run_id)
        waiting = [
            r for r in (thread.runs.get(id_) for id_ in hitl_answers.waiting(self.db, thread)) if r is not None and r.live
        ]
        waiting = [run for run in waiting if run_id in (None, run.id)]
        if len(waiting) > 1:
            ids = [run.id for run in waiting]
            raise HitlAmbiguousError(f"{len(ids)} runs wait on thread {thread_id!r}; give a run_id", run_ids=ids)
        if not waiting:
            return Aborted(None, effects)
        effects += lanes.abort_run(self.db, thread, waiting[0], words)
        return Aborted(copy_run(waiting[0].run), effects)

    async def redrive(self, thread_id: str, run_id: str) -> Changed:
        """Queue a failed or dead run again, at the end of its lane."""
        return redrive.redrive(self.db, *self._get(thread_id, run_id))

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete the content of an ended run whose messages no later run sees. Keep what another branch or a fork shows."""
        deletion.delete_run(self.db, *self._get(thread_id, run_id))

    async def run(self, thread_id: str, run_id: str) -> Run | None:
        with suppress(ThreadNotFoundError, RunNotFoundError):
            return copy_run(self._seen(thread_id, run_id)[1].run)
        return None

    async def statuses(self, runs: Sequence[tuple[str, str]]) -> list[RunStatus | None]:
        return [run.run.status if run else None for run in (self.db.find_run(self.tenant, *ids) for ids in runs)]

    async def last_message_id(self, thread_id: str, run_id: str) -> str | None:
        """Return the id of the last message that the run wrote, or None."""
        run = self.db.find_run(self.tenant, thread_id, run_id)
        return own[-1].id if run is not None and (own := run.own()) else None

    async def runs(self, where: RunFilter = ALL_RUNS, page: PageRequest = FIRST_PAGE) -> Page[Run]:
        """Return runs, the newest first."""
        threads = (t for t in self.db.of(self.tenant) if where.thread_id in (None, t.id))
        found = [r for t in threads for r in t.runs.values() if _matches(where, r.run)]
        return page_of_runs(found, page, self.db.page_bytes)

    async def explain(self, thread_id: str, run_id: str) -> str:
        thread, run = self._seen(thread_id, run_id)
        return explain.explain(self.db, thread, run)

    async def attempts(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[AttemptInfo]:
        """Return the run's attempts, the oldest first."""
        made = self._seen(thread_id, run_id)[1].attempts
        return page_of_attempts(made, page, self.db.page_bytes)

    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, page: PageRequest = FIRST_PAGE
    ) -> Page[HitlRequest]:
        """Return HITL requests, the oldest first. ``pending``: True for unanswered requests only."""
        threads = {t.key: t for t in self.db.of(self.tenant) if thread_id in (None, t.id)}
        found = [r.request for r in self.db.requests.values() if r.thread_key in threads and (r.pending or not pending)]
        return page_of_requests(found, page, self.db.page_bytes)

    async def request(self, request_id: str) -> HitlRequest | None:
        """Return one HITL request, pending or not, or None if it does not exist."""
        found = self.db.requests.get((self.tenant, request_id))
        return found.request.model_copy(deep=True) if found else None

    async def answered(self, thread_id: str, response_id: str) -> HitlRequest | None:
        keys = {thread.key for thread in self.db.of(self.tenant) if thread.id == thread_id}
        asked = (r.request for r in self.db.requests.values() if r.thread_key in keys)
        return next((r.model_copy(deep=True) for r in asked if r.response_id == response_id), None)

    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = EVENTS_PER_READ) -> list[Event]:
        """Return at most ``limit`` events after the id ``after``. The events are made from the stored state of the run."""
        thread = self.db.by_key(ref.thread_key)
        run = thread.runs.get(ref.run_id) if thread is not None else None
        return explain.events(self.db, thread, run, after, limit) if thread is not None and run is not None else []


def _matches(where: RunFilter, run: Run) -> bool:
    return (
        run.deleted_at is None
        and where.status in (None, run.status)
        and where.agent in (None, run.agent)
        and (where.since is None or run.accepted_at >= where.since)
        and (where.before is None or run.accepted_at < where.before)
    )
