"""One attempt of a run in this process, without a worker: its context writes through a checkpointer (design: external runs)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from ..channels import Channel, InMemoryChannel
from ..errors import AgentCancelledError, IncompleteToolCycleError
from ..eventwriter import EventStream
from ..exchange import Attempt, Ledger, Step
from ..models import CheckpointData, Event, HitlRequest, JsonObject, JsonValue, Message, Run, RunKind, Usage, cycles_closed
from ..outcomes import describe
from ..states import RunStatus
from .context import Remainder, RunContext
from .hitl import DENIED_IN_TIME
from .keeper import RESERVED, Keeper
from .signals import Suspend, signals_in, unwrap
from .steps import current_context
from .transcript import completed_events, requested_event

Work: TypeAlias = Callable[[RunContext], Awaitable[None]]
Listener: TypeAlias = Callable[[Event], None]


class Listeners:
    """Whom the events of an Agent's runs are told, at once and in order. It stands where a worker has its writer."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def pending(self, stream: EventStream, *, urgent: bool = False) -> None:
        """``stream`` has events."""
        for event in stream.take():
            for listener in [*self._listeners.values()]:
                try:
                    listener(event)
                except Exception:  # a listener is not part of the run
                    import structlog

                    structlog.get_logger("runyard.agent").exception("a listener failed", event_type=event.type)


def external_run(thread_id: str, run_id: str, given: Message | None, *, attempt: int = 1, kind: RunKind = "external") -> Run:
    """A run as its agent sees it that no store has a record of. ``given``: its prompt."""
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


class SoloJournal:
    """The journal of an in-process run. ``messages``: what the run sees, with what it wrote; the first ``before`` are not its
    own."""

    durable = True

    def __init__(self, keeper: Keeper, run_id: str, data: CheckpointData, messages: list[Message]) -> None:
        self._keeper = keeper
        self._run_id = run_id
        self._data = data
        self.messages = messages
        self.before = sum(message.run_id != run_id for message in messages)

    async def context(self) -> list[Message]:
        return [*self.messages]

    async def ledger(self) -> Ledger:
        return await self._keeper.ledger(self._run_id, self._data)

    async def thread_usage(self) -> Usage:
        """What the messages say that the thread's other runs used."""
        return sum((m.usage for m in self.messages[: self.before] if m.usage is not None), start=Usage())

    async def append(self, messages: Sequence[Message], *, first_event: int) -> list[Message]:
        own = [message.model_copy(update={"run_id": self._run_id}) for message in messages]
        await self._keeper.append(own)
        self.messages += own
        return own

    async def start_step(self, key: str) -> Step | None:
        ledger = await self._keeper.ledger(self._run_id, await self._keeper.load())
        if key in ledger.steps:
            return ledger.steps[key]
        await self._keeper.save_step(self._run_id, Step(key, done=False))
        return None

    async def finish_step(self, key: str, result: Any) -> None:
        await self._keeper.save_step(self._run_id, Step(key, done=True, result=result))


class SoloContext(RunContext):
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
        where = {"request_id": self._id(key), "thread_id": self.thread_id, "run_id": self.run_id}
        asked = request.model_copy(update={**where, "timeout": timeout, "on_deadline": on_timeout})
        self._stream.emit(*requested_event(asked))
        answer = await channel.ask(asked)
        self._stream.emit("hitl.answered", {"request_id": asked.request_id, "answer": answer})
        return answer


@dataclass
class Solo:
    """One attempt. ``work`` is the agent; ``run`` the run, claimed by whoever made this; ``fresh`` unless an earlier attempt
    was there."""

    keeper: Keeper
    run: Run
    data: CheckpointData
    journal: SoloJournal
    stream: EventStream
    channel: Channel | None
    fresh: bool = True
    left: Remainder = field(default_factory=Remainder.nothing)

    @classmethod
    async def begin(cls, keeper: Keeper, run: Run, listeners: Listeners, channel: Channel | None, *, fresh: bool) -> Solo:
        data = await keeper.load()
        messages = await keeper.counts(data, run.run_id)
        journal = SoloJournal(keeper, run.run_id, data, messages)
        stream = EventStream(listeners, Attempt(keeper.thread_key, run.run_id, run.fence or 1), run.thread_id)
        return cls(keeper, run, data, journal, stream, channel, fresh)

    async def execute(self, work: Work) -> list[HitlRequest]:
        """Run ``work`` until the run is completed, or until it waits for a human: then these are the requests.

        Raises what the agent raised; IncompleteToolCycleError (semantics: R5).
        """
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
                    raise AgentCancelledError("the agent was cancelled from inside", run_id=self.run.run_id)
                if error is not None:
                    raise unwrap(error)
                await self._complete()
                return []
        except BaseException as error:
            self.stream.emit("run.failed", {"status": "failed", "error": describe(error).model_dump(mode="json")})
            raise
        finally:
            self.stream.close()

    async def _announce(self) -> None:
        if self.fresh:
            self.stream.emit("run.started", {"attempt": 1})
            for kind, data in completed_events(self.journal.messages[self.journal.before :]):
                self.stream.emit(kind, data)
            return
        answered = [r for r in (await self.journal.ledger()).requests.values() if r.answered_at is not None]
        last = self.journal.messages[-1].id if len(self.journal.messages) > self.journal.before else None
        self.stream.emit("run.resumed" if answered else "run.rewound", {"attempt": self.run.attempt, "message_id": last})
        for request in answered:
            self.stream.emit("hitl.answered", {"request_id": request.request_id, "answer": request.answer})

    async def _attempt(self, work: Work) -> BaseException | None:
        extra = {key: value for key, value in self.data.extra.items() if key != RESERVED}
        ledger = await self.journal.ledger()
        context = SoloContext(self.run, self.journal, self.stream, extra=extra, ledger=ledger, channel=self.channel)
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
            await self._append(self.left.messages)  # what the agent finished saying is not lost with the attempt
        return error

    async def _append(self, messages: Sequence[Message]) -> None:
        stored = await self.journal.append(messages, first_event=0)
        for kind, data in completed_events(stored):
            self.stream.emit(kind, data)

    async def _suspend(self) -> list[HitlRequest]:
        """Keep the questions before anyone is told (semantics: H1, H11). Empty if one has its answer already."""
        await self._append(self.left.messages)
        if self.left.extra:
            await self.keeper.checkpointer.save_extra(self.run.thread_id, self.left.extra)
        asked = self.left.requests
        await self.keeper.requests.save_requests(self.run.thread_id, asked, run_id=self.run.run_id)
        kept = await self.keeper.requests.load_requests(self.run.thread_id, run_id=self.run.run_id)
        ids = {request.request_id for request in asked}
        waiting = [request for request in kept if request.request_id in ids]
        self.data = await self.keeper.load()
        if any(request.answered_at is not None for request in waiting):
            return []
        for request in waiting:
            self.stream.emit(*requested_event(request))
        self.stream.emit("run.suspended", {"status": "suspended", "request_ids": [request.request_id for request in waiting]})
        return waiting

    async def _complete(self) -> None:
        own = [*self.journal.messages[self.journal.before :], *self.left.messages]
        whole = cycles_closed(self.journal.messages[: self.journal.before], own)
        await self._append(self.left.messages)
        if not whole:
            raise IncompleteToolCycleError(
                "a tool call of the run has no result directly after it", thread_id=self.run.thread_id, run_id=self.run.run_id
            )
        await self.keeper.complete(self.run.run_id, self.left.extra)
        self.stream.emit("run.completed", {"status": "completed"})


async def _within(context: RunContext, work: Work) -> None:
    current_context.set(context)
    await work(context)
