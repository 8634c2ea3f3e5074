"""The verbs of one attempt of a run: claim, append, complete, suspend, fail, release. Each verb is atomic, because no function
awaits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from runyard.domain.size_limits import check_value
from runyard.domain.states import ENDED, RunStatus
from runyard.errors import CancelRequestedError, InvalidInputError, RunNotFoundError, StaleFenceError
from runyard.models import AttemptInfo, ErrorInfo, Message, Usage, check_usage
from runyard.ports.commands import Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Claim, Ended
from runyard.ports.scheduling import Effects, requirement

from . import agents, crash_count, hitl_answers, lanes, limits, tree, waits
from .state import Branch, Database, Entry, RunState, ThreadState, copy_run, job
from .values import check_json, check_messages, copied, merged

INPUT_EVENT = 2
"""Number of the event for the run's input. The attempt's first event, such as ``run.started``, has the number 1."""


def claim(db: Database, worker_id: str, ref: RunRef) -> Claim:
    """Start an attempt of one run if the run may start. Return the outcome."""
    thread = db.by_key(ref.thread_key)
    if thread is None:
        return Claim(ref, "unknown")
    effects = lanes.admit_thread(db, thread)
    run = thread.runs.get(ref.run_id)
    if run is None:
        return Claim(ref, "unknown", effects=effects)
    result = _claim(db, thread, run, worker_id, ref)
    effects += result.effects
    result.effects = effects
    return result


def _claim(db: Database, thread: ThreadState, run: RunState, worker_id: str, ref: RunRef) -> Claim:
    status = run.run.status
    if status in ENDED:
        return Claim(ref, "ended")
    if status is RunStatus.SUSPENDED:
        woken = waits.end(db, thread)
        if run.run.status is RunStatus.SUSPENDED:
            return Claim(ref, "suspended", effects=woken)
        result = _claim(db, thread, run, worker_id, ref)
        others = [woken_job for woken_job in woken.jobs if woken_job.run_id != run.id]
        result.effects += Effects(jobs=others)
        return result
    if run.run.queue in db.paused and run.run.cancel_requested_at is None:
        return Claim(ref, "paused", effects=limits.leave_line(db, run))
    if status is RunStatus.RUNNING:
        return _take_over(db, thread, run, worker_id, ref)
    if run.lane_seq is not None and lanes.is_late(db, run):
        return Claim(ref, "ended", effects=lanes.expire(db, thread, run))
    due = run.not_before if run.lane_seq is not None else run.due_at
    if run.lane_seq is not None and thread.lane(run.run.lane or "")[0] is not run:
        return Claim(ref, "behind")
    if due and due > db.now():
        return Claim(ref, "not_due", retry_in=(due - db.now()).total_seconds())
    if lanes.must_wait(db, thread, run):
        return Claim(ref, "waiting")
    return _start(db, thread, run, worker_id, ref, crashes=crash_count.count(run))


def _take_over(db: Database, thread: ThreadState, run: RunState, worker_id: str, ref: RunRef) -> Claim:
    """Start another attempt of a running run. This attempt is allowed if the run's worker is dead or has left. This attempt is
    also allowed if the run's worker is ``worker_id`` itself and has lost the run's task. In any other case the claim is
    ``busy``. Only the death of a worker counts as a crash."""
    if run.external:
        return Claim(ref, "busy")
    worker = db.workers.get(run.run.worker_id or "")
    crashed = worker is not None and worker.dead_at is not None
    if worker is not None and not crashed and run.run.worker_id != worker_id:
        return Claim(ref, "busy")
    crashes = crash_count.count(run, crashed=crashed)
    if (effects := crash_count.end(db, thread, run, crashes, "its worker died while executing it alone")) is not None:
        return Claim(ref, "ended", effects=effects)
    return _start(db, thread, run, worker_id, ref, crashes=crashes, takeover=True)


def _start(
    db: Database, thread: ThreadState, run: RunState, worker_id: str, ref: RunRef, *, crashes: int, takeover: bool = False
) -> Claim:
    r, worker = run.run, db.workers[worker_id]
    before = r.app_version if r.attempt else None
    if not worker.leaves(r):
        agents.name_agent(thread, run, worker)
    if worker.leaves(r):
        return Claim(ref, "other_version", requires=requirement(r.agent, before), effects=limits.leave_line(db, run))
    if not worker.takes(r):
        return Claim(ref, "unserved", requires=requirement(r.agent), effects=limits.leave_line(db, run))
    first = run.branch is None and r.kind == "prompt"
    if first and r.input is not None and (error := tree.id_error(thread, r.input.id, run.id)) is not None:
        info = ErrorInfo(code=error.code, message=error.message)
        return Claim(ref, "ended", effects=lanes.end_outside(db, thread, run, RunStatus.FAILED, info))
    if not takeover and (permit := limits.missing_permit(db, thread, run)) is not None:
        return Claim(ref, "limited", effects=limits.wait_for_permit(db, thread, run, permit))
    if takeover:
        run.end_records(db.now(), "lost", crash_count.blocked_error(db, r.worker_id))
    r.app_version = worker.app_version or r.app_version
    r.status, r.worker_id, r.fence = RunStatus.RUNNING, worker_id, db.next_fence()
    r.attempt += 1
    r.crash_count = crashes
    run.progress = run.isolated = run.chained = False
    limits.take_turn(db, thread, run)
    run.until_fewer = None
    r.started_at, run.changed_at, run.not_before = db.now(), db.now(), None
    hitl_answers.receive(db, thread, run)
    run.attempts.append(AttemptInfo(fence=r.fence, worker_id=worker_id, started_at=r.started_at, outcome="running"))
    own = run.own()
    if first:
        _first_claim(db, thread, run)
    return Claim(
        ref,
        "claimed",
        attempt=AttemptToken(thread.key, run.id, r.fence),
        tenant=thread.tenant,
        run=copy_run(r),
        extra=copied({**thread.thread.extra, **run.extra}),
        config=copied(thread.thread.config),
        fork=run.fork,
        leaf_id=own[-1].id if own else None,
        takeover=takeover,
        version_before=before,
    )


def _first_claim(db: Database, thread: ThreadState, run: RunState) -> None:
    """Choose the run's branch, fix the messages that the run sees, and store its input."""
    run.branch = _branch_for(db, thread, run)
    freeze(thread, run)
    _gather(thread, run, run.branch)
    if run.run.input is not None:
        _say(db, thread, run, run.run.input, INPUT_EVENT)


