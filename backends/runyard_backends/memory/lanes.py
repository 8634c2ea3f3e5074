"""Admission of runs to lanes, and the ends of runs. Every operation is atomic, because no function awaits."""

from __future__ import annotations

from datetime import timedelta

from runyard.domain.states import LIVE, RunStatus
from runyard.domain.tool_cycles import CANCELLED, closing, farewell
from runyard.errors import (
    CheckpointerError,
    NothingToRunError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunExpiredError,
    ThreadBusyError,
)
from runyard.models import MAX_EXPIRY_SECONDS, ROOT_ID, ErrorInfo, FeedType, JsonObject, Message, Run, open_tool_calls
from runyard.models import cycles_closed as closed
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import MAIN_LANE, Effects

from . import agents, children, limits, tree, waits
from .state import Database, RunState, ThreadState, job, outside
from .usage import count_run
from .webhooks import add_delivery

ACTIVE = frozenset({RunStatus.RUNNING, RunStatus.SUSPENDED})
FORK_KINDS = frozenset({"fork", "fork_once", "fork_many"})
_ENDS: dict[RunStatus, FeedType] = {
    RunStatus.COMPLETED: "run.completed",
    RunStatus.FAILED: "run.failed",
    RunStatus.CANCELLED: "run.cancelled",
    RunStatus.DEAD: "run.dead",
}


def new_run(db: Database, thread: ThreadState, request: AcceptRequest, parent_id: str | None) -> RunState:
    """Make the run of ``request``, which is not admitted yet."""
    now, agent = db.now(), agents.agent_of(db, request.agent, thread.thread.agent)
    run = Run(
        thread_id=thread.id,
        run_id=request.run_id,
        kind=request.kind,
        status=RunStatus.QUEUED,
        agent=agent,
        queue=request.queue or agents.queue_of(db, agent),
        priority=request.priority,
        input=request.input,
        parent_id=parent_id,
        options=request.options,
        run_at=request.run_at if request.delay is None else now + timedelta(seconds=request.delay),
        accepted_at=now,
        app_version=request.app_version,
        metadata=request.metadata,
        trace_context=request.trace_context,
    )
    seconds = [run.options.expires_in, limits.limit_of(db, "queued_seconds") if run.kind != "fork" else None]
    if any(each is not None for each in seconds):
        most = min(each for each in seconds if each is not None)
        run.expires_at = max(run.run_at or now, now) + timedelta(seconds=min(most, MAX_EXPIRY_SECONDS))
    known = RunState(run.model_copy(deep=True), db.number(), db.next_fence(), request, request.fork, changed_at=now)
    known.job = request.job
    return known


def lane_for(thread: ThreadState, run: Run) -> str:
    """Return the lane to which the run is admitted."""
    if run.kind != "prompt" or run.options.parallel:
        return run.run_id
    branch = tree.branch_ending_at(thread, run.parent_id) if run.parent_id else None
    return branch.lane if branch else MAIN_LANE


def check_id_free(thread: ThreadState, run_id: str) -> None:
    """Raise an error if a run that the fork inherited has the id. The error is RunAlreadyCompletedError for a completed run.
    The error is RunAlreadyClaimedError for the run inside which the cut was made."""
    if run := thread.root.ancestral.get(run_id):
        error = RunAlreadyClaimedError if run.completion is None else RunAlreadyCompletedError
        raise error(
            f"run id {run_id!r} is inherited by thread {thread.id!r} from its ancestor; use another",
            thread_id=thread.id,
            run_id=run_id,
        )


def check_lane(thread: ThreadState, run: RunState) -> None:
    """Raise ThreadBusyError if the run's ``multitask_strategy`` is ``reject`` and its lane has a live run."""
    lane = lane_for(thread, run.run)
    if run.run.options.multitask_strategy == "reject" and (busy := thread.lane(lane)):
        raise busy_error(thread, busy[0])


def busy_error(thread: ThreadState, run: RunState) -> ThreadBusyError:
    message = f"thread {thread.id!r} is busy with run {run.id!r}; wait for it or cancel it"
    return ThreadBusyError(message, thread_id=thread.id, run_id=run.id)


def admit_run(db: Database, thread: ThreadState, run: RunState) -> Effects:
    """Give the run its place in its lane, and apply its ``multitask_strategy``."""
    effects = Effects()
    lane = lane_for(thread, run.run)
    ahead = thread.lane(lane)
    strategy = run.run.options.multitask_strategy
    if strategy in ("interrupt", "rollback") and ahead and ahead[0].run.status in ACTIVE:
        effects += cancel_run(db, thread, ahead[0], keep=strategy == "interrupt")
    run.run.lane, run.lane_seq, run.run.admitted_at, run.changed_at = lane, db.number(), db.now(), db.now()
    if may_start(thread, run):
        effects.jobs.append(job(thread, run, db.now()))
    return effects


