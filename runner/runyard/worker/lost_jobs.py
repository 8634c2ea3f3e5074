"""The rescue: the leader submits the runs that no queue and no live worker holds. Redis lost their jobs, or their worker died.

Each pass reads a bounded number of rows. ``lost_tasks.py`` finds the runs that a live worker holds and does not execute.

A pass reads the runs of dead workers, the waiting runs that changed last, and a part of the other waiting runs. The next pass
reads the next part. Such a round through the other waiting runs is a rotation. After an event that may have lost many jobs, the
passes make one rotation as fast as possible. This rotation is a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

import structlog

from ..errors import RunyardError
from ..ports.refs import RunRef
from ..ports.results import Claim
from ..ports.scheduling import LANE_LOCK_SECONDS, Effects, Job
from ..ports.stores import Backend
from ..ports.workers import Orphan, WaitingCursor, WaitingPage
from ..support import metrics
from ..support.batching import each_its_own

MIN_HEAD_AGE: Final = timedelta(seconds=1)
"""Shortest age of an examined lane head. Redis may be about to receive or to remove the job of a younger head."""
MIN_MISSING_SECONDS: Final = 1.0
"""Seconds for which a lane head must be missing from Redis.

MIN_HEAD_AGE does not suffice. When a run ends, the run behind it becomes the head and is submitted. That run may be old.
"""
ORPHANS_PER_PAGE: Final = 1000
"""Number of orphans after which one read of orphans ends."""
CANCEL_BATCH: Final = 100
"""Maximum number of cancelled runs ended by one commit."""
MAX_RESCUES_PER_PASS: Final = 5000
"""Maximum number of jobs that one pass submits, so that an empty Redis is not flooded."""
RECENT_SECONDS: Final = 10.0
"""Greatest age of the runs that every pass examines, at the time of the previous pass.

If a process commits a run and stops before it submits the run's job, these passes find the run early."""
RECENT_ROWS: Final = 500
"""Maximum number of recent runs that one pass examines, so that a burst of runs does not make a pass long."""
ROTATION_ROWS: Final = 500
"""Number of other waiting runs that one read of the rotation examines, so that a long queue does not make a pass long."""
DEAD_LOCK_SECONDS: Final = 60.0
"""Seconds since its last heartbeat for which a dead worker may still have locks in Redis."""
SWEEP_SECONDS: Final = 0.25
"""Seconds that one pass spends on a sweep. The servers are free for other work in the rest of the time."""

log = structlog.get_logger("runyard.rescue")


class MissingWatch:
    """Distinguishes lost lane heads from heads whose submission is under way. It keeps the heads that Redis did not hold."""

    def __init__(self) -> None:
        self._missing: dict[RunRef, tuple[Job, float]] = {}

    def __len__(self) -> int:
        return len(self._missing)

    def note(self, missing: Iterable[Job], now: float) -> None:
        """Keep the jobs that Redis does not hold. ``now``: seconds of the monotonic clock."""
        for job in missing:
            self._missing.setdefault(job.ref, (job, now))

    def jobs(self) -> list[Job]:
        """Return the kept jobs, which the next pass looks up in Redis again."""
        return [job for job, _ in self._missing.values()]

    def lost(self, missing: Iterable[Job], now: float) -> list[RunRef]:
        """Return the kept runs that were missing for MIN_MISSING_SECONDS. Forget those that Redis holds by now.

        ``missing``: the kept jobs that Redis still does not hold.
        """
        still = {job.ref for job in missing}
        self._missing = {ref: kept for ref, kept in self._missing.items() if ref in still}
        return [ref for ref, (_, since) in self._missing.items() if now - since >= MIN_MISSING_SECONDS]

    def forget(self, refs: Iterable[RunRef]) -> None:
        """Forget runs that were submitted, or that do not wait any more."""
        for ref in refs:
            self._missing.pop(ref, None)


class Rotation:
    """The position of the rotations in the list of waiting runs."""

    def __init__(self) -> None:
        self.after: WaitingCursor | None = None
        self.sweeping = False
        self._goal: WaitingCursor | None = None
        self._wrapped = False

    def sweep(self) -> None:
        """Begin a sweep. It ends when the position is the present one again."""
        self.sweeping, self._goal, self._wrapped = True, self.after, False

    def advance(self, after: WaitingCursor | None) -> None:
        """Move the position to ``after``, or to the start if it is None. End the sweep if it has examined all waiting runs."""
        at_end = after is None
        self.after = after
        if self._goal is None:
            round_over = at_end
        else:
            round_over = self._wrapped and (after is None or after >= self._goal)
        self.sweeping = self.sweeping and not round_over
        self._wrapped = self._wrapped or at_end


