"""One run on the memory backend, executed attempt by attempt, with the commits of its attempts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from runyard.app import App
from runyard.domain.states import RunStatus
from runyard.events.writer import EventWriter
from runyard.execution.context import RunContext
from runyard.execution.executor import Execution, WorkerServices
from runyard.models import Event, Message, RetryPolicy, RunOptions
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import RunRef
from runyard.ports.results import Ended
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo

Agent = Callable[[RunContext], Awaitable[None]]


@dataclass
class Lab:
    """One run on the memory backend, executed attempt by attempt."""

    backend: Backend
    writer: EventWriter
    commits: list[str] = field(default_factory=list)

    async def accept(self, text: str = "hi") -> None:
        options = RunOptions(max_attempts=5, retry=RetryPolicy(initial=0))
        await self.backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user(text), options=options))

    async def attempt(self, agent: Agent, worker: str = "w", app: App | None = None) -> Ended | None:
        """Claim the run and execute one attempt of it. ``app``: by default, an App with only ``agent``."""
        await self.backend.workers.register(WorkerInfo(worker_id=worker, queues=["default"]))
        [claim] = await self.backend.runs.claim(worker, [await self.ref()])
        assert claim.outcome == "claimed"
        return await Execution(WorkerServices.of(app or App({"agent": agent}), self.backend, self.writer), claim).run()

    async def ref(self) -> RunRef:
        key = await self.backend.threads.thread_key("t")
        assert key is not None
        return RunRef(key, "r")

    async def events(self) -> list[Event]:
        self.writer.close()
        await self.writer.run()
        return await self.backend.events.read(await self.ref())

    async def texts(self) -> list[str]:
        return [message.text for message in (await self.backend.threads.messages("t")).items]


def status(ended: Ended | None) -> RunStatus | None:
    return ended.status if ended else None