def _gather(thread: ThreadState, run: RunState, branch: Branch) -> None:
    """Move the messages that were stored before the run's claim to the run's branch. No reader has seen these messages on their
    old branch."""
    for other in thread.branches:
        early = [entry for entry in other.own if entry.run_id == run.id]
        if not early or other is branch:
            continue
        other.own = [entry for entry in other.own if entry.run_id != run.id]
        shift, parent = thread.next_seq - early[0].seq, run.context[-1].id if run.context else None
        for entry in early:
            update = {"seq": entry.seq + shift, "parent_id": parent}
            branch.own.append(replace(entry, branch=branch.number, message=entry.message.model_copy(update=update)))
            parent = entry.id
        thread.next_seq = branch.own[-1].seq + 1


def _branch_for(db: Database, thread: ThreadState, run: RunState) -> Branch:
    lane = run.run.lane or ""
    if run.run.parent_id is None:
        if not run.run.options.parallel:
            return thread.head
        return open_branch(db, thread, tree.whole_branch(thread, thread.head), lane)
    return branch_at(db, thread, run.run.parent_id, lane)


def branch_at(db: Database, thread: ThreadState, parent_id: str, lane: str) -> Branch:
    """Return the branch of ``lane`` that ends at the message ``parent_id``. If no branch ends there, open one. In the main
    lane, the branch becomes the head."""
    branch = tree.branch_ending_at(thread, parent_id)
    if branch is None or branch.lane != lane:
        branch = open_branch(db, thread, tree.cut_at_parent(thread, parent_id), lane)
    if lane == "":
        thread.head = branch
    return branch


def open_branch(db: Database, thread: ThreadState, cut: tree.CutAt, lane: str) -> Branch:
    branch = Branch(db.number(), lane, cut.entries, cut.ancestral)
    thread.branches.append(branch)
    return branch


def freeze(thread: ThreadState, run: RunState) -> None:
    """Fix the messages that the run will see. Later changes of the thread do not affect them."""
    assert run.branch is not None
    run.cutoff = thread.next_completion - 1
    run.context = tuple(tree.view(thread, run.branch))


def holder(db: Database, attempt: AttemptToken) -> tuple[ThreadState, RunState]:
    """Return the thread and the run of an attempt. Raises StaleFenceError if the attempt is over (I2)."""
    thread, run = reader(db, attempt)
    if run.run.status is not RunStatus.RUNNING:
        raise StaleFenceError(f"run {run.id!r} is {run.run.status}; this attempt is over", run_id=run.id, fence=attempt.fence)
    return thread, run


