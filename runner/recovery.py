"""The reconciler's decisions: which workers are dead, which runs are lost. Pure; the loop is in reconciler.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from .exchange import Head, Job, RunRef, WorkerInfo

READS: Final = 3
"""Consecutive reads that must show the same heartbeat …"""
SPAN: Final = 3.0
"""… over at least so many seconds …"""
ANSWERED_WITHIN: Final = 1.0
"""… each answered within so many seconds: a store that stalls says nothing about workers."""
GAP: Final = 2.0
"""Seconds between two reads beyond which they are not consecutive: the reader itself was stopped."""
UNCHANGED: Final = timedelta(seconds=1)
"""A lane head younger than this may be on its way into Redis, or out of it …"""
MISSING: Final = 1.0
"""… and so may one that has been missing for less: a run that waited long becomes a head when the one before it ends."""


@dataclass(slots=True)
class _Seen:
    heartbeat_at: datetime
    since: float
    reads: int


class HeartbeatWatch:
    """Watches all workers. A clock other than the reader's own monotonic one plays no part."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._last_read: float | None = None

    def observe(self, workers: Iterable[WorkerInfo], *, asked: float, answered: float) -> list[tuple[str, datetime]]:
        """Take one read, ``asked`` and ``answered`` in seconds. Returns the dead workers with their heartbeats."""
        consecutive = self._last_read is not None and asked - self._last_read <= GAP
        if answered - asked > ANSWERED_WITHIN or not consecutive:
            self._seen.clear()
        self._last_read = answered
        if answered - asked > ANSWERED_WITHIN:
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
            if silent.reads >= READS and asked - silent.since >= SPAN
        ]

    def failed(self) -> None:
        """A read was not answered."""
        self._seen.clear()


class MissingWatch:
    """Tells the heads that are lost from those whose submission is under way: a lost one stays missing from look to look."""

    def __init__(self) -> None:
        self._since: dict[RunRef, float] = {}
        self._looking: dict[RunRef, float] = {}

    def begin(self) -> None:
        """A look at all heads begins."""
        self._looking = {}

    def lost(self, heads: Iterable[Head], unknown: Iterable[Job], now: float) -> list[Job]:
        """Those of ``unknown`` to submit: orphans at once (their worker cannot come back), others once they were missing for
        MISSING seconds. ``now`` is in seconds."""
        orphans = {head.job.ref for head in heads if head.orphaned}
        lost = []
        for job in unknown:
            since = self._looking[job.ref] = self._since.get(job.ref, now)
            if job.ref in orphans or now - since >= MISSING:
                lost.append(job)
        return lost

    def end(self) -> None:
        """The look is complete: what it did not find missing is not."""
        self._since = self._looking
