"""The Scheduler port in the memory of one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from runyard.models import PRIORITIES
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Delivery, Job

from .events import MemoryEventLog
from .state import Clock

LOCK = timedelta(seconds=3)
"""Time after which a lock expires if its worker does not renew it."""
SOON = timedelta(minutes=1)
"""If the job of a due run is not due within this time, the job counts as missing."""


@dataclass
class _Waiting:
    job: Job
    due: datetime
    number: int


@dataclass
class _Lock:
    worker_id: str
    run_id: str
    token: int
    until: datetime


class MemoryScheduler:
    """Implements :class:`runyard.ports.scheduling.Scheduler`: jobs by id, and one lock per lane."""

    def __init__(self, now: Clock, events: MemoryEventLog) -> None:
        self.now = now
        self._events = events
        self._jobs: dict[str, _Waiting] = {}
        self._locks: dict[str, _Lock] = {}
        self._turns: dict[tuple[str, str], int] = {}
        self._looked: dict[str, int] = {}
        self._number = 0
        self._changed = asyncio.Condition()
        self._ended_waits: set[str] = set()
        self._hints: list[asyncio.Queue[RunRef]] = []

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _add(self, job: Job, due: datetime) -> None:
        known = self._jobs.get(job.id)
        if known is None:
            self._jobs[job.id] = _Waiting(replace(job, delay=0.0), due, self._next())
        else:
            known.due = min(known.due, due)
            known.job = replace(known.job, requires=job.requires)

    async def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.over:
                self._jobs.pop(job.id, None)
                continue
            if job.queued is not None:
                await self._events.append(job.thread_key, [job.queued])
            self._add(job, self.now() + timedelta(seconds=job.delay))
        async with self._changed:
            self._changed.notify_all()

    async def end_wait(self, worker_id: str) -> None:
        """End the wait of the worker's current claim. If no claim of the worker waits, its next claim does not wait."""
        self._ended_waits.add(worker_id)
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, worker_id: str, queues: Sequence[str], timeout: float, has: Collection[str]) -> None:
        """Wait until a job of ``queues`` is due or :meth:`end_wait` is called for the worker, for at most ``timeout``
        seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        async with self._changed:
            while not self._due(queues, has) and worker_id not in self._ended_waits and loop.time() < end:
                later = [w.due for w in self._jobs.values() if w.job.queue in queues]
                left = min([end - loop.time(), *((due - self.now()).total_seconds() for due in later)])
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), max(left, 0.001))
        self._ended_waits.discard(worker_id)

    def _due(self, queues: Sequence[str], has: Collection[str]) -> list[_Waiting]:
        now = self.now()
        due = [w for w in self._jobs.values() if (w.due <= now or w.job.requires in has) and w.job.queue in queues]
        return sorted(due, key=lambda w: (PRIORITIES.index(w.job.priority), w.due, w.number))

    def _by_turns(self, queues: Sequence[str], has: Collection[str]) -> Iterator[_Waiting]:
        """Yield the due jobs. The queue that was served longest ago comes first. The tenants of a queue take turns. A tenant
        without due jobs loses its place in the order. When it has a due job again, it joins at the end of the order."""
        due = self._due(queues, has)
        waiting = {(w.job.queue, w.job.tenant): None for w in sorted(due, key=lambda w: w.number)}
        for gone in [name for name in self._turns if name[0] in queues and name not in waiting]:
            del self._turns[gone]
        for name in waiting:
            self._turns.setdefault(name, self._next())
        while due:
            following = min(due, key=lambda w: (self._looked.get(w.job.queue, 0), self._turns[w.job.queue, w.job.tenant]))
            due.remove(following)
            yield following

    async def claim(
        self, worker_id: str, queues: Sequence[str], limit: int, wait: float = 0.0, *, has: Sequence[str] = ()
    ) -> list[Delivery]:
        """Wait at most ``wait`` seconds for a due job. Take up to ``limit`` due jobs of ``queues``, and lock their lanes. A job
        of a locked lane is due again when the lock expires. ``has``: the requirements that the worker fulfils. A delayed job
        that requires one of them counts as due before its delay ends."""
        if wait > 0:
            await self._wait(worker_id, queues, wait, has)
        taken: list[Delivery] = []
        for waiting in self._by_turns(queues, has):
            if len(taken) >= limit:
                break
            job, lock = waiting.job, self._locks.get(waiting.job.lane_key)
            if lock and lock.until > self.now() and lock.run_id != job.run_id:
                waiting.due = lock.until
                waiting.job = replace(job, requires=None)
                continue
            del self._jobs[job.id]
            delivery = Delivery(job, self._next())
            self._locks[job.lane_key] = _Lock(worker_id, job.run_id, delivery.token, self.now() + LOCK)
            self._turns[job.queue, job.tenant] = self._looked[job.queue] = delivery.token
            taken.append(delivery)
        return taken

    def _mine(self, delivery: Delivery) -> bool:
        lock = self._locks.get(delivery.job.lane_key)
        return lock is not None and lock.token == delivery.token

    async def renew(self, worker_id: str, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Extend the locks of ``deliveries``. Return the deliveries whose locks are lost. Write the run of each delivery into
        its lock, because a worker may pass its lock on to the next run of the lane."""
        lost = []
        for delivery in deliveries:
            lock = self._locks.get(delivery.job.lane_key)
            if lock is None or lock.token != delivery.token or lock.until <= self.now():
                lost.append(delivery)
            else:
                lock.until, lock.run_id = self.now() + LOCK, delivery.job.run_id
        return lost

    async def release(self, worker_id: str, deliveries: Sequence[Delivery], submit: Sequence[Job] = ()) -> None:
        """Release the locks of ``deliveries``. Make due the jobs that wait for these locks. Submit the jobs ``submit``."""
        for delivery in deliveries:
            if self._mine(delivery):
                del self._locks[delivery.job.lane_key]
            for waiting in self._jobs.values():
                if waiting.job.lane_key == delivery.job.lane_key:
                    waiting.due = min(waiting.due, self.now())
        await self.submit(submit)

    async def missing_jobs(self, jobs: Sequence[Job], dead: Collection[str] = ()) -> list[Job]:
        """Return the jobs of ``jobs`` that are missing. The runs of all ``jobs`` are due in the store. A job is missing if its
        run does not hold the lane's lock and the job is not due within SOON. Locks of the workers ``dead`` do not count."""
        now = self.now()
        offered = {id_ for id_, waiting in self._jobs.items() if waiting.due <= now + SOON}
        locks = [(key, lock) for key, lock in self._locks.items() if lock.until > now and lock.worker_id not in dead]
        held = {(key, lock.run_id) for key, lock in locks}
        return [job for job in jobs if job.id not in offered and (job.lane_key, job.run_id) not in held]

    async def ping(self) -> None:
        """Do nothing, because memory is always reachable."""

    async def hint_cancel(self, refs: Sequence[RunRef]) -> None:
        for queue in self._hints:
            for ref in refs:
                queue.put_nowait(ref)

    def cancel_hints(self) -> AsyncIterator[RunRef]:
        queue: asyncio.Queue[RunRef] = asyncio.Queue()
        self._hints.append(queue)
        return self._listen(queue)

    async def _listen(self, queue: asyncio.Queue[RunRef]) -> AsyncIterator[RunRef]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._hints.remove(queue)
