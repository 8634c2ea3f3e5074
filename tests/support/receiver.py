"""A receiver of webhooks on a socket of its own. It checks HTTP strictly. The test sets its answers."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request. ``headers`` are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def new_secret() -> str:
    """Return a new secret of a deployment."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


Answer = Callable[[Received], Awaitable[bytes]]


def answering(status: int, *headers: str, body: bytes = b"") -> bytes:
    """Return the bytes of an HTTP response."""
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class Receiver:
    """The receiver. It calls ``answer`` for each request, in the order of arrival."""

    received: list[Received] = field(default_factory=list)
    answer: Answer | None = None
    port: int = 0
    _talks: set[asyncio.Task[None]] = field(default_factory=set)

    def hang_up(self) -> None:
        """End every connection after its answers were sent."""
        for talk in self._talks:
            talk.cancel()

    def url(self, path: str = "/hook", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def answers(self, *statuses: int) -> None:
        """Give these answers in order, then 204 to every further request."""
        left = list(statuses)

        async def next_one(_: Received) -> bytes:
            return answering(left.pop(0) if left else 204)

        self.answer = next_one

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._serve(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                request, *lines = head.decode("ascii").split("\r\n")
                method, path, version = request.split(" ")
                assert (method, version) == ("POST", "HTTP/1.1")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
                body = await reader.readexactly(int(headers["content-length"]))
                self.received.append(Received(path, headers, body))
                writer.write(await self.answer(self.received[-1]) if self.answer else answering(204))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._connected, host, 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for talk in self._talks:
                talk.cancel()
            await asyncio.gather(*self._talks, return_exceptions=True)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\r\n\r\n"))[:-4]
    except asyncio.IncompleteReadError:
        return b""
