"""Report to Postgres that this worker does not reach Redis. ``explain`` and ``doctor`` show this report."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from ..ports.stores import Backend
from ..support.failure_log import FailureLog

if TYPE_CHECKING:
    from .heartbeat import HeartbeatState

LOOK_SECONDS: Final = 0.5
"""Seconds between two checks whether the report must change."""

log = structlog.get_logger("runyard.heartbeat")


class RedisOutageReport:
    """Reports to Postgres that this worker does not reach Redis, and later that it reaches Redis again. ``heartbeat_state``
    says whether the last call to Redis failed."""

    def __init__(self, heartbeat_state: HeartbeatState) -> None:
        self._state = heartbeat_state
        self._reported: tuple[str, bool] | None = None
        """The worker's id, and whether Postgres has a report of an outage.

        None until this process has stored a report, because the report that Postgres has is unknown until then.
        """
        self._failures = FailureLog(log, "redis_outage_report_failed")

    async def run(self, backend: Backend) -> None:
        """Report an outage and the end of an outage, until cancelled."""
        while True:
            try:
                await self._look(backend)
            except Exception as error:  # the thread must continue to send heartbeats
                self._failures.failed(error, worker_id=self._state.worker_id)
            else:
                self._failures.worked(worker_id=self._state.worker_id)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, backend: Backend) -> None:
        worker_id, reason = self._state.worker_id, self._state.refusal("Redis")
        if worker_id is None or self._reported == (worker_id, reason is not None):
            return
        await backend.workers.report_redis(worker_id, reason)
        self._reported = worker_id, reason is not None
