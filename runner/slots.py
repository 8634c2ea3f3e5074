"""What a worker has in its hands: deliveries, and the executions that some of them became."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import metrics
from .exchange import Delivery, RunRef
from .executor import Execution


@dataclass(slots=True)
class Slot:
    """One run in hand. ``again``: a second delivery of the same run, to be claimed when this one is through."""

    worker_id: str
    delivery: Delivery
    execution: Execution | None = None
    again: Delivery | None = None


class Slots:
    """At most ``size`` runs at once. Every run in hand has its lane's lock renewed, before and after it was claimed."""

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
        """Put deliveries in hand and return those to claim.

        A run that is in hand already is not claimed beside itself. It may be queued once more by a respond that followed the
        suspension that its task is just leaving, so its delivery is kept until then.
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
        """The run was claimed."""
        self._slots[ref].execution = execution

    def leave(self, ref: RunRef) -> Slot:
        """Put the run out of hand."""
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
        """The deliveries whose locks ``worker_id`` holds. Called from the liveness thread: copies the table in one step."""
        slots = [slot for slot in list(self._slots.values()) if slot.worker_id == worker_id]
        return [slot.again or slot.delivery for slot in slots]

    async def room(self) -> None:
        """Wait until a slot is free."""
        while not self.free:
            self._left.clear()
            await self._left.wait()
