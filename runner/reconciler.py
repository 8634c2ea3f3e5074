"""Every worker watches the others; one, the leader, acts: marks the dead, ends what they had to cancel, rescues what Redis
lost, admits what became due, counts what runs used, prunes what was kept for its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import structlog

from . import metrics
from .batching import each_its_own
from .errors import BackendUnavailableError, WorkerDeadError
from .exchange import Claim, Effects, Head, Retention, RunRef
from .ports import Backend
from .recovery import UNCHANGED, HeartbeatWatch, MissingWatch

PASS: Final = 1.0
"""Seconds between two passes."""
LEASE: Final = 2.0
"""Seconds for which the leader leads without renewal."""
PAGE: Final = 1000
BATCH: Final = 100
"""Cancelled runs ended by one commit."""
PRUNE: Final = 10.0
"""Seconds between two looks for what was kept for its time, while there is little of it."""
RESCUES: Final = 5000
"""Jobs that one pass submits at most, so that an emptied Redis is filled without a flood."""

log = structlog.get_logger("runyard.reconciler")


class Reconciler:
    """The reconciler of one worker. ``carry_out`` applies the effects of admissions; ``worker_id`` is asked each time."""

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
        """Pass after pass until cancelled."""
        while True:
            try:
                pause = await self.step()
            except (BackendUnavailableError, WorkerDeadError) as error:
                log.warning("a pass was given up", error=str(error))
                self.leading, pause = False, PASS
            metrics.LEADING.set(self.leading)
            await asyncio.sleep(pause)

    async def step(self) -> float:
        """One pass. Returns the seconds until the next."""
        dead = await self._look() if time.monotonic() - self._read_at >= PASS * 0.9 else []
        self.leading = await self._backend.workers.lead(self._worker_id(), LEASE)
        if not self.leading:
            return PASS
        for worker_id, heartbeat_at in dead:
            if await self._backend.workers.mark_dead(worker_id, heartbeat_at):
                metrics.WORKERS_DEAD.inc()
                log.warning("worker declared dead", worker_id=worker_id)
        try:
            await self._rescue()
        except BackendUnavailableError as error:  # of the scheduler; what only the store decides goes on without it
            log.warning("nothing can be rescued", error=str(error))
        admitted = await self._backend.runs.admit()
        self._carry_out(admitted.effects)
        self._carry_out(await self._backend.limits.review_limits())
        await self._backend.usage.count()
        await self._prune()
        return PASS if admitted.next_due is None else min(PASS, max(admitted.next_due, 0.005))

    async def _prune(self) -> None:
        """Delete what was kept for its time; a bounded part of it, and the rest in the passes that follow."""
        if time.monotonic() >= self._prune_at and not await self._backend.workers.prune(self._retention):
            self._prune_at = time.monotonic() + PRUNE

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
        """Submit the lane heads that wait for a worker and that no queue and no worker knows; end those of dead workers
        for which a cancel waits."""
        after: tuple[int, str] | None = None
        left = RESCUES
        self._missing.begin()
        while left > 0:
            heads = await self._backend.workers.heads(unchanged=UNCHANGED, after=after, limit=PAGE)
            if heads:
                await self._end([head.job.ref for head in heads if head.cancelled])
                if waiting := [head for head in heads if not head.cancelled]:
                    left -= await self._submit_lost(waiting, left)
                after = (heads[-1].job.thread_key, heads[-1].job.lane)
            if len(heads) < PAGE:
                break
        self._missing.end()

    async def _end(self, cancelled: list[RunRef]) -> None:
        """End runs whose worker can no longer hear of their cancel, also where nobody takes them: from a queue that is paused
        or that no worker serves."""

        async def claim(refs: Sequence[RunRef]) -> list[Claim | Exception]:
            return [*await self._backend.runs.claim(self._worker_id(), refs)]

        for n in range(0, len(cancelled), BATCH):
            for claimed in await each_its_own(claim, cancelled[n : n + BATCH]):
                if isinstance(claimed, Claim):
                    self._carry_out(claimed.effects)
                else:
                    log.error("a cancelled run cannot be ended", exc_info=claimed)

    async def _submit_lost(self, heads: list[Head], limit: int) -> int:
        unknown = await self._backend.scheduler.unknown([head.job for head in heads])
        lost = self._missing.lost(heads, unknown, time.monotonic())[:limit]
        if lost:
            await self._backend.scheduler.submit(lost)
            self.rescued += len(lost)
            metrics.RESCUES.inc(len(lost))
            log.warning("rescued", runs=len(lost), first=lost[0].run_id)
        return len(lost)
