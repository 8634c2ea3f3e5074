"""Gives deliveries back and carries out what commits ask of Redis, many at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from . import metrics
from .batching import Batcher
from .errors import RunyardError
from .eventwriter import EventWriter
from .exchange import Delivery, Effects, Job, RunRef
from .ports import Scheduler

log = structlog.get_logger("runyard.courier")


@dataclass(frozen=True, slots=True)
class Parcel:
    """A delivery to give back (with the worker that took it) and jobs to submit with it."""

    worker_id: str = ""
    delivery: Delivery | None = None
    jobs: Sequence[Job] = ()


class Courier:
    """One per worker. Nothing here can fail a run: what Redis does not take, the reconciler submits."""

    def __init__(self, scheduler: Scheduler, writer: EventWriter) -> None:
        self._scheduler = scheduler
        self._writer = writer
        self._parcels: Batcher[Parcel, None] = Batcher(self._send, limit=500)
        self._hints: Batcher[RunRef, None] = Batcher(self._hint, limit=500)

    def give_back(self, worker_id: str, delivery: Delivery, effects: Effects | None = None, jobs: Sequence[Job] = ()) -> None:
        """Release the delivery's lock, then submit ``jobs`` and carry out ``effects``."""
        effects = effects or Effects()
        self._parcels(Parcel(worker_id, delivery, (*effects.submissions, *jobs)))
        self._tell(effects)

    def carry_out(self, effects: Effects) -> None:
        """Do what a commit asks, without a delivery to give back."""
        if effects.jobs or effects.withdrawn:
            self._parcels(Parcel(jobs=effects.submissions))
        self._tell(effects)

    async def drained(self) -> None:
        """Return when everything was sent, or given up."""
        await asyncio.gather(self._parcels.drained(), self._hints.drained())

    def _tell(self, effects: Effects) -> None:
        if effects.events:
            metrics.count_ends(effects.events)
            self._writer.outside(effects.events)
        for ref in effects.cancels:
            self._hints(ref)

    async def _send(self, parcels: Sequence[Parcel]) -> list[None]:
        returned: defaultdict[str, list[Delivery]] = defaultdict(list)
        for parcel in parcels:
            if parcel.delivery is not None:
                returned[parcel.worker_id].append(parcel.delivery)
        jobs = [job for parcel in parcels for job in parcel.jobs]
        try:
            if not returned and jobs:
                await self._scheduler.submit(jobs)
            for n, (worker_id, deliveries) in enumerate(returned.items()):
                await self._scheduler.release(worker_id, deliveries, submit=jobs if n == len(returned) - 1 else ())
        except RunyardError as error:
            log.warning("locks run out and the reconciler submits: the scheduler failed", error=str(error))
        return [None] * len(parcels)

    async def _hint(self, refs: Sequence[RunRef]) -> list[None]:
        try:
            await self._scheduler.hint_cancel(refs)
        except RunyardError as error:
            log.warning("a cancel is not hinted: the scheduler failed", error=str(error))
        return [None] * len(refs)
