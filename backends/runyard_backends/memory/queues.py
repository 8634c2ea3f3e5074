"""The memory store of queues: the waiting runs of each queue, and its pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from runyard.domain.states import RunStatus
from runyard.models import check_id
from runyard.ports.queries import PageRequest
from runyard.ports.results import Page
from runyard.ports.workers import QueueInfo

from ..queue_pages import names_after, page_of_names
from . import waits
from .lanes import must_wait
from .state import Database, RunState


class MemoryQueueStore:
    """Queues of the deployment, over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def queues(self, page: PageRequest | None = None, *, known: bool = False) -> Page[QueueInfo]:
        """Return queues that have live runs, are paused or have a live worker, in the order of their names."""
        after, most = names_after(page)
        live = [(t.key, r) for t in self.db.threads.values() for r in t.runs.values() if r.live and not r.external]
        names = {r.run.queue for _, r in live} | self.db.paused.keys()
        names |= {queue for worker in self.db.workers.values() if worker.dead_at is None for queue in worker.queues}
        found = (
            self._info(name, [(key, r) for key, r in live if r.run.queue == name]) for name in sorted(names) if name > after
        )
        return page_of_names(list(islice((info for info in found if info.known or not known), most)), page)

    def _info(self, name: str, live: Sequence[tuple[int, RunState]]) -> QueueInfo:
        now = self.db.now()
        waiting = [(key, r) for key, r in live if r.run.status is RunStatus.QUEUED]
        queued = [(key, r) for key, r in waiting if _since(r) <= now]
        suspended = [(key, r) for key, r in live if r.run.status is RunStatus.SUSPENDED]
        lanes = Counter((key, r.run.lane) for key, r in queued if r.lane_seq is not None)
        return QueueInfo(
            queue=name,
            queued=len(queued),
            waiting=sum(_needs_a_worker(self.db, key, r) for key, r in queued),
            deepest=max(lanes.values(), default=0),
            oldest=max(((now - _since(r)).total_seconds() for _, r in queued), default=None),
            scheduled=len(waiting) - len(queued),
            running=sum(r.run.status is RunStatus.RUNNING for _, r in live),
            suspended=len(suspended),
            waits_for=dict(Counter(waits.waits_for(self.db, self.db.threads[key], r) for key, r in suspended)),
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
    """Return the time from which the run could have started if a worker and the lane had been free."""
    return max(moment for moment in (run.changed_at, run.run.run_at, run.not_before, run.run.accepted_at) if moment is not None)


def _needs_a_worker(db: Database, thread_key: int, run: RunState) -> bool:
    """Return True if the due run waits only for a worker. Such a run is the head of its lane, and waits for no permit and no
    other run."""
    if run.lane_seq is None or run.permit is not None:
        return False
    thread = db.threads[thread_key]
    return not must_wait(db, thread, run) and thread.lane(run.run.lane or "")[0] is run
