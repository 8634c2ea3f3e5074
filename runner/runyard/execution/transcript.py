"""Transcript: an attempt reads and appends messages, and streams events.

``postgres/functions/visible_messages.sql`` decides which messages a context has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import takewhile
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
from .history_window import PAGE_MESSAGES, check_window, page_of, read_window
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
        *,
        continues: bool = False,
    ) -> None:
        """``continues``: whether the run may already have stored messages, from an earlier attempt or from an earlier context
        of this attempt."""
        self.run_id = run.run_id
        self.usage_meter = UsageMeter(run.usage, on_used)
        self._attempt_store = attempt_store
        self._stream = stream
        self._on_lost = on_lost
        self._lock = asyncio.Lock()
        self._committed: list[Message] | None = None
        self._stored_ids: set[str] | None = None if continues else {run.input.id} if run.input is not None else set()
        """The ids of the run's stored messages. None until they have been read."""
        self._own_read: dict[str, Message] = {}
        """The stored messages of the run that have been read, by id."""
        self._held: list[Message] = []
        self._timer: asyncio.TimerHandle | None = None
        self._commit_of_timer: asyncio.Task[None] | None = None
        self._open_message: str | None = None
        self._last_stored: str | None = None
        self._signal: ControlSignal | None = None

    async def history(self, *, last: int | None = None, max_tokens: int | None = None) -> list[Message]:
        """Return the messages for the model, in order: the context at the run's claim, then the run's own messages.

        ``last``: return at most this number of messages from the end. ``max_tokens``: return at most this number of tokens from
        the end, by an estimate of one token per four characters. With a bound, only these messages are read from the store.

        With a bound, the method returns a window: the messages that were stored last, at least one. If the window has a tool
        result, it also has the call and all messages that were stored after the call. The messages of a run are together. In
        the whole history, a run is at the place of its first message. In a window, a run is at the place of its first message
        in the window. If two runs stored messages in turn, a window can therefore have these runs in another order than the
        whole history.

        Changes to the messages change neither the thread nor later attempts. Raises DataCorruptedError for a message that the
        store cannot decode. In a long history, the first use of the message raises the error.
        """
        check_window(last, max_tokens)
        async with self._lock:
            if last is not None or max_tokens is not None:
                return await read_window(self._page, last, max_tokens)
            return [*await self._read(), *self._held]

    async def _read(self) -> list[Message]:
        """Return the stored messages of the context. The caller holds the lock."""
        if self._committed is None:
            self._committed = await self._write(self._attempt_store.context())
            self._note_own(self._committed[::-1], is_all=True)
        return self._committed

    async def _page(self, limit: int, before: Message | None) -> list[Message]:
        """Return a page of the history in the order of storing, the last message first."""
        held = [message.id for message in self._held]
        if held and (before is None or before.id in held[1:]):
            return page_of(self._held, limit, before)
        return await self._stored_page(limit, None if before is None or before.id in held else before)

    async def _stored_page(self, limit: int, before: Message | None) -> list[Message]:
        """Return a page of the stored messages, the last message first. The caller has read ``before`` and all later
        messages."""
        page = await self._write(self._attempt_store.recent(limit, before))
        of_another = not page or page[-1].run_id != self.run_id
        self._note_own(page, is_all=of_another and (before is None or before.run_id == self.run_id))
        return page

    async def _read_own(self) -> None:
        """Read the run's stored messages, which are the last messages of its context. The caller holds the lock."""
        before: Message | None = None
        while self._stored_ids is None:
            page = await self._stored_page(PAGE_MESSAGES, before)
            before = page[-1] if page else before

    def _note_own(self, newest_first: Sequence[Message], *, is_all: bool) -> None:
        """Record the run's own messages at the beginning of ``newest_first``, and count their usage.

        ``is_all``: whether all stored messages of the run have now been read.
        """
        own = list(takewhile(lambda message: message.run_id == self.run_id, newest_first))
        for message in reversed(own):
            self.usage_meter.found(message.usage, message.id)
            if self._stored_ids is None:
                self._own_read[message.id] = message
        if is_all:
            self._stored_ids = {*self._own_read, *(self._stored_ids or ())}

    async def append(self, *messages: Message) -> list[Message]:
        """Add messages to the run and return them as they are stored.

        When the call returns, the messages are durable. There is one exception: assistant messages without tool calls at the
        end of ``messages``. Such messages are held for at most HOLD_SECONDS. The next durable operation of the attempt (append,
        step, ask) or the completion commits the held messages. A simple run therefore needs only three commits: accept, claim,
        complete. A crash and a cancel lose the held messages, even a cancel with ``keep``. ``message.completed`` is emitted
        after the commit.

        If the run already has a message with the same id, for example from an earlier attempt, the message is not stored again
        and emits no event. The call returns the stored message, with its ``created_at``.

        A streamed assistant message (:meth:`stream_text`) gets the id under which its text was sent.
        """
        own = await self._owned(messages)
        async with self._lock:
            self._check()  # the attempt may have ended while this call waited for the lock
            new = self._new(own)
            split = next((n for n in range(len(new), 0, -1) if not _closes_cycle(new[n - 1])), 0)
            if split:
                await self._commit([*self._held, *new[:split]])
            self._held += new[split:]
            if self._held and self._timer is None and self._attempt_store.durable:
                self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._on_timer)
        return self._as_stored(own, new)

    async def conclude(self, *messages: Message) -> list[Message]:
        """Add the messages that end the run. The attempt holds them and commits them with the completion (:meth:`append`)."""
        own = await self._owned(messages)
        async with self._lock:
            self._check()  # as in `append`
            new = self._new(own)
            self._held += new
        return self._as_stored(own, new)

    async def emit(self, delta: str | JsonObject, *, type: str = "message.delta") -> None:
        """Send an event to the run's stream. The event is not stored.

        ``delta``: a text to stream (:meth:`stream_text`), or the event's data. The data must have the shape of the type
        (:mod:`runyard.domain.event_data`), and may have more fields. ``type``: message.delta, tool.started or tool.completed.
        Only runyard sends the other types.

        Raises InvalidInputError if ``type`` is none of these three types, if the data is larger than
        :mod:`runyard.domain.size_limits` allows, or if the data does not have the shape of the type.
        """
        if type not in EMITTED:
            raise InvalidInputError(f"an agent can emit only the types {', '.join(EMITTED)}; got {type!r}", field="type")
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

    async def _owned(self, messages: Sequence[Message]) -> list[Message]:
        """Return ``messages`` as messages of the run. Count their usage, unless they are stored."""
        self._check()
        if self._stored_ids is None:
            async with self._lock:
                await self._read_own()
        return [self._own(message) for message in messages]

    def _new(self, own: Sequence[Message]) -> list[Message]:
        """Return the messages in ``own`` that the run does not have, each once. The caller holds the lock."""
        held, stored = {message.id for message in self._held}, self._stored_ids or set()
        new: dict[str, Message] = {}
        for message in own:
            if message.id not in stored and message.id not in held:
                new.setdefault(message.id, message)
        return list(new.values())

    def _as_stored(self, own: list[Message], new: list[Message]) -> list[Message]:
        """Return ``own``. Replace each message that the run already has by its stored form. ``new``: the result of
        :meth:`_new`."""
        if len(new) == len(own):
            return own
        return [self._own_read.get(message.id, message) for message in own]

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
        """Append ``messages`` in one commit. ``messages`` must contain the held messages. The caller holds ``_lock``."""
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
        self._last_stored = stored[-1].id if stored else self._last_stored
        if self._stored_ids is not None:
            self._stored_ids.update(message.id for message in messages)
        if self._committed is not None:
            self._committed += stored
            self._own_read.update((message.id, message) for message in stored)

    async def _settle_usage(self) -> Usage | None:
        """Return the usage that the run's record lacks. After a write without an answer, read the record first.

        Raises BackendUnavailableError if the store does not answer.
        """
        if self.usage_meter.in_doubt:
            self.usage_meter.settle(await self._attempt_store.run_usage())
        return self.usage_meter.uncounted

    async def _write(self, operation: Awaitable[T]) -> T:
        try:
            with self.guarding():
                return await operation
        except BackendUnavailableError as error:
            raise StoreUnansweredError(error.message, **error.details) from error

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """End the attempt if the store refuses a write in the block. The store refuses a write if another attempt has the run,
        or if the run was cancelled."""
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

    CancelledError is raised when the task is done, even if several cancels arrive. The caller therefore keeps its lock until
    the task is done. If nobody awaits the task any more, its exception is dropped. If the write was refused, the context keeps
    the control signal.
    """
    task = asyncio.create_task(commit)
    task.add_done_callback(discard_outcome)
    cancel: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancel = cancel or error
    if cancel is not None:
        raise cancel
    task.result()


def discard_outcome(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task that no other code awaits. asyncio then does not log the exception."""
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
