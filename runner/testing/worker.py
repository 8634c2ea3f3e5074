"""The worker of a harness: the intake and the executor of a real one, without its clocks. It dies when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from ..app import App
from ..courier import Courier
from ..eventwriter import EventWriter
from ..exchange import Delivery, Ended, Job, WorkerInfo
from ..executor import Stop, Tools
from ..intake import Intake
from ..models import new_id
from ..ports import Backend
from ..slots import Slots
from .crashes import Fuse, Wire

SLOTS: Final = 1000
LOOK: Final = 1.0
"""Seconds after which it is asked again whether something happened that no worker did."""


class Agenda:
    """A scheduler that remembers for when it was given something; everything else is the inner one's."""

    def __init__(self, inner: Any, now: Callable[[], datetime]) -> None:
        self._inner, self._now = inner, now
        self.due: set[datetime] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forget(self, now: datetime) -> None:
        """What was due until ``now`` is no longer to come."""
        self.due = {moment for moment in self.due if moment > now}

    async def submit(self, jobs: Sequence[Job]) -> None:
        self.note(jobs)
        await self._inner.submit(jobs)

    async def release(self, worker_id: str, deliveries: Sequence[Delivery], submit: Sequence[Job] = ()) -> None:
        self.note(submit)
        await self._inner.release(worker_id, deliveries, submit)

    def note(self, jobs: Sequence[Job]) -> None:
        """Remember when ``jobs`` are due."""
        self.due |= {self._now() + timedelta(seconds=job.delay) for job in jobs if job.delay > 0}


class Parts:
    """A backend with other ``parts``, for every tenant."""

    def __init__(self, inner: Any, **parts: Any) -> None:
        self._inner, self._parts = inner, parts
        for name, part in parts.items():
            setattr(self, name, part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def for_tenant(self, tenant: str) -> Parts:
        return Parts(self._inner.for_tenant(tenant), **self._parts)


class HarnessWorker:
    """Serves ``app`` from ``backend`` until it is closed. When the ``fuse`` blows it is dead, and another one follows it."""

    def __init__(self, app: App, backend: Backend, agenda: Agenda, fuse: Fuse) -> None:
        self._app, self._backend, self._agenda, self._fuse = app, backend, agenda, fuse
        self._writer = EventWriter(backend.events, tick=0.0)
        self._courier = Courier(backend.scheduler, self._writer)
        self.deaths = 0
        self._closing = False
        self._begin()

    @property
    def busy(self) -> bool:
        """Whether it has a run in hand, or is about to be followed by another worker."""
        return self.dead or bool(len(self._slots))

    def _begin(self) -> None:
        self.dead = False
        self._slots = Slots(SLOTS)
        self.worker_id = f"harness-{new_id()}"
        cuttable: Any = Parts(self._backend, runs=Wire(self._backend.runs, self._fuse, self._die))
        self._intake = Intake(
            Tools.of(self._app, cuttable, self._writer),
            self._slots,
            self._courier,
            self._app.queues,
            on_dead=lambda worker_id: None,
        )

    def _die(self, unheard: Any) -> None:
        self.dead = True
        self.deaths += 1
        if isinstance(unheard, Ended):  # of a retry: when it is due, somebody has to look
            self._agenda.note(unheard.effects.jobs)
        self._let_go()

    def close(self) -> None:
        """Let :meth:`serve` end; runs in hand are left where they are."""
        self._closing = True
        self._let_go()

    def _let_go(self) -> None:
        self._intake.stop()
        for execution in self._slots.executions():
            execution.stop(Stop.ABANDON)

    async def serve(self) -> None:
        """Worker after worker, until :meth:`close`."""
        loops = (self._writer.run, self._hear_cancels, self._hear_effects)
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
            app_version=self._app.version,
            on_version_mismatch=self._app.on_version_mismatch,
            slots=SLOTS,
        )
        await self._backend.workers.register(info)
        await self.rescue()
        self._intake.open(self.worker_id)
        await self._intake.run()
        await self._intake.finished()
        await self._courier.drained()
        await self._backend.workers.leave(self.worker_id)

    async def progress(self) -> None:
        """Until a run in hand got further, or left it."""
        waits = [asyncio.ensure_future(wait) for wait in (self._fuse.changed.wait(), self._intake.finished())]
        try:
            await asyncio.wait(waits, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._fuse.changed.clear()

    async def rescue(self) -> None:
        """Submit what waits for a worker, or has lost its own, and is unknown to the scheduler; admit what is due."""
        heads = await self._backend.workers.heads(unchanged=timedelta(0))
        jobs = [head.job for head in heads]
        orphans = [head.job for head in heads if head.orphaned]
        await self._backend.scheduler.submit([*orphans, *await self._backend.scheduler.unknown(jobs)])
        await self.admit()

    async def admit(self) -> float | None:
        """Admit what is due, and fire deadlines. Returns the seconds until there is more of that."""
        admitted = await self._backend.runs.admit()
        self._courier.carry_out(admitted.effects)
        await self._courier.drained()
        return admitted.next_due

    async def look(self) -> None:
        """Look at the queues now: what is due has changed."""
        await self._backend.scheduler.rouse(self.worker_id)

    async def _hear_cancels(self) -> None:
        async for ref in self._backend.scheduler.cancel_hints():
            if (execution := self._slots.execution(ref)) is not None:
                execution.stop(Stop.CANCEL)

    async def _hear_effects(self) -> None:
        async for effects in self._backend.notifications():
            self._courier.carry_out(effects)
