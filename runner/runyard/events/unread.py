"""The queue between the tasks that read a thread's runs and the reader of the thread's stream (E3)."""

from __future__ import annotations

import asyncio
from typing import Final

from ..domain.events import Event, SealedEvent
from ..domain.size_limits import JsonObject, JsonValue

MAX_UNREAD_EVENTS: Final = 100
"""Maximum number of events, of all runs together, that wait for a slow reader.

At this number, the tasks pause until the reader takes events.
"""
MAX_UNREAD_CHARACTERS: Final = 2**18
"""Maximum number of characters in the events that wait for a slow reader. A single event may have more.

The text of an event counts twice, because the event may also keep its JSON. A sealed event has only its JSON, which counts
once.
"""


class Unread:
    """The queue of a reader. An entry is an event, or None as a request to list the runs.

    ``put`` waits while the queue is full.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Event | None, int]] = asyncio.Queue(MAX_UNREAD_EVENTS)
        self._text = 0
        self._room = asyncio.Event()

    async def put(self, event: Event | None) -> None:
        text = _held(event) if event is not None else 0
        while self._text and self._text + text > MAX_UNREAD_CHARACTERS:
            self._room.clear()
            await self._room.wait()
        self._text += text
        await self._queue.put((event, text))

    @property
    def waiting(self) -> int:
        """The number of entries."""
        return self._queue.qsize()

    async def get(self) -> Event | None:
        event, text = await self._queue.get()
        self._text -= text
        self._room.set()
        return event


def _held(event: Event) -> int:
    """Return the approximate number of characters of ``event``."""
    return len(event.to_json()) if isinstance(event, SealedEvent) else 2 * _text(event.data)


def _text(data: JsonObject) -> int:
    """Return the number of characters of text in ``data``."""
    found, waiting = 0, list[JsonValue](data.values())
    while waiting:
        match waiting.pop():
            case str() as text:
                found += len(text)
            case dict() as inner:
                waiting += inner.values()
            case list() as inner:
                waiting += inner
    return found
