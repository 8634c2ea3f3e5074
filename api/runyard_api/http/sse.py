"""Event streams (server-sent events): ids to resume from, comments while there is no event, an end with the run's.

One connection to Redis feeds all streams of a process (:mod:`runyard_backends.redis.pubsub`). A reader that takes nothing
holds up its own stream only: what is read for it is bounded, and after STALLED_SECONDS its connection is dropped (E1 to E3).
Large events are sealed (:meth:`runyard.models.Event.seal`): while a stream waits for its reader it holds their JSON alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runyard.errors import RunyardError
from runyard.models import STREAM_ENDS, Event
from runyard.support import metrics

STALLED_SECONDS: Final = 60.0
"""Seconds for which the opening, or a comment, may wait for a reader that takes nothing."""
TURN_BYTES: Final = 2**13
"""Bytes that a stream sends before other tasks run: hundreds of streams may have events to send at once."""
PIECE_BYTES: Final = 2**16
"""Bytes that are passed to a connection at once: it holds that much of a large event, which is held once for all readers."""
COMMENT: Final = b": \n\n"
RETRY: Final = b"retry: 1000\n\n"
HEADERS: Final = {"X-Accel-Buffering": "no"}

log = structlog.get_logger("runyard.http")


class Entry(NamedTuple):
    """One event and the id from which a reader goes on after it."""

    id: str | None
    event: Event

    def frame(self) -> Iterator[bytes]:
        """Yield the entry as the stream carries it, in pieces."""
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
    """The open streams of a process. ``heartbeat``: seconds of silence after which a comment is sent. ``most``: seconds that a
    stream lasts."""

    def __init__(self, heartbeat: float, most: float) -> None:
        self.heartbeat, self.most = heartbeat, most
        self._open: set[asyncio.Future[bool]] = set()
        self._closing = False

    def join(self) -> asyncio.Future[bool]:
        """Register a stream. Returns a future that is done at its end: True if its reader left."""
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
        """Allow streams to begin, also after :meth:`close`."""
        self._closing = False

    def close(self) -> None:
        """End all streams, and those that begin from now on. Readers reconnect elsewhere and resume."""
        self._closing = True
        for end in self._open:
            _expire(end)


class StreamSlot(NamedTuple):
    """What a reader holds while its stream is open: a ``permit``. ``admitted`` is asked at every heartbeat whether it may read
    on. ``expires``: when its access ends (Unix time), None for never."""

    streams: Streams
    permit: AbstractContextManager[object]
    admitted: Callable[[], Awaitable[bool]]
    expires: float | None = None

    def lasts(self) -> float:
        """Return how many seconds the stream may last."""
        return self.streams.most if self.expires is None else min(self.streams.most, self.expires - time.time())


class EventStream(Response):
    """Sends ``entries`` until they end or the reader leaves. ``on_left``: called if the reader left before the end. ``place``:
    the id from which a reader resumes that leaves before the first entry."""

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
        self.sent_at = 0.0
        self.framing = asyncio.Lock()  # no comment comes between the pieces of an event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("state", {}).get("head"):  # a stream has no end, and a HEAD has no body
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        with self.seat.permit:
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
                log.warning("stream_reader_stalled", seconds=STALLED_SECONDS)
                _leave(end)
                raise
            finally:
                streams.leave(end)
                expiry.cancel()
                leaving.cancel()
                await asyncio.wait((leaving,))
                await self.entries.aclose()
                if end.done() and end.result() and self.on_left is not None:
                    await self.on_left()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send, end: asyncio.Future[bool]) -> None:
        """Send the entries, and a comment after a heartbeat without one; ask at each heartbeat whether the reader may read on.

        One task sends all entries: a task for each would double the cost of sending it.
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
                async with self.framing:
                    for piece in entry.frame():
                        await self._send(send, piece)
                        if (sent := sent + len(piece)) >= TURN_BYTES:
                            sent = 0
                            await asyncio.sleep(0)
                metrics.STREAM_EVENTS.inc()
                if entry.event.type in STREAM_ENDS and self.on_left is not None:
                    self.on_left = None  # there is no run left to cancel
        except RunyardError as error:
            log.warning("stream_aborted", code=error.code, error=error.message)

    async def _send(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self.sent_at = asyncio.get_running_loop().time()

    async def _admitted(self) -> bool:
        try:
            return await self.seat.admitted()
        except RunyardError:  # the store cannot be asked at the moment
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
