"""What an attempt says: the messages that it reads and adds to its run, and what it streams of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import deepcopy
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ..bounds import check_value
from ..errors import CancelRequestedError, InvalidInputError, RunyardError, StaleFenceError
from ..eventdata import check_event_data
from ..eventwriter import EventStream
from ..legible import brief
from ..models import HitlRequest, JsonObject, Message, Run, Usage, check_message, new_id
from .accounts import Accounts
from .journal import Journal
from .signals import AttemptLost, ControlSignal

T = TypeVar("T")

DeltaField: TypeAlias = Literal["text", "thinking", "arguments"]

EMITTED: Final = ("message.delta", "tool.started", "tool.completed")


class Transcript:
    """The messages of one attempt of a run: base of :class:`~runner.RunContext`."""

    def __init__(
        self, run: Run, journal: Journal, stream: EventStream, on_lost: Callable[[RunyardError], None] | None = None
    ) -> None:
        self.run_id = run.run_id
        self.accounts = Accounts(run.usage)
        self._journal = journal
        self._stream = stream
        self._on_lost = on_lost
        self._lock = asyncio.Lock()
        self._committed: list[Message] | None = None
        self._held: list[Message] = []
        self._open_message: str | None = None
        self._signal: ControlSignal | None = None

    async def history(self) -> list[Message]:
        """The messages that the model should see: what counted when the run was claimed, then the run's own, in order."""
        async with self._lock:
            if self._committed is None:
                self._committed = await self._write(self._journal.context())
                for message in self._committed:
                    if message.run_id == self.run_id:
                        self.accounts.found(message.usage, message.id)
            return [*self._committed, *self._held]

    async def append(self, *messages: Message) -> list[Message]:
        """Add messages to the run and return them as they are stored.

        Durable when it returns, with one exception: an assistant message without tool calls closes a cycle and is held, to be
        committed with the completion or with the next durable operation of the attempt (append, step, ask), whichever comes
        first. So a simple run is three commits: accept, claim, complete. ``message.completed`` is emitted after the commit
        only.

        An assistant message that was streamed (:meth:`stream_text`) takes the id under which its text was sent.
        """
        self._check()
        own = [self._own(message) for message in messages]
        split = next((n for n in range(len(own), 0, -1) if not _closes_cycle(own[n - 1])), 0)
        async with self._lock:
            if split:
                await self._commit([*self._held, *own[:split]])
            self._held += own[split:]
        return own

    async def conclude(self, *messages: Message) -> list[Message]:
        """Add the messages that end the run: they are held and committed as :meth:`append` does with a last answer."""
        self._check()
        own = [self._own(message) for message in messages]
        async with self._lock:
            self._held += own
        return own

    async def emit(self, delta: str | JsonObject, *, type: str = "message.delta") -> None:
        """Send an event to whoever streams the run; it is not stored. Text is streamed text (:meth:`stream_text`).

        ``type``: message.delta, tool.started or tool.completed; the others are runyard's own to send.

        Raises InvalidInputError for another type, for data that holds too much (:mod:`runner.bounds`), and for data that is not
        of the type's shape (:mod:`runner.eventdata`); fields of your own may be added.
        """
        if type not in EMITTED:
            raise InvalidInputError(f"an agent emits {', '.join(EMITTED)}, not {type!r}", field="type")
        self._check()
        if isinstance(delta, str):
            await self.stream_text(delta)
        else:
            check_value(delta, "delta")
            check_event_data(type, delta)
            self._stream.emit(type, deepcopy(delta))  # the agent may go on with its own

    async def stream_text(self, text: str) -> None:
        """Send a piece of the assistant message being made. The first piece emits ``message.started`` with the message's id.

        Raises InvalidInputError for what is not text: leave out chunks that have None in its place.
        """
        self.stream_part(text)

    def stream_part(self, piece: str, what: DeltaField = "text", call: tuple[str, str] = ("", "")) -> None:
        """Send a piece of the assistant message being made: of its ``text``, of the model's ``thinking``, or of the
        ``arguments`` of a tool ``call``, given by its id and name. Raises InvalidInputError for a piece that is not text."""
        self._check()
        if not isinstance(piece, str):
            words = f"a piece of a message is text, got {brief(piece)}; leave out chunks of a model that have none"
            raise InvalidInputError(words, field=what)
        if self._open_message is None:
            self._open_message = new_id()
            self._stream.emit("message.started", {"message_id": self._open_message, "role": "assistant"})
        self._stream.delta(self._open_message, piece, what, call)

    def named(self, message: Message) -> Message:
        """``message`` under the id under which it was streamed, if it was."""
        return message if self._open_message is None else message.model_copy(update={"id": self._open_message})

    def discard_stream(self) -> None:
        """What was streamed since the last append is of a message that will not come; the next piece begins another one."""
        self._open_message = None

    async def thread_usage(self) -> Usage:
        """What the runs of the thread that count have used, this one not included."""
        return await self._write(self._journal.thread_usage())

    def add_usage(self, usage: Usage) -> None:
        """Count tokens and cost that no appended message carries. Raises InvalidInputError for what is not finite, negative, or
        too large for 64 bits."""
        self.accounts.add(usage)

    def _own(self, message: Message) -> Message:
        fields: dict[str, Any] = {"run_id": self.run_id}
        if check_message(message).role == "assistant" and self._open_message is not None:
            fields["id"], self._open_message = self._open_message, None
        own = message.model_copy(update=fields)
        self.accounts.add(own.usage, own.id)
        return own

    async def _flush(self) -> None:
        async with self._lock:
            if self._held:
                await self._commit(self._held)

    async def _commit(self, messages: Sequence[Message]) -> None:
        """Append ``messages``, the held ones among them, in one commit. The caller holds the lock."""
        await whole(self._append(list(messages)))

    async def _append(self, messages: list[Message]) -> None:
        reservation = self._stream.reserve(len(messages))
        try:
            stored = await self._write(self._journal.append(messages, first_event=reservation.first))
        except BaseException:
            reservation.drop()
            raise
        reservation.fill(completed_events(stored))
        self._held = []
        if self._committed is not None:
            self._committed += stored

    async def _write(self, operation: Awaitable[T]) -> T:
        try:
            return await operation
        except (StaleFenceError, CancelRequestedError) as error:
            self._signal = AttemptLost(error)
            if self._on_lost is not None:
                self._on_lost(error)
            raise self._signal from None

    def _check(self) -> None:
        if self._signal is not None:
            raise self._signal


async def whole(commit: Coroutine[Any, Any, None]) -> None:
    """Await ``commit`` in a task of its own: a cancelled agent must not leave it half known. What it was refused for, the
    context remembers as its signal, so nobody has to take the task's exception."""
    task = asyncio.create_task(commit)
    task.add_done_callback(_taken)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def _taken(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _closes_cycle(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def completed_events(messages: Sequence[Message]) -> list[tuple[str, JsonObject]]:
    """The events that announce stored messages."""
    return [
        ("message.completed", {"message_id": message.id, "message": message.model_dump(mode="json", exclude_none=True)})
        for message in messages
    ]


def requested_event(request: HitlRequest) -> tuple[str, JsonObject]:
    """The event that tells of a stored question or approval."""
    return "hitl.requested", {"request": request.model_dump(mode="json", exclude_none=True)}
