"""One attempt of a run: claim, append, complete, suspend, fail, release. Functions over the state; nothing here awaits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from runner.app import DEFAULT_AGENT
from runner.bounds import check_value
from runner.errors import CancelRequestedError, InvalidInputError, RunNotFoundError, StaleFenceError
from runner.exchange import Attempt, Claim, Effects, Ended, RunRef, WorkerInfo, Write
from runner.models import AttemptInfo, ErrorInfo, HitlRequest, Message, check_requests, check_usage
from runner.states import ENDED, MAX_CRASHES, RunStatus

from . import hitl, lanes, limits, tree
from .state import Branch, Database, Entry, RunState, ThreadState, check_json, check_messages, copied, copy_run, job, merged

INPUT_EVENT = 2
"""An attempt's first event says that it runs; the input's comes next."""


def claim(db: Database, worker_id: str, ref: RunRef) -> Claim:
    """Try to start an attempt of one run."""
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
        return Claim(ref, "suspended")
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
    if lanes.waits_for(thread, run) or lanes.parked(db, thread, run):
        return Claim(ref, "waiting")
    return _start(db, thread, run, worker_id, ref, crashes=_crashes(run))


def _take_over(db: Database, thread: ThreadState, run: RunState, worker_id: str, ref: RunRef) -> Claim:
    """Continue a run that lost its worker, or that its own worker lost; only the first is a crash."""
    if run.external:
        return Claim(ref, "busy")
    worker = db.workers.get(run.run.worker_id or "")
    crashed = worker is None or worker.dead_at is not None
    if not crashed and run.run.worker_id != worker_id:
        return Claim(ref, "busy")
    crashes = _crashes(run, crashed=crashed)
    if (effects := _end_crashed(db, thread, run, crashes, "its worker died while it ran alone")) is not None:
        return Claim(ref, "ended", effects=effects)
    return _start(db, thread, run, worker_id, ref, crashes=crashes, takeover=True)


def _crashes(run: RunState, *, crashed: bool = False) -> int:
    """Crashes without progress. That the attempt crashed while it waited to run alone is none of its own doing."""
    if run.progress:
        return int(crashed)
    waited = run.run.crash_count == MAX_CRASHES - 1 and not run.isolated
    return run.run.crash_count + int(crashed and not waited)


def _end_crashed(db: Database, thread: ThreadState, run: RunState, crashes: int, how: str) -> Effects | None:
    if run.run.cancel_requested_at is not None:
        run.run.crash_count = crashes
        return lanes.end_outside(db, thread, run, RunStatus.CANCELLED)
    if crashes < MAX_CRASHES:
        return None
    run.run.crash_count = crashes
    error = ErrorInfo(code="poison", message=f"{MAX_CRASHES} crashes without progress: {how}; redrive it")
    return lanes.end_outside(db, thread, run, RunStatus.DEAD, error)


def serves(worker: WorkerInfo, agent: str | None) -> bool:
    """Every worker has an agent that is called ``default``; one that names none is given everything."""
    return not worker.agents or agent in (None, DEFAULT_AGENT, *worker.agents)


def _start(
    db: Database, thread: ThreadState, run: RunState, worker_id: str, ref: RunRef, *, crashes: int, takeover: bool = False
) -> Claim:
    r, worker = run.run, db.workers[worker_id]
    before = r.app_version if r.attempt else None
    if worker.on_version_mismatch == "wait" and before and worker.app_version and before != worker.app_version:
        return Claim(ref, "other_version", effects=limits.leave_line(db, run))
    if r.kind != "fork" and not serves(worker, r.agent):
        return Claim(ref, "unserved", effects=limits.leave_line(db, run))
    first = run.branch is None and r.kind == "prompt"
    if first and r.input is not None and (error := tree.id_error(thread, r.input.id, run.id)) is not None:
        info = ErrorInfo(code=error.code, message=error.message)
        return Claim(ref, "ended", effects=lanes.end_outside(db, thread, run, RunStatus.FAILED, info))
    if not takeover and (slot := limits.missing_slot(db, thread, run)) is not None:
        return Claim(ref, "limited", effects=limits.wait_for(db, thread, run, slot))
    if takeover:
        run.attempt_ends(db.now(), "lost")
    r.app_version = worker.app_version or r.app_version
    r.status, r.worker_id, r.fence = RunStatus.RUNNING, worker_id, db.next_fence()
    r.attempt += 1
    r.crash_count = crashes
    run.progress = run.isolated = False
    limits.take_turn(db, thread, run)
    run.until_fewer = None
    r.started_at, run.changed_at, run.not_before = db.now(), db.now(), None
    run.attempts.append(AttemptInfo(fence=r.fence, worker_id=worker_id, started_at=r.started_at, outcome="running"))
    own = run.own()
    if first:
        _first_claim(db, thread, run)
    return Claim(
        ref,
        "claimed",
        attempt=Attempt(thread.key, run.id, r.fence),
        tenant=thread.tenant,
        run=copy_run(r),
        extra=copied({**thread.thread.extra, **run.extra}),
        fork=run.fork,
        leaf_id=own[-1].id if own else None,
        takeover=takeover,
        version_before=before,
    )


def _first_claim(db: Database, thread: ThreadState, run: RunState) -> None:
    """Choose the branch, freeze what the run sees, and insert its input."""
    run.branch = _branch_for(db, thread, run)
    freeze(thread, run)
    _gather(thread, run, run.branch)
    if run.run.input is not None:
        _say(db, thread, run, run.run.input, INPUT_EVENT)


def _gather(thread: ThreadState, run: RunState, branch: Branch) -> None:
    """What was stored before anybody claimed the run follows it to its branch; nobody has seen it where it was."""
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
    """The branch of ``lane`` that ends at the message, or one that opens there. In the main lane it becomes the head."""
    branch = tree.branch_ending_at(thread, parent_id)
    if branch is None or branch.lane != lane:
        branch = open_branch(db, thread, tree.cut_at(thread, *tree.find(thread, message_id=parent_id)), lane)
    if lane == "":
        thread.head = branch
    return branch


def open_branch(db: Database, thread: ThreadState, cut: tree.CutAt, lane: str) -> Branch:
    branch = Branch(db.number(), lane, cut.entries, cut.ancestral)
    thread.branches.append(branch)
    return branch


def freeze(thread: ThreadState, run: RunState) -> None:
    """What the run will see, whatever happens beside it."""
    assert run.branch is not None
    run.cutoff = thread.next_completion - 1
    run.context = tuple(tree.view(thread, run.branch))


def holder(db: Database, attempt: Attempt) -> tuple[ThreadState, RunState]:
    """The run of an attempt that still holds it (invariant I2)."""
    thread, run = reader(db, attempt)
    if run.run.status is not RunStatus.RUNNING:
        raise StaleFenceError(f"run {run.id!r} is {run.run.status}; this attempt is over", run_id=run.id, fence=attempt.fence)
    return thread, run


def reader(db: Database, attempt: Attempt) -> tuple[ThreadState, RunState]:
    """The run of an attempt unless another one took it."""
    thread, run = _found(db, attempt)
    if run.run.fence != attempt.fence:
        raise StaleFenceError(
            f"run {run.id!r} is held by another attempt", run_id=run.id, fence=attempt.fence, current=run.run.fence
        )
    return thread, run


def _found(db: Database, attempt: Attempt) -> tuple[ThreadState, RunState]:
    try:
        return db.run(attempt.ref)
    except RunNotFoundError:
        raise StaleFenceError(f"run {attempt.run_id!r} is gone", run_id=attempt.run_id, fence=attempt.fence) from None


def writer(db: Database, attempt: Attempt) -> tuple[ThreadState, RunState]:
    """As :func:`holder`, and nobody asked to cancel (invariant I8)."""
    thread, run = holder(db, attempt)
    if run.run.cancel_requested_at is not None:
        raise CancelRequestedError(f"run {run.id!r} was asked to cancel", run_id=run.id)
    return thread, run


def append(db: Database, thread: ThreadState, run: RunState, messages: Sequence[Message], first_event: int) -> list[Entry]:
    """Store messages of the run. One with an id that the run already holds was stored by a call whose answer got lost."""
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
    """Store a message after the run's last one, unless the run holds it already."""
    if (known := tree.holder_of(thread, message.id)) is not None:
        return known
    assert run.branch is not None
    before = run.own() or run.context
    last = before[-1].id if before else None
    return db.store(thread, run.branch, message, parent=last, run_id=run.id, event=f"{run.run.fence}-{event}")


