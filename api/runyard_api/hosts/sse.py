"""The events of a run as server-sent events, for any web framework.

The stream has the same bytes as a stream of the HTTP API. One reader can therefore read both. The ``data`` of an event is the
whole event as JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from runyard import Event, RunHandle

HEARTBEAT_SECONDS: Final = 15.0
"""Seconds without an event after which a comment is sent. Without the comments, proxies could close the connection."""
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MEDIA_TYPE: Final = "text/event-stream"
RETRY: Final = b"retry: 1000\n\n"
COMMENT: Final = b": \n\n"

_closing: set[asyncio.Task[None]] = set()
"""The tasks that close the source of a stream after its reader has disconnected. This set keeps the tasks alive, because the
event loop has only weak references to tasks."""


async def opened(handle: RunHandle, last_event_id: str | None, heartbeat: float) -> AsyncGenerator[bytes] | None:
    """Return the bytes of a stream of the events after ``last_event_id``.

    Return None if the run has stopped and ``last_event_id`` is the id of its last event. In this case respond with 204, so
    that a browser does not reconnect. Raises RunNotFoundError.
    """
    run = await handle.run()
    if last_event_id is not None and run.stopped and run.event_id == last_event_id:
        return None
    return frames(handle.stream(last_event_id), heartbeat)


async def frames(events: AsyncGenerator[Event], heartbeat: float) -> AsyncGenerator[bytes]:
    """Yield each event in the format of server-sent events, and a comment after ``heartbeat`` seconds without an event."""
    yield RETRY
    waiting = asyncio.create_task(_next(events))
    try:
        while True:
            done, _ = await asyncio.wait((waiting,), timeout=heartbeat)
            if not done:
                yield COMMENT
                continue
            if (event := waiting.result()) is None:
                return
            waiting = asyncio.create_task(_next(events))
            yield frame(event)
    finally:
        # A separate task closes the source. When the reader of a response has left, Starlette cancels every await of the
        # response.
        closing = asyncio.create_task(_close(waiting, events))
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)
        await asyncio.shield(closing)


async def _close(waiting: asyncio.Task[Event | None], events: AsyncGenerator[Event]) -> None:
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await events.aclose()


async def _next(events: AsyncGenerator[Event]) -> Event | None:
    return await anext(events, None)


def frame(event: Event) -> bytes:
    """Return one event in the format of server-sent events. A ``gap`` has no id. A reader that reconnects therefore resumes
    before the gap."""
    head = f"id: {event.id}\n" if event.id is not None else ""
    return f"{head}event: {event.type}\ndata: ".encode() + event.to_json() + b"\n\n"
