"""The EventLog port on Redis: one bounded stream per run, followed over one connection per process.

Event ids are ``fence-n``. Every attempt counts n from 1 without holes, so a follower can prove that it missed no event, and
reports a ``gap`` where it cannot (E1).
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from runyard.errors import BackendUnavailableError, RunyardError
from runyard.models import STREAM_ENDS, Event
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import EVENT_BYTES_PER_READ, EVENTS_PER_READ

from .connection import Call, RedisServer, script
from .job_codec import packb, unpackb
from .key_names import events_suffix
from .pubsub import Published

DAY_SECONDS: Final = 86_400.0
SEALED_BYTES: Final = 2**11
"""Bytes of an entry from which on its event is held as JSON: a reader that is slow to take it holds it for as long."""


class EventId(NamedTuple):
    """An event's position in its stream; ids sort in the order of their events."""

    fence: int
    n: int

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """Parse ``text``; None if this log could not have issued it as an id."""
        fence, _, n = text.partition("-")
        if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (fence, n)):
            return None
        return cls(int(fence), int(n))

    def __str__(self) -> str:
        return f"{self.fence}-{self.n}"

    def follows(self, last: EventId | None) -> bool:
        """Tell, from the ids alone, whether no event can lie between ``last`` (None: the start) and this one."""
        if last is not None and last.fence == self.fence:
            return self.n == last.n + 1
        return self.n == 1


