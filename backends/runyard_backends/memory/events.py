"""Event streams of runs in the memory of one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress

from runyard.models import STREAM_ENDS, Event
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import StreamUsage


def place(event_id: str | None) -> tuple[int, int]:
    """Parse an event id ``"<fence>-<n>"`` into its two numbers. Return (0, 0) for any other text. This place is before every
    id."""
    fence, _, n = (event_id or "").partition("-")
    return (int(fence), int(n)) if fence.isdecimal() and n.isdecimal() else (0, 0)


class MemoryEventLog:
    """Implements :class:`runyard.ports.scheduling.EventLog` with unbounded lists of events. The log drops an event whose id is
    not higher than the last id of its run. Therefore an attempt cannot publish events after a later attempt of the run has
    begun."""

    def __init__(self) -> None:
        self._streams: dict[RunRef, list[Event]] = {}
        self._begun: Counter[int] = Counter()
        self._forgotten: set[int] = set()
        self._changed = asyncio.Condition()

    async def append(self, thread_key: int, events: Sequence[Event]) -> None:
        for event in events if thread_key not in self._forgotten else ():
            stream = self._streams.setdefault(RunRef(thread_key, event.run_id), [])
            if not stream or place(event.id) > place(stream[-1].id):
                stream.append(event)
                self._begun[thread_key] += place(event.id)[1] == 1
        async with self._changed:
            self._changed.notify_all()

    async def append_many(self, batch: Sequence[tuple[RunRef, Sequence[Event]]]) -> None:
        for ref, events in batch:
            await self.append(ref.thread_key, events)

    async def read(self, ref: RunRef, after: str | None = None, *, page: bool = False) -> list[Event]:
        """Return all events after the id ``after`` (None: from the start). ``page`` is ignored, because the events are in
        memory."""
        return [e for e in self._streams.get(ref, []) if after is None or place(e.id) > place(after)]

    async def holds(self, ref: RunRef, event_id: str) -> bool:
        return any(event.id == event_id for event in self._streams.get(ref, []))

    async def begins(self, thread_key: int) -> AsyncIterator[bool]:
        """Yield True immediately. Then yield True whenever an attempt of a run of the thread adds its first event."""
        seen = -1
        while True:
            async with self._changed:
                while self._begun[thread_key] == seen:
                    await self._changed.wait()
                seen = self._begun[thread_key]
            yield True

    async def follow(
        self, ref: RunRef, after: str | None = None, *, silence: float | None = None
    ) -> AsyncGenerator[Event | None]:
        """Yield the events after the id ``after`` (None: from the start), up to an event with a type of STREAM_ENDS. Yield
        None after each ``silence`` seconds without an event."""
        while True:
            events: list[Event] = []
            with suppress(TimeoutError):
                async with asyncio.timeout(silence), self._changed:
                    while not (events := await self.read(ref, after)):
                        await self._changed.wait()
            if not events:
                yield None
            for event in events:
                after = event.id
                yield event
                if event.type in STREAM_ENDS:
                    return

    async def forget(self, thread_keys: Sequence[int]) -> None:
        """Delete the streams of these threads, and store no more of their events."""
        self._forgotten.update(thread_keys)
        self._streams = {ref: events for ref, events in self._streams.items() if ref.thread_key not in self._forgotten}

    async def trim(self) -> StreamUsage:
        """Do nothing, because the streams in memory have no limit."""
        return StreamUsage()
