"""The checkpointer (:class:`runyard.ports.stores.Checkpointer`) over the memory store. Its runs are external (R17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runyard.domain.states import RunStatus
from runyard.errors import RunAlreadyClaimedError, RunAlreadyCompletedError, RunNotClaimedError
from runyard.models import CheckpointData, HitlRequest, JsonObject, Message, Run, check_id, check_named_once, check_requests
from runyard.ports.results import Aborted, Responded

from ..checkpointers import StoredThreads, request_taken
from . import execution, hitl_answers, lanes, limits, tree
from .runs import MemoryRunStore
from .state import Branch, Database, Entry, RequestState, RunState, ThreadState
from .threads import MemoryThreadStore
from .values import check_json, check_messages, copied, merged


class MemoryCheckpointer(StoredThreads):
    """The checkpointer of one tenant."""

    def __init__(self, db: Database, tenant: str) -> None:
        super().__init__(MemoryThreadStore(db, tenant))
        self.db, self.tenant = db, tenant

    async def load(self, thread_id: str) -> CheckpointData | None:
        """Return the thread's data, or None if the thread does not exist. The data has the visible messages of the head's path.
        The data also has the messages of live external runs, and of runs that were never claimed."""
        thread = self.db.find(self.tenant, thread_id)
        if thread is None:
            return None
        own = [e for e in thread.head.own if _loads(thread, e)]
        messages = tree.copies([*thread.head.prefix, *own])
        data = thread.thread
        return CheckpointData(messages, copied(data.extra), data.parent_thread_id, copied(data.config))

    async def append(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Store all ``messages`` or none. Each message names its run, or no run. Skip a message whose id is stored already."""
        check_id(thread_id, "thread_id")
        messages = check_messages(messages)
        limits.check_size(self.db, messages)
        check_named_once(messages)
        known = self.db.find(self.tenant, thread_id)
        if known is not None:
            self.db.tell(lanes.admit_thread(self.db, known))
            for message in messages:
                _check_writable(known, message.run_id)
                tree.check_id_free(known, message.id, message.run_id)
        thread = self.db.ensure(self.tenant, thread_id)
        for message in messages:
            if tree.holder_of(thread, message.id) is not None:
                continue
            run_id = message.run_id
            branch = _branch_of(thread, run_id)
            self.db.store(thread, branch, message, parent=_parent(thread, branch, run_id), run_id=run_id)
            if run_id is None:
                self.db.note(thread, "message.stored")

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Merge ``extra`` into the thread's extra. A key of ``extra`` replaces the whole value of that key."""
        extra = check_json(extra, "extra")
        thread = self.db.ensure(self.tenant, thread_id)
        thread.thread.extra = merged(thread.thread.extra, extra)
        thread.thread.updated_at = self.db.now()

    async def save_pending_request(self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None) -> None:
        """Set the thread's own pending request. ``request``: the request, or None to remove it."""
        if run_id is not None:
            check_id(run_id, "run_id")
        if request is not None:
            check_requests(request)
        check_id(thread_id, "thread_id")
        known = self.db.find(self.tenant, thread_id)
        new = (self.tenant, request.request_id) if request else None
        saved = {
            key: state for key, state in self.db.requests.items() if known and state.thread_key == known.key and state.saved
        }
        if new in self.db.requests and new not in saved:
            raise request_taken(new[1])
        thread = self.db.ensure(self.tenant, thread_id)
        for key, state in saved.items():
            if state.pending or key == new:
                del self.db.requests[key]
        if request is not None:
            hitl_answers.add(self.db, thread, request, run_id)

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """Return the newest pending request of the thread with its run id, or None."""
        thread = self.db.find(self.tenant, thread_id)
        pending: list[RequestState] = hitl_answers.pending_of(self.db, thread) if thread else []
        if not pending:
            return None
        request = pending[-1].request
        return request.model_copy(deep=True), request.run_id

    async def save_requests(self, thread_id: str, requests: Sequence[HitlRequest], *, run_id: str) -> None:
        """Store requests of an external run. A stored request of the run with the same id stays unchanged. Raises
        InvalidInputError if another run or thread has the id of a request."""
        check_id(run_id, "run_id")
        check_requests(*requests)
        check_id(thread_id, "thread_id")
        known = self.db.find(self.tenant, thread_id)
        for request in requests:
            stored = self.db.requests.get((self.tenant, request.request_id))
            if stored is None or (known is not None and stored.thread_key == known.key and stored.request.run_id == run_id):
                continue
            raise request_taken(request.request_id)
        thread = self.db.ensure(self.tenant, thread_id)
        for request in requests:
            hitl_answers.add(self.db, thread, request, run_id)

    async def remove_request(self, thread_id: str, request_id: str) -> bool:
        """Remove a pending request that a checkpointer stored. Return True if this call removed the request."""
        thread = self.db.find(self.tenant, thread_id)
        state = self.db.requests.get((self.tenant, request_id))
        if thread is None or state is None or state.thread_key != thread.key or not (state.saved and state.pending):
            return False
        del self.db.requests[self.tenant, request_id]
        return True

    async def load_requests(self, thread_id: str, *, run_id: str | None = None) -> list[HitlRequest]:
        """Return the pending and answered requests of the run or of the thread, the oldest first."""
        thread = self.db.find(self.tenant, thread_id)
        if thread is not None:  # a program without workers has no reconciler to apply deadlines
            self.db.tell(hitl_answers.fire_deadlines(self.db, thread))
        found = [state.request for state in self.db.requests_of(thread) if not state.closed] if thread else []
        return [
            request.model_copy(deep=True)
            for request in sorted(found, key=lambda r: (r.created_at, r.request_id))
            if run_id in (None, request.run_id)
        ]

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
        responded = await MemoryRunStore(self.db, self.tenant).respond(
            answer, thread_id=thread_id, request_id=request_id, response_id=response_id, answered_by=answered_by
        )
        self.db.tell(responded.effects)
        return responded

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human. ``reason``: a text for the error results of the run's open tool calls, and for
        the run's last message (H8)."""
        done = await MemoryRunStore(self.db, self.tenant).abort_pending(thread_id, reason, run_id=run_id)
        self.db.tell(done.effects)
        return done

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Start an external run (R13)."""
        check_id(run_id, "run_id")
        thread = self.db.ensure(self.tenant, thread_id)
        self.db.tell(lanes.admit_thread(self.db, thread))
        lanes.check_id_free(thread, run_id)
        if run := thread.runs.get(run_id):
            raise _taken(run)
        branch = _branch_of(thread, run_id)
        now = self.db.now()
        public = Run(
            thread_id=thread_id,
            run_id=run_id,
            kind="external",
            queue="external",
            status=RunStatus.RUNNING,
            lane=run_id,
            accepted_at=now,
            admitted_at=now,
            started_at=now,
            fence=self.db.next_fence(),
            attempt=1,
        )
        state = RunState(
            public, self.db.number(), self.db.next_fence(), lane_seq=self.db.number(), branch=branch, changed_at=now
        )
        execution.freeze(thread, state)
        thread.runs[run_id] = state

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete an external run, even if a tool cycle is open."""
        thread = self.db.find(self.tenant, thread_id)
        run = thread.runs.get(run_id) if thread else None
        old = thread.root.ancestral.get(run_id) if thread and run is None else None
        if (run and run.run.completion_seq is not None) or (old and old.completion is not None):
            return
        if thread is None or run is None or not run.live:
            raise RunNotClaimedError(
                f"run {run_id!r} of thread {thread_id!r} is not claimed", thread_id=thread_id, run_id=run_id
            )
        if not run.external:
            raise _taken(run)
        self.db.tell(lanes.end_outside(self.db, thread, run, RunStatus.COMPLETED))


