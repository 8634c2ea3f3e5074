"""Write the events of attempts to the event log. A worker sends the events of all its attempts in one call.

An :class:`EventEmitter` numbers the events of one attempt, ``"<fence>-<n>"``. The numbers have no gaps, because a missing
number means to a reader that an event was lost. Before an attempt writes to the store, it reserves the numbers for the events
of this write (:meth:`EventEmitter.reserve`). These events and all later events are sent when the outcome of the commit is
known. The :class:`EventWriter` sends the events of a worker.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..domain.events import Event
from ..domain.size_limits import MAX_BYTES, JsonObject
from ..errors import BackendUnavailableError
from ..ports.refs import AttemptToken, RunRef
from ..ports.scheduling import EventLog, OutsideEvent

ATTEMPT_WRITE_SECONDS: Final = 0.02
"""Seconds between two writes of one attempt's events, if only deltas wait. The first event after a pause is written
immediately."""
WORKER_WRITE_SECONDS: Final = 0.005
"""Seconds between two writes of a worker's events, if only deltas wait. The deltas of many attempts then share one call."""
RETRY_SECONDS: Final = 0.5
"""Seconds between two tries of a write while the event log is unreachable."""
MAX_HELD_EVENTS: Final = 20_000
"""Maximum number of events that a worker holds while the event log is unreachable.

If there are more events, the worker drops all held events. Readers notice the missing numbers.
"""
DROPS_LOG_SECONDS: Final = 10.0
"""Minimum number of seconds between two log lines about dropped events."""

MAX_DELTA_CHARACTERS: Final = MAX_BYTES["delta"] // 4
"""Maximum number of characters of text in one delta. A character has at most four bytes in UTF-8."""

UNENCODABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""Errors that an event log raises for an event that it cannot encode. An example is a number of more than 64 bits."""

Batch = Sequence[tuple[RunRef, Sequence[Event]]]


@dataclass(slots=True)
class _Slot:
    n: int
    event: Event | None = None
    key: tuple[str, str, str] | None = None
    text: list[str] = field(default_factory=list)
    length: int = 0


@dataclass(slots=True)
class Reservation:
    """Reserved numbers for the events of one write. ``first``: the first of these numbers. :meth:`fill` or :meth:`drop` ends
    the reservation."""

    stream: EventEmitter
    first: int
    slots: list[_Slot] = field(default_factory=list)

    def fill(self, events: Iterable[tuple[str, JsonObject]]) -> None:
        """Add the events of the committed write, in order. Release the unused numbers."""
        slots = iter(self.slots)
        for (kind, data), slot in zip(events, slots, strict=False):
            slot.event = self.stream.event(slot.n, kind, data)
        self.stream.withdraw(list(slots))
        self.stream.changed(urgent=True)

    def drop(self) -> None:
        """Release the numbers, because the write did not commit."""
        self.stream.withdraw(self.slots)
        self.stream.changed()


class EventSink(Protocol):
    """The object that an emitter informs about new events."""

    def pending(self, stream: EventEmitter, *, urgent: bool = False) -> None: ...


class EventEmitter:
    """The events of one attempt, in order. Only one :class:`Reservation` at a time can be open.

    ``queued``: the event ``run.queued``, which is written before the first event of the attempt, or None. ``spoke_at``: the
    time of the first streamed text in seconds of the monotonic clock, or None. ``taken_at``: the time of the last :meth:`take`
    on the same clock.
    """

    def __init__(self, writer: EventSink, attempt: AttemptToken, thread_id: str, queued: Event | None = None) -> None:
        self._writer = writer
        self._attempt = attempt
        self._thread_id = thread_id
        self._next = 1
        self._slots = deque([] if queued is None else [_Slot(0, queued)])
        self._closed = False
        self.spoke_at: float | None = None
        self.taken_at = -math.inf

    @property
    def ref(self) -> RunRef:
        return self._attempt.ref

    def event(self, n: int, kind: str, data: JsonObject) -> Event:
        return Event.trusted(f"{self._attempt.fence}-{n}", kind, self._thread_id, self._attempt.run_id, data)

    def emit(self, kind: str, data: JsonObject | None = None, *, urgent: bool = False) -> None:
        """Add one event."""
        slot = self._add()
        slot.event = self.event(slot.n, kind, data or {})
        self.changed(urgent=urgent)

    def delta(self, message_id: str, text: str, what: str = "text", call: tuple[str, str] = ("", "")) -> None:
        """Add a piece of a message. ``what``: ``text``, ``thinking``, or ``arguments`` of the tool ``call`` (its id and name).

        If the last unwritten event is a delta of the same field, the piece is added to this event. A delta has at most
        MAX_DELTA_CHARACTERS.
        """
        if self.spoke_at is None:
            self.spoke_at = time.monotonic()
        key = (message_id, what, call[0])
        if self._slots and (last := self._slots[-1]).key == key and last.length + len(text) <= MAX_DELTA_CHARACTERS:
            last.text.append(text)
            last.length += len(text)
            return
        for start in range(0, len(text) or 1, MAX_DELTA_CHARACTERS):
            slot = self._add()
            data: JsonObject = {"message_id": message_id}
            if call[0]:
                data["tool_call"] = {"id": call[0], "name": call[1]}
            piece = text[start : start + MAX_DELTA_CHARACTERS]
            slot.event, slot.key = self.event(slot.n, "message.delta", data), key
            slot.text.append(piece)
            slot.length = len(piece)
        self.changed()

    def reserve(self, count: int) -> Reservation:
        """Reserve ``count`` numbers for a write."""
        first = self._next
        return Reservation(self, first, [self._add() for _ in range(count)])

    def withdraw(self, slots: list[_Slot]) -> None:
        """Release the numbers of ``slots``. Later events of the attempt then get lower numbers."""
        if not slots:
            return
        gone, first = {id(slot) for slot in slots}, slots[0].n
        self._slots = deque(slot for slot in self._slots if id(slot) not in gone)
        self._next -= len(slots)
        for n, slot in enumerate((slot for slot in self._slots if slot.n > first), first):
            slot.n = n
            if slot.event is not None:
                slot.event = self.event(n, slot.event.type, slot.event.data)

    def close(self) -> None:
        """Accept no further events. Events that wait are still written."""
        self._closed = True

    def take(self) -> list[Event]:
        """Remove and return the events before the first reserved number. A delta whose pieces cannot be joined is dropped."""
        self.taken_at = time.monotonic()
        ready = []
        while self._slots and (event := self._slots[0].event) is not None:
            slot = self._slots.popleft()
            try:
                if slot.key is not None:
                    event.data[slot.key[1]] = "".join(slot.text)
            except Exception as error:
                _dropped(1, self.ref, error)
            else:
                ready.append(event)
        return ready

    def changed(self, *, urgent: bool = False) -> None:
        self._writer.pending(self, urgent=urgent)

    def _add(self) -> _Slot:
        slot = _Slot(self._next)
        if not self._closed:
            self._next += 1
            self._slots.append(slot)
        return slot


class EventWriter:
    """Writes the events of all attempts of a worker, in the task of :meth:`run`. :meth:`close` ends this task."""

    def __init__(self, log: EventLog, *, tick: float = ATTEMPT_WRITE_SECONDS) -> None:
        self._log = log
        self._tick = tick
        self._gather = min(tick, WORKER_WRITE_SECONDS)
        self._streams: dict[EventEmitter, None] = {}
        self._outside: list[tuple[RunRef, Event]] = []
        self._unwritten: list[tuple[RunRef, list[Event]]] = []
        self._some = asyncio.Event()
        self._urgent = asyncio.Event()
        self._closing = False
        self._unlogged_drops = 0
        self._drops_logged_at = -math.inf

    def pending(self, stream: EventEmitter, *, urgent: bool = False) -> None:
        """Record that ``stream`` has events to write. ``urgent``: write these events without a pause."""
        self._streams[stream] = None
        self._some.set()
        if urgent:
            self._urgent.set()

    def outside(self, events: Iterable[OutsideEvent]) -> None:
        """Write the events of calls that do not belong to an attempt."""
        for item in events:
            event = Event(id=item.event_id, type=item.type, thread_id=item.thread_id, run_id=item.ref.run_id, data=item.data)
            self._outside.append((item.ref, event))
            self._some.set()
            self._urgent.set()

    async def run(self) -> None:
        """Write until :meth:`close`."""
        while True:
            if not self._closing:
                await self._some.wait()
                await asyncio.sleep(0)  # the agent of a new attempt starts now, so that this write has its first events
            at_once = self._urgent.is_set()
            self._some.clear()
            self._urgent.clear()
            written = await self._flush(at_once)
            if self._closing and not (written and self._some.is_set()):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._gather if written else RETRY_SECONDS):
                    await self._urgent.wait()

    def close(self) -> None:
        """Make :meth:`run` end after one more write."""
        self._closing = True
        self._some.set()
        self._urgent.set()

    def _collect(self, at_once: bool) -> list[tuple[RunRef, list[Event]]]:
        streams, self._streams = self._streams, {}
        outside, self._outside = self._outside, []
        batch = self._unwritten
        latest = math.inf if at_once else time.monotonic() - self._tick
        for stream in streams:
            if stream.taken_at > latest:
                self._streams[stream] = None
                self._some.set()  # a later tick takes its events
            elif events := stream.take():
                batch.append((stream.ref, events))
        batch += [(ref, [event]) for ref, event in outside]
        return batch

    async def _flush(self, at_once: bool) -> bool:
        batch = self._collect(at_once)
        self._unwritten = []
        if not batch:
            return True
        try:
            await self._write(batch)
        except BackendUnavailableError as error:
            size = sum(len(events) for _, events in batch)
            if size <= MAX_HELD_EVENTS and not self._closing:
                self._unwritten = batch
            else:
                self._count_drops(size, batch[0][0], error)
            self._some.set()
            return False
        return True

    def _count_drops(self, events: int, first: RunRef, error: Exception) -> None:
        """Count events that are dropped because the log is unreachable.

        Log the count every DROPS_LOG_SECONDS and at the end.
        """
        _count(events)
        self._unlogged_drops += events
        now = time.monotonic()
        if self._closing or now - self._drops_logged_at >= DROPS_LOG_SECONDS:
            _log_drops(self._unlogged_drops, first, error, trace=False)
            self._unlogged_drops, self._drops_logged_at = 0, now

    async def _write(self, batch: Batch) -> None:
        """Write the batch. Events that cannot be encoded are dropped, and all other events are written."""
        try:
            await self._log.append_many(batch)
        except BackendUnavailableError:
            raise
        except Exception as error:
            halves = _halves(batch) if isinstance(error, UNENCODABLE) else []
            for half in halves:
                await self._write(half)
            if not halves:
                _dropped(sum(len(events) for _, events in batch), batch[0][0], error)


def _dropped(events: int, first: RunRef, error: Exception) -> None:
    """Count dropped events. Log ``error``, the current exception. ``first``: the run of the first dropped event."""
    _count(events)
    _log_drops(events, first, error, trace=True)


def _count(events: int) -> None:
    from ..support import metrics  # imported here, because agents import this module and rarely drop events

    metrics.EVENTS_DROPPED.inc(events)


def _log_drops(events: int, first: RunRef, error: Exception, *, trace: bool) -> None:
    import structlog  # imported here for the same reason

    from ..support.logging import plain_tracebacks

    plain_tracebacks()
    names = {"first_thread_key": first.thread_key, "first_run_id": first.run_id}
    structlog.get_logger("runyard.events").error("events_dropped", events=events, **names, error=str(error), exc_info=trace)


def _halves(batch: Batch) -> list[Batch]:
    """Return the two halves of the batch in order, or an empty list for a single event."""
    if len(batch) > 1:
        return [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    [(ref, events)] = batch
    return [[(ref, events[: len(events) // 2])], [(ref, events[len(events) // 2 :])]] if len(events) > 1 else []
