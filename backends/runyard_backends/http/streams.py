"""Streams of the HTTP API that outlive their connections. A reader reconnects with the last id that it received."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from runyard.domain.events import ThreadEvent
from runyard.errors import BackendUnavailableError, ThreadNotFoundError
from runyard.events.run_outcome import complete_outcome
from runyard.models import Event, HitlRequest, Message, Run
from runyard.ports.runs import RunStore
from runyard.ports.stores import ThreadStore
from runyard.ports.streams import Outcome
from runyard.support.store_retries import jittered

from .codec import read
from .transport import Frame, Transport

RECONNECT_SECONDS: Final = 0.05
"""Seconds before a reader reconnects after a connection with events."""
IDLE_RECONNECT_SECONDS: Final = 1.0
"""Seconds before a reader reconnects after a connection without events."""
FINAL: Final = frozenset({"run.completed", "run.cancelled"})
"""Types of events that are always the last of their run. After ``run.failed`` or ``run.dead``, a redrive may add events."""


class HttpStreams:
    """Implements :class:`runyard.ports.streams.Streams` with the streams of the server. ``threads`` and ``runs``: the stores
    from which the omitted part of an outcome is read."""

    def __init__(self, transport: Transport, threads: ThreadStore, runs: RunStore) -> None:
        self._transport, self._threads, self._runs = transport, threads, runs

    async def follow_run(
        self, thread_id: str, run_id: str, last_event_id: str | None = None, *, found: Run | None = None
    ) -> AsyncGenerator[Event]:
        """Yield a run's events after ``last_event_id`` (None: from the start), until the run ends or is suspended. ``found`` is
        ignored, because the server reads the run itself.

        Raises RunNotFoundError, and BackendUnavailableError if no server can be reached within ``patience`` seconds.
        """
        kind = None
        async with aclosing(self._frames("threads", thread_id, "runs", run_id, "stream", last=last_event_id)) as frames:
            async for frame in frames:
                if frame is not None:
                    event = read(Event, json.loads(frame.data))
                    kind = event.type
                    yield event
                elif kind in FINAL:
                    return

    async def follow_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[ThreadEvent]:
        """Yield the events of a thread's runs after the cursor ``after``, until the thread is deleted. Without a cursor, yield
        all events of queued, running and later runs. Each event has the cursor that continues after it.

        Raises ThreadNotFoundError, and BackendUnavailableError if no server can be reached within ``patience`` seconds.
        """
        begun = False
        try:
            async with aclosing(self._frames("threads", thread_id, "stream", last=after)) as frames:
                async for frame in frames:
                    begun = True
                    if frame is not None and frame.id is not None:
                        yield ThreadEvent(frame.id, read(Event, json.loads(frame.data)))
        except ThreadNotFoundError:
            if not begun:
                raise

    async def thread_cursor(self, thread_id: str) -> str:
        """Return the cursor at which a new stream begins. The server sends this cursor before any event. Raises
        ThreadNotFoundError."""
        async with self._transport.stream("threads", thread_id, "stream", last=None) as frames:
            if frames is not None:
                async for frame in frames:
                    if frame.id is not None:
                        return frame.id
        raise BackendUnavailableError("the stream of a thread ended before its cursor arrived; call again", thread_id=thread_id)

    async def outcome(self, run: Run, max_bytes: int | None = None) -> Outcome:
        """Wait until the run ends or is suspended and return its outcome. Raises ResultExpiredError.

        The server shortens the outcome to the server's own limit, whatever ``max_bytes`` is. If ``max_bytes`` is None, further
        requests read the rest of the outcome.
        """
        while True:
            path = ("threads", run.thread_id, "runs", run.run_id, "wait")
            answer = await self._transport.ask("GET", *path, query={"wait": self._transport.wait})
            if answer.status == 200:
                found = answer.data
                messages = [read(Message, message) for message in found["messages"]]
                requests = [read(HitlRequest, request) for request in found["requests"]]
                outcome = Outcome(read(Run, found["run"]), messages, requests, found["omitted"])
                if outcome.omitted and max_bytes is None:
                    return await complete_outcome(self._threads, self._runs, outcome)
                return outcome

    async def _frames(self, *path: str, last: str | None) -> AsyncGenerator[Frame | None]:
        """Yield the frames of a stream, and reconnect whenever a connection ends. Yield None between two connections."""
        while True:
            pause = IDLE_RECONNECT_SECONDS
            async with self._transport.stream(*path, last=last) as frames:
                if frames is None:
                    return
                async for frame in frames:
                    last = frame.id or last
                    if frame.data:
                        pause = RECONNECT_SECONDS
                        yield frame
            yield None
            await asyncio.sleep(jittered(pause))
