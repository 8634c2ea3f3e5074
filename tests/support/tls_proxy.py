"""A TLS proxy before Postgres, because the Postgres of the wheel has no TLS. It negotiates TLS as Postgres does."""

from __future__ import annotations

import asyncio
import ssl
import struct
from contextlib import suppress
from typing import Final, Self

SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)


class PostgresTlsProxy:
    """Use as ``async with PostgresTlsProxy(5432, context) as proxy``; ``proxy.port`` is where clients connect. A client that
    does not ask for TLS is refused."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.port = 0
        self._upstream_port = port
        self._context = context

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readexactly(8) != SSL_REQUEST:
                return
            writer.write(b"S")
            await writer.drain()
            await writer.start_tls(self._context)
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            await asyncio.gather(_pump(reader, upstream), _pump(answers, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client does not trust the certificate, or has none
        finally:
            writer.transport.abort()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
    target.close()
