"""Parking: the agent of an attempt waits, and its run is suspended until the wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

from ..client.arguments import as_message
from ..domain.agent_names import namespace_of, wanted
from ..domain.derived_ids import derived_id
from ..domain.messages import Message, Usage
from ..domain.runs import Run
from ..domain.size_limits import JsonObject, JsonValue, check_value
from ..domain.states import RunStatus
from ..domain.validation import check_id
from ..domain.waits import Until, Wait, WaitKind, check_taken, check_waits, end_of_wait
from ..errors import CapabilityMissingError, HitlNotAllowedError, RunyardError
from ..events.writer import EventEmitter
from ..ports.commands import AcceptRequest
from ..ports.results import Ledger
from .attempt_store import AttemptStore
from .children import Children, ChildResult, check_thread, read_child
from .control_signals import AttemptLost, Deferred, QuestionRefused, Suspend
from .steps import Steps, child_step
from .transcript import Transcript, whole
from .waits import Waits

T = TypeVar("T")

_around: ContextVar[tuple[object, ...]] = ContextVar("runyard_calls", default=())
"""The calls of :meth:`Parking._whole_call` inside which the current code is executed."""


class Parking(Transcript):
    """The waits of one attempt of a run. This is the base class of :class:`~runyard.RunContext`."""

    agent: str | None
    _steps: Steps

    def __init__(
        self,
        run: Run,
        attempt_store: AttemptStore,
        stream: EventEmitter,
        ledger: Ledger,
        on_lost: Callable[[RunyardError], None] | None = None,
        on_used: Callable[[Usage, str], None] | None = None,
    ) -> None:
        continues = run.attempt > 1 or bool(ledger.steps or ledger.requests or ledger.waits)
        super().__init__(run, attempt_store, stream, on_lost, on_used, continues=continues)
        self.thread_id = run.thread_id
        self._ledger = ledger
        self._waits = Waits(stream.ref.thread_key, run.run_id, ledger.waits)
        self._calls: set[object] = set()
        self._call_ended = asyncio.Event()

    async def sleep(self, until: Until, *, key: str | None = None) -> None:
        """Suspend the run until a time. The sleeping run holds no worker and no key in Redis.

        ``until``: seconds or a timedelta after the first call of this sleep, or a datetime with a time zone. The time is
        compared with the clock of the store. ``key``: the name of the sleep in its run. The default is the number of the
        earlier sleeps in this attempt. A later attempt continues the sleep, and does not begin the sleep again.

        If a probe sleeps, the probe ends, and its caller gets HitlNotAllowedError. Raises InvalidInputError for a time without
        a time zone and for more than ten years.
        """
        due_at, timeout = end_of_wait(until, "until")
        await self._wait("sleep", key or self._steps.default_key("sleep"), due_at=due_at, timeout=timeout)

    async def wait_for(
        self, name: str, schema: JsonObject | None = None, timeout: Until | None = None, *, key: str | None = None
    ) -> JsonValue:
        """Return the value of the next signal ``name`` to this thread. If the thread has no signal ``name`` yet, suspend the
        run until a program sends one.

        :meth:`runyard.Client.signal` sends a signal, before or after this call. Each wait takes one signal, the oldest signal
        that no wait has taken. If the run ends before an attempt receives the signal, the thread keeps the signal for a later
        wait. ``schema``: JSON schema of the value. ``timeout``: the latest end of the wait. ``timeout`` is given as seconds or
        a timedelta after the first call of this wait, as a datetime with a time zone, or as None for no limit. ``key``: the
        name of the wait in its run. The default consists of the signal's name and the number of the earlier waits for this
        signal in this attempt.

        Raises SignalTimeoutError (a TimeoutError) after the timeout. Raises SignalInvalidError if the value does not fit
        ``schema``. The wait has then taken the signal. Raises InvalidInputError for invalid arguments. If a probe waits, the
        probe ends, and its caller gets HitlNotAllowedError.
        """
        check_id(name, "name")
        check_value(schema, "schema")
        due_at, after = end_of_wait(timeout, "timeout") if timeout is not None else (None, None)
        key = key or self._steps.default_key(f"signal:{name}")
        return check_taken(await self._wait("signal", key, name=name, due_at=due_at, timeout=after), schema)

    async def run(
        self, thread_id: str | None, message: str | Message, *, agent: str | None = None, key: str | None = None
    ) -> ChildResult:
        """Start a child: a prompt on ``thread_id`` (None: a new thread). Suspend the run until the child has ended.

        A later attempt gets the recorded result and starts no other child. ``agent``: the child's agent (see
        :meth:`runyard.Client.enqueue`), in the namespace of this run's agent. ``key``: the name of the child in its run. The
        default is the number of the earlier children in this attempt. Children of parallel tasks (a TaskGroup) run in parallel.
        A cancel of the run cancels its children.

        Raises ChildFailedError if the child does not complete. Raises RunConflictError if the child ``key`` is on another
        thread. Raises ChildDeadlockError if the thread itself waits for this run. Raises TooManyChildrenError if there are too
        many children or too many levels of children. Raises the errors of an enqueue. If a probe starts a child, the probe
        ends, and its caller gets HitlNotAllowedError.
        """
        key = key or self._steps.default_key("run")
        self._check_waiting()
        child, known = self._waits.id_of("child", key), self._waits.find("child", key)
        thread_id = thread_id or derived_id("child thread", child)
        if known is not None:
            check_thread(known, thread_id)
        recorded = self._ledger.steps.get(child_step(key))
        if recorded is not None and recorded.done:
            return read_child(recorded.result)
        if known is None:
            prompt, parent, name = as_message(message), self._stream.ref, wanted(namespace_of(self.agent), agent)
            await self._whole_call(
                self._start_child(AcceptRequest(thread_id=thread_id, run_id=child, agent=name, input=prompt, job=parent))
            )
        elif known.ended_at is not None:
            return read_child(await self._whole_call(self._record_child(child_step(key), thread_id, child)))
        await self._wait("child", key, name=thread_id)
        raise AssertionError("a wait for a child returns in a later attempt only")

    async def _start_child(self, request: AcceptRequest) -> None:
        await self._flush()
        await self._write(self._children.start(request))

    async def _record_child(self, step: str, thread_id: str, run_id: str) -> JsonObject:
        """Return the outcome of an ended child. Record the outcome only if the child completed.

        A redrive may change any other outcome.
        """
        record = await self._write(self._children.outcome(thread_id, run_id))
        if record["status"] == RunStatus.COMPLETED.value:
            await whole(self._write(self._attempt_store.finish_step(step, record)))
        return record

    async def _whole_call(self, call: Awaitable[T]) -> T:
        """Await ``call``. If another task suspends the run, the suspension waits for the end of ``call``."""
        here = object()
        around = _around.set((*_around.get(), here))
        self._calls.add(here)
        try:
            return await call
        finally:
            _around.reset(around)
            self._calls.discard(here)
            self._call_ended.set()

    def _check(self) -> None:
        if isinstance(self._signal, Suspend) and not self._calls.isdisjoint(_around.get()):
            return  # the suspension waits for this call
        super()._check()

    @property
    def _children(self) -> Children:
        assert self._attempt_store.children is not None
        return self._attempt_store.children

    async def _wait(self, kind: WaitKind, key: str, **fields: Any) -> Wait:
        """Return the wait ``key`` if it has ended. Otherwise suspend the run until the wait ends."""
        self._check_waiting()
        known = self._waits.find(kind, key)
        if known is not None and known.ended_at is not None:
            return known
        self._waits.begin(kind, key, **fields)
        check_waits(self._waits.open.values())
        return await self._park()

    def _check_waiting(self) -> None:
        self._check_parking("a probe cannot wait; use an agent that does not wait")
        if not self._attempt_store.waits:
            raise CapabilityMissingError("only workers end waits; run this agent in a worker")

    def _check_parking(self, refusal: str) -> None:
        """Raise a control signal if the calling code cannot suspend the run. ``refusal``: the message for the caller of a
        probe."""
        if not self._attempt_store.durable:
            self._signal = QuestionRefused(HitlNotAllowedError(refusal, thread_id=self.thread_id))
        if isinstance(self._signal, AttemptLost | QuestionRefused):
            raise self._signal

    async def _park(self) -> NoReturn:
        if self._steps.inside_tool:
            await asyncio.sleep(0)
            raise Deferred("a tool call waits")
        await self.suspend()

    async def suspend(self) -> NoReturn:
        """End the attempt. The run waits for the answers to its questions and for the ends of its waits."""
        self._signal = Suspend()
        self._calls.difference_update(_around.get())
        self._call_ended.set()
        await asyncio.sleep(0)  # parallel tasks ask their questions now, before the first raised signal cancels them
        while self._calls:  # parallel tasks finish their steps and their calls about children
            self._call_ended.clear()
            await self._call_ended.wait()
        raise self._signal
