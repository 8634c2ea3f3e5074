"""Metrics of the whole deployment. The leader measures them for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from ..domain.waits import WAITS_FOR
from ..ports.stores import QueueStore, WorkerStore
from ..ports.workers import DeploymentFigures, QueueInfo
from ..support import metrics

MEASURE_SECONDS: Final = 5.0
"""Minimum time between two measurements, in seconds."""
MEASURE_TIME_SHARE: Final = 0.01
"""Maximum fraction of the time that measurements may take. If measurements are slow, they are made less often."""

OF_QUEUES: Final = (
    metrics.QUEUED,
    metrics.WAITING,
    metrics.SCHEDULED,
    metrics.RUNNING,
    metrics.DEEPEST_LANE,
    metrics.OLDEST,
    metrics.SERVING,
    metrics.PAUSED,
)
REQUEST_KINDS: Final = {"question": "questions", "approval": "approvals", "step": "steps"}
"""Kinds of HITL requests → the fields of DeploymentFigures."""


class LeaderMetrics:
    """Sets the gauges of the deployment while ``leading()`` is true.

    On other workers these gauges are missing or NaN. The maximum over all workers is therefore the value of the leader.
    """

    def __init__(self, queues: QueueStore, workers: WorkerStore, leading: Callable[[], bool]) -> None:
        self._queues = queues
        self._workers = workers
        self._leading = leading
        self._shown: set[str] = set()
        self._commits: int | None = None

    async def run(self) -> None:
        """Measure until cancelled."""
        try:
            while True:
                took = await self.step()
                await asyncio.sleep(max(MEASURE_SECONDS, took / MEASURE_TIME_SHARE))
        finally:
            self._hide()

    async def step(self) -> float:
        """Measure once if this worker leads. Return the seconds that the measurement took."""
        began = time.monotonic()
        if not self._leading():
            self._commits = None
            self._hide()
            return 0.0
        self._show((await self._queues.queues()).items, await self._workers.measure())
        return time.monotonic() - began

    def _hide(self) -> None:
        """Remove the gauges, because another worker leads or the store does not answer."""
        self._shown = show_queues([], self._shown)
        metrics.PENDING_REQUESTS.clear()
        metrics.hide_leader_gauges()

    def _show(self, queues: Iterable[QueueInfo], figures: DeploymentFigures) -> None:
        self._shown = show_queues(queues, self._shown)
        for kind, field in REQUEST_KINDS.items():
            metrics.PENDING_REQUESTS.labels(kind=kind).set(getattr(figures, field))
        metrics.OLDEST_REQUEST.set(figures.oldest_request or 0.0)
        metrics.POSTGRES_BYTES.set(figures.database_bytes)
        metrics.POSTGRES_DEAD_ROWS.set(figures.dead_rows)
        metrics.POSTGRES_CONNECTIONS.set(figures.connections)
        metrics.POSTGRES_MAX_CONNECTIONS.set(figures.max_connections)
        if not figures.max_connections:
            return  # no server was measured
        before, self._commits = self._commits, figures.commits
        if before is not None:
            metrics.POSTGRES_COMMITS.inc(max(0, figures.commits - before))


def show_queues(found: Iterable[QueueInfo], before: Iterable[str]) -> set[str]:
    """Set the gauges of queues to the values of a measurement. Return the names of these queues.

    A queue that is named only by runs of clients is counted under the empty name. ``before``: the names that the previous call
    returned. If a name is missing in the new measurement, its gauges are removed.
    """
    shown: dict[str, QueueInfo] = {}
    for info in found:
        name = info.queue if info.known else ""
        sofar = shown.get(name, QueueInfo(queue=name))
        shown[name] = QueueInfo(
            queue=name,
            queued=sofar.queued + info.queued,
            waiting=sofar.waiting + info.waiting,
            deepest=max(sofar.deepest, info.deepest),
            oldest=max(sofar.oldest or 0.0, info.oldest or 0.0),
            scheduled=sofar.scheduled + info.scheduled,
            running=sofar.running + info.running,
            waits_for={kind: sofar.waits_for.get(kind, 0) + info.waits_for.get(kind, 0) for kind in WAITS_FOR},
            workers=sofar.workers + info.workers,
            paused_at=info.paused_at,
        )
    for name in set(before) - shown.keys():
        for gauge in OF_QUEUES:
            gauge.remove(name)
        for kind in WAITS_FOR:
            metrics.SUSPENDED_RUNS.remove(name, kind)
    for name, info in shown.items():
        metrics.QUEUED.labels(queue=name).set(info.queued)
        metrics.WAITING.labels(queue=name).set(info.waiting)
        metrics.SCHEDULED.labels(queue=name).set(info.scheduled)
        metrics.RUNNING.labels(queue=name).set(info.running)
        metrics.DEEPEST_LANE.labels(queue=name).set(info.deepest)
        metrics.OLDEST.labels(queue=name).set(info.oldest or 0.0)
        for kind in WAITS_FOR:
            metrics.SUSPENDED_RUNS.labels(queue=name, waits_for=kind).set(info.waits_for.get(kind, 0))
        metrics.SERVING.labels(queue=name).set(info.workers)
        metrics.PAUSED.labels(queue=name).set(info.paused_at is not None)
    return set(shown)