def reader(db: Database, attempt: AttemptToken) -> tuple[ThreadState, RunState]:
    """Return the thread and the run of an attempt, even if the attempt has ended. Raises StaleFenceError after a newer
    claim."""
    thread, run = _found(db, attempt)
    if run.run.fence != attempt.fence:
        raise StaleFenceError(
            f"run {run.id!r} is held by another attempt", run_id=run.id, fence=attempt.fence, current=run.run.fence
        )
    return thread, run


def _found(db: Database, attempt: AttemptToken) -> tuple[ThreadState, RunState]:
    try:
        return db.run(attempt.ref)
    except RunNotFoundError:
        raise StaleFenceError(f"run {attempt.run_id!r} does not exist", run_id=attempt.run_id, fence=attempt.fence) from None


def writer(db: Database, attempt: AttemptToken) -> tuple[ThreadState, RunState]:
    """Return the thread and the run like :func:`holder`. Raises CancelRequestedError if a cancel of the run was requested
    (I8)."""
    thread, run = holder(db, attempt)
    if run.run.cancel_requested_at is not None:
        raise CancelRequestedError(f"a cancel of run {run.id!r} was requested", run_id=run.id)
    return thread, run


def append(db: Database, thread: ThreadState, run: RunState, messages: Sequence[Message], first_event: int) -> list[Entry]:
    """Store messages of the run and return their entries. ``first_event``: the number of the event of the first message. Skip a
    message whose id the run has already. A call can therefore be repeated after a lost reply."""
    if not messages:
        return []
    limits.check_size(db, messages)
    if run.branch is None:
        raise InvalidInputError(f"a run of kind {run.run.kind!r} writes no messages", run_id=run.id)
    messages = check_messages(messages)
    for message in messages:
        tree.check_id_free(thread, message.id, run.id)
    before = thread.next_seq
    stored = [_say(db, thread, run, message, n) for n, message in enumerate(messages, first_event)]
    run.progress |= thread.next_seq > before
    return stored


def _say(db: Database, thread: ThreadState, run: RunState, message: Message, event: int) -> Entry:
    """Store a message after the run's last message. If the run has the message already, return its entry."""
    if (known := tree.holder_of(thread, message.id)) is not None:
        return known
    assert run.branch is not None
    before = run.own() or run.context
    last = before[-1].id if before else None
    return db.store(thread, run.branch, message, parent=last, run_id=run.id, event=f"{run.run.fence}-{event}")


def finish(db: Database, write: Write, status: RunStatus, error: ErrorInfo | None = None) -> Ended:
    """End the run with ``status``: completed or failed. Store the last write and the end in one step. If a cancel was
    requested, cancel the run instead. If a tool cycle is open, fail the run instead of completing it."""
    if before := repeated(db, write.attempt):
        return before
    thread, run = holder(db, write.attempt)
    if run.run.cancel_requested_at is not None:
        return cancelled(db, thread, run, write.first_event, write.usage)
    write = checked(write)
    n = apply(db, thread, run, write)
    if run.run.kind not in lanes.FORK_KINDS and status is RunStatus.COMPLETED and not lanes.cycles_closed(run):
        status = RunStatus.FAILED
        error = ErrorInfo(code="incomplete_tool_cycle", message="a tool call of the run has no result directly after it")
    if status is RunStatus.COMPLETED:
        run.run.result = check_json(write.result, "result")
    return _ended(db, thread, run, status, n, error)


def _ended(
    db: Database, thread: ThreadState, run: RunState, status: RunStatus, n: int, error: ErrorInfo | None = None
) -> Ended:
    event = f"{run.run.fence}-{n}"
    effects = lanes.end_run(db, thread, run, status, event, error)
    return Ended(run.run.status, event, error, effects)


def repeated(db: Database, attempt: AttemptToken) -> Ended | None:
    """Return the end of an attempt that has ended, or None. An attempt that has ended calls again only if the reply to its
    earlier call was lost."""
    _, run = _found(db, attempt)
    if run.run.fence != attempt.fence or run.run.status is RunStatus.RUNNING:
        return None
    return Ended(run.run.status, run.run.event_id or "", run.run.error)


