"""Transcript: an attempt reads and appends messages, and streams events.

``postgres/functions/visible_messages.sql`` decides which messages a context has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ..domain.event_data import check_event_data
from ..domain.messages import Message, Usage, check_message
from ..domain.quoting import brief
from ..domain.requests import HitlRequest
from ..domain.runs import Run
from ..domain.size_limits import JsonObject, check_value
from ..domain.validation import new_id
from ..errors import BackendUnavailableError, CancelRequestedError, InvalidInputError, RunyardError, StaleFenceError
from ..events.writer import EventEmitter
from ..support.store_retries import patiently
from .attempt_store import AttemptStore, StoreUnansweredError
from .control_signals import AttemptLost, ControlSignal
from .usage import UsageMeter

T = TypeVar("T")

DeltaField: TypeAlias = Literal["text", "thinking", "arguments"]

EMITTED: Final = ("message.delta", "tool.started", "tool.completed")

HOLD_SECONDS: Final = 0.5
"""Maximum number of seconds for which an attempt holds an appended message before it commits the message."""


class Transcript:
    """The messages of one attempt of a run. This is the base class of :class:`~runyard.RunContext`."""

    def __init__(
        self,
        run: Run,
        attempt_store: AttemptStore,
        stream: EventEmitter,
        on_lost: Callable[[RunyardError], None] | None = None,
        on_used: Callable[[Usage, str], None] | None = None,
    ) -> None:
        self.run_id = run.run_id
        self.usage_meter = UsageMeter(run.usage, on_used)
        self._attempt_store = attempt_store
        self._stream = stream
        self._on_lost = on_lost
        self._lock = asyncio.Lock()
        self._committed: list[Message] | None = None
        self._held: list[Message] = []
        self._timer: asyncio.TimerHandle | None = None
        self._commit_of_timer: asyncio.Task[None] | None = None
        self._open_message: str | None = None
        self._signal: ControlSignal | None = None

    async def history(self) -> list[Message]:
        """Return the messages for the model, in order: the context at the run's claim, then the run's own messages."""
        async with self._lock:
            if self._committed is None:
                self._committed = await self._write(self._attempt_store.context())
                for message in self._committed:
                    if message.run_id == self.run_id:
                        self.usage_meter.found(message.usage, message.id)
            return [*self._committed, *self._held]

    async def append(self, *messages: Message) -> list[Message]:
        """Add messages to the run and return them as they are stored.

        When the call returns, the messages are durable. The exception is assistant messages without tool calls at the end of
        ``messages``. Such messages are held for at most HOLD_SECONDS. The next durable operation of the attempt (append, step,
        ask) or the completion commits the held messages. A simple run therefore needs only three commits: accept, claim,
        complete. A crash and a cancel lose the held messages, even a cancel with ``keep``. ``message.completed`` is emitted
        after the commit.

        A streamed assistant message (:meth:`stream_text`) gets the id under which its text was sent.
        """
        self._check()
        own = [self._own(message) for message in messages]
        split = next((n for n in range(len(own), 0, -1) if not _closes_cycle(own[n - 1])), 0)
        async with self._lock:
            if split:
                await self._commit([*self._held, *own[:split]])
            self._held += own[split:]
            if self._held and self._timer is None and self._attempt_store.durable:
                self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._on_timer)
        return own

    async def conclude(self, *messages: Message) -> list[Message]:
        """Add the messages that end the run. The attempt holds them and commits them with the completion (:meth:`append`)."""
        self._check()
        own = [self._own(message) for message in messages]
        async with self._lock:
            self._held += own
        return own

    async def emit(self, delta: str | JsonObject, *, type: str = "message.delta") -> None:
        """Send an event to the run's stream. The event is not stored.

        ``delta``: a text to stream (:meth:`stream_text`), or the event's data. The data must have the shape of the type
        (:mod:`runyard.domain.event_data`), and may have more fields. ``type``: message.delta, tool.started or tool.completed.
        Only runyard sends the other types.

        Raises InvalidInputError for another type, for data that is larger than :mod:`runyard.domain.size_limits` allows, and
        for data that does not have the type's shape.
        """
        if type not in EMITTED:
            raise InvalidInputError(f"an agent can emit {', '.join(EMITTED)}, not {type!r}", field="type")
        self._check()
        if isinstance(delta, str):
            await self.stream_text(delta)
        else:
            check_value(delta, "delta")
            check_event_data(type, delta)
            self._stream.emit(type, deepcopy(delta))  # the agent may change its object later

    async def stream_text(self, text: str) -> None:
        """Send a piece of the current assistant message. The first piece emits ``message.started`` with the message's id.

        Raises InvalidInputError for a value that is not text. Skip chunks whose text is None.
        """
        self.stream_part(text)

    def stream_part(self, piece: str, what: DeltaField = "text", call: tuple[str, str] = ("", "")) -> None:
        """Send a piece of the current assistant message.

        ``what``: the field to which the piece belongs. ``call``: for a piece of ``arguments``, the id and the name of the tool
        call. Raises InvalidInputError for a piece that is not text.
        """
        self._check()
        if not isinstance(piece, str):
            words = f"a piece of a message is text, got {brief(piece)}; skip chunks of a model without text"
            raise InvalidInputError(words, field=what)
        if self._open_message is None:
            self._open_message = new_id()
            self._stream.emit("message.started", {"message_id": self._open_message, "role": "assistant"})
        self._stream.delta(self._open_message, piece, what, call)

    def named(self, message: Message) -> Message:
        """Return ``message``. A streamed message gets the id under which it was streamed."""
        return message if self._open_message is None else message.model_copy(update={"id": self._open_message})

    def discard_stream(self) -> None:
        """Discard the streamed message, which will not be appended. The next piece begins another message."""
        self._open_message = None

    async def thread_usage(self) -> Usage:
        """Return the usage of the thread's completed runs, and of cancelled runs that kept their messages."""
        return await self._write(self._attempt_store.thread_usage())

    def add_usage(self, usage: Usage, model: str = "") -> None:
        """Count usage that belongs to no appended message. ``model``: the name of the model, for metrics.

        Each call counts. Code before a wait is executed again by the next attempt, and its calls then count again. A call in a
        step counts once.

        Raises InvalidInputError for an amount that is negative, infinite or not a number, or too large for 64 bits.
        """
        self.usage_meter.add(usage, model)

    def _own(self, message: Message) -> Message:
        fields: dict[str, Any] = {"run_id": self.run_id}
        if check_message(message).role == "assistant" and self._open_message is not None:
            fields["id"], self._open_message = self._open_message, None
        own = message.model_copy(update=fields)
        self.usage_meter.add_message(own)
        return own

    async def _flush(self) -> None:
        async with self._lock:
            if self._held:
                await self._commit(self._held)

    def _on_timer(self) -> None:
        self._timer = None
        self._commit_of_timer = asyncio.create_task(self._commit_held())
        self._commit_of_timer.add_done_callback(discard_outcome)

    async def _commit_held(self) -> None:
        """Commit the held messages. If this write fails, the next write of the attempt raises the error."""
        async with self._lock:
            if self._held and self._signal is None:
                await self._commit(self._held)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _commit(self, messages: Sequence[Message]) -> None:
        """Append ``messages`` in one commit. The held messages must be among them. The caller holds the lock."""
        await whole(self._append(list(messages)))

    async def _append(self, messages: list[Message]) -> None:
        reservation = self._stream.reserve(len(messages))
        try:
            with self.usage_meter.recording() as usage:
                stored = await self._write(self._attempt_store.append(messages, first_event=reservation.first, usage=usage))
        except BaseException:
            reservation.drop()
            raise
        reservation.fill(completed_events(stored))
        self._held = []
        if self._committed is not None:
            self._committed += stored

    async def _settle_usage(self) -> None:
        """After a write without an answer, read whether the run's record has the usage of that write."""
        if self.usage_meter.in_doubt:
            with suppress(BackendUnavailableError):  # the store will not answer the end of the attempt either
                self.usage_meter.settle(await self._attempt_store.run_usage())

    async def _write(self, operation: Awaitable[T]) -> T:
        try:
            with self.guarding():
                return await operation
        except BackendUnavailableError as error:
            raise StoreUnansweredError(error.message, **error.details) from error

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """End the attempt if the store refuses a write in the block: another attempt has the run, or the run was cancelled."""
        try:
            yield
        except (StaleFenceError, CancelRequestedError) as error:
            self._signal = AttemptLost(error)
            if self._on_lost is not None:
                self._on_lost(error)
            raise self._signal from None

    async def guarded(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an adapter's call to its store. If the store does not answer, repeat the call for some time."""
        self._check()
        return await self._write(patiently(call))

    def _check(self) -> None:
        if self._signal is not None:
            raise self._signal


async def whole(commit: Coroutine[Any, Any, None]) -> None:
    """Await ``commit`` in a separate task. A cancel of the agent does not interrupt this task.

    If nobody awaits the task any more, its exception is dropped. The context keeps the signal of a refused write.
    """
    task = asyncio.create_task(commit)
    task.add_done_callback(discard_outcome)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def discard_outcome(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task that no other code awaits, so that asyncio does not log the exception."""
    if not task.cancelled():
        task.exception()


def _closes_cycle(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def completed_events(messages: Sequence[Message]) -> list[tuple[str, JsonObject]]:
    """Return the events that announce stored messages."""
    return [
        ("message.completed", {"message_id": message.id, "message": message.model_dump(mode="json", exclude_none=True)})
        for message in messages
    ]


def requested_event(request: HitlRequest) -> tuple[str, JsonObject]:
    """Return the event that announces a stored request."""
    return "hitl.requested", {"request": request.model_dump(mode="json", exclude_none=True)}