def finish(db: Database, write: Write, status: RunStatus, error: ErrorInfo | None = None) -> Ended:
    """Complete or fail: the last write and the end in one step. A cancel wins, then an incomplete tool cycle."""
    if repeated := _repeated(db, write.attempt):
        return repeated
    thread, run = holder(db, write.attempt)
    if run.run.cancel_requested_at is not None:
        return cancelled(db, thread, run, write.first_event)
    write = _checked(write)
    n = _apply(db, thread, run, write)
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


def _repeated(db: Database, attempt: Attempt) -> Ended | None:
    """What became of the attempt if its turn is over already: the call is repeated because its answer got lost."""
    _, run = _found(db, attempt)
    if run.run.fence != attempt.fence or run.run.status is RunStatus.RUNNING:
        return None
    return Ended(run.run.status, run.run.event_id or "", run.run.error)


def cancelled(db: Database, thread: ThreadState, run: RunState, n: int) -> Ended:
    return _ended(db, thread, run, RunStatus.CANCELLED, n)


def _checked(write: Write) -> Write:
    """The write with a copy of its extra. Raises InvalidInputError, before anything of it is kept."""
    check_value(write.result, "result")
    if write.usage is not None:
        check_usage(write.usage)
    return replace(write, extra=check_json(write.extra, "extra"))


