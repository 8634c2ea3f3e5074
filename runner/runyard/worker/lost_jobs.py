"""The rescue: the leader submits runs whose job Redis has lost, and runs of dead workers.

Each pass reads a bounded number of rows. ``lost_tasks.py`` finds runs that a live worker holds but does not execute.

A pass reads the runs of dead workers, the waiting runs that changed recently, and a part of the other waiting runs. The next
pass reads the next part. A round through all parts is a rotation. After an event that may have lost many jobs, the passes make
one rotation as fast as possible. Such a rotation is a sweep.
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
"""Minimum age of an examined lane head. The job of a younger head has possibly not reached Redis yet."""
MIN_MISSING_SECONDS: Final = 1.0
"""Seconds for which a lane head must be missing from Redis.

MIN_HEAD_AGE alone would not be enough. When a run ends, the next run of the lane becomes the head, and its job is submitted.
This next run may be older than MIN_HEAD_AGE.
"""
ORPHANS_PER_PAGE: Final = 1000
"""Number of orphans after which one read of orphans ends. An orphan is a running run of a dead worker."""
CANCEL_BATCH: Final = 100
"""Maximum number of runs with a requested cancel that one commit ends."""
MAX_RESCUES_PER_PASS: Final = 5000
"""Maximum number of jobs that one pass submits. More jobs in one pass would overload an empty Redis."""
RECENT_SECONDS: Final = 10.0
"""Every pass examines the recent runs: the runs that changed after the previous pass, or at most this number of seconds before
it.

If a process dies between the commit of a run and the submission of its job, the next pass therefore finds the run.
"""
RECENT_ROWS: Final = 500
"""Maximum number of recent runs that one pass examines. This number bounds the duration of a pass after many new runs."""
ROTATION_ROWS: Final = 500
"""Maximum number of waiting runs, other than recent runs, that one read examines.

This number bounds the duration of a pass if the queue is long.
"""
DEAD_LOCK_SECONDS: Final = 60.0
"""Seconds for which a dead worker can still have locks in Redis after its last heartbeat."""
SWEEP_SECONDS: Final = 0.25
"""Maximum seconds of one pass for a sweep. The servers need the rest of the time for other work."""

log = structlog.get_logger("runyard.rescue")


class MissingWatch:
    """Keeps the jobs of lane heads that are missing from Redis. A job that stays missing is lost. A job that is missing only
    for a short time is being submitted."""

    def __init__(self) -> None:
        self._missing: dict[RunRef, tuple[Job, float]] = {}

    def __len__(self) -> int:
        return len(self._missing)

    def note(self, missing: Iterable[Job], now: float) -> None:
        """Keep jobs that are missing from Redis. ``now``: seconds of the monotonic clock."""
        for job in missing:
            self._missing.setdefault(job.ref, (job, now))

    def jobs(self) -> list[Job]:
        """Return the kept jobs. The next pass searches these jobs in Redis again."""
        return [job for job, _ in self._missing.values()]

    def lost(self, missing: Iterable[Job], now: float) -> list[RunRef]:
        """Return the kept runs that have been missing for MIN_MISSING_SECONDS. Drop the jobs that Redis now has.

        ``missing``: the kept jobs that are still missing from Redis.
        """
        still = {job.ref for job in missing}
        self._missing = {ref: kept for ref, kept in self._missing.items() if ref in still}
        return [ref for ref, (_, since) in self._missing.items() if now - since >= MIN_MISSING_SECONDS]

    def forget(self, refs: Iterable[RunRef]) -> None:
        """Drop runs that were submitted or no longer wait."""
        for ref in refs:
            self._missing.pop(ref, None)


class Rotation:
    """The position of the present rotation in the list of waiting runs."""

    def __init__(self) -> None:
        self.after: WaitingCursor | None = None
        self.sweeping = False
        self._goal: WaitingCursor | None = None
        self._wrapped = False

    def sweep(self) -> None:
        """Begin a sweep. The sweep ends when the rotation returns to the position that it had at this call."""
        self.sweeping, self._goal, self._wrapped = True, self.after, False

    def advance(self, after: WaitingCursor | None) -> None:
        """Move the position to ``after`` (None: to the start). End the sweep if it has examined all waiting runs."""
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

    The arguments are functions. ``worker_id`` returns the worker's current id. ``carry_out`` applies the effects of a commit.
    ``leading`` returns whether the worker leads. ``clock`` returns seconds of a monotonic clock.
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
        """Examine all waiting runs in the next passes. Examine them again when the present locks have expired.

        Call this method after an event that may have lost jobs. A run whose lane is locked does not count as lost.
        """
        self._rotation.sweep()
        self._sweep_again_at = self._clock() + LANE_LOCK_SECONDS + 1.0

    async def step(self) -> None:
        """Make one pass. After an error of a server, raise the error, and begin a sweep. Redis may have lost data."""
        if self._clock() >= self._sweep_again_at:
            self._sweep_again_at = float("inf")
            self._rotation.sweep()
        self._dead = None
        try:
            left = MAX_RESCUES_PER_PASS - await self._submit_orphans()
            if await self._submit_lost(left):
                self.sweep()  # further jobs are possibly lost for the same reason
            await self._look_at_recent()
            await self._rotate()
        except RunyardError:
            self.sweep()
            raise

    async def _submit_orphans(self) -> int:
        """Submit the runs of dead workers. End those whose cancel was requested.

        A run is submitted as soon as its job is missing. The delay of :class:`MissingWatch` is not needed here, because no
        other process is about to submit a run of a dead worker.

        The locks of dead workers do not count. A worker that was declared dead may still reach Redis but not Postgres. Such a
        worker keeps its locks until it notices that it was declared dead.

        Return the number of submitted runs. A pass examines about MAX_RESCUES_PER_PASS runs of dead workers. The next pass
        continues.
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
        """Submit at most ``limit`` lane heads whose jobs were missing from Redis in an earlier pass and are still missing."""
        if not len(self._missing):
            return 0
        missing = await self._missing_jobs(self._missing.jobs())
        lost = self._missing.lost(missing, self._clock())[: max(limit, 0)]
        if not lost:
            return 0
        # Postgres is read last, because a run that a worker has executed in between is also missing from Redis.
        submitted = await self._submit(await self._backend.workers.still_waiting(lost, unchanged=MIN_HEAD_AGE))
        self._missing.forget(lost)
        return submitted

    async def _look_at_recent(self) -> None:
        """Examine the runs that changed after a certain time: RECENT_SECONDS before the last pass."""
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
        """Return the jobs of waiting runs that are missing from Redis. The locks of dead workers do not count.

        A worker may have taken a job from Redis and died before it claimed the run. The list of dead workers is read once per
        pass.
        """
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
        """End runs of dead workers for which a cancel was requested, also in paused and unserved queues."""

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
