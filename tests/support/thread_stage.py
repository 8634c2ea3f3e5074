"""A thread whose runs do what a test says."""

from __future__ import annotations

from typing import Any

from runyard import Client
from runyard.models import Event
from runyard.ports.commands import Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.workers import WorkerInfo
from runyard_backends.memory import MemoryBackend


class Stage:
    """A thread whose runs do what the test says, and nothing else."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.backend, self.client = backend, Client(backend)

    async def claim(self, run_id: str) -> AttemptToken:
        await self.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
        [claim] = await self.backend.runs.claim("w", [await self.ref(run_id)])
        assert claim.attempt is not None
        return claim.attempt

    async def ref(self, run_id: str) -> RunRef:
        key = await self.backend.threads.thread_key("t")
        assert key is not None
        return RunRef(key, run_id)

    async def tell(self, attempt: AttemptToken, n: int, type: str) -> None:
        """What a worker would."""
        data = {"attempt": 1 if type == "run.started" else 2}
        event = Event(id=f"{attempt.fence}-{n}", type=type, thread_id="t", run_id=attempt.run_id, data=data)
        await self.backend.events.append(attempt.thread_key, [event])

    async def begin(self, run_id: str, **how: Any) -> AttemptToken:
        await self.client.enqueue("t", "x", run_id, **how)
        attempt = await self.claim(run_id)
        await self.tell(attempt, 1, "run.started")
        return attempt

    async def complete(self, attempt: AttemptToken) -> None:
        await self.backend.runs.complete([Write(attempt=attempt, first_event=2)])
