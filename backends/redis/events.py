"""The EventLog port on Redis: one bounded stream per run, followed over one connection per process.

Event ids are ``fence-n``; every attempt counts n from 1 without holes, so that a follower can prove that it missed nothing and
says ``gap`` where it cannot (semantics: E1).
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from runner.errors import BackendUnavailableError, RunyardError
from runner.exchange import EVENTS, EVENTS_BYTES, RunRef
from runner.models import STREAM_ENDS, Event

from .connection import Call, RedisServer, script
from .hub import Published
from .jobs import packb, unpackb
from .keys import events_suffix

DAY: Final = 86_400.0


class EventId(NamedTuple):
    """An event's place in its stream; ids compare as their events follow each other."""

    fence: int
    n: int

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """The id that ``text`` is; None if it is none that this log could have issued."""
        fence, _, n = text.partition("-")
        if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (fence, n)):
            return None
        return cls(int(fence), int(n))

    def __str__(self) -> str:
        return f"{self.fence}-{self.n}"

    def follows(self, last: EventId | None) -> bool:
        """Whether nothing can lie between ``last`` (None: the start) and this, judged by the ids alone."""
        if last is not None and last.fence == self.fence:
            return self.n == last.n + 1
        return self.n == 1


class RedisEventLog:
    """Implements :class:`runner.ports.EventLog`.

    max_events: about how many events a run's stream keeps. ttl: seconds that a stream lives after its last event (semantics:
    E4). backlog: how many live events a follower may leave unread before it has to read the stream again (in bytes, see
    :mod:`backends.redis.hub`).
    Raises BackendUnavailableError when Redis does not answer, or has no stream where one should be.
    """

    def __init__(self, server: RedisServer, *, max_events: int = 5000, ttl: float = DAY, backlog: int = 1000) -> None:
        self._server = server
        self._keys = server.keys
        self._max_events = max_events
        self._ttl_ms = int(ttl * 1000)
        self._backlog = backlog

    async def append(self, thread_key: int, events: Sequence[Event]) -> None:
        """Add events of runs of one thread, in order. An event that is not above its stream's last one is dropped silently."""
        await self.append_many([(RunRef(thread_key, event.run_id), [event]) for event in events])

    async def append_many(self, items: Sequence[tuple[RunRef, Sequence[Event]]]) -> None:
        """Add the events of many runs in one round trip; those of one run in the order given."""
        await self._server.call(*self.appends(items))

    def appends(self, items: Sequence[tuple[RunRef, Sequence[Event]]]) -> list[Call]:
        """The calls of :meth:`append_many`, to be made together with others."""
        runs: defaultdict[RunRef, list[Event]] = defaultdict(list)
        for ref, events in items:
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
        """The events after the id ``after`` that the stream holds, a ``gap`` wherever some may be missing. ``page``: only the
        first few, which may be a gap alone; none if there are no more."""
        position = _Position(ref, after)
        if page:
            events, more = await self._page(position)
            while more and not events:
                events, more = await self._page(position)
            return events
        return [event async for event in self._stored(position)]

    async def holds(self, ref: RunRef, event_id: str) -> bool:
        """Whether the stream still has the event with this id, whatever its length."""
        id_ = EventId.parse(event_id)
        with _a_stream():
            return id_ is not None and bool(await self._server.command("XRANGE", self._keys.events(ref), str(id_), str(id_)))

    async def follow(
        self, ref: RunRef, after: str | None = None, *, silence: float | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """The events after the id ``after``, then those to come, each once; a ``gap`` wherever some may be missing; None each
        time ``silence`` seconds passed without one.

        Ends after an event of STREAM_ENDS that nothing follows (a stored ``run.suspended`` that was answered is followed by
        more). Raises BackendUnavailableError when the connection is lost: follow again after the last id that came. Close the
        generator (``contextlib.aclosing``) to leave it early.
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
                    # This reader was slow, or events are missing before this one, or it is none: the stream tells.
                    async for event in self._stored(position):
                        ended = event.type in STREAM_ENDS
                        yield event
                if live_event is not None:
                    for event in position.advance(*live_event):
                        ended = event.type in STREAM_ENDS
                        yield event

    async def begins(self, thread_key: int) -> AsyncGenerator[bool, None]:
        """At once, and whenever an event numbered 1 is added to a run of the thread. Raises BackendUnavailableError when the
        connection is lost."""
        async with self._server.subscribe(self._keys.begins(thread_key), self._backlog) as live:
            while True:
                yield True
                await live.get()

    async def _stored(self, position: _Position) -> AsyncGenerator[Event, None]:
        """Page through what the stream holds after ``position``, and move it."""
        more = True
        while more:
            events, more = await self._page(position)
            for event in events:
                yield event

    async def _page(self, position: _Position) -> tuple[list[Event], bool]:
        """Some of what the stream holds after ``position``, which moves, and whether there is more."""
        after = "" if position.last is None else str(position.last)
        call = Call(script("read"), self._keys.events(position.ref), (after, EVENTS, EVENTS_BYTES))
        with _a_stream():
            [(whole, more, *entries)] = await self._server.call(call)
        before = position.last
        events = list(position.turn_page(bool(whole), entries))
        return events, bool(more) and position.last != before


@contextmanager
def _a_stream() -> Iterator[None]:
    """Something else under a stream's key is a stream that cannot be read."""
    try:
        yield
    except BackendUnavailableError:
        raise
    except RunyardError as error:
        raise BackendUnavailableError(f"a run's events cannot be read ({error.message}); delete what stands there") from error


def _decoded(message: Published, ref: RunRef) -> tuple[EventId, Event] | None:
    """The event in a message of the channel of ``ref``, one for all who read it at the time; None if the append script did not
    write it."""
    known: Event | None = message.made() if message.made is not None else None
    if known is not None and known.id is not None and (id_ := EventId.parse(known.id)) is not None:
        return id_, known
    text, _, payload = message.data.partition(b" ")
    if (found := _event(text, payload, ref)) is not None:
        found[1].share()
        message.made = weakref.ref(found[1])
    return found


def _event(text: bytes, payload: bytes | None, ref: RunRef) -> tuple[EventId, Event] | None:
    """The event with the id ``text``; None if ``payload`` is none."""
    id_ = EventId.parse(text.decode("latin-1"))
    try:
        type_, thread_id, data = unpackb(payload or b"")
    except (ValueError, TypeError):  # msgpack's errors, and another number of parts
        return None
    if id_ is None or not (isinstance(type_, str) and isinstance(thread_id, str) and isinstance(data, dict)):
        return None
    # Written by append from a validated event.
    return id_, Event.model_construct(id=str(id_), type=type_, thread_id=thread_id, run_id=ref.run_id, data=data)


class _Position:
    """Where a reader of one stream stands, and whether it can be sure to have missed nothing."""

    def __init__(self, ref: RunRef, after: str | None) -> None:
        self.ref = ref
        self.last = EventId.parse(after) if after is not None else None
        # An id that no stream can hold: start over, but say so.
        self._gap_due = after is not None and self.last is None
        self._started = False

    def is_ahead(self, id_: EventId) -> bool:
        return self.last is None or id_ > self.last

    def turn_page(self, whole: bool, entries: list[Any]) -> Iterator[Event]:
        """The events of a page of ``read.lua``; ``whole``: it starts directly after this position."""
        if not whole:
            # The id itself was trimmed or never was there, yet its direct successor proves that nothing lies between.
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
                self.last, self._gap_due = id_, True  # an entry that nobody can read is lost

    def advance(self, id_: EventId, event: Event) -> Iterator[Event]:
        """``event``, which has this id, unless it was seen before; after a gap if something may be missing."""
        if not self.is_ahead(id_):
            return
        if self._gap_due or not id_.follows(self.last):
            yield self._gap(event.thread_id)
        self.last = id_
        yield event

    def _gap(self, thread_id: str) -> Event:
        self._gap_due = False
        return Event(id=None, type="gap", thread_id=thread_id, run_id=self.ref.run_id)
