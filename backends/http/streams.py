"""Streams of the HTTP API that outlive their connections: whoever reads them comes back with the last id that arrived."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from runner.errors import ThreadNotFoundError
from runner.models import Event, HitlRequest, Message, Run
from runner.patience import jittered

from .bodies import read
from .wire import Frame, Wire

PAUSE: Final = 0.05
"""Seconds before a reader comes back to a stream that carried something."""
IDLE: Final = 1.0
"""Seconds before it comes back to one that carried nothing."""
FINAL: Final = frozenset({"run.completed", "run.cancelled"})
"""Events that nothing follows: the other ends of a run may have been left behind."""


class HttpRemote:
    """Follows runs and threads, and reads what runs left."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def follow_run(self, thread_id: str, run_id: str, last_event_id: str | None = None) -> AsyncGenerator[Event]:
        """A run's events after ``last_event_id``, until it ends or is suspended.

        Raises RunNotFoundError, and BackendUnavailableError if no server comes back.
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

    async def follow_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[tuple[str, Event]]:
        """The events of a thread's runs, each with the cursor that continues after it, until the thread is deleted.

        Raises ThreadNotFoundError, and BackendUnavailableError if no server comes back.
        """
        begun = False
        try:
            async with aclosing(self._frames("threads", thread_id, "stream", last=after)) as frames:
                async for frame in frames:
                    begun = True
                    if frame is not None and frame.id is not None:
                        yield frame.id, read(Event, json.loads(frame.data))
        except ThreadNotFoundError:
            if not begun:
                raise

    async def outcome(self, run: Run) -> tuple[Run, list[Message], list[HitlRequest], list[str]]:
        """A run that stopped, the messages that it wrote, the requests that it waits for, and which of the two are not whole.
        Raises ResultExpiredError."""
        while True:
            path = ("threads", run.thread_id, "runs", run.run_id, "wait")
            answer = await self._wire.ask("GET", *path, query={"wait": self._wire.wait})
            if answer.status == 200:
                found = answer.data
                messages = [read(Message, message) for message in found["messages"]]
                requests = [read(HitlRequest, request) for request in found["requests"]]
                return read(Run, found["run"]), messages, requests, found["omitted"]

    async def _frames(self, *path: str, last: str | None) -> AsyncGenerator[Frame | None]:
        """The frames of a stream, over as many connections as it takes; None where one ended."""
        while True:
            pause = IDLE
            async with self._wire.stream(*path, last=last) as frames:
                if frames is None:
                    return
                async for frame in frames:
                    last = frame.id or last
                    if frame.data:
                        pause = PAUSE
                        yield frame
            yield None
            await asyncio.sleep(jittered(pause))
