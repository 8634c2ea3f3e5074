"""The number of crashes of a run without progress, and the end of a run that crashes too often."""

from __future__ import annotations

from runyard.domain.crashes import MAX_CRASHES
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo
from runyard.ports.scheduling import Effects

from . import lanes
from .state import Database, RunState, ThreadState


def count(run: RunState, *, crashed: bool = False) -> int:
    """Return the number of crashes without progress. ``crashed``: True if the current attempt crashed. After MAX_CRASHES - 1
    crashes, the next attempt must run alone. A crash does not count if the run needed a separate process and did not have it
    yet. A crash also does not count if the attempt was claimed by the commit that ended the lane's previous run: the worker may
    have died before this attempt began."""
    if run.progress:
        return int(crashed)
    waited = run.run.crash_count == MAX_CRASHES - 1 and not run.isolated
    return run.run.crash_count + int(crashed and not waited and not run.chained)


def end(db: Database, thread: ThreadState, run: RunState, crashes: int, how: str) -> Effects | None:
    """End the run if a cancel was requested or if it has crashed MAX_CRASHES times. Return the effects, or None if the run
    continues. ``crashes``: the result of :func:`count`. ``how``: the description of the last crash, for the run's error."""
    if run.run.cancel_requested_at is not None:
        run.run.crash_count = crashes
        return lanes.end_outside(db, thread, run, RunStatus.CANCELLED)
    if crashes < MAX_CRASHES:
        return None
    run.run.crash_count = crashes
    message = f"run {run.id} crashed {crashes} times without progress: {how}; redrive it when the cause is repaired"
    error = ErrorInfo(code="poison", message=message)
    return lanes.end_outside(db, thread, run, RunStatus.DEAD, error)


def blocked_error(db: Database, worker_id: str | None) -> ErrorInfo | None:
    """Return the error for the attempts of a dead worker whose main loop was blocked. Return None for any other worker."""
    worker = db.workers.get(worker_id or "")
    if worker is None or worker.blocked is None:
        return None
    message = f"the main loop of its worker was blocked at {worker.blocked.place}"
    return ErrorInfo(code="main_loop_blocked", message=message, traceback=worker.blocked.stack)
