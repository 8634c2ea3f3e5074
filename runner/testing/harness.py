"""Runs agents to completion on the memory store: no servers, no waiting, and a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from .. import registry
from ..app import App
from ..client import Client
from ..handle import RunResult
from ..models import Event, ForkOnceResult, JsonValue, Message, Run, Thread
from ..states import RunStatus
from ..streams import RECHECK, stopped
from .crashes import Crash, Fuse, Moment, Write
from .stage import Stage, stage
from .worker import Agenda, HarnessWorker, Parts

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

    from ..app import AgentFunction

T = TypeVar("T")
Over: TypeAlias = "Callable[[], Awaitable[bool]]"

QUIET: Final = 200
"""Turns of the event loop without a run in hand, after which nothing happens by itself."""
JUMPS: Final = 100
"""Times that the clock is moved on for one call in which no worker writes anything."""


class StuckError(AssertionError):
    """What was awaited cannot happen: the run waits for something that nobody will do."""


@dataclass(frozen=True)
class HarnessRun(RunResult):
    """Where a run stopped: :class:`~runner.RunResult` with its ``events`` so far."""

    events: list[Event] = field(default_factory=list)
    harness: Harness = field(kw_only=True, repr=False)

    @property
    def id(self) -> str:
        return self.run.run_id

    @property
    def attempts(self) -> int:
        """How many attempts there were; a crash, a retry and an answer each lead to another."""
        return self.run.attempt

    async def respond(self, answer: JsonValue, request_id: str | None = None) -> HarnessRun:
        """Answer the run's question and go on to where it stops next. Raises as :meth:`runner.Client.respond`."""
        if request_id is None and len(self.requests) == 1:
            request_id = self.requests[0].request_id
        return await self.harness.respond(self.run.thread_id, answer, request_id)


