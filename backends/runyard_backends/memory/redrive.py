"""Redriving a failed or dead run."""

from __future__ import annotations

from runyard.domain.states import RunStatus
from runyard.errors import ResultExpiredError, RunEndedError
from runyard.ports.results import Changed

from . import fan_outs, lanes, waits
from .state import Database, RunState, ThreadState, copy_run, job


def redrive(db: Database, thread: ThreadState, run: RunState) -> Changed:
    """Queue a failed or dead run again, at the end of its lane. Raises RunEndedError if the run has another status, was
    deleted, or is external. Raises ResultExpiredError for a fan-out whose messages have expired."""
    effects = lanes.admit_thread(db, thread)
    r = run.run
    if r.status not in (RunStatus.FAILED, RunStatus.DEAD):
        message = f"run {run.id!r} is {r.status}; only a failed or dead run can be redriven"
        raise RunEndedError(message, run_id=run.id, status=str(r.status))
    if r.deleted_at is not None:
        raise RunEndedError(f"run {run.id!r} was deleted; enqueue a new one", run_id=run.id, status=str(r.status))
    if r.kind == "fork_many" and fan_outs.expired(run):
        message = f"the messages of fan-out {run.id!r} have expired; start a new one"
        raise ResultExpiredError(message, thread_id=thread.id, run_id=run.id)
    if run.external:
        message = f"run {run.id!r} is an external run and {r.status}; no worker can continue it; claim a new run"
        raise RunEndedError(message, run_id=run.id, status=str(r.status))
    for request in db.requests_of(thread):  # the run may store a request with the same id again
        if request.request.run_id == run.id and request.request.answered_at is None:
            del db.requests[thread.tenant, request.request.request_id]
    r.status, r.finished_at, r.error, r.error_count, r.crash_count = RunStatus.QUEUED, None, None, 0, 0
    r.app_version, r.expires_at, run.words = None, None, None
    r.cancel_requested_at, r.worker_id, run.keep, run.progress, run.not_before = None, None, False, False, None
    run.lane_seq, run.changed_at, r.event_id, run.queued_fence = db.number(), db.now(), None, db.next_fence()
    waits.reopen(db, run)
    if lanes.may_start(thread, run):
        effects.jobs.append(job(thread, run, db.now()))
    return Changed(copy_run(r), effects)
