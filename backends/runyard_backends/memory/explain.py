"""Explain why a run waits (R12). Make the events that follow from the stored state of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from runyard.domain.explanations import explanation
from runyard.domain.list_entries import json_bytes, message_bytes, request_bytes
from runyard.domain.states import RunStatus
from runyard.models import Event, JsonObject
from runyard.ports.scheduling import EVENT_BYTES_PER_READ
from runyard.ports.workers import WorkerInfo

from ..paging import within
from . import lanes, limits, waits
from .events import place
from .state import Database, Entry, RequestState, RunState, ThreadState, queued

Proof: TypeAlias = Entry | RequestState | Event
"""The stored object from which an event is made, or the event itself."""


def explain(db: Database, thread: ThreadState, run: RunState) -> str:
    """Return one sentence about the run: why it waits, that it runs, or how it ended."""
    reason, facts = _reason(db, thread, run)
    versions = {worker.app_version for worker in _serving(db, run.run.queue)}
    return explanation(run.run, reason, {"workers": versions} | facts)


def _reason(db: Database, thread: ThreadState, run: RunState) -> tuple[str, dict[str, Any]]:
    """Return the key of the sentence template that fits the run, and the facts for the template."""
    r = run.run
    if r.status is RunStatus.SUSPENDED:
        waiting = [x.request for x in db.requests_of(thread) if x.pending and x.request.run_id == run.id]
        facts: dict[str, Any] = {"request_id": waiting[0].request_id if waiting else None, "since": r.suspended_at}
        if not waiting and (left := [s.wait for s in waits.open_of(db, thread) if s.run_id == run.id]):
            facts |= {"wait": left[0].kind, "name": left[0].name, "wait_id": left[0].wait_id, "due_at": left[0].due_at}
        return "suspended", facts
    if r.status is RunStatus.QUEUED:
        return _waits(db, thread, run)
    if r.status is not RunStatus.RUNNING:
        return "ended", {}
    if run.external:
        return "external", {}
    worker = db.workers.get(r.worker_id or "")
    if worker is not None and worker.dead_at is None:
        silent = (db.now() - worker.heartbeat_at).total_seconds() if worker.heartbeat_at is not None else None
        return "running", {"worker_id": r.worker_id, "isolated": run.isolated, "silent_for": silent} | _blocked([worker])
    nobody, facts = _nobody(db, run)
    return "orphaned", {"worker_id": r.worker_id, "nobody": nobody} | facts | _paused(db, r.queue)


def _waits(db: Database, thread: ThreadState, run: RunState) -> tuple[str, dict[str, Any]]:
    """Return the key of the sentence template that fits a queued run, and the facts for the template."""
    r = run.run
    if run.lane_seq is None:
        return "not_due", {"due_at": run.due_at}
    if r.error and run.not_before and run.not_before > db.now():
        return "retrying", {"at": run.not_before}
    if lanes.waits_for_started(db, thread, run):
        return "fanned_out", {"live": lanes.count_started_by(db, thread, run)}
    if waits := lanes.waits_for(thread, run):
        return "waiting", {"run_id": waits.id}
    if r.queue in db.paused:
        return "paused", _paused(db, r.queue)
    head = thread.lane(r.lane or "")[0]
    if head is not run:
        return "behind", {"run_id": head.id, "status": head.run.status}
    if run.permit is not None:
        name, subject = run.permit
        most = limits.limit_of(db, name, subject)
        return "limited", {"permit": f"{name.removeprefix('running_per_')} {subject}", "most": most}
    nobody, facts = _nobody(db, run)
    if nobody:
        return nobody, facts
    blocked = _blocked([worker for worker in _fitting(db, run) if worker.redis_outage is None])
    return "next", blocked | _lacking(db, run)


def _blocked(workers: Sequence[WorkerInfo]) -> dict[str, Any]:
    """If user code blocks the main loops of all ``workers``, return the time and the place of the longest block. If one of
    these main loops is not blocked, return {}."""
    found = [worker.blocked for worker in workers if worker.blocked is not None]
    if len(found) < len(workers):
        return {}
    longest = max(found, key=lambda each: each.seconds)
    return {"blocked_for": longest.seconds, "blocked_at": longest.place}


def _serving(db: Database, queue: str) -> list[WorkerInfo]:
    return [w for w in db.workers.values() if w.dead_at is None and not w.draining and queue in w.queues]


def _nobody(db: Database, run: RunState) -> tuple[str | None, dict[str, Any]]:
    """Return the reason why no live worker serves the run, and the facts of the sentence. The reason is None if a worker serves
    the run."""
    r = run.run
    serving = _serving(db, r.queue)
    if not serving:
        return "no_worker", {"queue": r.queue}
    judge = run.fork.fan.judge if run.fork and run.fork.fan else None
    for agent in [r.agent] * (r.kind != "fork") + [judge] * (judge is not None):
        if not any(w.serves(agent) for w in serving):
            return "no_agent", {"queue": r.queue, "agent": agent}
    fitting = _fitting(db, run)
    if not fitting:
        return "no_version", {"queue": r.queue}
    outages = [worker.redis_outage for worker in fitting if worker.redis_outage is not None]
    if len(outages) < len(fitting):
        return None, {}
    first = min(outages, key=lambda outage: outage.since)
    return "no_redis", {"queue": r.queue, "redis_since": first.since, "redis_error": first.reason}


def _fitting(db: Database, run: RunState) -> list[WorkerInfo]:
    """Return the live workers that may claim the run. Such a worker has the agent of the run, and does not leave the run to a
    worker of another version."""
    return [worker for worker in _serving(db, run.run.queue) if worker.takes(run.run)]


def _lacking(db: Database, run: RunState) -> dict[str, Any]:
    """Find the live workers of the queue that do not serve the run's agent. Return the first of them and the number of all
    others. Return {} if every worker serves the agent."""
    r = run.run
    lacking = sorted(w.worker_id for w in _serving(db, r.queue) if r.kind != "fork" and not w.serves(r.agent))
    return {"lacking": lacking[0], "others_lacking": len(lacking) - 1} if lacking else {}


def _paused(db: Database, queue: str) -> dict[str, Any]:
    return {"queue": queue, "since": db.paused[queue]} if queue in db.paused else {}


def events(db: Database, thread: ThreadState, run: RunState, after: str | None, limit: int) -> list[Event]:
    """Return the events that follow from the stored state of the run, in the order of their ids. The returned events are the
    events of the run's messages, of its HITL requests and of its end. Until an attempt begins, they include ``run.queued``.
    ``after``: the id after which the events begin, or None for all events. ``limit``: the maximum number of events.
    EVENT_BYTES_PER_READ limits the size of the events together."""
    asked = [s for s in db.requests_of(thread) if s.request.run_id == run.id and s.event_id]
    found: list[tuple[str | None, Proof]] = [(e.event_id, e) for e in run.own() if e.event_id]
    found += [(s.event_id, s) for s in asked]
    found += [(e.id, e) for e in (_end(thread, run, asked), queued(thread, run)) if e]
    places = {place(each[0]): each for each in found}  # if two events have one number, the last in `found` is used
    following = [places[at] for at in sorted(places) if after is None or at > place(after)]
    part = within(following[:limit], lambda each: _bytes(each[1]), EVENT_BYTES_PER_READ)
    return [_event(thread, run, event_id, proof) for event_id, proof in part]


def _end(thread: ThreadState, run: RunState, asked: Sequence[RequestState]) -> Event | None:
    """Return the event of the run's end or suspension, or None."""
    r = run.run
    if r.event_id is None or not (r.ended or r.status is RunStatus.SUSPENDED):
        return None
    data: JsonObject = {"status": str(r.status)}
    if r.error:
        data["error"] = r.error.without_traceback().model_dump(mode="json")
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
