"""A TCP proxy before Postgres or Redis that makes faults on demand."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

CHUNK: Final = 65536


@dataclass(eq=False)
class Link:
    """One connection of a client. ``upstream``: None if nothing of the connection is forwarded."""

    client: asyncio.StreamWriter
    upstream: asyncio.StreamWriter | None = None
    swallowed: bool = False
    asked: bool = False

    def abort(self) -> None:
        """End both sides with a reset, as a crash of the other host does."""
        for writer in (self.client, self.upstream):
            if writer is not None:
                writer.transport.abort()


@dataclass
class FaultProxy:
    """Forwards to ``host:upstream_port``. The port may change, and open connections then stay. Faults apply to every connection
    and last until :meth:`heal`, unless they say otherwise.

    Use as ``async with FaultProxy("127.0.0.1", 5432) as proxy``; ``proxy.port`` is where clients connect.
    """

    host: str
    upstream_port: int
    port: int = 0
    _links: set[Link] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _delay: float = 0.0
    _holding: bool = False
    _bytes_left: int | None = None
    _replies_to_lose: int = 0

    def slow(self, seconds: float) -> None:
        """Delay every chunk, in each direction, by this number of seconds."""
        self._delay = seconds

    def cut(self) -> None:
        """Reset every open connection. Later connections are served."""
        for link in [*self._links]:
            link.abort()

    def hold(self) -> None:
        """Accept connections and read their data, but forward nothing in either direction."""
        self._holding = True

    def cut_after(self, size: int) -> None:
        """Let all clients together send so many further bytes. Reset once the connection that sends the next byte."""
        self._bytes_left = size

    def lose_replies(self, count: int = 1) -> None:
        """Forward the next ``count`` requests, wait until the server begins to answer, and reset the connection instead of
        forwarding the answer. The caller cannot know the outcome of the request."""
        self._replies_to_lose = count

    def heal(self) -> None:
        """Forward again. Connections that lost bytes to :meth:`hold` are reset."""
        self._delay, self._holding, self._bytes_left, self._replies_to_lose = 0.0, False, None, 0
        for link in [*self._links]:
            if link.swallowed:
                link.abort()

    async def disturb(self, wire: str, seconds: float, amount: int) -> None:
        """Make the fault ``wire`` for ``seconds``. ``amount``: bytes or replies, for the faults that count."""
        match wire:
            case "slow":
                self.slow(seconds / 20)
            case "cut":
                self.cut()
            case "hold":
                self.hold()
            case "cut_after":
                self.cut_after(amount)
            case "lose_replies":
                self.lose_replies(amount)
        await asyncio.sleep(seconds)
        self.heal()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.cut()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = Link(writer)
        self._links.add(link)
        try:
            if self._holding:
                link.swallowed = True
                await self._pump(link, reader, None)
                return
            answers, link.upstream = await asyncio.open_connection(self.host, self.upstream_port, limit=CHUNK)
            # The system may give a port without a listener to the connection that tries to reach this port.
            if link.upstream.get_extra_info("sockname") == link.upstream.get_extra_info("peername"):
                return
            back = asyncio.create_task(self._pump(link, answers, writer))
            try:
                await self._pump(link, reader, link.upstream)
            finally:
                link.abort()
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
        except OSError:
            pass  # the server is down: the reset shows this to the client
        finally:
            link.abort()
            self._links.discard(link)
            self._tasks.discard(task)

    async def _pump(self, link: Link, source: asyncio.StreamReader, target: asyncio.StreamWriter | None) -> None:
        """Forward one direction until an end or a fault. The end of one direction ends the connection."""
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                if self._holding or link.swallowed or target is None:
                    link.swallowed = True
                    continue
                chunk = self._damaged(link, chunk, towards_server=target is link.upstream)
                target.write(chunk)
                await target.drain()
                if link.client.transport.is_closing():
                    break
        link.abort()

    def _damaged(self, link: Link, chunk: bytes, *, towards_server: bool) -> bytes:
        """Return the part of ``chunk`` to forward. Reset the connection if the rest is lost."""
        if not towards_server:
            if link.asked:
                link.abort()
                return b""
            return chunk
        if self._replies_to_lose and not link.asked:
            self._replies_to_lose -= 1
            link.asked = True
        if self._bytes_left is not None:
            self._bytes_left -= len(chunk)
            if self._bytes_left < 0:
                chunk, self._bytes_left = chunk[: self._bytes_left], None
                link.client.transport.abort()
        return chunk
