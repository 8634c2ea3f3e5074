"""What an operator asks of a deployment, over all tenants: its workers and queues."""

from __future__ import annotations

from datetime import datetime

from ..errors import InvalidInputError, WorkerNotFoundError
from ..exchange import QueueInfo, WorkerInfo
from .base import Calls


class OperatorCalls(Calls):
    """Look at workers and queues, drain, pause."""

    async def workers(self) -> list[WorkerInfo]:
        """All workers known, the oldest first; the dead stay listed for a day."""
        return await self.backend.workers.workers()

    async def worker(self, part: str) -> WorkerInfo:
        """The worker whose id is ``part``, or the only one whose id contains it.

        Raises WorkerNotFoundError, InvalidInputError if several ids contain it.
        """
        known = {worker.worker_id: worker for worker in await self.workers()}
        found = [known[part]] if part in known else [worker for id, worker in known.items() if part in id]
        if not found:
            raise WorkerNotFoundError(f"no worker's id contains {part!r}", worker_id=part, workers=list(known))
        if len(found) > 1:
            ids = ", ".join(worker.worker_id for worker in found)
            raise InvalidInputError(f"{part!r} is in the ids of several workers, give more of one: {ids}", field="worker_id")
        return found[0]

    async def drain_worker(self, worker_id: str) -> None:
        """Ask a worker to take nothing more, finish what it has, however long that takes, and end. It hears of it within a
        second. Raises WorkerDeadError."""
        await self.backend.workers.drain(worker_id)

    async def queues(self) -> list[QueueInfo]:
        """What waits in each queue that holds runs, is paused or is served, by name."""
        return await self.backend.queues.queues()

    async def pause_queue(self, queue: str) -> datetime:
        """Let no worker claim runs of ``queue``; they are still accepted. Returns since when that is so.

        Raises InvalidInputError.
        """
        return await self.backend.queues.pause(queue)

    async def resume_queue(self, queue: str) -> bool:
        """Let runs of ``queue`` be claimed again, within a second. Returns whether it was paused."""
        return await self.backend.queues.resume(queue)