def cancelled(db: Database, thread: ThreadState, run: RunState, n: int, usage: Usage | None) -> Ended:
    """Cancel the run and add ``usage``, the usage of its last attempt. Store no other part of the attempt's last write."""
    _use(run, usage)
    return _ended(db, thread, run, RunStatus.CANCELLED, n)


def _use(run: RunState, usage: Usage | None) -> None:
    """Add the usage of an attempt to the usage of its run."""
    if usage is not None:
        run.run.usage = run.run.usage + check_usage(usage)


def raise_usage(run: RunState, usage: Usage | None) -> None:
    """Raise each stored amount of the run's usage to the amount in ``usage``, unless the stored amount is at least as large.
    ``usage``: the total usage of the run at the time of the write. A repeated or late call therefore changes nothing."""
    if usage is not None:
        run.run.usage = run.run.usage.at_least(usage)


def checked(write: Write) -> Write:
    """Return the write with a copy of its extra. Raises InvalidInputError if a part of the write is invalid."""
    check_value(write.result, "result")
    if write.usage is not None:
        check_usage(write.usage)
    return replace(write, extra=check_json(write.extra, "extra"))


def apply(db: Database, thread: ThreadState, run: RunState, write: Write) -> int:
    """Store the write and return the number of the next event."""
    extra = {**run.extra, **(write.extra or {})}
    merged(thread.thread.extra, extra)  # raises before any part of the write is stored
    if write.messages:
        append(db, thread, run, write.messages, write.first_event)
    run.extra = extra
    _use(run, write.usage)
    return write.first_event + len(write.messages)


def isolate(db: Database, attempt: AttemptToken) -> None:
    """Record that the attempt runs alone in its process. From now on, a crash of the attempt counts, because no other run can
    cause it."""
    holder(db, attempt)[1].isolated = True


def bury(db: Database, attempt: AttemptToken, how: str) -> Ended:
    """Count the crash of a process in which the run was executed alone. If a cancel was requested, cancel the run. If the run
    has crashed MAX_CRASHES times without progress, end it as dead. In any other case queue the run again. ``how``: the
    description of the crash, for the run's error."""
    if before := repeated(db, attempt):
        return before
    thread, run = holder(db, attempt)
    crashes = crash_count.count(run, crashed=True)
    if (effects := crash_count.end(db, thread, run, crashes, how)) is not None:
        return Ended(run.run.status, run.run.event_id or "", run.run.error, effects)
    run.end_records(db.now(), "lost")
    run.run.crash_count, run.progress = crashes, False
    run.run.status, run.run.worker_id, run.changed_at, run.not_before = RunStatus.QUEUED, None, db.now(), None
    return Ended(RunStatus.QUEUED, "", effects=_again(db, thread, run))


def release(
    db: Database,
    attempt: AttemptToken,
    delay: float,
    error: ErrorInfo | None,
    first_event: int | None,
    until_fewer: int | None = None,
    usage: Usage | None = None,
) -> Ended:
    """Release the run and queue it again. ``delay``: seconds until the run is due. ``error``: the error that causes the retry,
    or None if the release is no retry. ``first_event``: the number of the attempt's next event, or None. ``until_fewer``: for
    a fork job, a bound on the live runs that it has started. The fork job waits while ``until_fewer`` or more of them are live.
    ``usage``: the usage to add to the usage of the run."""
    if before := repeated(db, attempt):
        return before
    thread, run = holder(db, attempt)
    _use(run, usage)
    if run.run.cancel_requested_at is not None:
        if first_event is None:
            effects = lanes.end_outside(db, thread, run, RunStatus.CANCELLED)
            return Ended(run.run.status, run.run.event_id or "", effects=effects)
        return cancelled(db, thread, run, first_event, None)
    run.run.status, run.run.worker_id, run.changed_at = RunStatus.QUEUED, None, db.now()
    run.end_records(db.now(), "released" if error is None else "retried", error)
    run.not_before = db.now() + timedelta(seconds=delay) if delay > 0 else None
    run.until_fewer = until_fewer
    if error is not None:
        run.run.error_count += 1
        run.run.error = error
    return Ended(RunStatus.QUEUED, f"{attempt.fence}-{first_event or 1}", error, _again(db, thread, run))


def _again(db: Database, thread: ThreadState, run: RunState) -> Effects:
    """Return the effects of queuing the run again: its job, and offers of its permits to other runs."""
    effects = Effects(jobs=[] if lanes.waits_for_started(db, thread, run) else [job(thread, run, db.now())])
    effects += limits.offers(db, limits.permits_of(db, thread, run.run))
    return effects
