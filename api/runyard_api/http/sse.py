"""Event streams (server-sent events). During silence, a stream sends a comment every ``heartbeat`` seconds (``settings.py``).

After a reconnect, a reader sends the id of its last event as ``Last-Event-ID``. The stream continues after this event
(``routes/streams.py`` and ``routes/runs.py``).

All streams of a process get their events over one connection to Redis (:mod:`runyard_backends.redis.pubsub`). A reader that
reads nothing delays only its own stream. The process holds a limited number of bytes for this reader. The process closes the
reader's connection after STALLED_SECONDS (E1 to E3). While a stream waits for its reader, its large events are kept as JSON
(:meth:`runyard.models.Event.seal`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, NamedTuple

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runyard.errors import RunyardError
from runyard.models import STREAM_ENDS, Event
from runyard.support import metrics

from .request_state import state_of

STALLED_SECONDS: Final = 60.0
"""Seconds within which a reader must read the first bytes of a stream, and each comment. After this time, the stream ends."""
TURN_BYTES: Final = 2**13
"""Bytes that a stream sends before other tasks run. Without this limit, hundreds of streams with events to send could delay all
other tasks."""
PIECE_BYTES: Final = 2**16
"""Bytes that are passed to a connection at once. A large event is in memory once for all readers. In addition, each reader has
one piece in memory."""
COMMENT: Final = b": \n\n"
RETRY: Final = b"retry: 1000\n\n"
HEADERS: Final = {"X-Accel-Buffering": "no"}

log = structlog.get_logger("runyard.http")


class Entry(NamedTuple):
    """One event, and the id with which a reader resumes after this event."""

    id: str | None
    event: Event

    def frame(self) -> Iterator[bytes]:
        """Yield the entry in the format of server-sent events, in pieces of bytes."""
        head = f"id: {self.id}\n" if self.id is not None else ""
        head = f"{head}event: {self.event.type}\ndata: "
        data = self.event.to_json()
        if len(data) <= PIECE_BYTES:
            yield head.encode() + data + b"\n\n"
            return
        yield head.encode()
        for at in range(0, len(data), PIECE_BYTES):
            yield data[at : at + PIECE_BYTES]
        yield b"\n\n"


class Streams:
    """The open streams of a process.

    ``heartbeat``: seconds without an event after which a comment is sent. ``most``: maximum seconds that a stream lasts.
    """

    def __init__(self, heartbeat: float, most: float) -> None:
        self.heartbeat, self.most = heartbeat, most
        self._open: set[asyncio.Future[bool]] = set()
        self._closing = False

    def join(self) -> asyncio.Future[bool]:
        """Register a stream. Return a future that is done at the end of the stream. Its result is True if the reader
        disconnected."""
        end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._closing:
            end.set_result(False)
        self._open.add(end)
        metrics.STREAMS_OPEN.inc()
        return end

    def leave(self, end: asyncio.Future[bool]) -> None:
        """Remove a stream."""
        self._open.discard(end)
        metrics.STREAMS_OPEN.dec()

    def open(self) -> None:
        """Allow streams to begin, even after :meth:`close`."""
        self._closing = False

    def close(self) -> None:
        """End all streams. Streams that begin later end at once. Readers reconnect to another process and resume."""
        self._closing = True
        for end in self._open:
            _expire(end)


class StreamSlot(NamedTuple):
    """The right of a reader to one open stream. It is not the slot of a worker.

    ``permit``: a context that is entered while the stream is open. ``admitted``: a function that is called at every heartbeat.
    If this function returns False, the stream ends. ``expires``: the end of the reader's access in seconds of Unix time, or
    None.
    """

    streams: Streams
    permit: AbstractContextManager[object]
    admitted: Callable[[], Awaitable[bool]]
    expires: float | None = None

    @contextmanager
    def taken(self) -> Iterator[TakenSlot]:
        """Take a place for one stream by entering ``permit``, before any work for the stream. The ``with`` block holds the
        place. The end of the block frees the place, unless :meth:`TakenSlot.kept` was called. The end of the stream then frees
        it."""
        with ExitStack() as held:
            held.enter_context(self.permit)
            yield TakenSlot(self, held)

    def lasts(self) -> float:
        """Return the number of seconds that the stream may last."""
        return self.streams.most if self.expires is None else min(self.streams.most, self.expires - time.time())


class TakenSlot(NamedTuple):
    """A :class:`StreamSlot` whose permit is taken."""

    slot: StreamSlot
    held: ExitStack

    def kept(self) -> StreamSlot:
        """Return the :class:`StreamSlot` for a stream that starts now. The stream returns the permit when it ends."""
        return self.slot._replace(permit=self.held.pop_all())


class EventStream(Response):
    """Sends ``entries`` until they end or the reader disconnects.

    ``on_left``: called if the reader disconnected while the run had not stopped. A run that continues after an answer or a
    redrive has not stopped. ``place``: the id from which a reader continues if it has received no entry.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        entries: AsyncGenerator[Entry],
        seat: StreamSlot,
        headers: dict[str, str] | None = None,
        status_code: int = 200,
        on_left: Callable[[], Awaitable[None]] | None = None,
        place: str | None = None,
    ) -> None:
        super().__init__(status_code=status_code, headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self.entries, self.seat, self.on_left = entries, seat, on_left
        self.opening = RETRY if place is None else f"id: {place}\n".encode() + RETRY
        self.names: dict[str, object] = {}
        self.sent_at = 0.0
        self.stopped = False  # whether the last event is an end or a suspension of the run
        self.framing = asyncio.Lock()  # comments are not sent between the pieces of an event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.names = {"request_id": state_of(scope).get("request_id"), "path": scope.get("path")}
        with self.seat.permit:
            if state_of(scope).get("head"):  # a stream has no end, and a HEAD has no body
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            streams = self.seat.streams
            end = streams.join()
            expiry = asyncio.get_running_loop().call_later(self.seat.lasts(), _expire, end)
            leaving = asyncio.create_task(_left(receive, end))
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async with asyncio.timeout(STALLED_SECONDS):
                    await self._send(send, self.opening)
                await self._pump(send, end)
            except TimeoutError:
                log.warning("stream_reader_stalled", **self.names, stalled_seconds=STALLED_SECONDS)
                _leave(end)
                raise
            finally:
                streams.leave(end)
                expiry.cancel()
                leaving.cancel()
                await asyncio.wait((leaving,))
                await self.entries.aclose()
                if end.done() and end.result() and self.on_left is not None and not self.stopped:
                    await self.on_left()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send, end: asyncio.Future[bool]) -> None:
        """Send the entries, and a comment after ``heartbeat`` seconds without an entry.

        At each heartbeat, check that the reader is still admitted. One task sends all entries, because a task for each entry
        would take twice the time.
        """
        loop, heartbeat = asyncio.get_running_loop(), self.seat.streams.heartbeat
        asked = loop.time()
        sending = asyncio.create_task(self._send_entries(send))
        try:
            while not (sending.done() or end.done()):
                now = loop.time()
                if now - asked >= heartbeat:
                    if not await self._admitted():
                        return
                    asked = loop.time()
                elif now - self.sent_at >= heartbeat:
                    async with asyncio.timeout(STALLED_SECONDS), self.framing:
                        await self._send(send, COMMENT)
                else:
                    left = min(asked, self.sent_at) + heartbeat - now
                    await asyncio.wait((sending, end), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            await asyncio.wait((sending,))
        if not sending.cancelled():
            sending.result()

    async def _send_entries(self, send: Send) -> None:
        sent = 0
        try:
            async for entry in self.entries:
                self.stopped = entry.event.type in STREAM_ENDS
                async with self.framing:
                    for piece in entry.frame():
                        await self._send(send, piece)
                        if (sent := sent + len(piece)) >= TURN_BYTES:
                            sent = 0
                            await asyncio.sleep(0)
                metrics.STREAM_EVENTS.inc()
        except RunyardError as error:
            log.warning("stream_aborted", **self.names, error_code=error.code, error=error.message)

    async def _send(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self.sent_at = asyncio.get_running_loop().time()

    async def _admitted(self) -> bool:
        try:
            return await self.seat.admitted()
        except RunyardError:  # while the store does not answer, the reader keeps its access
            return True


async def _left(receive: Receive, end: asyncio.Future[bool]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _leave(end)


def _leave(end: asyncio.Future[bool]) -> None:
    if not end.done():
        end.set_result(True)


def _expire(end: asyncio.Future[bool]) -> None:
    if not end.done():
        end.set_result(False)