def _loads(thread: ThreadState, entry: Entry) -> bool:
    """Return True if ``load`` returns the message. ``load`` returns messages of a run that is completed, was never claimed, or
    is external and live. ``load`` also returns messages without a run."""
    run = thread.runs.get(entry.run_id or "")
    if run is None or run.branch is None:
        return True
    return run.run.completion_seq is not None or (run.external and run.live)


def _taken(run: RunState) -> RunAlreadyClaimedError | RunAlreadyCompletedError:
    if run.live:
        return RunAlreadyClaimedError(f"run {run.id!r} is claimed and not finished", run_id=run.id)
    return RunAlreadyCompletedError(f"run {run.id!r} is {run.run.status}", run_id=run.id, status=str(run.run.status))


def _check_writable(thread: ThreadState, run_id: str | None) -> None:
    """Check that a checkpointer may write messages of the run. Raises RunAlreadyClaimedError for a live run of workers, and
    RunAlreadyCompletedError for an ended run. A checkpointer may write messages without a run, messages of a run that was never
    claimed, and messages of a live external run."""
    if run_id is None:
        return
    lanes.check_id_free(thread, run_id)
    run = thread.runs.get(run_id)
    if run is not None and not (run.external and run.live):
        raise _taken(run)


def _branch_of(thread: ThreadState, run_id: str | None) -> Branch:
    """Return the branch of the run's earlier messages. Without earlier messages, return the head."""
    if run_id is None:
        return thread.head
    run = thread.runs.get(run_id)
    if run and run.branch:
        return run.branch
    return next((b for b in thread.branches if any(e.run_id == run_id for e in b.own)), thread.head)


def _parent(thread: ThreadState, branch: Branch, run_id: str | None) -> str | None:
    own = [e for e in branch.own if e.run_id == run_id] if run_id is not None else []
    if own:
        return own[-1].id
    run = thread.runs.get(run_id) if run_id is not None else None
    if run is not None:
        return run.context[-1].id if run.context else None
    last = tree.last_visible(thread, branch)
    return last.id if last else None
