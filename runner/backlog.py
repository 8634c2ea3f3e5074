"""What waits in the queues, as the leader measures it for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from . import metrics
from .exchange import QueueInfo
from .ports import QueueStore

EVERY: Final = 5.0
"""Seconds between two measurements, and more while they are slow:"""
SHARE: Final = 0.05
"""they take at most this part of the time."""


class Backlog:
    """Sets the gauges of queues while ``leading()`` says so. Others show none, so that nothing is counted twice."""

    def __init__(self, queues: QueueStore, leading: Callable[[], bool]) -> None:
        self._queues = queues
        self._leading = leading
        self._shown: set[str] = set()

    async def run(self) -> None:
        """Measure until cancelled."""
        try:
            while True:
                took = await self.step()
                await asyncio.sleep(max(EVERY, took / SHARE))
        finally:
            self._show([])

    async def step(self) -> float:
        """Measure once if this worker leads. Returns the seconds that it took."""
        began = time.monotonic()
        self._show(await self._queues.queues() if self._leading() else [])
        return time.monotonic() - began

    def _show(self, found: list[QueueInfo]) -> None:
        for name in self._shown - {info.queue for info in found}:
            for gauge in metrics.OF_QUEUES:
                gauge.remove(name)
        self._shown = {info.queue for info in found}
        for info in found:
            metrics.QUEUED.labels(queue=info.queue).set(info.queued)
            metrics.DEEPEST_LANE.labels(queue=info.queue).set(info.deepest)
            metrics.OLDEST.labels(queue=info.queue).set(info.oldest or 0.0)
            metrics.SUSPENDED_RUNS.labels(queue=info.queue).set(info.suspended)
            metrics.SERVING.labels(queue=info.queue).set(info.workers)
            metrics.PAUSED.labels(queue=info.queue).set(info.paused_at is not None)