def expired(db: Database, thread: ThreadState) -> list[RunState]:
    """Return the admitted runs that had no attempt before their ``expires_at`` passed, in the order of admission."""
    runs = [r for r in thread.runs.values() if r.lane_seq is not None and is_late(db, r)]
    return sorted(runs, key=lambda r: r.lane_seq or 0)


def is_late(db: Database, run: RunState) -> bool:
    """Return True if the run had no attempt, and its time ``expires_at`` has passed."""
    r = run.run
    return r.status is RunStatus.QUEUED and r.attempt == 0 and r.expires_at is not None and r.expires_at <= db.now()


def expire(db: Database, thread: ThreadState, run: RunState) -> Effects:
    """Fail a run that has expired."""
    message = f"run {run.id} did not start in time"
    return end_outside(db, thread, run, RunStatus.FAILED, ErrorInfo(code=RunExpiredError.code, message=message))


def may_start(thread: ThreadState, run: RunState) -> bool:
    """Return True if the run is queued, is the head of its lane, and waits for no other run."""
    if run.run.status is not RunStatus.QUEUED or run.lane_seq is None or waits_for(thread, run):
        return False
    return thread.lane(run.run.lane or "")[0] is run


def waits_for(thread: ThreadState, run: RunState) -> RunState | None:
    """Return the run for which the fork job ``run`` waits: the run at its cut, while that run is live. Return None if ``run``
    has no run at its cut, or if that run has ended."""
    cut = thread.runs.get(run.run.after_run_id or "")
    return cut if cut and cut.live else None


def must_wait(db: Database, thread: ThreadState, run: RunState) -> bool:
    """Return True if the fork job ``run`` must wait for the run at its cut, or for runs that it started."""
    return waits_for(thread, run) is not None or waits_for_started(db, thread, run)


def count_started_by(db: Database, thread: ThreadState, run: RunState) -> int:
    """Return the number of live runs that the fork job ``run`` started."""
    job_of = RunRef(thread.key, run.id)
    return sum(r.job == job_of and r.live for t in db.threads.values() for r in t.runs.values())


def waits_for_started(db: Database, thread: ThreadState, run: RunState) -> bool:
    """Return True if the fork job waits for runs that it started."""
    return run.until_fewer is not None and count_started_by(db, thread, run) >= run.until_fewer


def wake_starter(db: Database, run: RunState) -> Effects:
    """After the end of ``run``, return the effects that offer its starter to the workers. The starter is the fork job or the
    suspended parent that started ``run``. The claim of the starter checks whether it may continue."""
    thread = db.by_key(run.job.thread_key) if run.job else None
    waiting = thread.runs.get(run.job.run_id) if thread and run.job else None
    if thread is None or waiting is None or not waiting.live:
        return Effects()
    if waiting.run.kind == "prompt" and waiting.run.status is not RunStatus.SUSPENDED:
        return Effects()
    return Effects([job(thread, waiting, db.now())])


def due(db: Database, thread: ThreadState) -> list[RunState]:
    """Return the due runs that are not admitted, in the order of their future admission."""
    runs = [r for r in thread.runs.values() if r.lane_seq is None and r.run.status is RunStatus.QUEUED]
    return sorted((r for r in runs if r.due_at <= db.now()), key=lambda r: (r.due_at, r.accept_no))


def admit_thread(db: Database, thread: ThreadState) -> Effects:
    """Admit the due runs of the thread in order. A run that cannot be admitted fails, because its ``accept`` has already
    returned."""
    effects = Effects()
    for run in due(db, thread):
        try:
            check_id_free(thread, run.id)
            if run.run.parent_id is not None:
                tree.check_parent(thread, run.run.parent_id)
            check_lane(thread, run)
        except CheckpointerError as error:
            run.lane_seq, run.run.admitted_at, run.run.lane = db.number(), db.now(), lane_for(thread, run.run)
            effects += end_outside(db, thread, run, RunStatus.FAILED, ErrorInfo(code=error.code, message=error.message))
        else:
            effects += admit_run(db, thread, run)
    return effects


def end_outside(db: Database, thread: ThreadState, run: RunState, status: RunStatus, error: ErrorInfo | None = None) -> Effects:
    """End a run that no attempt holds. The event of the end gets a new fence, because this event belongs to no attempt."""
    event = f"{db.next_fence()}-1"
    effects = end_run(db, thread, run, status, event, error)
    data: JsonObject = {"error": error.model_dump(mode="json")} if error else {}
    effects += outside(thread, run, event, data)
    return effects


