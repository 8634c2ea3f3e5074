"""Children. A child is a run that an attempt of another run (the parent) started. The parent waits for its children."""

from __future__ import annotations

from collections import defaultdict

from runyard.domain.states import RunStatus
from runyard.domain.threads import ChildRun, ChildRuns
from runyard.domain.waits import MAX_CHILD_DEPTH, MAX_CHILDREN, Wait
from runyard.errors import ChildDeadlockError, RunConflictError, TooManyChildrenError
from runyard.models import Run
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Effects

from . import lanes, waits
from .state import Database, RunState, ThreadState


def check(db: Database, tenant: str, parent: RunState, request: AcceptRequest) -> None:
    """Check that the child may start. Raises ChildDeadlockError if the child would wait for its own parent. Raises
    TooManyChildrenError if there are too many children or too many levels. Raises RunConflictError if another run has the
    id."""
    above: RunState | None = parent
    depth = 1
    while above is not None:
        if above.run.thread_id == request.thread_id and above.live and above.run.kind == "prompt":
            message = f"run {above.id} of thread {request.thread_id} waits for this child; start the child on another thread"
            raise ChildDeadlockError(message, thread_id=request.thread_id, run_id=above.id)
        if depth > MAX_CHILD_DEPTH:
            raise TooManyChildrenError(f"children are at most {MAX_CHILD_DEPTH} levels deep", limit=MAX_CHILD_DEPTH)
        depth += 1
        above = starter_of(db, above)
    assert request.job is not None
    others = [s for s in db.waits if s.wait.kind == "child" and (s.thread_key, s.run_id) == (request.job.thread_key, parent.id)]
    if sum(s.wait.wait_id != request.run_id for s in others) >= MAX_CHILDREN:
        raise TooManyChildrenError(f"a run has at most {MAX_CHILDREN} children", limit=MAX_CHILDREN)
    if any(s.wait.wait_id == request.run_id and s.wait.name != request.thread_id for s in others):
        message = f"run id {request.run_id} belongs to a child on another thread; choose another id"
        raise RunConflictError(message, run_id=request.run_id, differs=["thread_id"])
    known = db.find_run(tenant, request.thread_id, request.run_id)
    if known is not None and known.job != request.job:
        message = f"run id {known.id} is taken by a run that is no child of run {parent.id}; choose another id"
        raise RunConflictError(message, run_id=known.id, differs=["job"])


def starter_of(db: Database, run: RunState) -> RunState | None:
    """Return the run that started ``run``, even if its thread is deleted. Return None if no run started it."""
    thread = db.threads.get(run.job.thread_key) if run.job is not None else None
    return thread.runs.get(run.job.run_id) if thread is not None and run.job is not None else None


def begin_wait(db: Database, parent: RunRef, request: AcceptRequest) -> None:
    """Store the wait of the parent for the end of its child."""
    thread = db.by_key(parent.thread_key)
    assert thread is not None
    if request.run_id not in {state.wait.wait_id for state in waits.of_run(db, thread, parent.run_id)}:
        wait = Wait(wait_id=request.run_id, kind="child", name=request.thread_id)
        db.waits.append(waits.WaitState(wait, parent.thread_key, parent.run_id, db.now()))


def end(db: Database, child: RunState) -> None:
    """Make the parent's wait for the child due, because the child has ended."""
    for state in waits.for_child(db, child):
        if state.wait.ended_at is None:
            state.wait.due_at = db.now()


def doomed(db: Database, thread: ThreadState) -> list[RunState]:
    """Return the thread's live runs whose parents were cancelled. Omit runs that are not admitted, and runs with a requested
    cancel."""
    found = []
    for run in thread.runs.values():
        admitted = run.live and run.lane_seq is not None and run.run.cancel_requested_at is None
        parent = starter_of(db, run) if admitted else None
        if parent is not None and parent.run.kind == "prompt" and parent.run.status is RunStatus.CANCELLED:
            found.append(run)
    return found


def cancel_doomed(db: Database, thread: ThreadState) -> Effects:
    """Cancel the live runs of the thread whose parents were cancelled."""
    effects = Effects()
    for run in doomed(db, thread):
        effects += lanes.cancel_run(db, thread, run, keep=False)
    return effects


def below(db: Database, thread: ThreadState, limit: int) -> ChildRuns:
    """Return at most ``limit`` descendants of the thread's runs, level by level: first the children, then their children."""
    started: defaultdict[RunRef, list[tuple[ThreadState, RunState]]] = defaultdict(list)
    for at in db.of(thread.tenant):
        for run in at.runs.values():
            if run.job is not None and run.run.deleted_at is None:
                started[run.job].append((at, run))
    found: list[ChildRun] = []
    level = [(thread, run) for _, run in sorted(thread.runs.items()) if run.run.kind == "prompt"]
    for depth in range(1, MAX_CHILD_DEPTH + 1):
        following = []
        for at, parent in level:
            for place, child in sorted(started[RunRef(at.key, parent.id)], key=lambda each: each[1].accept_no):
                following.append((place, child))
                found.append(_child(depth, at, parent, child.run))
        level = following
    return ChildRuns(items=found[:limit], truncated=len(found) > limit)


def _child(depth: int, at: ThreadState, parent: RunState, child: Run) -> ChildRun:
    return ChildRun(
        depth=depth,
        thread_id=child.thread_id,
        run_id=child.run_id,
        agent=child.agent,
        status=child.status,
        started_by_thread_id=at.id,
        started_by_run_id=parent.id,
        accepted_at=child.accepted_at,
        finished_at=child.finished_at,
    )