class Rescue:
    """The rescue of one worker, while it leads.

    ``worker_id``: returns the worker's current id. ``carry_out``: applies the effects of a commit. ``leading``: whether the
    worker leads. ``clock``: returns seconds of a monotonic clock.
    """

    def __init__(
        self,
        backend: Backend,
        worker_id: Callable[[], str],
        carry_out: Callable[[Effects], None],
        leading: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._carry_out = carry_out
        self._leading = leading
        self._clock = clock
        self._missing = MissingWatch()
        self._rotation = Rotation()
        self._orphans_after = ""
        self._sweep_again_at = float("inf")
        self._recent_after: WaitingCursor | None = None
        self._recent_at = clock()
        self._dead: set[str] | None = None
        self.rescued = 0

    @property
    def sweeping(self) -> bool:
        return self._rotation.sweeping

    def sweep(self) -> None:
        """Examine all waiting runs in the next passes, and again when the locks that exist now have expired.

        Call this method after an event that may have lost jobs. A job whose lock has not expired counts as held.
        """
        self._rotation.sweep()
        self._sweep_again_at = self._clock() + LANE_LOCK_SECONDS + 1.0

    async def step(self) -> None:
        """Make one pass. After a RunyardError of a server, raise it and begin a sweep, because Redis may have lost data."""
        if self._clock() >= self._sweep_again_at:
            self._sweep_again_at = float("inf")
            self._rotation.sweep()
        self._dead = None
        try:
            left = MAX_RESCUES_PER_PASS - await self._submit_orphans()
            if await self._submit_lost(left):
                self.sweep()  # the cause may have lost further jobs
            await self._look_at_recent()
            await self._rotate()
        except RunyardError:
            self.sweep()
            raise

    async def _submit_orphans(self) -> int:
        """Submit the runs of dead workers at once, because no other process submits them. End the cancelled ones.

        The locks of these workers do not count. A dead worker that reaches Redis and not Postgres keeps its locks until it
        notices its death.

        Return the number of submitted runs. A pass that examined MAX_RESCUES_PER_PASS orphans leaves the rest to the next pass.
        """
        examined = submitted = 0
        while examined < MAX_RESCUES_PER_PASS and self._leading():
            page = await self._backend.workers.orphans(after=self._orphans_after, limit=ORPHANS_PER_PAGE)
            examined += len(page.orphans)
            await self._end([orphan.job.ref for orphan in page.orphans if orphan.cancelled])
            submitted += await self._submit_missing(page.orphans)
            self._orphans_after = page.after or ""
            if page.after is None:
                break
        return submitted

    async def _submit_missing(self, orphans: Sequence[Orphan]) -> int:
        jobs = [orphan.job for orphan in orphans if not orphan.cancelled]
        dead = {orphan.worker_id for orphan in orphans}
        return await self._submit(await self._backend.scheduler.missing_jobs(jobs, dead)) if jobs else 0

    async def _submit_lost(self, limit: int) -> int:
        """Submit up to ``limit`` lane heads that were missing from Redis in an earlier pass and are still missing."""
        if not len(self._missing):
            return 0
        missing = await self._missing_jobs(self._missing.jobs())
        lost = self._missing.lost(missing, self._clock())[: max(limit, 0)]
        if not lost:
            return 0
        # Postgres is asked last: a run that was executed since the earlier pass is also missing from Redis.
        submitted = await self._submit(await self._backend.workers.still_waiting(lost, unchanged=MIN_HEAD_AGE))
        self._missing.forget(lost)
        return submitted

    async def _look_at_recent(self) -> None:
        """Examine the runs that changed in the RECENT_SECONDS before the last pass, or since then."""
        began = self._clock()
        page = await self._backend.workers.waiting(
            unchanged=MIN_HEAD_AGE,
            after=self._recent_after,
            within=timedelta(seconds=RECENT_SECONDS + began - self._recent_at),
            limit=RECENT_ROWS,
        )
        await self._look(page)
        self._recent_after, self._recent_at = page.after, began

    async def _rotate(self) -> None:
        """Examine the next part of the waiting runs. During a sweep, examine part after part for SWEEP_SECONDS."""
        began = self._clock()
        while self._leading() and len(self._missing) < MAX_RESCUES_PER_PASS:
            page = await self._backend.workers.waiting(unchanged=MIN_HEAD_AGE, after=self._rotation.after, limit=ROTATION_ROWS)
            await self._look(page)
            self._rotation.advance(page.after)
            if not self.sweeping or self._clock() - began >= SWEEP_SECONDS:
                break

    async def _look(self, page: WaitingPage) -> None:
        if page.jobs:
            self._missing.note(await self._missing_jobs(page.jobs), self._clock())

    async def _missing_jobs(self, waiting: Sequence[Job]) -> list[Job]:
        """Return the jobs of waiting runs that Redis does not hold. The locks of dead workers do not count. A dead worker may
        have taken a job from Redis without claiming the run in the store. The dead workers are read once per pass."""
        if self._dead is None:
            workers = await self._backend.workers.workers()
            self._dead = {
                worker.worker_id
                for worker in workers
                if worker.dead_at is not None and (worker.silent_for or 0.0) <= DEAD_LOCK_SECONDS
            }
        return await self._backend.scheduler.missing_jobs(waiting, self._dead)

    async def _submit(self, lost: Sequence[Job]) -> int:
        if lost:
            await self._backend.scheduler.submit(lost)
            self.rescued += len(lost)
            metrics.RESCUES.inc(len(lost))
            first = {"first_thread_key": lost[0].thread_key, "first_run_id": lost[0].run_id}
            log.warning("missing_jobs_submitted", worker_id=self._worker_id(), runs=len(lost), **first)
        return len(lost)

    async def _end(self, cancelled: Sequence[RunRef]) -> None:
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
