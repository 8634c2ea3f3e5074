"""The EventLog port on Redis. Each run has one bounded stream. All followers in a process share one connection.

There is also a limit for all streams together. :class:`runyard.ports.scheduling.StreamLimits` has the default numbers.
``runyard/support/settings.py`` has the settings that change them. ``lua/append.lua`` applies the limits of one stream.
``lua/total_limit.lua`` applies the limit of all streams together. ``lua/streams.lua`` counts the bytes.

Event ids have the form ``fence-n``. Every attempt counts n from 1, without gaps. A follower can therefore check that it missed
no event. If the check fails, the follower yields a ``gap`` (E1).
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from runyard.errors import BackendUnavailableError, RunyardError
from runyard.models import STREAM_ENDS, Event
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import (
    DEFAULT_TOTAL_BYTES,
    EVENT_BYTES_PER_READ,
    EVENTS_PER_READ,
    StreamLimits,
    StreamUsage,
)

from .job_codec import packb, unpackb
from .key_names import events_suffix
from .pubsub import Published
from .scripts import Call, script
from .servers import RedisServers

STREAMS_PER_CALL: Final = 500
"""Maximum number of streams that one call drops or deletes. A script with more streams would block the server for too long."""
MAX_HEAD: Final = 64
"""Maximum bytes of the id and the length of one event, in a message of several events."""
EVENTS_PER_APPEND: Final = 500
"""Number of events after which a call takes no events of further runs. A script with more events would block the server for too
long."""
CALLS_PER_TRIM: Final = 20
"""Maximum number of calls per shard in one trim."""
TRIM_SECONDS: Final = 0.5
"""Seconds after which a trim makes only one call for each further shard. Without this limit, the leader would have too little
time for its other work."""
FORGOTTEN_MS: Final = 3_600_000
"""For this number of milliseconds after the deletion of a thread, events of the thread are not stored. A worker that cannot
reach Postgres may continue a run of the thread for a while."""
MAX_UNREAD_EVENTS: Final = 1000
"""Maximum number of live events that a follower may leave unread."""
SEALED_BYTES: Final = 2**11
"""Minimum bytes of an event that is kept as JSON until readers have read it. JSON takes less memory than objects."""


class EventId(NamedTuple):
    """The id of an event. Ids sort in the order of the events."""

    fence: int
    n: int

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """Parse ``text``. Return None if ``text`` cannot be an id of this log."""
        fence, _, n = text.partition("-")
        if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (fence, n)):
            return None
        return cls(int(fence), int(n))

    def __str__(self) -> str:
        return f"{self.fence}-{self.n}"

    def follows(self, last: EventId | None) -> bool:
        """Return True if this id is the next possible id after ``last`` (None: after the start of the stream)."""
        if last is not None and last.fence == self.fence:
            return self.n == last.n + 1
        return self.n == 1


class RedisEventLog:
    """Implements :class:`runyard.ports.scheduling.EventLog`.

    limits: the limits of the streams, and the time for which streams are kept (E4). backlog: maximum number of unread live
    events of a follower. A follower with more unread events reads the stream again. :mod:`runyard_backends.redis.pubsub` has
    the limit in bytes. Every method raises BackendUnavailableError when Redis does not answer, or when a run's key does not
    hold a stream.
    """

    def __init__(self, server: RedisServers, limits: StreamLimits | None = None, *, backlog: int = MAX_UNREAD_EVENTS) -> None:
        self._server = server
        self._keys = server.keys
        self._limits = limits or StreamLimits()
        self._backlog = backlog
        server.room = self._trims

    async def append(self, thread_key: int, events: Sequence[Event]) -> None:
        """Add events of runs of one thread, in order. An event is added only if its id is higher than the stream's last id. Any
        other event is dropped without an error."""
        await self.append_many([(RunRef(thread_key, event.run_id), [event]) for event in events])

    async def append_many(self, batch: Sequence[tuple[RunRef, Sequence[Event]]]) -> None:
        """Add the events of many runs in one round trip. The events of one run are added in one step, in the given order."""
        await self._server.call(*self.appends(batch))

    def appends(self, batch: Sequence[tuple[RunRef, Sequence[Event]]]) -> list[Call]:
        """Return the calls of :meth:`append_many`, so that the caller can send them together with other calls."""
        runs: defaultdict[RunRef, list[Event]] = defaultdict(list)
        for ref, events in batch:
            runs[ref] += events
        pages: defaultdict[int, list[list[Any]]] = defaultdict(lambda: [[]])
        sizes: Counter[int] = Counter()
        for ref, events in runs.items():
            if events:
                shard = self._keys.shard(ref.thread_key)
                if sizes[shard] >= EVENTS_PER_APPEND:
                    pages[shard].append([])
                    sizes[shard] = 0
                sizes[shard] += len(events)
                args = pages[shard][-1]
                args += (events_suffix(ref), _state(events), len(events))
                for event in events:
                    args += (event.id, packb((event.type, event.thread_id, event.data)))
        limits = self._limits
        bounds = (limits.events, limits.bytes, int(limits.running * 1000), int(limits.stopped * 1000))
        return [
            Call(script("append"), self._keys.prefix(shard), (*bounds, *args))
            for shard, of_shard in pages.items()
            for args in of_shard
        ]

    async def forget(self, thread_keys: Sequence[int]) -> None:
        """Delete the streams of these threads. For FORGOTTEN_MS, new events of the threads reach the current followers but are
        not stored."""
        shards: defaultdict[int, list[int]] = defaultdict(list)
        for thread_key in thread_keys:
            shards[self._keys.shard(thread_key)].append(thread_key)
        for shard, left in shards.items():
            while left:
                chunk = left[:STREAMS_PER_CALL]
                args = (FORGOTTEN_MS, STREAMS_PER_CALL, *chunk)
                [done] = await self._server.call(Call(script("forget"), self._keys.prefix(shard), args))
                del left[:done]

    async def trim(self) -> StreamUsage:
        """Drop streams until all streams together are within the limit. Return the bytes that all streams take after the trim.

        At most CALLS_PER_TRIM × STREAMS_PER_CALL streams are dropped per shard. After TRIM_SECONDS, at most STREAMS_PER_CALL
        are dropped in each further shard. The call also stores the limit. The appends of every process apply this limit.
        """
        ends = asyncio.get_running_loop().time() + TRIM_SECONDS
        usage, lost = [], None
        for trim in self._trims(decide=True):
            try:
                usage.append(await self._trim_shard(trim, ends))
            except BackendUnavailableError as error:  # the other shards can be on other servers
                lost = error
        if lost is not None:
            raise lost
        memory, max_memory = max(((one.memory, one.max_memory) for one in usage), default=(0, 0))
        return StreamUsage(sum(one.bytes for one in usage), sum(one.dropped for one in usage), memory, max_memory)

    async def _trim_shard(self, trim: Call, ends: float) -> StreamUsage:
        """Repeat the call ``trim`` until its shard is within the limit, or until the event loop's clock reaches ``ends``."""
        for _ in range(CALLS_PER_TRIM):
            [(taken, dropped, more, memory, max_memory)] = await self._server.call(trim)
            if not more or asyncio.get_running_loop().time() >= ends:
                break
        return StreamUsage(taken, dropped, memory, max_memory)

    def _trims(self, *, decide: bool = False) -> list[Call]:
        """Return the calls that drop streams, one per shard. ``decide``: True to set the limit for the appends of every
        process."""
        shards, most = self._keys.shards, self._limits.total_bytes or 0

        def args(shard: int) -> tuple[int, ...]:
            parts = shards if most else self._server.shards_beside(shard)
            return most or 0, DEFAULT_TOTAL_BYTES, parts, STREAMS_PER_CALL, int(decide)

        return [Call(script("total_limit"), self._keys.prefix(shard), args(shard)) for shard in range(shards)]

    async def read(self, ref: RunRef, after: str | None = None, *, page: bool = False) -> list[Event]:
        """Return the stored events after the id ``after`` (None: from the start), with a ``gap`` wherever events may be
        missing. ``page``: True to return only the first page. A page may consist of a gap alone. A page after the last event is
        empty."""
        position = _Position(ref, after)
        if page:
            events, more = await self._page(position)
            while more and not events:
                events, more = await self._page(position)
            return events
        return [event async for event in self._stored(position)]

    async def holds(self, ref: RunRef, event_id: str) -> bool:
        """Return True if the stream still has the event with this id. The cost does not depend on the stream's length."""
        id_ = EventId.parse(event_id)
        with _a_stream():
            return id_ is not None and bool(await self._server.command("XRANGE", self._keys.events(ref), str(id_), str(id_)))

    async def follow(
        self, ref: RunRef, after: str | None = None, *, silence: float | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """Yield the stored events after the id ``after`` (None: from the start), then live events, each event once. Yield a
        ``gap`` wherever events are possibly missing. Yield None after each ``silence`` seconds without an event.

        The generator ends after a live event with a type of STREAM_ENDS. The generator also ends after the stored events if the
        last of them has such a type. A stored ``run.suspended`` event therefore does not end the generator if later events are
        stored. Raises BackendUnavailableError when the connection is lost. After this error, call the method again with the
        last id that was received. To stop early, close the generator (``contextlib.aclosing``).
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
                live_events = _decoded(message, ref) if message is not None else []
                if not live_events or position.misses(live_events[0][0]):
                    # Read the stream: the reader was slow, or earlier events are missing, or the message has no event.
                    position.expect_events()
                    async for event in self._stored(position):
                        ended = event.type in STREAM_ENDS
                        yield event
                for live_event in live_events:
                    for event in position.advance(*live_event):
                        ended = event.type in STREAM_ENDS
                        yield event
                    if ended:
                        break

    async def begins(self, thread_key: int) -> AsyncGenerator[bool, None]:
        """Yield True immediately. Then yield True whenever an attempt of a run of the thread adds its first event. Raises
        BackendUnavailableError when the connection is lost."""
        async with self._server.subscribe(self._keys.begins(thread_key), self._backlog) as live:
            while True:
                yield True
                await live.get()

    async def _stored(self, position: _Position) -> AsyncGenerator[Event, None]:
        """Yield the stored events after ``position``, page by page. Move ``position`` behind them."""
        more = True
        while more:
            events, more = await self._page(position)
            for event in events:
                yield event

    async def _page(self, position: _Position) -> tuple[list[Event], bool]:
        """Read a page of stored events after ``position`` and move ``position`` behind it. Return the events, and True if there
        are more."""
        after = "" if position.last is None else str(position.last)
        call = Call(script("read"), self._keys.events(position.ref), (after, EVENTS_PER_READ, EVENT_BYTES_PER_READ))
        with _a_stream():
            [(whole, more, *entries)] = await self._server.call(call)
        before = position.last
        # Only one page is decoded at a time. Other tasks can therefore run between the pages, even if many readers read large
        # events at once.
        async with self._server.decoding:
            events = list(position.turn_page(bool(whole), entries))
        if more:
            position.expect_events()
        return events, bool(more) and position.last != before


@contextmanager
def _a_stream() -> Iterator[None]:
    """Raise BackendUnavailableError if the key of a run's events does not hold a stream."""
    try:
        yield
    except BackendUnavailableError:
        raise
    except RunyardError as error:
        raise BackendUnavailableError(f"a run's events cannot be read ({error.message}); delete the key") from error


def _state(events: Sequence[Event]) -> int:
    """Return the state of a run after ``events``, in the form that the append script expects."""
    if events[-1].type in STREAM_ENDS:
        return 1
    return 2 if events[0].type == "run.queued" else 0


def _decoded(message: Published, ref: RunRef) -> list[tuple[EventId, Event]]:
    """Decode the events of a message on the channel of ``ref``, once for all current readers. Return an empty list if the
    message cannot be decoded."""
    found = []
    for known in message.made or ():
        event: Event | None = known()
        if event is not None and event.id is not None and (id_ := EventId.parse(event.id)) is not None:
            found.append((id_, event))
    if message.made and len(found) == len(message.made):
        return found
    found = []
    for text, payload in _entries(message.data):
        if (decoded := _event(text, payload, ref)) is None:
            return []
        decoded[1].share()
        found.append(decoded)
    message.made = [weakref.ref(event) for _, event in found]
    return found


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the ids and payloads of a message. ``lua/append.lua`` describes the format. The last payload can be incomplete."""
    if not data.startswith(b"* "):
        text, _, payload = data.partition(b" ")
        yield text, payload
        return
    at = 2
    while at < len(data):
        text, _, rest = data[at : at + MAX_HEAD].partition(b" ")
        length, space, _ = rest.partition(b" ")
        if not (space and length.isdigit()):
            yield b"", b""
            return
        at += len(text) + len(length) + 2
        yield text, data[at : at + int(length)]
        at += int(length)


def _event(text: bytes, payload: bytes | None, ref: RunRef) -> tuple[EventId, Event] | None:
    """Decode the event with the id ``text``. Return None if ``text`` is not an id or ``payload`` is not an event."""
    id_ = EventId.parse(text.decode("latin-1"))
    try:
        type_, thread_id, data = unpackb(payload or b"")
    except (ValueError, TypeError):  # the payload is not msgpack, or has another number of parts
        return None
    if id_ is None or not (isinstance(type_, str) and isinstance(thread_id, str) and isinstance(data, dict)):
        return None
    # The data was validated before the append script wrote it.
    event = Event.trusted(str(id_), type_, thread_id, ref.run_id, data)
    if payload is not None and len(payload) >= SEALED_BYTES:
        try:
            event.seal()
        except (ValueError, TypeError):  # a value that JSON cannot contain
            return None
    return id_, event


class _Position:
    """The position of a reader in one stream. The object also records whether the next event needs a ``gap`` before it."""

    def __init__(self, ref: RunRef, after: str | None) -> None:
        self.ref = ref
        self.last = EventId.parse(after) if after is not None else None
        # If the id cannot be parsed, no stream can contain it. In this case read from the start, after a gap.
        self._gap_due = after is not None and self.last is None
        self._expects_events = True

    def expect_events(self) -> None:
        """Record that the next page should have events. If that page is empty, and the stream lacks the last event that was
        read, :meth:`turn_page` yields a gap."""
        self._expects_events = True

    def is_ahead(self, id_: EventId) -> bool:
        return self.last is None or id_ > self.last

    def misses(self, id_: EventId) -> bool:
        """Return True if events may lie between this position and ``id_``."""
        return self.is_ahead(id_) and not id_.follows(self.last)

    def turn_page(self, whole: bool, entries: list[Any]) -> Iterator[Event]:
        """Yield the events of a page of ``read.lua``. ``whole``: True if no event is missing between this position and the
        page. ``entries``: for each event, its id and then its payload."""
        if not whole:
            # The last event that was read is no longer in the stream. No event is missing if the first entry has the next id.
            first = EventId.parse(entries[0].decode()) if entries else None
            direct = first is not None and self.last is not None and first.fence == self.last.fence and first.follows(self.last)
            self._gap_due |= not direct and (first is not None or self._expects_events)
        self._expects_events = False
        if self._gap_due and not entries:
            yield self._gap("")
        for i in range(0, len(entries), 2):
            if (found := _event(entries[i], entries[i + 1], self.ref)) is not None:
                yield from self.advance(*found)
            elif (id_ := EventId.parse(entries[i].decode())) is not None and self.is_ahead(id_):
                self.last, self._gap_due = id_, True  # an entry that cannot be decoded is lost

    def advance(self, id_: EventId, event: Event) -> Iterator[Event]:
        """Yield ``event``, which has the id ``id_``. If earlier events are possibly missing, yield a gap first. Yield nothing
        if the position is already at or after ``id_``."""
        if not self.is_ahead(id_):
            return
        if self._gap_due or not id_.follows(self.last):
            yield self._gap(event.thread_id)
        self.last = id_
        yield event

    def _gap(self, thread_id: str) -> Event:
        self._gap_due = False
        return Event(id=None, type="gap", thread_id=thread_id, run_id=self.ref.run_id)
