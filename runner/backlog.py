"""What waits in the queues, as the leader measures it for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from . import metrics
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
            self._shown = metrics.show_queues([], self._shown)

    async def step(self) -> float:
        """Measure once if this worker leads. Returns the seconds that it took."""
        began = time.monotonic()
        found = await self._queues.queues() if self._leading() else []
        self._shown = metrics.show_queues(found, self._shown)
        return time.monotonic() - began
