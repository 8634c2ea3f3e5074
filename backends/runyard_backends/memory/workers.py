"""The memory store of workers, the leader's lease, and the reads of the reconciler."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from runyard.domain.states import RunStatus
from runyard.errors import WorkerDeadError
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.workers import HeartbeatReply, LaneHead, Retention, WorkerInfo

from .lanes import FORK_KINDS, must_wait
from .state import Database, RunState, ThreadState, job


class MemoryWorkerStore:
    """Workers of the deployment, over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def _alive(self, worker_id: str) -> WorkerInfo:
        worker = self.db.workers.get(worker_id)
        if worker is None or worker.dead_at is not None:
            raise WorkerDeadError(f"worker {worker_id!r} is not registered, or was declared dead", worker_id=worker_id)
        return worker

    async def register(self, worker: WorkerInfo) -> None:
        """Register a worker. The id of a worker that was declared dead cannot be used again."""
        if worker.worker_id in self.db.workers:
            self._alive(worker.worker_id)
        self.db.workers[worker.worker_id] = replace(worker, heartbeat_at=self.db.now(), dead_at=None)
        self.db.agents |= worker.agents
        self.db.asks |= {agent: agent in worker.asking for agent in worker.agents}

    async def beat(self, worker_id: str) -> HeartbeatReply:
        worker = self.db.workers[worker_id] = replace(self._alive(worker_id), heartbeat_at=self.db.now())
        return HeartbeatReply(worker.draining, frozenset(self.db.paused))

    async def leave(self, worker_id: str) -> None:
        self.db.workers.pop(worker_id, None)

    async def drain(self, worker_id: str) -> None:
        self.db.workers[worker_id] = replace(self._alive(worker_id), draining=True)

    async def workers(self) -> list[WorkerInfo]:
        now = self.db.now()
        return [
            replace(worker, silent_for=(now - worker.heartbeat_at).total_seconds() if worker.heartbeat_at else None)
            for worker in self.db.workers.values()
        ]

    async def lead(self, worker_id: str, ttl: float) -> bool:
        """Take or renew the leader's lease for ``ttl`` seconds. Return True if the worker holds the lease."""
        now = self.db.now()
        if self.db.lease is not None and self.db.lease[0] != worker_id and self.db.lease[1] > now:
            return False
        self.db.lease = (worker_id, now + timedelta(seconds=ttl))
        return True

    async def mark_dead(self, worker_id: str, heartbeat_at: datetime) -> bool:
        """Declare the worker dead if its last heartbeat was at ``heartbeat_at``. Return True if this call declared it dead."""
        worker = self.db.workers.get(worker_id)
        if worker is None or worker.dead_at is not None or worker.heartbeat_at != heartbeat_at:
            return False
        self.db.workers[worker_id] = replace(worker, dead_at=self.db.now())
        return True

    async def running(self, worker_id: str) -> list[AttemptToken]:
        found = [(t, r) for t in self.db.threads.values() if not t.deleted for r in t.runs.values()]
        mine = [(t, r) for t, r in found if r.run.status is RunStatus.RUNNING and r.run.worker_id == worker_id]
        return [AttemptToken(t.key, r.id, r.run.fence or 0) for t, r in mine]

    async def cancelling(self, worker_id: str) -> list[RunRef]:
        found = [(t, r.run) for t in self.db.threads.values() if not t.deleted for r in t.runs.values()]
        asked = [(t, r) for t, r in found if r.status is RunStatus.RUNNING and r.cancel_requested_at is not None]
        return [RunRef(t.key, r.run_id) for t, r in asked if r.worker_id == worker_id]

    async def heads(self, *, unchanged: timedelta, after: tuple[int, str] | None = None, limit: int = 1000) -> list[LaneHead]:
        """Return up to ``limit`` heads of lanes that did not change for ``unchanged`` and that wait for a worker or have a dead
        or missing worker. ``after``: the thread key and the lane after which to continue."""
        found: list[tuple[tuple[int, str], LaneHead]] = []
        for thread in self.db.threads.values():
            names = {r.run.lane for r in thread.runs.values() if r.run.lane is not None}
            for name in names if not thread.deleted else ():
                lane = thread.lane(name)
                if lane and (after is None or (thread.key, name) > after) and self._stuck(thread, lane[0], unchanged):
                    first = lane[0].run
                    orphaned, cancelled = first.status is RunStatus.RUNNING, first.cancel_requested_at is not None
                    head = LaneHead(job(thread, lane[0], self.db.now()), orphaned, cancelled)
                    found.append(((thread.key, name), head))
        return [item for _, item in sorted(found, key=lambda pair: pair[0])][:limit]

    async def prune(self, retention: Retention, limit: int = 5000) -> bool:
        """Delete data whose retention has passed: at most ``limit`` entries of each kind, but all dead workers. Return True if
        there may be more."""
        now = self.db.now()
        active = [each for each in self.db.webhooks.values() if each.webhook.disabled_at is None]
        old = [note for note in self.db.notes if note.at < now - retention.feed]
        old = [note for note in old if all(note.number <= each.seen for each in active if each.covers(note))][:limit]
        self.db.notes = [note for note in self.db.notes if note not in old]
        self.db.pruned |= {note.tenant: note.number for note in old}
        jobs = [r for t in self.db.threads.values() for r in t.runs.values() if r.run.kind in FORK_KINDS]
        old_jobs = [r for r in jobs if r.run.finished_at and r.run.finished_at < now - retention.results]
        expired = [r for r in old_jobs if r.run.result is not None]
        for run in expired[:limit]:
            run.run.result = None
            run.steps.clear()  # the steps of a fan-out contain the data of its result
        over = [each for each in self.db.deliveries if (at := each.over_at) is not None and at < now - retention.feed][:limit]
        self.db.deliveries = [each for each in self.db.deliveries if each not in over]
        dead = [w for w in self.db.workers.values() if w.dead_at is not None and w.dead_at < now - retention.workers]
        for worker in dead:
            del self.db.workers[worker.worker_id]
        return max(len(old), len(expired), len(over), len(dead)) >= limit

    def _stuck(self, thread: ThreadState, run: RunState, unchanged: timedelta) -> bool:
        now = self.db.now()
        if run.changed_at is not None and run.changed_at > now - unchanged:
            return False
        if run.run.status is RunStatus.RUNNING:
            worker = self.db.workers.get(run.run.worker_id or "")
            return worker is None or worker.dead_at is not None
        due = run.not_before is None or run.not_before <= now
        waiting = run.permit is not None or must_wait(self.db, thread, run)
        return run.run.status is RunStatus.QUEUED and due and not waiting
