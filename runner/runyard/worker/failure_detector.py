"""The failure detector: finds dead workers and lost lane heads. It does no input or output: reconciler.py has the loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ..ports.refs import RunRef
from ..ports.scheduling import Job
from ..ports.workers import LaneHead, WorkerInfo

# A worker is dead if MIN_READS consecutive reads over at least MIN_SPAN_SECONDS show the same heartbeat. Each of them must be
# answered within MAX_READ_SECONDS. A lane head is lost if it has not changed for MIN_HEAD_AGE, and every pass of at least
# MIN_MISSING_SECONDS found it missing from Redis.
MIN_READS: Final = 3
"""Number of consecutive reads with the same heartbeat after which a worker counts as dead."""
MIN_SPAN_SECONDS: Final = 3.0
"""Shortest time from the first to the last of these reads, in seconds."""
MAX_READ_SECONDS: Final = 1.0
"""Longest answer time of a read that counts, in seconds: a store that stalls proves nothing about workers."""
MAX_GAP_SECONDS: Final = 2.0
"""Longest pause between two consecutive reads, in seconds: after a longer pause the reader itself was stopped."""
MIN_HEAD_AGE: Final = timedelta(seconds=1)
"""Age from which a lane head is examined: Redis may be about to receive or to remove the job of a younger one."""
MIN_MISSING_SECONDS: Final = 1.0
"""Seconds for which a lane head must be missing from Redis.

MIN_HEAD_AGE does not suffice: an old run becomes the head, and is submitted, when the run before it ends.
"""


@dataclass(slots=True)
class _Seen:
    heartbeat_at: datetime
    since: float
    reads: int


class HeartbeatWatch:
    """Watches the heartbeats of all workers. It compares times of the reader's own monotonic clock only."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._last_read: float | None = None

    def observe(self, workers: Iterable[WorkerInfo], *, asked: float, answered: float) -> list[tuple[str, datetime]]:
        """Evaluate one read of ``workers``, and return the dead workers with their last heartbeats.

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
        """Forget the earlier reads, because a read failed."""
        self._seen.clear()


class MissingWatch:
    """Distinguishes lost lane heads from heads whose submission is under way. A lost head is missing in every pass."""

    def __init__(self) -> None:
        self._since: dict[RunRef, float] = {}
        self._looking: dict[RunRef, float] = {}

    def begin(self) -> None:
        """Begin a pass over all lane heads."""
        self._looking = {}

    def lost(self, heads: Iterable[LaneHead], unknown: Iterable[Job], now: float) -> list[Job]:
        """Return the jobs of ``unknown`` to submit: orphans, and heads that were missing for MIN_MISSING_SECONDS.

        The worker of an orphan cannot come back. ``unknown``: the jobs of ``heads`` that Redis does not hold. ``now``: seconds
        of the monotonic clock.
        """
        orphans = {head.job.ref for head in heads if head.orphaned}
        lost = []
        for job in unknown:
            since = self._looking[job.ref] = self._since.get(job.ref, now)
            if job.ref in orphans or now - since >= MIN_MISSING_SECONDS:
                lost.append(job)
        return lost

    def end(self) -> None:
        """End the pass. Forget the heads that this pass did not find missing."""
        self._since = self._looking
