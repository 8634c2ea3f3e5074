"""One attempt of a run in this process, without a worker. The context of the attempt writes through a checkpointer (R17)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from ..domain.approvals import DENIED_IN_TIME
from ..domain.events import Event
from ..domain.messages import Message, Usage
from ..domain.requests import HitlRequest
from ..domain.runs import Run, RunKind
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.states import RunStatus
from ..domain.threads import CheckpointData
from ..domain.tool_cycles import cycles_closed
from ..errors import AgentCancelledError, IncompleteToolCycleError
from ..events.writer import EventEmitter
from ..execution import log_fields
from ..execution.children import Children
from ..execution.context import RunContext
from ..execution.control_signals import Suspend, signals_in, unwrap
from ..execution.end_records import describe
from ..execution.history_window import page_of
from ..execution.remainder import Remainder
from ..execution.steps import current_context
from ..execution.transcript import completed_events, requested_event
from ..ports.refs import AttemptToken
from ..ports.results import Ledger, Step
from .channels import Channel, InMemoryChannel
from .local_thread import RESERVED, LocalThread

Work: TypeAlias = Callable[[RunContext], Awaitable[None]]
Listener: TypeAlias = Callable[[Event], None]


class Listeners:
    """The subscribers to the events of an Agent's runs. A subscriber gets each event at once.

    A worker has an EventWriter instead.
    """

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def pending(self, stream: EventEmitter, *, urgent: bool = False) -> None:
        """Deliver the new events of ``stream``."""
        for event in stream.take():
            for listener in [*self._listeners.values()]:
                try:
                    listener(event)
                except Exception as error:  # a failing listener must not fail the run
                    import structlog

                    from ..support.logging import plain_tracebacks

                    plain_tracebacks()
                    names = {"thread_id": event.thread_id, "run_id": event.run_id, "event_type": event.type}
                    structlog.get_logger("runyard.agent").exception("event_listener_failed", **names, error=str(error))


def external_run(thread_id: str, run_id: str, given: Message | None, *, attempt: int = 1, kind: RunKind = "external") -> Run:
    """Return a Run object that describes an external run to its agent. The object is not stored.

    ``given``: the prompt, or None.
    """
    now = datetime.now(UTC)
    return Run(
        thread_id=thread_id,
        run_id=run_id,
        kind=kind,
        status=RunStatus.RUNNING,
        input=given,
        accepted_at=now,
        started_at=now,
        attempt=attempt,
        fence=int(now.timestamp() * 1_000_000),
    )


class LocalAttemptStore:
    """The attempt store of an in-process run.

    ``messages``: the messages from which the run starts, then the run's own messages. ``before``: how many of these messages
    do not belong to the run.
    """

    durable = True
    waits = False
    children: Children | None = None
    graphs = None

    def __init__(self, local_thread: LocalThread, run_id: str, data: CheckpointData, messages: list[Message]) -> None:
        self._local_thread = local_thread
        self._run_id = run_id
        self._data = data
        self.messages = messages
        self.before = sum(message.run_id != run_id for message in messages)
        self._saving = asyncio.Lock()
        """Held from the read to the write of the records of the steps. A write replaces the records of all steps."""

    async def context(self) -> list[Message]:
        return [*self.messages]

    async def recent(self, limit: int, before: Message | None = None) -> list[Message]:
        return page_of(self.messages, limit, before)

    async def ledger(self) -> Ledger:
        return await self._local_thread.ledger(self._run_id, self._data)

    async def thread_usage(self) -> Usage:
        """Return the total usage in the messages of the thread's other runs."""
        return sum((m.usage for m in self.messages[: self.before] if m.usage is not None), start=Usage())

    async def run_usage(self) -> Usage:
        return Usage()

    async def append(self, messages: Sequence[Message], *, first_event: int, usage: Usage | None = None) -> list[Message]:
        own = [message.model_copy(update={"run_id": self._run_id}) for message in messages]
        await self._local_thread.append(own)
        self.messages += own
        return own

    async def start_step(self, key: str, *, input: str | None = None) -> Step | None:
        async with self._saving:
            ledger = await self._local_thread.ledger(self._run_id, await self._local_thread.load())
            if key in ledger.steps:
                return ledger.steps[key]
            await self._local_thread.save_step(self._run_id, Step(key, done=False))
            return None

    async def finish_step(self, key: str, result: Any, *, usage: Usage | None = None) -> None:
        async with self._saving:
            await self._local_thread.save_step(self._run_id, Step(key, done=True, result=result))


