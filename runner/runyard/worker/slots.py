"""The slots of a worker. A slot holds a delivery and, after the claim of its run, the execution of the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ..execution.executor import Execution
from ..ports.refs import RunRef
from ..ports.scheduling import Delivery, Job
from ..support import metrics

CHAIN_SECONDS: Final = 1.0
"""Maximum duration of a chain in seconds. After this time the next run of the lane is submitted, and any worker may take this
run."""
CHAIN_RUNS: Final = 8
"""Maximum number of runs of a chain while no slot is free. The maximum exists because runs of other lanes may wait for a
slot."""


@dataclass(slots=True)
class Slot:
    """One run in a slot.

    ``again``: a second delivery of the same run. The worker claims the run of this delivery when the execution ends.
    ``taken_at``: the time at which the slot was taken for the first run of its chain, in seconds of the monotonic clock.
    ``runs``: the number of runs of the chain so far.
    """

    worker_id: str
    delivery: Delivery
    execution: Execution | None = None
    again: Delivery | None = None
    taken_at: float = field(default_factory=time.monotonic)
    runs: int = 1


class Slots:
    """The slots of one worker, at most ``size``.

    A run gets a slot when the worker has taken the run's job, before the claim in Postgres. While the run has the slot, the
    heartbeat thread renews the lock of the run's lane.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots: dict[RunRef, Slot] = {}
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def free(self) -> int:
        return max(0, self.size - len(self._slots))

    def take(self, worker_id: str, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Put ``deliveries`` into slots. Return the deliveries whose runs are to be claimed.

        The worker does not claim a run that already has a slot. An answer may queue a suspended run again before the task of
        its attempt has ended. The second delivery then waits until the slot is free.
        """
        fresh = []
        for delivery in deliveries:
            slot = self._slots.get(delivery.job.ref)
            if slot is None:
                self._slots[delivery.job.ref] = Slot(worker_id, delivery)
                metrics.SLOTS_IN_USE.inc()
                fresh.append(delivery)
            else:
                slot.again = delivery
        return fresh

    def start(self, ref: RunRef, execution: Execution) -> Slot:
        """Put the execution of a claimed run into the run's slot. Return the slot."""
        slot = self._slots[ref]
        slot.execution = execution
        return slot

    def leave(self, ref: RunRef) -> Slot:
        """Free the run's slot. Return the freed slot, with the deliveries that it held."""
        slot = self._slots.pop(ref)
        metrics.SLOTS_IN_USE.dec()
        self._left.set()
        return slot

    def may_pass_on(self, ref: RunRef, worker_id: str) -> bool:
        """Return whether the run's slot may be passed on to the next run of its lane. ``worker_id``: the worker's id."""
        slot = self._slots.get(ref)
        if slot is None or slot.worker_id != worker_id or time.monotonic() - slot.taken_at >= CHAIN_SECONDS:
            return False
        return self.free > 0 or slot.runs < CHAIN_RUNS

    def pass_on(self, ref: RunRef, job: Job) -> Delivery | None:
        """Give the slot of the run ``ref``, and its lock of the lane, to the next run of the lane. Return its delivery.

        Return None if the next run has a slot already, because the worker also took the run's job from the scheduler. The
        delivery then waits as the second delivery of this slot.
        """
        slot = self._slots[ref]
        delivery = replace(slot.again or slot.delivery, job=job)
        if job.ref in self._slots:
            self._slots[job.ref].again = delivery
            self.leave(ref)
            return None
        # The lock is held throughout, because the heartbeat thread always finds it in one of the two slots.
        self._slots[job.ref] = Slot(slot.worker_id, delivery, taken_at=slot.taken_at, runs=slot.runs + 1)
        del self._slots[ref]
        return delivery

    def execution(self, ref: RunRef) -> Execution | None:
        slot = self._slots.get(ref)
        return slot.execution if slot else None

    def holds(self, ref: RunRef) -> bool:
        return ref in self._slots

    def executions(self) -> list[Execution]:
        return [slot.execution for slot in self._slots.values() if slot.execution is not None]

    def held(self, worker_id: str) -> Sequence[Delivery]:
        """Return the deliveries whose locks ``worker_id`` holds.

        The heartbeat thread calls this method while the main loop changes the table. The method therefore copies the table in
        one step.
        """
        slots = [slot for slot in list(self._slots.values()) if slot.worker_id == worker_id]
        return [slot.again or slot.delivery for slot in slots]

    async def room(self) -> None:
        """Wait until a slot is free."""
        while not self.free:
            self._left.clear()
            await self._left.wait()