class Harness:
    """Executes the runs of an app in this process, as a worker would, on an empty memory store.

    ``async with Harness(app) as harness``; a single agent, as an App takes it, will do as well. Whatever is enqueued, by the
    harness or by its ``client``, is executed. A call that waits for a run returns when the run ended or asks a human; backoffs
    and later times on the way are skipped, not waited for. What an agent itself awaits (``asyncio.sleep``, the timeout of an
    attempt) takes its time.

    Leaving it raises AssertionError if a crash that was ordered did not happen.
    """

    def __init__(self, app: App | AgentFunction | AbstractAgent[Any, Any], *, tenant: str = "") -> None:
        self.app = app if isinstance(app, App) else App({"agent": app})
        self.client: Client
        self._tenant = tenant
        self._now = datetime.now(UTC)
        self._fuse = Fuse()

    @property
    def now(self) -> datetime:
        """The time by the store's clock."""
        return self._now

    @property
    def writes(self) -> list[Write]:
        """What workers wrote for runs so far, or were about to when they died, in order."""
        return list(self._fuse.writes)

    async def __aenter__(self) -> Self:
        backend = await registry.connect("memory://", tenant=self._tenant, now=lambda: self._now)
        self._agenda = Agenda(backend.scheduler, lambda: self._now)
        parts: Any = Parts(backend, scheduler=self._agenda)
        self.client = Client(parts, app_version=self.app.version)
        self._worker = HarnessWorker(self.app, parts, self._agenda, self._fuse)
        context = copy_context()
        context.run(stage.set, Stage())
        self._serving = asyncio.create_task(self._worker.serve(), name="Harness", context=context)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._worker.close()
        await self._serving
        if kind is None and self._fuse.armed:
            raise AssertionError("; ".join(f"{crash} when the test ended" for crash in self._fuse.armed))

    async def prompt(self, thread_id: str, message: str | Message | None, run_id: str | None = None, **how: Any) -> HarnessRun:
        """Enqueue a prompt and return where its run stops. Arguments and errors as of :meth:`runner.Client.enqueue`."""
        handle = await self.client.enqueue(thread_id, message, run_id, **how)
        return await self.result(thread_id, handle.id)

    async def respond(
        self, thread_id: str, answer: JsonValue, request_id: str | None = None, response_id: str | None = None
    ) -> HarnessRun:
        """Answer a question and return where its run stops next. Errors as of :meth:`runner.Client.respond`."""
        request = await self.client.respond(thread_id, answer, request_id, response_id)
        assert request.thread_id is not None and request.run_id is not None
        return await self.result(request.thread_id, request.run_id)

    async def result(self, thread_id: str, run_id: str) -> HarnessRun:
        """Where a run stops. Raises StuckError if it never will; ScriptEndedError if its model had no reply left."""
        handle = self.client.handle(thread_id, run_id)

        async def over() -> bool:
            return stopped(await handle.run())

        if not await self._go_on(over):
            raise StuckError(f"run {run_id!r} does not go on: {await handle.explain()}")
        result = await handle.result()
        if result.error is not None and result.error.details.get("type") == "ScriptEndedError":
            from .model import ScriptEndedError

            raise ScriptEndedError(result.error.message)
        async with aclosing(handle.stream()) as stream:
            events = [event async for event in stream]
        return HarnessRun(result.run, result.messages, result.requests, events=events, harness=self)

    async def fork(self, src: str, new: str | None = None, after_run_id: str | None = None, **how: Any) -> Thread:
        """Fork a thread. Arguments and errors as of :meth:`runner.Client.fork`."""
        return await self.work(self.client.fork(src, new, after_run_id, **how))

    async def fork_once(self, src: str, message: str | Message, after_run_id: str | None = None, **how: Any) -> ForkOnceResult:
        """Probe a thread. Arguments and errors as of :meth:`runner.Client.fork_once`."""
        return await self.work(self.client.fork_once(src, message, after_run_id, **how))

    async def messages(self, thread_id: str) -> list[Message]:
        """The conversation, from its first message to the newest."""
        return (await self.client.messages(thread_id)).items

    async def work(self, call: Awaitable[T]) -> T:
        """Return what ``call`` of the client returns, which waits for runs. Raises StuckError if nothing goes on any more."""
        task = asyncio.ensure_future(call)

        async def over() -> bool:
            return task.done()

        deaths = self._worker.deaths
        try:
            if not await self._go_on(over) and self._worker.deaths > deaths:
                await asyncio.wait((task,), timeout=RECHECK + 1)  # the event that it waits for died with its worker
            if not task.done():
                raise StuckError("nothing that this waits for goes on any more")
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass by the store's clock: what becomes due is executed, and questions reach their deadlines."""
        end = self._now + timedelta(seconds=seconds)
        await self._settled()
        while (due := await self._next(deadlines=True)) is not None and due <= end:
            await self._jump(due)
        await self._jump(end)

    def crash(self, moment: Moment, verb: Write | None = None, nth: int = 1) -> None:
        """Order a crash: the worker dies ``before`` or ``after`` the ``nth`` write from now on (``verb``: such write).

        After it another worker takes over. Code that cleans up in the agent still executes in this process, but the dead
        worker writes nothing any more.
        """
        self._fuse.armed.append(Crash(moment, verb, nth))

    def crash_before(self, verb: Write, nth: int = 1) -> None:
        """The worker dies when it is about to commit: what the agent did for it has happened and is not recorded."""
        self.crash("before", verb, nth)

    def crash_after(self, verb: Write, nth: int = 1) -> None:
        """The worker dies when it has committed, and before anybody hears of it."""
        self.crash("after", verb, nth)

    async def _go_on(self, over: Over) -> bool:
        """Execute what can be, skipping times, until ``over``: True; or until nothing goes on any more: False."""
        written, jumps = len(self._fuse.writes), 0
        while not await self._settled(over):
            due = await self._next(deadlines=False)
            jumps = jumps + 1 if written == len(self._fuse.writes) else 0
            written = len(self._fuse.writes)
            if due is None or jumps > JUMPS:
                return False
            await self._jump(due)
        return True

    async def _settled(self, over: Over | None = None) -> bool:
        """Wait until it is ``over``: True; or until nothing happens by itself any more: False."""
        quiet = 0
        while quiet < QUIET:
            if over is not None and await over():
                return True
            if self._serving.done():
                await self._serving
            if self._worker.busy:
                await self._worker.progress()
                quiet = 0
            else:
                await asyncio.sleep(0)
                quiet += 1
        return False

    async def _next(self, *, deadlines: bool) -> datetime | None:
        """When the next thing is due that waits for its time; ``deadlines``: those of questions too."""
        due = [*self._agenda.due]
        if deadlines:
            seconds = await self._worker.admit()
            due += [] if seconds is None else [self._now + timedelta(seconds=seconds)]
        else:
            due += [run.run_at async for run in self._queued() if run.run_at is not None]
        return min((moment for moment in due if moment > self._now), default=None)

    async def _queued(self) -> AsyncGenerator[Run]:
        cursor: str | None = None
        while True:
            page = await self.client.runs(status=RunStatus.QUEUED, cursor=cursor)
            for run in page.items:
                yield run
            if (cursor := page.next) is None:
                return

    async def _jump(self, moment: datetime) -> None:
        """Make it ``moment``, and let happen what is due then."""
        self._now = max(self._now, moment)
        self._agenda.forget(self._now)
        await self._worker.rescue()
        await self._worker.look()
        await self._settled()
