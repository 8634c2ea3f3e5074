"""Explain why a run waits (R12), and make the proven events of a run: the events that its stored state proves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from runyard.domain.crashes import MAX_CRASHES
from runyard.domain.list_entries import json_bytes, message_bytes, request_bytes
from runyard.domain.states import RunStatus
from runyard.models import Event, JsonObject
from runyard.ports.scheduling import EVENT_BYTES_PER_READ

from . import lanes, limits
from .events import place
from .execution import serves
from .paging import within
from .state import Database, Entry, RequestState, RunState, ThreadState, queued

Proof: TypeAlias = Entry | RequestState | Event
"""The stored object from which a proven event is made, or the event itself."""


def explain(db: Database, thread: ThreadState, run: RunState) -> str:
    """Return one sentence that says why the run runs or waits, or how it ended."""
    r = run.run
    if r.status is RunStatus.RUNNING:
        if run.external:
            return "running outside any worker"
        worker = db.workers.get(r.worker_id or "")
        if worker is None or worker.dead_at is not None:
            paused = f"; {_paused(db, r.queue)}" if r.queue in db.paused else ""
            who = _no_worker(db, run) or "another worker will take it over"
            return f"lost its worker {r.worker_id}; {who}{paused}{_versions(db, run)}"
        alone = "" if r.crash_count < MAX_CRASHES - 1 else ", alone" if run.isolated else ", waiting there to run alone"
        asked = "; a cancel was requested" if r.cancel_requested_at else ""
        return f"running on worker {r.worker_id}, attempt {r.attempt}{alone}{asked}"
    if r.status is RunStatus.SUSPENDED:
        waiting = [x.request for x in db.requests_of(thread) if x.pending and x.request.run_id == run.id]
        what = f"request {waiting[0].request_id}" if waiting else "a request"
        return f"waiting for an answer to {what} since {r.suspended_at}"
    if r.status is not RunStatus.QUEUED:
        return f"{r.status} at {r.finished_at}" + (f": {r.error.message}" if r.error else "")
    until = f"; it fails if not started by {r.expires_at}" if r.expires_at and not r.attempt else ""
    return _queued(db, thread, run) + until + _versions(db, run)


def _queued(db: Database, thread: ThreadState, run: RunState) -> str:
    r = run.run
    if run.lane_seq is None:
        return f"due at {run.due_at}"
    if r.queue in db.paused:
        return _paused(db, r.queue)
    ahead = thread.lane(r.lane or "")
    if ahead[0] is not run:
        return f"behind run {ahead[ahead.index(run) - 1].id} of its lane"
    if r.error and run.not_before and run.not_before > db.now():
        return f"retrying after error {r.error.code} at {run.not_before}"
    if waits := lanes.waits_for(thread, run):
        return f"waiting for run {waits.id} to end"
    if lanes.waits_for_started(db, thread, run):
        return f"waiting for the runs that it started, {lanes.count_started_by(db, thread, run)} of them live"
    if run.permit is not None:
        name, subject = run.permit
        most = limits.limit_of(db, name, subject)
        return f"waiting for a permit of {name.removeprefix('running_per_')} {subject} (limit {most})"
    return _no_worker(db, run) or "waiting for a free worker"


def _no_worker(db: Database, run: RunState) -> str | None:
    """Return a sentence if no live worker serves the run, else None."""
    r = run.run
    serving = [w for w in db.workers.values() if w.dead_at is None and not w.draining and r.queue in w.queues]
    if not serving:
        return f"no live worker serves queue {r.queue}"
    judge = run.fork.fan.judge if run.fork and run.fork.fan else None
    for agent in (r.agent if r.kind != "fork" else None, judge):
        if not any(serves(w, agent) for w in serving):
            return f"no live worker of queue {r.queue} serves agent {agent}"
    return None


def _paused(db: Database, queue: str) -> str:
    return f"queue {queue} is paused since {db.paused[queue]}"


def _versions(db: Database, run: RunState) -> str:
    """Return an addition to the sentence if no live worker has the version that accepted the run, else an empty text."""
    accepted = run.run.app_version
    workers = {w.app_version for w in db.workers.values() if w.dead_at is None and w.app_version}
    if not accepted or not workers or accepted in workers:
        return ""
    return f"; accepted by version {accepted}, workers run {', '.join(sorted(workers))}"


def events(db: Database, thread: ThreadState, run: RunState, after: str | None, limit: int) -> list[Event]:
    """Return the events that the run's stored state proves, in the order of their ids, after the id ``after`` (None: from the
    start). They are the events of its messages, of its HITL requests and of its end, and ``run.queued`` until an attempt
    begins. ``limit``: the maximum number of events. EVENT_BYTES_PER_READ limits their size."""
    asked = [s for s in db.requests_of(thread) if s.request.run_id == run.id and s.event_id]
    found: list[tuple[str | None, Proof]] = [(e.event_id, e) for e in run.own() if e.event_id]
    found += [(s.event_id, s) for s in asked]
    found += [(e.id, e) for e in (_end(thread, run, asked), queued(thread, run)) if e]
    places = {place(each[0]): each for each in found}  # of two events with one number, the last in `found` is used
    following = [places[at] for at in sorted(places) if after is None or at > place(after)]
    part = within(following[:limit], lambda each: _bytes(each[1]), EVENT_BYTES_PER_READ)
    return [_event(thread, run, event_id, proof) for event_id, proof in part]


def _end(thread: ThreadState, run: RunState, asked: Sequence[RequestState]) -> Event | None:
    """Return the event with which the run ended or was suspended, or None."""
    r = run.run
    if r.event_id is None or not (r.ended or r.status is RunStatus.SUSPENDED):
        return None
    data: JsonObject = {"status": str(r.status)}
    if r.error:
        data["error"] = r.error.model_dump(mode="json")
    if r.status is RunStatus.SUSPENDED:
        fence = place(r.event_id)[0]
        of_attempt = sorted((place(s.event_id), s.request.request_id) for s in asked if place(s.event_id)[0] == fence)
        data["request_ids"] = [request_id for _, request_id in of_attempt]
    return Event(id=r.event_id, type=f"run.{r.status}", thread_id=thread.id, run_id=run.id, data=data)


def _bytes(proof: Proof) -> int:
    if isinstance(proof, Entry):
        return message_bytes(proof.message)
    return request_bytes(proof.request) if isinstance(proof, RequestState) else 512 + json_bytes(proof.data)


def _event(thread: ThreadState, run: RunState, event_id: str | None, proof: Proof) -> Event:
    if isinstance(proof, Event):
        return proof
    if isinstance(proof, Entry):
        message = proof.message.model_dump(mode="json")
        kind, data = "message.completed", {"message_id": proof.message.id, "message": message}
    else:
        kind, data = "hitl.requested", {"request": proof.request.model_dump(mode="json")}
    return Event(id=event_id, type=kind, thread_id=thread.id, run_id=run.id, data=data)