def _apply(db: Database, thread: ThreadState, run: RunState, write: Write) -> int:
    """Store the write; the number of the next event."""
    extra = {**run.extra, **(write.extra or {})}
    merged(thread.thread.extra, extra)  # or nothing of the write is kept
    if write.messages:
        append(db, thread, run, write.messages, write.first_event)
    run.extra = extra
    if write.usage is not None:
        run.run.usage = run.run.usage + write.usage
    return write.first_event + len(write.messages)


def suspend(db: Database, write: Write, requests: Sequence[HitlRequest]) -> Ended:
    """Park the run until somebody answers, unless an answer is already there."""
    if repeated := _repeated(db, write.attempt):
        return repeated
    thread, run = holder(db, write.attempt)
    if run.run.cancel_requested_at is not None:
        return cancelled(db, thread, run, write.first_event)
    write = _checked(write)
    check_requests(*requests)
    event = f"{run.run.fence}-{write.first_event + len(write.messages) + len(requests)}"
    if run.run.event_id != event:  # else it is repeated because its answer got lost
        _apply(db, thread, run, write)
    n = write.first_event + len(write.messages)
    states = []
    for request in requests:
        states.append(hitl.add(db, thread, request, run.id, f"{run.run.fence}-{n}"))
        n += 1
    run.run.event_id, run.progress = event, True
    if any(not state.pending for state in states):
        return Ended(RunStatus.RUNNING, event)
    run.run.status, run.run.suspended_at, run.changed_at = RunStatus.SUSPENDED, db.now(), db.now()
    run.run.worker_id = None
    db.note(thread, "run.suspended", run.id)
    run.attempt_ends(db.now(), "suspended")
    return Ended(RunStatus.SUSPENDED, event, effects=limits.offers(db, limits.slots_of(db, thread, run.run)))


def isolate(db: Database, attempt: Attempt) -> None:
    """From here on the run may be blamed for a crash."""
    holder(db, attempt)[1].isolated = True


def bury(db: Database, attempt: Attempt, how: str) -> Ended:
    """The process in which the run was alone died: dead, unless it had said something or had not begun."""
    if repeated := _repeated(db, attempt):
        return repeated
    thread, run = holder(db, attempt)
    crashes = _crashes(run, crashed=True)
    if (effects := _end_crashed(db, thread, run, crashes, how)) is not None:
        return Ended(run.run.status, run.run.event_id or "", run.run.error, effects)
    run.attempt_ends(db.now(), "lost")
    run.run.crash_count, run.progress = crashes, False
    run.run.status, run.run.worker_id, run.changed_at, run.not_before = RunStatus.QUEUED, None, db.now(), None
    return Ended(RunStatus.QUEUED, "", effects=_again(db, thread, run))


def release(
    db: Database,
    attempt: Attempt,
    delay: float,
    error: ErrorInfo | None,
    first_event: int | None,
    until_fewer: int | None = None,
) -> Ended:
    """Give the run back; with an error it counts as a retry. ``until_fewer``: a job waits for runs that it started."""
    if repeated := _repeated(db, attempt):
        return repeated
    thread, run = holder(db, attempt)
    if run.run.cancel_requested_at is not None:
        if first_event is None:
            effects = lanes.end_outside(db, thread, run, RunStatus.CANCELLED)
            return Ended(run.run.status, run.run.event_id or "", effects=effects)
        return cancelled(db, thread, run, first_event)
    run.run.status, run.run.worker_id, run.changed_at = RunStatus.QUEUED, None, db.now()
    run.attempt_ends(db.now(), "released" if error is None else "retried", error)
    run.not_before = db.now() + timedelta(seconds=delay) if delay > 0 else None
    run.until_fewer = until_fewer
    if error is not None:
        run.run.error_count += 1
        run.run.error = error
    return Ended(RunStatus.QUEUED, f"{attempt.fence}-{first_event or 1}", error, _again(db, thread, run))


def _again(db: Database, thread: ThreadState, run: RunState) -> Effects:
    """The run is queued once more, and its slots are others' meanwhile."""
    effects = Effects(jobs=[] if lanes.parked(db, thread, run) else [job(thread, run, db.now())])
    effects += limits.offers(db, limits.slots_of(db, thread, run.run))
    return effects
