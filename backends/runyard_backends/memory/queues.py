"""The memory store of queues: the waiting runs of each queue, and its pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from runyard.domain.states import RunStatus
from runyard.models import check_id
from runyard.ports.workers import QueueInfo

from .state import Database, RunState


class MemoryQueueStore:
    """Queues of the deployment, over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def queues(self) -> list[QueueInfo]:
        """Return every queue that has live runs, is paused or has a live worker, in the order of their names."""
        live = [(t.key, r) for t in self.db.threads.values() for r in t.runs.values() if r.live and not r.external]
        names = {r.run.queue for _, r in live} | self.db.paused.keys()
        names |= {queue for worker in self.db.workers.values() if worker.dead_at is None for queue in worker.queues}
        return [self._info(name, [(key, r) for key, r in live if r.run.queue == name]) for name in sorted(names)]

    def _info(self, name: str, live: Iterable[tuple[int, RunState]]) -> QueueInfo:
        now = self.db.now()
        queued = [(key, r) for key, r in live if r.run.status is RunStatus.QUEUED and _since(r) <= now]
        lanes = Counter((key, r.run.lane) for key, r in queued if r.lane_seq is not None)
        return QueueInfo(
            queue=name,
            queued=len(queued),
            deepest=max(lanes.values(), default=0),
            oldest=max(((now - _since(r)).total_seconds() for _, r in queued), default=None),
            suspended=sum(r.run.status is RunStatus.SUSPENDED for _, r in live),
            workers=sum(w.dead_at is None and not w.draining and name in w.queues for w in self.db.workers.values()),
            paused_at=self.db.paused.get(name),
            known=name in self.db.paused
            or name in self.db.agents.values()
            or any(w.dead_at is None and name in w.queues for w in self.db.workers.values()),
        )

    async def pause(self, queue: str) -> datetime:
        """Stop claims of runs of ``queue``. Return the time at which the pause began."""
        return self.db.paused.setdefault(check_id(queue, "queue"), self.db.now())

    async def resume(self, queue: str) -> bool:
        """Allow claims of runs of ``queue`` again. Return True if the queue was paused."""
        return self.db.paused.pop(queue, None) is not None


def _since(run: RunState) -> datetime:
    """Return the earliest time at which the run could have started, if a worker and its lane had been free."""
    return max(moment for moment in (run.changed_at, run.run.run_at, run.not_before, run.run.accepted_at) if moment is not None)