class RedisEventLog:
    """Implements :class:`runyard.ports.scheduling.EventLog`.

    max_events: approximate number of events that a run's stream keeps. ttl: seconds for which a stream is kept after its last
    event (E4). backlog: number of live events that a follower may leave unread before it must read the stream again (for the
    limit in bytes see :mod:`runyard_backends.redis.pubsub`).
    Raises BackendUnavailableError when Redis does not answer, or when a run's key does not hold a stream.
    """

    def __init__(self, server: RedisServer, *, max_events: int = 5000, ttl: float = DAY_SECONDS, backlog: int = 1000) -> None:
        self._server = server
        self._keys = server.keys
        self._max_events = max_events
        self._ttl_ms = int(ttl * 1000)
        self._backlog = backlog

    async def append(self, thread_key: int, events: Sequence[Event]) -> None:
        """Add events of runs of one thread, in order. Drop an event silently if its id is not above the stream's last id."""
        await self.append_many([(RunRef(thread_key, event.run_id), [event]) for event in events])

    async def append_many(self, batch: Sequence[tuple[RunRef, Sequence[Event]]]) -> None:
        """Add the events of many runs in one round trip. Events of one run keep the given order."""
        await self._server.call(*self.appends(batch))

    def appends(self, batch: Sequence[tuple[RunRef, Sequence[Event]]]) -> list[Call]:
        """Return the calls of :meth:`append_many`, so that they can be sent together with others."""
        runs: defaultdict[RunRef, list[Event]] = defaultdict(list)
        for ref, events in batch:
            runs[ref] += events
        shards: defaultdict[int, list[Any]] = defaultdict(list)
        for ref, events in runs.items():
            if events:
                args = shards[self._keys.events_shard(ref)]
                args += (events_suffix(ref), len(events))
                for event in events:
                    args += (event.id, packb((event.type, event.thread_id, event.data)))
        return [
            Call(script("append"), self._keys.prefix(shard), (self._max_events, self._ttl_ms, *args))
            for shard, args in shards.items()
        ]

    async def read(self, ref: RunRef, after: str | None = None, *, page: bool = False) -> list[Event]:
        """Return the stored events after the id ``after``, with a ``gap`` wherever some may be missing. With ``page``, return
        only the first few, possibly a gap alone, or an empty list at the end."""
        position = _Position(ref, after)
        if page:
            events, more = await self._page(position)
            while more and not events:
                events, more = await self._page(position)
            return events
        return [event async for event in self._stored(position)]

    async def holds(self, ref: RunRef, event_id: str) -> bool:
        """Tell whether the stream still has the event with this id, whatever the stream's length."""
        id_ = EventId.parse(event_id)
        with _a_stream():
            return id_ is not None and bool(await self._server.command("XRANGE", self._keys.events(ref), str(id_), str(id_)))

    async def follow(
        self, ref: RunRef, after: str | None = None, *, silence: float | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """Yield the events after the id ``after``, then live events, each once. Yield a ``gap`` wherever some may be missing,
        and None each time ``silence`` seconds passed without an event.

        Ends after an event of STREAM_ENDS that is the last one. (A stored ``run.suspended`` that was answered has events after
        it.) Raises BackendUnavailableError when the connection is lost: follow again after the last id that was received. Close
        the generator (``contextlib.aclosing``) to leave it early.
        """
        async with self._server.subscribe(self._keys.events(ref), self._backlog, silence) as live:
            position = _Position(ref, after)
            ended = False
            async for event in self._stored(position):
                ended = event.type in STREAM_ENDS
                yield event
            while not ended:
                try:
                    message = await live.get()
                except TimeoutError:
                    yield None
                    continue
                live_event = _decoded(message, ref) if message is not None else None
                if live_event is None or (position.is_ahead(live_event[0]) and not live_event[0].follows(position.last)):
                    # The reader was slow, events before this one are missing, or the message is no event: read the stream.
                    async for event in self._stored(position):
                        ended = event.type in STREAM_ENDS
                        yield event
                if live_event is not None:
                    for event in position.advance(*live_event):
                        ended = event.type in STREAM_ENDS
                        yield event

    async def begins(self, thread_key: int) -> AsyncGenerator[bool, None]:
        """Yield at once, and whenever an event numbered 1 is added to a run of the thread. Raises BackendUnavailableError when
        the connection is lost."""
        async with self._server.subscribe(self._keys.begins(thread_key), self._backlog) as live:
            while True:
                yield True
                await live.get()

    async def _stored(self, position: _Position) -> AsyncGenerator[Event, None]:
        """Yield the stored events after ``position``, page by page, and move ``position``."""
        more = True
        while more:
            events, more = await self._page(position)
            for event in events:
                yield event

    async def _page(self, position: _Position) -> tuple[list[Event], bool]:
        """Read some stored events after ``position`` and move it. Return the events and whether there are more."""
        after = "" if position.last is None else str(position.last)
        call = Call(script("read"), self._keys.events(position.ref), (after, EVENTS_PER_READ, EVENT_BYTES_PER_READ))
        with _a_stream():
            [(whole, more, *entries)] = await self._server.call(call)
        before = position.last
        # One page at a time: others have their turn between the large events of many readers that come at once.
        async with self._server.decoding:
            events = list(position.turn_page(bool(whole), entries))
        return events, bool(more) and position.last != before


@contextmanager
def _a_stream() -> Iterator[None]:
    """Turn the error about a key that holds another type than a stream into BackendUnavailableError."""
    try:
        yield
    except BackendUnavailableError:
        raise
    except RunyardError as error:
        raise BackendUnavailableError(f"a run's events cannot be read ({error.message}); delete the key") from error


def _decoded(message: Published, ref: RunRef) -> tuple[EventId, Event] | None:
    """Decode the event of a message on the channel of ``ref``, once for all current readers; None if the append script did not
    write the message."""
    known: Event | None = message.made() if message.made is not None else None
    if known is not None and known.id is not None and (id_ := EventId.parse(known.id)) is not None:
        return id_, known
    text, _, payload = message.data.partition(b" ")
    if (found := _event(text, payload, ref)) is not None:
        found[1].share()
        message.made = weakref.ref(found[1])
    return found


def _event(text: bytes, payload: bytes | None, ref: RunRef) -> tuple[EventId, Event] | None:
    """Decode the event with the id ``text``; None if ``payload`` is not an event."""
    id_ = EventId.parse(text.decode("latin-1"))
    try:
        type_, thread_id, data = unpackb(payload or b"")
    except (ValueError, TypeError):  # errors of msgpack, or another number of parts
        return None
    if id_ is None or not (isinstance(type_, str) and isinstance(thread_id, str) and isinstance(data, dict)):
        return None
    # The append script wrote the data of a validated event.
    event = Event.model_construct(id=str(id_), type=type_, thread_id=thread_id, run_id=ref.run_id, data=data)
    if payload is not None and len(payload) >= SEALED_BYTES:
        event.seal()
    return id_, event


class _Position:
    """A reader's position in one stream, and whether the reader can be sure to have missed no event."""

    def __init__(self, ref: RunRef, after: str | None) -> None:
        self.ref = ref
        self.last = EventId.parse(after) if after is not None else None
        # No stream can hold this id: read from the start, and report a gap.
        self._gap_due = after is not None and self.last is None
        self._started = False

    def is_ahead(self, id_: EventId) -> bool:
        return self.last is None or id_ > self.last

    def turn_page(self, whole: bool, entries: list[Any]) -> Iterator[Event]:
        """Yield the events of a page of ``read.lua``. ``whole``: the page starts directly after this position."""
        if not whole:
            # The stream does not hold the id of this position, but the next event follows it directly, so no event is missing.
            first = EventId.parse(entries[0].decode()) if entries else None
            direct = first is not None and self.last is not None and first.fence == self.last.fence and first.follows(self.last)
            self._gap_due |= not direct and (first is not None or not self._started)
        self._started = True
        if self._gap_due and not entries:
            yield self._gap("")
        for i in range(0, len(entries), 2):
            if (found := _event(entries[i], entries[i + 1], self.ref)) is not None:
                yield from self.advance(*found)
            elif (id_ := EventId.parse(entries[i].decode())) is not None and self.is_ahead(id_):
                self.last, self._gap_due = id_, True  # an entry that cannot be decoded is lost

    def advance(self, id_: EventId, event: Event) -> Iterator[Event]:
        """Yield ``event``, which has this id, unless it was seen before; yield a gap first if events may be missing."""
        if not self.is_ahead(id_):
            return
        if self._gap_due or not id_.follows(self.last):
            yield self._gap(event.thread_id)
        self.last = id_
        yield event

    def _gap(self, thread_id: str) -> Event:
        self._gap_due = False
        return Event(id=None, type="gap", thread_id=thread_id, run_id=self.ref.run_id)
