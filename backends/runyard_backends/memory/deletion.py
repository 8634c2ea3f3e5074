"""Deletion of the content of runs in the memory store."""

from __future__ import annotations

from collections.abc import Collection

from runyard.errors import RunInUseError

from . import waits
from .state import Database, Entry, RunState, ThreadState


def delete_run(db: Database, thread: ThreadState, run: RunState) -> None:
    """Delete the run's content. ``run.request`` stays, because a repeated request is compared with it. Raises RunInUseError if
    the run is live or completed. Raises RunInUseError if another run can still need one of this run's messages."""
    details = {"thread_id": thread.id, "run_id": run.id, "status": str(run.run.status)}
    if run.live:
        raise RunInUseError(f"run {run.id!r} of thread {thread.id!r} is {run.run.status}; cancel it first", **details)
    if run.run.completion_seq is not None:
        message = f"run {run.id!r} is part of the context of thread {thread.id!r}; delete or erase the thread"
        raise RunInUseError(message, **details)
    threads = [other for other in db.threads.values() if not other.deleted]
    shown = {entry.place for other in threads for branch in other.branches for entry in branch.prefix}
    doomed = [entry for entry in run.own() if entry.place not in shown]
    if (user := _goes_on_from(thread, doomed)) is not None:
        message = f"run {user!r} continues from a message of run {run.id!r}; first cancel or delete run {user!r}"
        raise RunInUseError(message, **details, used_by=user)
    if run.branch is not None:
        run.branch.own = [entry for entry in run.branch.own if entry not in doomed]
    for request in [state.request for state in db.requests_of(thread) if state.request.run_id == run.id]:
        del db.requests[thread.tenant, request.request_id]
    db.waits = [state for state in db.waits if state not in waits.of_run(db, thread, run.id)]
    waits.forget_signals(db, thread.key, run.id)
    run.fork, run.words, run.extra, run.thread_extra, run.snapshot, run.context = None, None, {}, {}, (), ()
    run.attempts = [attempt.model_copy(update={"error": None}) for attempt in run.attempts]
    _empty(run)
    run.run.input = None
    run.run.options = run.run.options.model_copy(update={"webhook": None})
    run.run.deleted_at = run.run.deleted_at or db.now()


def hide_runs(thread: ThreadState, *, erase: bool) -> None:
    """Delete the content of the runs of a deleted thread. ``erase``: True to delete the inputs of completed runs as well. The
    status, the usage and the last attempt of a run stay. Forks that inherited the run read them."""
    for run in thread.runs.values():
        run.request = run.fork = run.words = None
        completed = run.run.completion_seq is not None
        run.attempts = run.attempts[-1:] if completed else []
        _empty(run)
        if erase or not completed:
            run.run.input = None


def _empty(run: RunState) -> None:
    run.steps.clear()
    run.step_times.clear()
    run.step_inputs.clear()
    run.run.result, run.run.error, run.run.metadata = None, None, {}


def _goes_on_from(thread: ThreadState, doomed: Collection[Entry]) -> str | None:
    """Return the id of a run that can still need one of the messages ``doomed``, or None. A prompt may continue after one of
    these messages. A live fork job may have its cut at one of them."""
    ids, numbers = {entry.id for entry in doomed}, {entry.seq for entry in doomed}
    for run in thread.runs.values():
        continues = run.branch is None and run.run.status != "cancelled" and run.run.parent_id in ids
        cut = run.fork.cut if run.fork is not None and run.live else None
        cuts = cut is not None and (cut.at_message_id in ids or cut.at_seq in numbers)
        if run.run.deleted_at is None and (continues or cuts):
            return run.id
    return None
