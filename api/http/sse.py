"""Event streams (server-sent events): ids to resume from, comments while nothing happens, an end with the run's.

One connection to Redis feeds all streams of a process (:mod:`backends.redis.hub`). A reader that takes nothing holds up its own
stream only: what is read for it is bounded, and after a while its connection is dropped (semantics: E1 to E3).
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

from runner import metrics
from runner.errors import RunyardError
from runner.models import STREAM_ENDS, Event

STALLED: Final = 60.0
"""Seconds for which the opening, or a comment, may wait for a reader that takes nothing."""
TURN: Final = 2**13
"""Bytes that a stream sends at most before others have their turn: hundreds of streams may have something to send at once."""
PIECE: Final = 2**16
"""Bytes that are handed over at once: a large event is held once, and not for each connection that is slow to take it."""
COMMENT: Final = b": \n\n"
RETRY: Final = b"retry: 1000\n\n"
HEADERS: Final = {"X-Accel-Buffering": "no"}

log = structlog.get_logger("runyard.http")


class Entry(NamedTuple):
    """One event and the id from which a reader goes on after it."""

    id: str | None
    event: Event

    def frame(self) -> Iterator[bytes]:
        """As the stream carries it, piece by piece."""
        head = f"id: {self.id}\n" if self.id is not None else ""
        head = f"{head}event: {self.event.type}\ndata: "
        data = self.event.to_json()
        if len(data) <= PIECE:
            yield head.encode() + data + b"\n\n"
            return
        yield head.encode()
        for at in range(0, len(data), PIECE):
            yield data[at : at + PIECE]
        yield b"\n\n"


class Streams:
    """The open streams of a process. ``heartbeat``: seconds of silence after which a comment is sent. ``most``: seconds that a
    stream lasts."""

    def __init__(self, heartbeat: float, most: float) -> None:
        self.heartbeat, self.most = heartbeat, most
        self._open: set[asyncio.Future[bool]] = set()
        self._closing = False

    def join(self) -> asyncio.Future[bool]:
        """A stream begins; the future is its end: True if its reader left."""
        end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._closing:
            end.set_result(False)
        self._open.add(end)
        metrics.STREAMS_OPEN.inc()
        return end

    def leave(self, end: asyncio.Future[bool]) -> None:
        """The stream is over."""
        self._open.discard(end)
        metrics.STREAMS_OPEN.dec()

    def open(self) -> None:
        """Streams may begin, again if they were closed."""
        self._closing = False

    def close(self) -> None:
        """End all streams, and those that begin from here on. Readers come back elsewhere, from where they were."""
        self._closing = True
        for end in self._open:
            _expire(end)


class Seat(NamedTuple):
    """What a reader has while its stream is open: ``permit`` is held, and ``admitted`` asked now and then if it may read on.
    ``expires`` (Unix time): when it may not."""

    streams: Streams
    permit: AbstractContextManager[object]
    admitted: Callable[[], Awaitable[bool]]
    expires: float | None = None

    def lasts(self) -> float:
        """Seconds that are left."""
        return self.streams.most if self.expires is None else min(self.streams.most, self.expires - time.time())


class EventStream(Response):
    """``entries`` as they come, until they end or the reader leaves. ``on_left``: called if the reader left before the end.
    ``place``: the id from which a reader goes on that leaves before the first entry."""

    media_type = "text/event-stream"

    def __init__(
        self,
        entries: AsyncGenerator[Entry],
        seat: Seat,
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
        if scope.get("state", {}).get("head"):  # a stream has no end, and its reader would have nothing of it
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
                async with asyncio.timeout(STALLED):
                    await self._send(send, self.opening)
                await self._pump(send, end)
            except TimeoutError:
                log.warning("a reader of a stream took nothing and is dropped", seconds=STALLED)
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
        """Send the entries, and a comment whenever there was none for a while; ask now and then if the reader may read on.

        One task sends all entries: a task for each would cost as much again as its sending.
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
                    async with asyncio.timeout(STALLED), self.framing:
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
                        if (sent := sent + len(piece)) >= TURN:
                            sent = 0
                            await asyncio.sleep(0)
                metrics.STREAM_EVENTS.inc()
                if entry.event.type in STREAM_ENDS and self.on_left is not None:
                    self.on_left = None  # what the reader could cancel by leaving is over
        except RunyardError as error:
            log.warning("a stream was cut short", code=error.code, error=error.message)

    async def _send(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self.sent_at = asyncio.get_running_loop().time()

    async def _admitted(self) -> bool:
        try:
            return await self.seat.admitted()
        except RunyardError:  # nobody can tell at the moment
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
