"""The reconciler: the work of the leader. The failure detector (``failure_detector.py``)
decides which worker leads.

The leader submits runs whose jobs Redis has lost (``lost_jobs.py``), and admits due runs. The leader applies limits, counts
usage and trims the streams. The leader also prunes data whose retention has passed. ``Retention`` (``ports/workers.py``) has
the retention times. The store's ``prune`` selects the data. ``runs.admit`` also applies the deadlines of HITL requests, and
fails the runs that did not start by their ``expires_at``. A long pass does not delay the lease and the heartbeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from ..errors import BackendUnavailableError, RunyardError, WorkerDeadError
from ..ports.scheduling import Effects
from ..ports.stores import Backend
from ..ports.workers import FeedDelay, Retention
from ..support import metrics
from ..support.failure_log import FailureLog
from .lost_jobs import Rescue

PASS_SECONDS: Final = 1.0
"""Seconds between two passes. The rescue also makes a pass about this often."""
PRUNE_SECONDS: Final = 10.0
"""Seconds until the next pruning, if the last pruning left no data to delete."""
PRUNE_PART_SECONDS: Final = 0.25
"""Maximum seconds of pruning in one pass. Each pruning is a short transaction."""
LONG_FEED_DELAY_SECONDS: Final = 60.0
"""If the feed is delayed for longer than this number of seconds, the transaction that delays it is logged. The same number of
seconds passes between two such log lines.
"""

log = structlog.get_logger("runyard.reconciler")


class Reconciler:
    """The reconciler of one worker.

    The arguments are functions. ``worker_id`` returns the worker's current id. ``carry_out`` applies the effects of a commit.
    ``leading`` returns whether the worker leads.
    """

    def __init__(
        self,
        backend: Backend,
        worker_id: Callable[[], str],
        carry_out: Callable[[Effects], None],
        retention: Retention,
        leading: Callable[[], bool],
    ) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._carry_out = carry_out
        self._retention = retention
        self._leading = leading
        self._rescue = Rescue(backend, worker_id, carry_out, leading)
        self._rescue_at = float("-inf")
        self._prune_at = float("-inf")
        self._tell_delay_at = float("-inf")
        self._trim_at = float("-inf")
        self._streams_dropped: int | None = None
        self._wake = asyncio.Event()
        self._failures = {
            event: FailureLog(log, event) for event in ("reconciler_pass_failed", "streams_not_trimmed", "rescue_failed")
        }

    @property
    def rescued(self) -> int:
        """The number of runs that this reconciler has submitted."""
        return self._rescue.rescued

    def hurry(self) -> None:
        """Make a pass without waiting for the next one, and examine all waiting runs.

        Call this method after this worker has begun to lead or has declared a worker dead.
        """
        self._rescue.sweep()
        self._rescue_at = float("-inf")
        self._wake.set()

    async def run(self) -> None:
        """Make one pass after another until cancelled."""
        while True:
            self._wake.clear()
            try:
                pause = await self.step()
            except (BackendUnavailableError, WorkerDeadError) as error:
                self._failures["reconciler_pass_failed"].failed(error, expected=True, worker_id=self._worker_id())
                pause = PASS_SECONDS
            else:
                self._failures["reconciler_pass_failed"].worked(worker_id=self._worker_id())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    async def step(self) -> float:
        """Make one pass if this worker leads. Return the seconds until the next pass."""
        if not self._leading():
            metrics.FEED_DELAY.set(0)
            self._streams_dropped = None
            return PASS_SECONDS
        await self._try_trim()
        if time.monotonic() >= self._rescue_at:
            await self._try_rescue()
        admitted = await self._backend.runs.admit()
        self._carry_out(admitted.effects)
        self._carry_out(await self._backend.limits.review_limits())
        self._show_feed_delay(await self._backend.usage.count())
        await self._prune()
        return PASS_SECONDS if admitted.next_due is None else min(PASS_SECONDS, max(admitted.next_due, 0.005))

    async def _try_trim(self) -> None:
        """Trim the event streams to their limit. The trim is necessary, because no run could start if Redis had no free
        memory."""
        if time.monotonic() < self._trim_at:
            return
        self._trim_at = time.monotonic() + PASS_SECONDS * 0.9
        try:
            usage = await self._backend.events.trim()
        except RunyardError as error:
            self._failures["streams_not_trimmed"].failed(error, expected=True, worker_id=self._worker_id())
            return
        self._failures["streams_not_trimmed"].worked(worker_id=self._worker_id())
        metrics.STREAM_BYTES.set(usage.bytes)
        metrics.REDIS_BYTES.set(usage.memory)
        metrics.REDIS_MAX_BYTES.set(usage.max_memory)
        before = usage.dropped if self._streams_dropped is None else self._streams_dropped
        metrics.STREAMS_DROPPED.inc(usage.dropped - before if usage.dropped >= before else usage.dropped)
        self._streams_dropped = usage.dropped

    async def _try_rescue(self) -> None:
        # A due run can start a pass earlier. The rescue must still examine the same number of runs per second.
        self._rescue_at = time.monotonic() + PASS_SECONDS * 0.9
        try:
            await self._rescue.step()
        except RunyardError as error:  # Redis may refuse writes, but the rest of the pass needs only Postgres
            self._failures["rescue_failed"].failed(error, expected=True, worker_id=self._worker_id())
        else:
            self._failures["rescue_failed"].worked(worker_id=self._worker_id())

    def _show_feed_delay(self, delay: FeedDelay) -> None:
        metrics.FEED_DELAY.set(delay.seconds)
        if delay.seconds >= LONG_FEED_DELAY_SECONDS and time.monotonic() >= self._tell_delay_at:
            self._tell_delay_at = time.monotonic() + LONG_FEED_DELAY_SECONDS
            log.warning(
                "feed_held_back", worker_id=self._worker_id(), delay_seconds=round(delay.seconds), transaction=delay.holder
            )

    async def _prune(self) -> None:
        """Delete data whose retention has passed, and rows of deleted threads, for at most PRUNE_PART_SECONDS.

        Later passes delete the rest.
        """
        began = time.monotonic()
        if began < self._prune_at:
            return
        while await self._backend.workers.prune(self._retention):
            if time.monotonic() - began >= PRUNE_PART_SECONDS:
                return
        self._prune_at = time.monotonic() + PRUNE_SECONDS
