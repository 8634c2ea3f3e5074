"""The reconciler. Every worker watches the heartbeats of all workers. One worker, the leader, acts.

The leader marks dead workers, ends their cancelled runs, submits runs that Redis lost, admits due runs, counts usage, and
prunes data whose retention has passed. It also applies the deadlines of HITL requests and fails the runs that were not started
by their ``expires_at``: the verb ``runs.admit`` does this with the admission of due runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import structlog

from ..errors import BackendUnavailableError, WorkerDeadError
from ..ports.refs import RunRef
from ..ports.results import Claim
from ..ports.scheduling import Effects
from ..ports.stores import Backend
from ..ports.workers import LaneHead, Retention
from ..support import metrics
from ..support.batching import each_its_own
from .failure_detector import MIN_HEAD_AGE, HeartbeatWatch, MissingWatch

PASS_SECONDS: Final = 1.0
"""Seconds between two passes."""
LEASE_SECONDS: Final = 2.0
"""Seconds for which the leader leads without a renewal of its lease."""
PAGE_SIZE: Final = 1000
CANCEL_BATCH: Final = 100
"""Maximum number of cancelled runs ended by one commit."""
PRUNE_SECONDS: Final = 10.0
"""Seconds from a pruning that left nothing to prune to the next one."""
MAX_RESCUES_PER_PASS: Final = 5000
"""Maximum number of jobs that one pass submits, so that an empty Redis is not flooded."""

log = structlog.get_logger("runyard.reconciler")


class Reconciler:
    """The reconciler of one worker.

    ``worker_id``: returns the worker's current id. ``carry_out``: applies the effects of a commit.
    """

    def __init__(
        self,
        backend: Backend,
        worker_id: Callable[[], str],
        carry_out: Callable[[Effects], None],
        retention: Retention,
    ) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._carry_out = carry_out
        self._watch = HeartbeatWatch()
        self._missing = MissingWatch()
        self._retention = retention
        self._read_at = float("-inf")
        self._prune_at = float("-inf")
        self.leading = False
        self.rescued = 0

    async def run(self) -> None:
        """Make one pass after the other until cancelled."""
        while True:
            try:
                pause = await self.step()
            except (BackendUnavailableError, WorkerDeadError) as error:
                log.warning("reconciler_pass_failed", worker_id=self._worker_id(), error=str(error))
                self.leading, pause = False, PASS_SECONDS
            metrics.LEADING.set(self.leading)
            await asyncio.sleep(pause)

    async def step(self) -> float:
        """Make one pass. Return the seconds until the next one."""
        dead = await self._look() if time.monotonic() - self._read_at >= PASS_SECONDS * 0.9 else []
        self.leading = await self._backend.workers.lead(self._worker_id(), LEASE_SECONDS)
        if not self.leading:
            return PASS_SECONDS
        for worker_id, heartbeat_at in dead:
            if await self._backend.workers.mark_dead(worker_id, heartbeat_at):
                metrics.WORKERS_DEAD.inc()
                moment = heartbeat_at.isoformat()
                log.warning(
                    "worker_declared_dead", worker_id=self._worker_id(), dead_worker_id=worker_id, last_heartbeat_at=moment
                )
        try:
            await self._rescue()
        except BackendUnavailableError as error:  # Redis may be down; the work below needs Postgres only
            log.warning("rescue_failed", worker_id=self._worker_id(), error=str(error))
        admitted = await self._backend.runs.admit()
        self._carry_out(admitted.effects)
        self._carry_out(await self._backend.limits.review_limits())
        await self._backend.usage.count()
        await self._prune()
        return PASS_SECONDS if admitted.next_due is None else min(PASS_SECONDS, max(admitted.next_due, 0.005))

    async def _prune(self) -> None:
        """Delete a bounded part of the data whose retention has passed; later passes delete the rest."""
        if time.monotonic() >= self._prune_at and not await self._backend.workers.prune(self._retention):
            self._prune_at = time.monotonic() + PRUNE_SECONDS

    async def _look(self) -> list[tuple[str, datetime]]:
        asked = time.monotonic()
        try:
            workers = await self._backend.workers.workers()
        except BackendUnavailableError:
            self._watch.failed()
            raise
        self._read_at = asked
        return self._watch.observe(workers, asked=asked, answered=time.monotonic())

    async def _rescue(self) -> None:
        """Submit waiting lane heads that no queue and no worker holds. End cancelled heads of dead workers."""
        after: tuple[int, str] | None = None
        left = MAX_RESCUES_PER_PASS
        self._missing.begin()
        while left > 0:
            heads = await self._backend.workers.heads(unchanged=MIN_HEAD_AGE, after=after, limit=PAGE_SIZE)
            if heads:
                await self._end([head.job.ref for head in heads if head.cancelled])
                if waiting := [head for head in heads if not head.cancelled]:
                    left -= await self._submit_lost(waiting, left)
                after = (heads[-1].job.thread_key, heads[-1].job.lane)
            if len(heads) < PAGE_SIZE:
                break
        self._missing.end()

    async def _end(self, cancelled: list[RunRef]) -> None:
        """End cancelled runs of dead workers, also in a queue that is paused or that no worker serves."""

        async def claim(refs: Sequence[RunRef]) -> list[Claim | Exception]:
            claims = {claim.ref: claim for claim in await self._backend.runs.claim(self._worker_id(), refs)}
            return [claims.get(ref) or Claim(ref, "unknown") for ref in refs]

        for n in range(0, len(cancelled), CANCEL_BATCH):
            batch = cancelled[n : n + CANCEL_BATCH]
            for ref, claimed in zip(batch, await each_its_own(claim, batch), strict=True):
                if isinstance(claimed, Claim):
                    self._carry_out(claimed.effects)
                else:
                    names = {"worker_id": self._worker_id(), "thread_key": ref.thread_key, "run_id": ref.run_id}
                    log.error("cancelled_run_not_ended", **names, error=str(claimed), exc_info=claimed)

    async def _submit_lost(self, heads: list[LaneHead], limit: int) -> int:
        unknown = await self._backend.scheduler.unknown([head.job for head in heads])
        lost = self._missing.lost(heads, unknown, time.monotonic())[:limit]
        if lost:
            await self._backend.scheduler.submit(lost)
            self.rescued += len(lost)
            metrics.RESCUES.inc(len(lost))
            first = {"first_thread_key": lost[0].thread_key, "first_run_id": lost[0].run_id}
            log.warning("lost_runs_submitted", worker_id=self._worker_id(), runs=len(lost), **first)
        return len(lost)