def end_run(
    db: Database, thread: ThreadState, run: RunState, status: RunStatus, event: str, error: ErrorInfo | None = None
) -> Effects:
    """End the run in one step. Return the effects: jobs for the next run of the lane, and for other runs that may start.
    ``event``: the id of the event that reports the end. The run stores it as ``event_id``."""
    kept = (
        status is RunStatus.CANCELLED and run.keep and (bool(run.own()) or (run.words is not None and run.branch is not None))
    )
    if kept:
        repair(db, thread, run)
        kept = cycles_closed(run)
    r = run.run
    if r.status is RunStatus.RUNNING:
        run.end_records(db.now(), status, error)
    freed = [*limits.permits_of(db, thread, r), *([run.permit] if run.permit else [])]
    run.permit = None
    r.status, r.finished_at, r.suspended_at, r.event_id, r.error = status, db.now(), None, event, error
    r.worker_id = r.waiting_for = None
    run.changed_at = db.now()
    if r.kind not in FORK_KINDS and (kept or status is RunStatus.COMPLETED):
        count(thread, run)
    for request in db.requests_of(thread):
        if request.request.run_id == run.id and request.pending:
            request.closed = True
    woken = waits.close(db, thread, run)
    note = db.note(thread, _ENDS[status], run.id)
    count_run(db, thread, run)
    if r.options.webhook is not None:
        add_delivery(db, note, r.options.webhook)
    effects = Effects(
        [job(thread, x, db.now()) for x in thread.runs.values() if x.run.after_run_id == run.id and may_start(thread, x)]
    )
    if r.kind == "prompt" and (lane := thread.lane(r.lane or "")) and may_start(thread, lane[0]):
        effects.jobs.append(job(thread, lane[0], db.now()))
    effects += woken
    children.end(db, run)
    effects += wake_starter(db, run)
    effects += limits.offers(db, freed)
    return effects


def count(thread: ThreadState, run: RunState) -> None:
    """Give the run its completion number, which makes its messages visible. Add the run's usage and extra to the thread."""
    assert run.branch is not None
    run.run.completion_seq = thread.next_completion
    thread.next_completion += 1
    thread.thread.usage = thread.thread.usage + run.run.usage
    thread.thread.extra = {**thread.thread.extra, **run.extra}
    run.thread_extra = dict(thread.thread.extra)
    run.snapshot = tree.snapshot_after(thread, run)


def cycles_closed(run: RunState) -> bool:
    """Return True if every tool call of the run is directly followed by its result (R5)."""
    return closed((entry.message for entry in run.context), (entry.message for entry in run.own()))


def repair(db: Database, thread: ThreadState, run: RunState) -> None:
    """Close the run's open tool calls with error results, because providers refuse messages with an open tool call. After an
    abort, also store the last message (H8)."""
    assert run.branch is not None
    messages = closing(open_tool_calls(e.message for e in run.own()), run.words or CANCELLED)
    for message in [*messages, *([farewell(run.words)] if run.words is not None else [])]:
        before = run.own() or run.context
        db.store(thread, run.branch, message, parent=before[-1].id if before else None, run_id=run.id)


def cancel_run(db: Database, thread: ThreadState, run: RunState, *, keep: bool) -> Effects:
    """Cancel a live run. If a worker executes the run, only record that a cancel was requested. If no worker executes the run,
    end the run. ``keep``: True to keep its messages in the context. Later cancels do not change ``keep``."""
    if run.run.cancel_requested_at is None:
        run.run.cancel_requested_at, run.keep, run.changed_at = db.now(), keep, db.now()
    if run.lane_seq is None:
        run.lane_seq, run.run.lane, run.run.admitted_at = db.number(), run.id, db.now()
    if run.run.status is RunStatus.RUNNING and not run.external:
        return Effects(cancels=[RunRef(thread.key, run.id)])
    return end_outside(db, thread, run, RunStatus.CANCELLED)


def abort_run(db: Database, thread: ThreadState, run: RunState, words: str) -> Effects:
    """Cancel a run that waits for a human. ``words``: the text of the error results of the run's open tool calls, and of the
    run's last message (H8)."""
    if run.run.cancel_requested_at is None:
        run.words = words
    return cancel_run(db, thread, run, keep=True)


def live_runs(thread: ThreadState) -> list[RunState]:
    """Return the live runs of the thread, without external runs."""
    return [r for r in thread.runs.values() if r.run.status in LIVE and not r.external]


def check_something_to_run(thread: ThreadState, run: RunState) -> None:
    """Raise NothingToRunError if a run without a message finds no message to answer. On a busy lane, raise nothing, because an
    earlier run can still add a message."""
    if (parent := run.run.parent_id) is not None:
        leaf: Message | None = None if parent == ROOT_ID else tree.find(thread, message_id=parent)[1].message
    elif thread.lane(lane_for(thread, run.run)):
        return
    else:
        last = tree.last_visible(thread, thread.head)
        leaf = last.message if last else None
    if leaf is None or (leaf.role == "assistant" and not leaf.tool_calls):
        raise NothingToRunError(
            f"thread {thread.id!r} has no message at its end to answer; give a message", thread_id=thread.id
        )
