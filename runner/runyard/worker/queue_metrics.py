"""Metrics of the queues, which the leader measures for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from ..ports.stores import QueueStore
from ..support import metrics

MEASURE_SECONDS: Final = 5.0
"""Shortest time between two measurements, in seconds."""
MEASURE_TIME_SHARE: Final = 0.02
"""Largest share of the time that measurements may take. Slow measurements are made less often."""


class QueueMetrics:
    """Sets the gauges of queues while ``leading()`` is true. Other workers have none, so that a sum counts each run once."""

    def __init__(self, queues: QueueStore, leading: Callable[[], bool]) -> None:
        self._queues = queues
        self._leading = leading
        self._shown: set[str] = set()

    async def run(self) -> None:
        """Measure until cancelled."""
        try:
            while True:
                took = await self.step()
                await asyncio.sleep(max(MEASURE_SECONDS, took / MEASURE_TIME_SHARE))
        finally:
            self._shown = metrics.show_queues([], self._shown)

    async def step(self) -> float:
        """Measure once if this worker leads. Return the seconds that the measurement took."""
        began = time.monotonic()
        found = await self._queues.queues() if self._leading() else []
        self._shown = metrics.show_queues(found, self._shown)
        return time.monotonic() - began
