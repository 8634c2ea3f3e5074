"""The memory store of workers, of the leader's lease, and of the reconciler's queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from runyard.domain.states import RunStatus
from runyard.errors import WorkerDeadError
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import Job
from runyard.ports.workers import (
    BlockedLoop,
    DeploymentFigures,
    HeartbeatReply,
    Orphan,
    OrphanPage,
    RedisOutage,
    Retention,
    WaitingCursor,
    WaitingPage,
    WorkerInfo,
)

from . import agents, fan_outs
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
        agents.choose_default(self.db, worker)

    async def beat(self, worker_id: str) -> HeartbeatReply:
        worker = self.db.workers[worker_id] = replace(self._alive(worker_id), heartbeat_at=self.db.now())
        return HeartbeatReply(worker.draining, frozenset(self.db.paused))

    async def leave(self, worker_id: str) -> None:
        if (worker := self.db.workers.pop(worker_id, None)) is not None:
            agents.choose_default(self.db, worker)

    async def drain(self, worker_id: str) -> None:
        self.db.workers[worker_id] = replace(self._alive(worker_id), draining=True)

    async def report_block(self, worker_id: str, blocked: BlockedLoop | None) -> None:
        """Record where user code blocks the worker's main loop. If ``blocked`` is None, nothing blocks the loop any more."""
        worker = self.db.workers.get(worker_id)
        if worker is not None and worker.dead_at is None:
            self.db.workers[worker_id] = replace(worker, blocked=blocked)

    async def report_redis(self, worker_id: str, reason: str | None) -> None:
        """Record the reason why the worker cannot reach Redis. If ``reason`` is None, the worker reaches Redis again."""
        worker = self.db.workers.get(worker_id)
        if worker is not None and worker.dead_at is None:
            since = worker.redis_outage.since if worker.redis_outage else self.db.now()
            outage = RedisOutage(since, reason) if reason is not None else None
            self.db.workers[worker_id] = replace(worker, redis_outage=outage)

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
        """Declare the worker dead if its last heartbeat was at ``heartbeat_at``. Return True if this call declared the worker
        dead."""
        worker = self.db.workers.get(worker_id)
        if worker is None or worker.dead_at is not None or worker.heartbeat_at != heartbeat_at:
            return False
        self.db.workers[worker_id] = replace(worker, dead_at=self.db.now())
        agents.choose_default(self.db, worker)
        return True

    async def running(self, worker_id: str) -> list[AttemptToken]:
        found = [(t, r) for t in self.db.threads.values() if not t.deleted for r in t.runs.values()]
        mine = [(t, r) for t, r in found if r.run.status is RunStatus.RUNNING and r.run.worker_id == worker_id]
        return [AttemptToken(t.key, r.id, r.run.fence or 0) for t, r in mine]

    async def cancelling(self, worker_id: str) -> list[RunRef]:
        found = [(t, r.run) for t in self.db.threads.values() if not t.deleted for r in t.runs.values()]
        asked = [(t, r) for t, r in found if r.status is RunStatus.RUNNING and r.cancel_requested_at is not None]
        return [RunRef(t.key, r.run_id) for t, r in asked if r.worker_id == worker_id]

    async def orphans(self, *, after: str = "", limit: int = 1000) -> OrphanPage:
        """Return a page of the running runs of dead and missing workers, worker by worker. The page ends when it has at least
        ``limit`` runs and all runs of its last worker. ``after``: the last worker of the previous page."""
        found: dict[str, list[Orphan]] = {}
        for thread, run in self._live():
            holder = run.run.worker_id
            running = run.run.status is RunStatus.RUNNING
            if running and holder is not None and holder > after and self._gone(holder):
                orphan = Orphan(job(thread, run, self.db.now()), holder, run.run.cancel_requested_at is not None)
                found.setdefault(holder, []).append(orphan)
        page: list[Orphan] = []
        for holder in sorted(found):
            page += found[holder]
            if len(page) >= limit:
                return OrphanPage(page, holder)
        return OrphanPage(page)

    async def waiting(
        self,
        *,
        unchanged: timedelta,
        after: WaitingCursor | None = None,
        within: timedelta | None = None,
        limit: int = 1000,
    ) -> WaitingPage:
        """Examine at most ``limit`` queued runs. Return the jobs of the runs that are the heads of their lanes and wait only
        for a worker. ``unchanged``: minimum time since the last change of an examined run. ``within``: maximum time since this
        change, or None for no maximum."""
        found = [(place(run), thread, run) for thread, run in self._live() if self._queued(run, unchanged)]
        if within is not None:
            found = [each for each in found if each[0][0] >= self.db.now() - within]
        found = sorted((each for each in found if after is None or each[0] > after), key=lambda each: each[0])[:limit]
        jobs = [job(thread, run, self.db.now()) for _, thread, run in found if self._waits(thread, run, unchanged)]
        return WaitingPage(jobs, found[-1][0] if len(found) == limit else None)

    async def still_waiting(self, refs: Sequence[RunRef], *, unchanged: timedelta) -> list[Job]:
        """Return the jobs of the runs ``refs`` that still wait only for a worker, as in :meth:`waiting`."""
        found = [(t, r) for t, r in self._live() if RunRef(t.key, r.id) in refs and self._queued(r, unchanged)]
        return [job(t, r, self.db.now()) for t, r in found if self._waits(t, r, unchanged)]

    async def prune(self, retention: Retention, limit: int = 5000) -> bool:
        """Delete data whose retention has passed, at most ``limit`` entries of each kind. There is no maximum for dead
        workers. Return True if more data is possibly left to delete."""
        now = self.db.now()
        active = [each for each in self.db.webhooks.values() if each.webhook.disabled_at is None]
        old = [note for note in self.db.notes if note.at < now - retention.feed]
        old = [note for note in old if all(note.number <= each.seen for each in active if each.covers(note))][:limit]
        self.db.notes = [note for note in self.db.notes if note not in old]
        self.db.pruned |= {note.tenant: note.number for note in old}
        jobs = [r for t in self.db.threads.values() for r in t.runs.values() if r.run.kind in FORK_KINDS]
        old_jobs = [r for r in jobs if r.run.finished_at and r.run.finished_at < now - retention.results]
        expired = [r for r in old_jobs if r.run.result is not None or (r.run.kind == "fork_many" and not fan_outs.expired(r))]
        for run in expired[:limit]:
            run.run.result = None
            if run.run.kind == "fork_many" and run.run.deleted_at is None:
                fan_outs.expire(run)
        over = [each for each in self.db.deliveries if (at := each.over_at) is not None and at < now - retention.feed][:limit]
        self.db.deliveries = [each for each in self.db.deliveries if each not in over]
        dead = [w for w in self.db.workers.values() if w.dead_at is not None and w.dead_at < now - retention.workers]
        for worker in dead:
            del self.db.workers[worker.worker_id]
        return max(len(old), len(expired), len(over), len(dead)) >= limit

    async def measure(self) -> DeploymentFigures:
        """Return the figures of the deployment."""
        waiting = [each.request for each in self.db.requests.values() if each.pending]
        kinds = Counter(request.kind for request in waiting)
        ages = [(self.db.now() - request.created_at).total_seconds() for request in waiting if request.created_at is not None]
        return DeploymentFigures(
            questions=kinds["question"],
            approvals=kinds["approval"],
            steps=kinds["step"],
            oldest_request=max(ages, default=None),
        )

    def _live(self) -> list[tuple[ThreadState, RunState]]:
        threads = [thread for thread in self.db.threads.values() if not thread.deleted]
        return [(thread, run) for thread in threads for run in thread.runs.values() if run.live and not run.external]

    def _gone(self, worker_id: str) -> bool:
        worker = self.db.workers.get(worker_id)
        return worker is None or worker.dead_at is not None

    def _settled(self, run: RunState, unchanged: timedelta) -> bool:
        return run.changed_at is None or run.changed_at <= self.db.now() - unchanged

    def _queued(self, run: RunState, unchanged: timedelta) -> bool:
        """Return True if the run is queued and admitted, and waits for no permit. The last change of the run must be at least
        ``unchanged`` ago."""
        queued = run.run.status is RunStatus.QUEUED and run.lane_seq is not None and run.permit is None
        return queued and self._settled(run, unchanged)

    def _waits(self, thread: ThreadState, run: RunState, unchanged: timedelta) -> bool:
        """Return True if the queued run waits only for a worker. Such a run has been due for the time ``unchanged``, and is
        the head of its lane."""
        since = run.not_before or run.run.admitted_at
        due = since is None or since <= self.db.now() - unchanged
        return due and not must_wait(self.db, thread, run) and thread.lane(run.run.lane or "")[0] is run


def place(run: RunState) -> WaitingCursor:
    """Return the place of the run in the order in which the leader examines waiting runs."""
    return run.changed_at or run.run.accepted_at, run.accept_no
