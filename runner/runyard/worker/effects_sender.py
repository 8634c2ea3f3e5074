"""The effects sender applies the effects of commits to Redis and releases deliveries. One call of the scheduler or the event
log serves many commits."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from ..errors import RunyardError
from ..events.writer import EventWriter
from ..ports.refs import RunRef
from ..ports.scheduling import Delivery, Effects, EventLog, Job, Scheduler
from ..support import metrics
from ..support.batching import Batcher

log = structlog.get_logger("runyard.effects")


@dataclass(frozen=True, slots=True)
class Release:
    """A delivery to release, and jobs to submit.

    ``worker_id``: the worker that took the delivery. ``delivery``: the delivery, or None. ``jobs``: the jobs to submit.
    """

    worker_id: str = ""
    delivery: Delivery | None = None
    jobs: Sequence[Job] = ()


class EffectsSender:
    """The effects sender of a worker. After a failed call, the reconciler submits the jobs that Redis did not get."""

    def __init__(self, scheduler: Scheduler, events: EventLog, writer: EventWriter) -> None:
        self._scheduler = scheduler
        self._events = events
        self._writer = writer
        self._releases: Batcher[Release, None] = Batcher(self._send, limit=500)
        self._hints: Batcher[RunRef, None] = Batcher(self._hint, limit=500)
        self._deletions: Batcher[int, None] = Batcher(self._forget, limit=500)

    def give_back(self, worker_id: str, delivery: Delivery, effects: Effects | None = None, jobs: Sequence[Job] = ()) -> None:
        """Release the delivery's lock, then submit ``jobs`` and apply ``effects``."""
        effects = effects or Effects()
        self._releases(Release(worker_id, delivery, (*effects.submissions, *jobs)))
        self._send_the_rest(effects)

    def carry_out(self, effects: Effects) -> None:
        """Apply the effects of a commit."""
        if effects.jobs or effects.withdrawn:
            self._releases(Release(jobs=effects.submissions))
        self._send_the_rest(effects)

    async def drained(self) -> None:
        """Wait until all calls have succeeded or failed."""
        await asyncio.gather(self._releases.drained(), self._hints.drained(), self._deletions.drained())

    def _send_the_rest(self, effects: Effects) -> None:
        if effects.events:
            metrics.count_ends(effects.events)
            self._writer.outside(effects.events)
        for ref in effects.cancels:
            self._hints(ref)
        for thread_key in effects.deleted:
            self._deletions(thread_key)

    async def _send(self, releases: Sequence[Release]) -> list[None]:
        returned: defaultdict[str, list[Delivery]] = defaultdict(list)
        for release in releases:
            if release.delivery is not None:
                returned[release.worker_id].append(release.delivery)
        jobs = [job for release in releases for job in release.jobs]
        try:
            if not returned and jobs:
                await self._scheduler.submit(jobs)
            for n, (worker_id, deliveries) in enumerate(returned.items()):
                await self._scheduler.release(worker_id, deliveries, submit=jobs if n == len(returned) - 1 else ())
        except RunyardError as error:
            # The locks will expire. The reconciler will submit the jobs that Redis has not received.
            held = [delivery.job for deliveries in returned.values() for delivery in deliveries]
            first = [*jobs, *held][0]
            log.warning(
                "scheduler_call_failed",
                jobs_to_submit=len(jobs),
                deliveries_to_release=len(held),
                first_thread_key=first.thread_key,
                first_run_id=first.run_id,
                error=str(error),
            )
        return [None] * len(releases)

    async def _hint(self, refs: Sequence[RunRef]) -> list[None]:
        try:
            await self._scheduler.hint_cancel(refs)
        except RunyardError as error:
            first = {"first_thread_key": refs[0].thread_key, "first_run_id": refs[0].run_id}
            log.warning("cancel_hints_not_sent", hints=len(refs), **first, error=str(error))
        return [None] * len(refs)

    async def _forget(self, thread_keys: Sequence[int]) -> list[None]:
        try:
            await self._events.forget(thread_keys)
        except RunyardError as error:  # the streams will expire
            names = {"threads": len(thread_keys), "first_thread_key": thread_keys[0]}
            log.warning("stream_deletion_failed", **names, error=str(error))
        return [None] * len(thread_keys)
