"""One request to a URL that somebody gave, over httpcore: it follows no redirect and connects to what was checked."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import httpcore

from runner.webhooks.models import Reply

from .addresses import ForbiddenAddressError, Network, resolve

READ: Final = 16_384
"""Bytes of an answer that are read before the connection is dropped; what they say is not looked at."""
DRAIN: Final = 1.0
"""Seconds for which the rest of an answer is read."""
IDLE: Final = 30.0
"""Seconds for which a connection is kept for the next request."""


class _Checked(httpcore.AsyncNetworkBackend):
    """Resolves a name once, checks what it stands for, and connects to exactly that. TLS still proves the name."""

    def __init__(self, allowed: Collection[Network]) -> None:
        self._allowed = allowed
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await resolve(host, port, self._allowed)
        except ForbiddenAddressError:
            raise
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        # Each gets a share of the time, or one address that swallows everything would keep the others from being tried.
        share = timeout / len(addresses) if timeout is not None else None
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._network.connect_tcp(address, port, share, local_address, socket_options)
        return await self._network.connect_tcp(addresses[-1], port, share, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise ForbiddenAddressError("a webhook does not go to a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class HttpSender:
    """Implements the port ``Sender``. ``allowed``: networks that are not public and may be reached all the same.

    Proxies of the environment are not used: behind one, what is connected to could not be checked.
    """

    def __init__(self, allowed: Collection[Network] = (), *, tls: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            max_connections=None,
            max_keepalive_connections=16,
            keepalive_expiry=IDLE,
            network_backend=_Checked(allowed),
        )

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float) -> Reply:
        """POST ``body``. Never raises for what the receiver does; once it told a status, that is the reply."""
        reply = None
        try:
            async with asyncio.timeout(timeout), self._post(url, headers, body, timeout) as response:
                reply = Reply(response.status, retry_after=_seconds(response.headers))
                async with asyncio.timeout(DRAIN):
                    await _drain(response)
        except TimeoutError:
            return reply or Reply(error=f"no answer within {timeout:g} seconds")
        except ForbiddenAddressError as error:
            return Reply(error=str(error), forbidden=True)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            return reply or Reply(error=f"{type(error).__name__}: {error}"[:500])
        return reply

    def _post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> contextlib.AbstractAsyncContextManager[httpcore.Response]:
        bounds = {"timeout": {"connect": timeout}}
        return self._pool.stream("POST", url, headers=list(headers.items()), content=body, extensions=bounds)

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


async def _drain(response: httpcore.Response) -> None:
    """Read a short answer to its end, so that its connection can serve again."""
    read = 0
    async for part in response.aiter_stream():
        read += len(part)
        if read > READ:
            return


def _seconds(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """What ``Retry-After`` says, if it is a number; a date would need this host's clock to be right."""
    value = next((value for name, value in headers if name.lower() == b"retry-after"), b"")
    return float(value) if value.isdigit() and len(value) < 8 else None
