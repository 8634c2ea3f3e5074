"""The worker of a harness: the claim loop and the executor of a real worker, without timers.

Simulated crashes end the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from ..app import App
from ..domain.validation import new_id
from ..events.writer import EventWriter
from ..execution.executor import WorkerServices
from ..ports.results import Ended
from ..ports.scheduling import Delivery, Job
from ..ports.stores import Backend
from ..ports.workers import WorkerInfo
from ..worker.cancels import follow_cancel_hints
from ..worker.claim_loop import ClaimLoop
from ..worker.effects_sender import EffectsSender
from ..worker.slots import Slots
from .crashes import CrashingPort, CrashPlan

HARNESS_SLOTS: Final = 1000
POLL_SECONDS: Final = 1.0
"""Maximum number of seconds of one wait for a worker's write. The wait is short, because another program may change the store
without such a write."""


class DueTimeScheduler:
    """A scheduler that records the due times of submitted jobs. Every call is passed on to the scheduler ``inner``."""

    def __init__(self, inner: Any, now: Callable[[], datetime]) -> None:
        self._inner, self._now = inner, now
        self.due: set[datetime] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forget(self, now: datetime) -> None:
        """Drop the due times up to ``now``."""
        self.due = {moment for moment in self.due if moment > now}

    async def submit(self, jobs: Sequence[Job]) -> None:
        self.note(jobs)
        await self._inner.submit(jobs)

    async def release(self, worker_id: str, deliveries: Sequence[Delivery], submit: Sequence[Job] = ()) -> None:
        self.note(submit)
        await self._inner.release(worker_id, deliveries, submit)

    def note(self, jobs: Sequence[Job]) -> None:
        """Record the due times of ``jobs``."""
        self.due |= {self._now() + timedelta(seconds=job.delay) for job in jobs if job.delay > 0}


class PatchedBackend:
    """A backend in which some ``parts`` are replaced, for every tenant."""

    def __init__(self, inner: Any, **parts: Any) -> None:
        self._inner, self._parts = inner, parts
        for name, part in parts.items():
            setattr(self, name, part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def for_tenant(self, tenant: str) -> PatchedBackend:
        return PatchedBackend(self._inner.for_tenant(tenant), **self._parts)


class HarnessWorker:
    """Serves ``app`` from ``backend`` until :meth:`close`. After a simulated crash, another worker serves the app."""

    def __init__(self, app: App, backend: Backend, due_times: DueTimeScheduler, crash_plan: CrashPlan) -> None:
        self._app, self._backend, self._due_times, self._crash_plan = app, backend, due_times, crash_plan
        self._writer = EventWriter(backend.events, tick=0.0)
        self._effects_sender = EffectsSender(backend.scheduler, backend.events, self._writer)
        self.deaths = 0
        self._closing = False
        self._begin()

    @property
    def busy(self) -> bool:
        """Whether a run is being executed, or another worker is about to take over."""
        return self.dead or bool(len(self._slots))

    def _begin(self) -> None:
        self.dead = False
        self._slots = Slots(HARNESS_SLOTS)
        self.worker_id = f"harness-{new_id()}"
        crashing: Any = PatchedBackend(self._backend, runs=CrashingPort(self._backend.runs, self._crash_plan, self._die))
        self._claim_loop = ClaimLoop(
            WorkerServices.of(self._app, crashing, self._writer),
            self._slots,
            self._effects_sender,
            self._app.queues,
            on_dead=lambda worker_id: None,
        )

    def _die(self, answer: Any) -> None:
        self.dead = True
        self.deaths += 1
        if isinstance(answer, Ended):  # the answer that the worker does not receive has the due time of a retry
            self._due_times.note(answer.effects.jobs)
        self._stop_executions()

    def close(self) -> None:
        """Let :meth:`serve` end. Runs that are being executed stay unfinished."""
        self._closing = True
        self._stop_executions()

    def _stop_executions(self) -> None:
        self._claim_loop.stop()
        self._claim_loop.close()

    async def serve(self) -> None:
        """Run one worker after another, until :meth:`close`."""
        loops = (self._writer.run, self._follow_cancel_hints, self._follow_notifications)
        tasks = [asyncio.create_task(loop()) for loop in loops]
        try:
            await self._one_life()
            while not self._closing:
                self._begin()
                await self._one_life()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one_life(self) -> None:
        info = WorkerInfo(
            worker_id=self.worker_id,
            queues=self._app.queues,
            agents=self._app.queue_of,
            default_agent=self._app.default.name if self._app.default else None,
            app_version=self._app.version,
            on_version_mismatch=self._app.on_version_mismatch,
            slots=HARNESS_SLOTS,
        )
        await self._backend.workers.register(info)
        await self.rescue()
        self._claim_loop.open(self.worker_id)
        await self._claim_loop.run()
        await self._claim_loop.finished()
        await self._effects_sender.drained()
        if self.dead:
            await self._declare_dead()
        else:
            await self._backend.workers.leave(self.worker_id)

    async def _declare_dead(self) -> None:
        for worker in await self._backend.workers.workers():
            if worker.worker_id == self.worker_id and worker.heartbeat_at is not None:
                await self._backend.workers.mark_dead(self.worker_id, worker.heartbeat_at)

    async def progress(self) -> None:
        """Wait for a write or for the end of all executions, at most POLL_SECONDS."""
        waits = [asyncio.ensure_future(wait) for wait in (self._crash_plan.changed.wait(), self._claim_loop.finished())]
        try:
            await asyncio.wait(waits, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._crash_plan.changed.clear()

    async def rescue(self) -> None:
        """Submit waiting runs that are missing from the scheduler, and runs of dead workers. Admit due runs."""
        store, scheduler = self._backend.workers, self._backend.scheduler
        orphans = await store.orphans()
        waiting = await store.waiting(unchanged=timedelta(0))
        missing = await scheduler.missing_jobs(waiting.jobs)
        await scheduler.submit([*(orphan.job for orphan in orphans.orphans), *missing])
        await self.admit()

    async def admit(self) -> float | None:
        """Admit due runs and apply deadlines. Return the seconds until the next due time, or None."""
        admitted = await self._backend.runs.admit()
        self._effects_sender.carry_out(admitted.effects)
        await self._effects_sender.drained()
        return admitted.next_due

    async def check_queues(self) -> None:
        """Make the claim loop read the queues at once. Call this method after the due times of jobs have changed."""
        await self._backend.scheduler.end_wait(self.worker_id)

    async def _follow_cancel_hints(self) -> None:
        await follow_cancel_hints(self._backend.scheduler, lambda ref: self._slots.execution(ref))

    async def _follow_notifications(self) -> None:
        async for effects in self._backend.notifications():
            self._effects_sender.carry_out(effects)
