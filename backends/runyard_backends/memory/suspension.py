"""The suspension of a run until a human answers or a wait ends."""

from __future__ import annotations

from collections.abc import Sequence

from runyard.domain.states import RunStatus
from runyard.domain.waits import Wait, check_waits
from runyard.models import HitlRequest, check_requests
from runyard.ports.commands import Write
from runyard.ports.results import Ended

from . import execution, hitl_answers, limits, waits
from .state import Database


def suspend(db: Database, write: Write, requests: Sequence[HitlRequest], new_waits: Sequence[Wait] = ()) -> Ended:
    """Suspend the run until one of ``requests`` is answered or one of ``new_waits`` ends. If one of these has happened
    already, the run stays RUNNING and continues."""
    if before := execution.repeated(db, write.attempt):
        return before
    thread, run = execution.holder(db, write.attempt)
    new = [request for request in requests if request.created_at is None]
    event = f"{run.run.fence}-{write.first_event + len(write.messages) + len(new)}"
    repeats = run.run.event_id == event  # the reply of an earlier call was lost
    if run.run.cancel_requested_at is not None:
        return execution.cancelled(db, thread, run, write.first_event, None if repeats else write.usage)
    write = execution.checked(write)
    check_requests(*requests)
    check_waits(new_waits)
    if not repeats:
        execution.apply(db, thread, run, write)
    n = write.first_event + len(write.messages)
    for number, request in enumerate(new, n):
        hitl_answers.add(db, thread, request, run.id, f"{run.run.fence}-{number}")
    states = [db.requests[thread.tenant, request.request_id] for request in requests]
    run.run.event_id, run.progress = event, True
    ended = waits.add(db, thread, run, new_waits)
    if ended or any(not state.pending for state in states):
        hitl_answers.receive(db, thread, run)
        return Ended(RunStatus.RUNNING, event)
    run.run.status, run.run.suspended_at, run.changed_at = RunStatus.SUSPENDED, db.now(), db.now()
    run.run.worker_id, run.run.waiting_for, run.run.error_count = None, "answer" if requests else "wait", 0
    db.note(thread, "run.suspended", run.id)
    run.end_records(db.now(), "suspended")
    return Ended(RunStatus.SUSPENDED, event, effects=limits.offers(db, limits.permits_of(db, thread, run.run)))
