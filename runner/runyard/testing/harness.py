"""Harness: executes runs on the memory store, without servers. The test moves the clock of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from ..app import App
from ..client.client import Client
from ..client.run_handle import RunResult
from ..domain.events import Event
from ..domain.messages import Message
from ..domain.runs import ForkOnceResult, Run
from ..domain.size_limits import JsonValue
from ..domain.states import RunStatus
from ..domain.threads import Thread
from ..events.run_stream import RECHECK_SECONDS, events_so_far
from ..ports.refs import AttemptToken
from ..support import backend_urls
from .crashes import Crash, CrashPlan, Moment, Write
from .task_ends import ended
from .worker import DueTimeScheduler, HarnessWorker, PatchedBackend

if TYPE_CHECKING:
    pass

T = TypeVar("T")
Over: TypeAlias = "Callable[[], Awaitable[bool]]"

QUIET_TURNS: Final = 200
"""Number of iterations of the event loop without a running run, after which the harness counts as idle."""
MAX_CLOCK_JUMPS: Final = 100
"""Maximum number of times that one call moves the clock, if no worker writes in between."""


class StuckError(AssertionError):
    """The awaited result will never exist, because no run can continue before the test makes another call."""


@dataclass(frozen=True)
class HarnessRun(RunResult):
    """The result of a stopped run: a :class:`~runyard.RunResult`, and the ``events`` of the run so far."""

    events: list[Event] = field(default_factory=list)
    harness: Harness = field(kw_only=True, repr=False)

    @property
    def id(self) -> str:
        return self.run.run_id

    @property
    def attempts(self) -> int:
        """The number of attempts. Every crash, retry and answer starts another attempt."""
        return self.run.attempt

    async def respond(self, answer: JsonValue, request_id: str | None = None) -> HarnessRun:
        """Answer the run's question. Execute the run until it stops again, and return its result.

        The errors are as in :meth:`runyard.Client.respond`.
        """
        if request_id is None and len(self.requests) == 1:
            request_id = self.requests[0].request_id
        return await self.harness.respond(self.run.thread_id, answer, request_id)


class Harness:
    """Executes the runs of an app in this process, on an empty memory store.

    Use it as ``async with Harness(app) as harness``, with an App or a single agent. The harness executes every run that it or
    its ``client`` enqueues. A call that waits for a run returns when the run has ended, asks a human, or waits for a signal.
    Such a call does not wait for backoffs, sleeps and later due times. Instead, the call moves the clock of the store.
    ``asyncio.sleep`` in the agent and the timeout of an attempt take their real time.

    The exit of the harness raises AssertionError if an ordered crash (``crash``, ``crash_before``, ``crash_after``) did not
    happen.
    """

    def __init__(self, app: object, *, tenant: str = "") -> None:
        self.app = app if isinstance(app, App) else App({"agent": app})
        self.client: Client
        self._tenant = tenant
        self._now = datetime.now(UTC)
        self._crash_plan = CrashPlan()

    @property
    def now(self) -> datetime:
        """The time of the store's clock."""
        return self._now

    @property
    def writes(self) -> list[Write]:
        """The writes of workers for runs, in order, including the writes that a crash prevented."""
        return list(self._crash_plan.writes)

    async def __aenter__(self) -> Self:
        backend = await backend_urls.connect("memory://", tenant=self._tenant, now=lambda: self._now)
        self._due_times = DueTimeScheduler(backend.scheduler, lambda: self._now)
        parts: Any = PatchedBackend(backend, scheduler=self._due_times)
        self.client = Client(parts, app_version=self.app.version, namespace=self.app.namespace)
        self._worker = HarnessWorker(self.app, parts, self._due_times, self._crash_plan)
        context = copy_context()
        context.run(stage.set, HarnessScope())
        self._serving = asyncio.create_task(self._worker.serve(), name="Harness", context=context)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._worker.close()
        await ended(self._serving)
        if kind is None and self._crash_plan.pending:
            raise AssertionError("; ".join(str(crash) for crash in self._crash_plan.pending))

    async def prompt(self, thread_id: str, message: str | Message | None, run_id: str | None = None, **how: Any) -> HarnessRun:
        """Enqueue a prompt. Execute its run until it stops, and return its result.

        The arguments and errors are as in :meth:`runyard.Client.enqueue`.
        """
        handle = await self.client.enqueue(thread_id, message, run_id, **how)
        return await self.result(thread_id, handle.run_id)

    async def respond(
        self, thread_id: str, answer: JsonValue, request_id: str | None = None, response_id: str | None = None
    ) -> HarnessRun:
        """Answer a question. Execute the run that asked the question until the run stops again, and return the run's result.

        The errors are as in :meth:`runyard.Client.respond`.
        """
        request = await self.client.respond(thread_id, answer, request_id, response_id)
        assert request.thread_id is not None and request.run_id is not None
        return await self.result(request.thread_id, request.run_id)

    async def result(self, thread_id: str, run_id: str) -> HarnessRun:
        """Execute a run until it stops, and return its result.

        Raises StuckError if the run can neither end nor be suspended. Raises ScriptEndedError if the run's model has no
        further reply.
        """
        handle = self.client.handle(thread_id, run_id)

        async def over() -> bool:
            return (await handle.run()).stopped

        await self._run_until(over)
        run = await handle.run()
        if not run.stopped and run.status is not RunStatus.SUSPENDED:
            raise StuckError(f"run {run_id!r} does not continue: {await handle.explain()}")
        result = await self.client.result_of(run)
        if result.error is not None and result.error.details.get("type") == "ScriptEndedError":
            from .model import ScriptEndedError

            raise ScriptEndedError(result.error.message)
        async with aclosing(events_so_far(self.client.backend, thread_id, run_id)) as stream:
            events = [event async for event in stream]
        return HarnessRun(result.run, result.messages, result.requests, events=events, harness=self)

    async def fork(self, src: str, new: str | None = None, after_run_id: str | None = None, **how: Any) -> Thread:
        """Fork a thread. The arguments and errors are as in :meth:`runyard.Client.fork`."""
        return await self.work(self.client.fork(src, new, after_run_id, **how))

    async def fork_once(self, src: str, message: str | Message, after_run_id: str | None = None, **how: Any) -> ForkOnceResult:
        """Answer a probe on a thread. The arguments and errors are as in :meth:`runyard.Client.fork_once`."""
        return await self.work(self.client.fork_once(src, message, after_run_id, **how))

    async def messages(self, thread_id: str) -> list[Message]:
        """Return the conversation, from its first message to the newest."""
        return (await self.client.messages(thread_id)).items

    async def work(self, call: Awaitable[T]) -> T:
        """Execute runs until ``call`` has its result. Return the result. ``call``: a call of the client.

        Raises StuckError if no run can continue before ``call`` has its result.
        """
        task = asyncio.ensure_future(call)

        async def over() -> bool:
            return task.done()

        deaths = self._worker.deaths
        try:
            if not await self._run_until(over) and self._worker.deaths > deaths:
                await asyncio.wait((task,), timeout=RECHECK_SECONDS + 1)  # the event that ends the call was lost in the crash
            if not task.done():
                raise StuckError("no run can continue before the test makes another call, so the awaited call has no result")
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def advance(self, seconds: float) -> None:
        """Move the store's clock by ``seconds``. Execute due runs, and apply the deadlines of questions."""
        end = self._now + timedelta(seconds=seconds)
        await self._settled()
        while (due := await self._next(deadlines=True)) is not None and due <= end:
            await self._jump(due)
        await self._jump(end)

    def crash(self, moment: Moment, verb: Write | None = None, nth: int = 1) -> None:
        """Order a crash: the worker dies ``before`` or ``after`` the ``nth`` write after this call.

        ``nth``: from 1. ``verb``: count only the writes of this name. After the crash another worker takes over. The agent's
        cleanup code is still executed, because the process does not end. The store refuses the writes of the dead worker.
        """
        self._crash_plan.pending.append(Crash(moment, verb, nth))

    def crash_before(self, verb: Write, nth: int = 1) -> None:
        """Order a crash before a commit. The agent's work since the last commit is then not recorded."""
        self.crash("before", verb, nth)

    def crash_after(self, verb: Write, nth: int = 1) -> None:
        """Order a crash after a commit. The worker does not receive the answer of the store."""
        self.crash("after", verb, nth)

    async def _run_until(self, over: Over) -> bool:
        """Execute runs and move the clock. Return True when ``over()`` is true. Return False when no run can continue."""
        written, jumps = len(self._crash_plan.writes), 0
        while not await self._settled(over):
            due = await self._next(deadlines=False)
            jumps = jumps + 1 if written == len(self._crash_plan.writes) else 0
            written = len(self._crash_plan.writes)
            if due is None or jumps > MAX_CLOCK_JUMPS:
                return False
            await self._jump(due)
        return True

    async def _settled(self, over: Over | None = None) -> bool:
        """Execute runs. Return True when ``over()`` is true. Return False when the worker is idle."""
        quiet = 0
        while quiet < QUIET_TURNS:
            if over is not None and await over():
                return True
            if self._serving.done():
                await ended(self._serving)
            if self._worker.busy:
                await self._worker.progress()
                quiet = 0
            else:
                await asyncio.sleep(0)
                quiet += 1
        return False

    async def _next(self, *, deadlines: bool) -> datetime | None:
        """Return the next due time of a run, or None. ``deadlines``: include the deadlines of questions."""
        due = [*self._due_times.due]
        if deadlines:
            seconds = await self._worker.admit()
            due += [] if seconds is None else [self._now + timedelta(seconds=seconds)]
        else:
            due += [run.run_at async for run in self._of_status(RunStatus.QUEUED) if run.run_at is not None]
            due += await self._ends_of_sleeps()
        return min((moment for moment in due if moment > self._now), default=None)

    async def _ends_of_sleeps(self) -> list[datetime]:
        found: list[datetime] = []
        async for run in self._of_status(RunStatus.SUSPENDED):
            key = await self.client.backend.threads.thread_key(run.thread_id)
            if run.waiting_for == "wait" and key is not None and run.fence is not None:
                ledger = await self.client.backend.runs.ledger(AttemptToken(key, run.run_id, run.fence))
                sleeps = [wait for wait in ledger.waits.values() if wait.kind == "sleep" and wait.ended_at is None]
                found += [wait.due_at for wait in sleeps if wait.due_at is not None]
        return found

    async def _of_status(self, status: RunStatus) -> AsyncGenerator[Run]:
        cursor: str | None = None
        while True:
            page = await self.client.runs(status=status, cursor=cursor)
            for run in page.items:
                yield run
            if (cursor := page.next) is None:
                return

    async def _jump(self, moment: datetime) -> None:
        """Set the clock to ``moment``, and execute the due runs."""
        self._now = max(self._now, moment)
        self._due_times.forget(self._now)
        await self._worker.rescue()
        await self._worker.check_queues()
        await self._settled()


class HarnessScope:
    """A key under which helpers store their state for one harness. Each harness makes a new key."""


PROCESS: Final = HarnessScope()

stage: ContextVar[HarnessScope] = ContextVar("runyard_stage", default=PROCESS)
"""The scope of the current task."""
