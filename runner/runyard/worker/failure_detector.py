"""The failure detector watches the heartbeats of all workers, holds the leader's lease, and declares workers dead.

The loop of the failure detector does nothing else, and runs in the heartbeat thread. The work of the leader does not delay this
loop. Nor does user code that blocks the main loop delay this loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from ..errors import BackendUnavailableError, WorkerDeadError
from ..ports.stores import Backend
from ..ports.workers import WorkerInfo
from ..support import metrics
from ..support.failure_log import FailureLog

READ_SECONDS: Final = 1.0
"""Seconds between the starts of two reads of the heartbeats."""
LEADER_READ_SECONDS: Final = 0.25
"""Seconds between the starts of two reads by the leader. Frequent reads find a dead worker sooner."""
LEASE_SECONDS: Final = 2.0
"""Seconds for which a lease is valid without a renewal."""
# A worker is dead if at least MIN_READS consecutive reads, over at least MIN_SPAN_SECONDS, show the same heartbeat. Each of
# these reads must be answered within MAX_READ_SECONDS.
MIN_READS: Final = 3
"""Minimum number of consecutive reads with the same heartbeat, before a worker is dead."""
MIN_SPAN_SECONDS: Final = 3.0
"""Minimum time from the first to the last read with the same heartbeat, before a worker is dead, in seconds."""
MAX_READ_SECONDS: Final = 1.0
"""Maximum answer time of a read of the heartbeats, in seconds. A slower read may show old heartbeats."""
MAX_GAP_SECONDS: Final = 2.0
"""Maximum pause between two consecutive reads of the heartbeats, in seconds. A longer pause shows that the reader itself was
stopped."""

log = structlog.get_logger("runyard.failure_detector")


@dataclass(slots=True)
class _Seen:
    heartbeat_at: datetime
    since: float
    reads: int


class HeartbeatWatch:
    """Watches the heartbeats of all workers. All times come from the monotonic clock of the reading process."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._last_read: float | None = None

    def observe(self, workers: Iterable[WorkerInfo], *, asked: float, answered: float) -> list[tuple[str, datetime]]:
        """Evaluate one read of ``workers``. Return the id and the last heartbeat of each dead worker.

        ``asked`` and ``answered``: the times of the read, in seconds of the monotonic clock.
        """
        consecutive = self._last_read is not None and asked - self._last_read <= MAX_GAP_SECONDS
        if answered - asked > MAX_READ_SECONDS or not consecutive:
            self._seen.clear()
        self._last_read = answered
        if answered - asked > MAX_READ_SECONDS:
            return []
        seen = self._seen
        self._seen = {}
        for worker in workers:
            if worker.dead_at is None and worker.heartbeat_at is not None:
                before = seen.get(worker.worker_id)
                if before is None or before.heartbeat_at != worker.heartbeat_at:
                    before = _Seen(worker.heartbeat_at, asked, 0)
                before.reads += 1
                self._seen[worker.worker_id] = before
        return [
            (worker_id, silent.heartbeat_at)
            for worker_id, silent in self._seen.items()
            if silent.reads >= MIN_READS and asked - silent.since >= MIN_SPAN_SECONDS
        ]

    def failed(self) -> None:
        """Discard the earlier reads, because a read failed."""
        self._seen.clear()


class FailureDetector:
    """The failure detector of one worker. Every worker watches the heartbeats. Only the leader declares workers dead.

    The detector runs in the heartbeat thread, with the backend of this thread. User code that blocks the main loop therefore
    does not delay the reads. A worker with a blocked main loop does not lead, because the main loop does the work of the
    leader. Any thread may read :attr:`leading`.

    ``worker_id``: a function that returns the worker's current id, or None while the worker is not registered. ``on_change``:
    a function that is called in the detector's thread after this worker has begun to lead or has declared a worker dead.
    ``silence``: a function that returns the seconds since the main loop last ran.
    """

    def __init__(
        self, worker_id: Callable[[], str | None], on_change: Callable[[], object], silence: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._worker_id = worker_id
        self._on_change = on_change
        self._silence = silence
        self._watch = HeartbeatWatch()
        self._leads_until = float("-inf")
        self._failures = FailureLog(log, "failure_detection_failed")

    @property
    def leading(self) -> bool:
        """Whether this worker holds the lease. The value becomes False a little before the lease ends in the store."""
        return time.monotonic() < self._leads_until

    async def run(self, backend: Backend) -> None:
        """Read the heartbeats once a second, until cancelled. While this worker leads, read them four times a second."""
        while True:
            began = time.monotonic()
            try:
                await self.step(backend)
            except Exception as error:  # the thread must continue to send heartbeats
                self._failures.failed(error, expected=isinstance(error, WorkerDeadError), worker_id=self._worker_id())
            else:
                self._failures.worked(worker_id=self._worker_id())
            pause = LEADER_READ_SECONDS if self.leading else READ_SECONDS
            await asyncio.sleep(max(began + pause - time.monotonic(), 0.05))

    async def step(self, backend: Backend) -> None:
        """Read the heartbeats once, and renew the lease. If this worker leads, declare workers without new heartbeats dead."""
        dead = await self._look(backend)
        worker_id = self._worker_id()
        if worker_id is None or self._silence() > LEASE_SECONDS:
            return
        if await self._lead(backend, worker_id):
            self._on_change()
        for dead_worker_id, heartbeat_at in dead:
            if self.leading and await self._declare_dead(backend, dead_worker_id, heartbeat_at):
                self._on_change()

    async def _look(self, backend: Backend) -> list[tuple[str, datetime]]:
        asked = time.monotonic()
        try:
            workers = await backend.workers.workers()
        except BackendUnavailableError:
            self._watch.failed()
            raise
        return self._watch.observe(workers, asked=asked, answered=time.monotonic())

    async def _lead(self, backend: Backend, worker_id: str) -> bool:
        """Take or renew the lease. Return True if this worker began to lead."""
        led, asked = self.leading, time.monotonic()
        leads = await backend.workers.lead(worker_id, LEASE_SECONDS)
        self._leads_until = asked + LEASE_SECONDS if leads else float("-inf")
        return leads and not led

    async def _declare_dead(self, backend: Backend, dead_worker_id: str, heartbeat_at: datetime) -> bool:
        if not await backend.workers.mark_dead(dead_worker_id, heartbeat_at):
            return False
        metrics.WORKERS_DEAD.inc()
        names = {"worker_id": self._worker_id(), "dead_worker_id": dead_worker_id}
        log.warning("worker_declared_dead", **names, last_heartbeat_at=heartbeat_at.isoformat())
        return True
