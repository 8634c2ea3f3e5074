"""The slots of a worker. A slot holds a delivery and, after the claim of its run, the execution of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..execution.executor import Execution
from ..ports.refs import RunRef
from ..ports.scheduling import Delivery
from ..support import metrics


@dataclass(slots=True)
class Slot:
    """One run in a slot.

    ``again``: a second delivery of the same run. The worker claims the run of this delivery when the execution ends.
    """

    worker_id: str
    delivery: Delivery
    execution: Execution | None = None
    again: Delivery | None = None


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
        """Put ``deliveries`` into slots. Return the deliveries to claim.

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

    def start(self, ref: RunRef, execution: Execution) -> None:
        """Put the execution of a claimed run into the run's slot."""
        self._slots[ref].execution = execution

    def leave(self, ref: RunRef) -> Slot:
        """Free the run's slot. Return the slot."""
        slot = self._slots.pop(ref)
        metrics.SLOTS_IN_USE.dec()
        self._left.set()
        return slot

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