class LocalContext(RunContext):
    """A context whose questions go to the Agent's channel."""

    def __init__(self, *args: Any, channel: Channel | None, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._channel = channel

    async def _ask(self, key: str, request: HitlRequest, timeout: float | None, on_timeout: JsonObject | None) -> JsonValue:
        channel = self._channel
        if timeout is None and channel is not None and channel.default_timeout is not None:
            timeout = channel.default_timeout
            on_timeout = on_timeout or (DENIED_IN_TIME if request.kind == "approval" else None)
        if not isinstance(channel, InMemoryChannel):
            return await super()._ask(key, request, timeout, on_timeout)
        where = {"request_id": self._request_id(key), "thread_id": self.thread_id, "run_id": self.run_id}
        asked = request.model_copy(update={**where, "timeout": timeout, "on_deadline": on_timeout})
        self._stream.emit(*requested_event(asked))
        answer = await channel.ask(asked)
        self._stream.emit("hitl.answered", {"request_id": asked.request_id, "answer": answer})
        return answer


@dataclass
class LocalAttempt:
    """One attempt of a run that the caller claimed. ``fresh``: whether this attempt is the run's first one."""

    local_thread: LocalThread
    run: Run
    data: CheckpointData
    attempt_store: LocalAttemptStore
    stream: EventEmitter
    channel: Channel | None
    fresh: bool = True
    left: Remainder = field(default_factory=Remainder.nothing)

    @classmethod
    async def begin(
        cls, local_thread: LocalThread, run: Run, listeners: Listeners, channel: Channel | None, *, fresh: bool
    ) -> LocalAttempt:
        data = await local_thread.load()
        messages = await local_thread.counts(data, run.run_id)
        attempt_store = LocalAttemptStore(local_thread, run.run_id, data, messages)
        stream = EventEmitter(listeners, AttemptToken(local_thread.thread_key, run.run_id, run.fence or 1), run.thread_id)
        return cls(local_thread, run, data, attempt_store, stream, channel, fresh)

    async def execute(self, work: Work) -> list[HitlRequest]:
        """Execute ``work`` until the run completes or waits for a human. Return the pending requests of the run.

        Raises the agent's error, IncompleteToolCycleError (R5), AgentCancelledError.
        """
        with log_fields.of_attempt(self.run, self.run.fence or 1):
            return await self._execute(work)

    async def _execute(self, work: Work) -> list[HitlRequest]:
        try:
            await self._announce()
            while True:
                error = await self._attempt(work)
                signals = [*signals_in(error)] if error else []
                signals += [self.left.signal] if self.left.signal else []
                if self.left.requests and any(isinstance(signal, Suspend) for signal in signals):
                    if waiting := await self._suspend():
                        return waiting
                    continue  # an answer came while the question was being stored
                if isinstance(error, asyncio.CancelledError):
                    raise AgentCancelledError("the agent cancelled its own task", run_id=self.run.run_id)
                if error is not None:
                    raise unwrap(error)
                await self._complete()
                return []
        except BaseException as error:
            self.stream.emit(
                "run.failed", {"status": "failed", "error": describe(error, None).without_traceback().model_dump(mode="json")}
            )
            raise
        finally:
            self.stream.close()

    async def _announce(self) -> None:
        if self.fresh:
            self.stream.emit("run.started", {"attempt": 1})
            for kind, data in completed_events(self.attempt_store.messages[self.attempt_store.before :]):
                self.stream.emit(kind, data)
            return
        answered = [r for r in (await self.attempt_store.ledger()).requests.values() if r.answered_at is not None]
        last = self.attempt_store.messages[-1].id if len(self.attempt_store.messages) > self.attempt_store.before else None
        self.stream.emit("run.resumed" if answered else "run.rewound", {"attempt": self.run.attempt, "message_id": last})
        for request in answered:
            if request.request_id not in self.local_thread.announced:
                self.local_thread.announced.add(request.request_id)
                self.stream.emit("hitl.answered", {"request_id": request.request_id, "answer": request.answer})

    async def _attempt(self, work: Work) -> BaseException | None:
        extra = {key: value for key, value in self.data.extra.items() if key != RESERVED}
        ledger = await self.attempt_store.ledger()
        context = LocalContext(
            *(self.run, self.attempt_store, self.stream),
            extra=extra,
            config=self.data.config,
            ledger=ledger,
            channel=self.channel,
        )
        task = asyncio.create_task(_within(context, work), name=f"agent of run {self.run.run_id}")
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            context.stop()
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            self.left = await context.remainder()
        if not task.cancelled() and task.exception() is None and self.left.signal is None:
            return None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not self.left.requests:
            await self._append(self.left.messages)  # keeps the finished messages of a failed attempt
        return error

    async def _append(self, messages: Sequence[Message]) -> None:
        stored = await self.attempt_store.append(messages, first_event=0)
        for kind, data in completed_events(stored):
            self.stream.emit(kind, data)

    async def _suspend(self) -> list[HitlRequest]:
        """Store the questions, then emit their events (H1, H11). Return the pending questions.

        If any question already has an answer, return an empty list.
        """
        await self._append(self.left.messages)
        if self.left.extra:
            await self.local_thread.checkpointer.save_extra(self.run.thread_id, self.left.extra)
        asked = self.left.requests
        await self.local_thread.requests.save_requests(self.run.thread_id, asked, run_id=self.run.run_id)
        kept = await self.local_thread.requests.load_requests(self.run.thread_id, run_id=self.run.run_id)
        ids = {request.request_id for request in asked}
        waiting = [request for request in kept if request.request_id in ids]
        self.data = await self.local_thread.load()
        if any(request.answered_at is not None for request in waiting):
            return []
        known = {request.request_id for request in asked if request.created_at is not None}
        for request in waiting:
            if request.request_id not in known:
                self.stream.emit(*requested_event(request))
        self.stream.emit("run.suspended", {"status": "suspended", "request_ids": [request.request_id for request in waiting]})
        return waiting

    async def _complete(self) -> None:
        own = [*self.attempt_store.messages[self.attempt_store.before :], *self.left.messages]
        whole = cycles_closed(self.attempt_store.messages[: self.attempt_store.before], own)
        await self._append(self.left.messages)
        if not whole:
            raise IncompleteToolCycleError(
                "a tool call of the run has no result directly after it", thread_id=self.run.thread_id, run_id=self.run.run_id
            )
        await self.local_thread.complete(self.run.run_id, self.left.extra)
        self.stream.emit("run.completed", {"status": "completed"})


async def _within(context: RunContext, work: Work) -> None:
    current_context.set(context)
    await work(context)
