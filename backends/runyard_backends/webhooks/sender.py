"""Send a request over httpcore to a URL that a caller chose. The sender follows no redirect. It connects only to checked
addresses."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import httpcore

from runyard.domain.webhooks import WebhookReply

from .addresses import ForbiddenAddressError, Network, resolve

MAX_REPLY_BYTES: Final = 16_384
"""Maximum bytes of a reply's body that are read and ignored. If the body is larger, the connection is closed."""
DRAIN_SECONDS: Final = 1.0
"""Maximum seconds for which the body of a reply is read."""
KEEPALIVE_SECONDS: Final = 30.0
"""Seconds for which an idle connection is kept."""


class _Checked(httpcore.AsyncNetworkBackend):
    """Resolve a name once and connect only to its permitted addresses. TLS still verifies the name."""

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
        # Each address gets an equal share of the time. An address that does not answer cannot use up the time of the others.
        share = timeout / len(addresses) if timeout is not None else None
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._network.connect_tcp(address, port, share, local_address, socket_options)
        return await self._network.connect_tcp(addresses[-1], port, share, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise ForbiddenAddressError("a webhook cannot be sent to a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class HttpSender:
    """Implements the port ``WebhookSender``. ``allowed``: private networks to which webhooks may be sent.

    Proxies of the environment are not used, because the address behind a proxy could not be checked.
    """

    def __init__(self, allowed: Collection[Network] = (), *, tls: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            max_connections=None,
            max_keepalive_connections=16,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=_Checked(allowed),
        )

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float) -> WebhookReply:
        """POST ``body`` to ``url`` and return the reply. ``timeout``: seconds for the whole exchange.

        After an error of the receiver or of the network, the reply has an ``error``. If the status has arrived, the reply has
        this status, even if the body cannot be read.
        """
        reply = None
        try:
            async with asyncio.timeout(timeout), self._post(url, headers, body, timeout) as response:
                reply = WebhookReply(response.status, retry_after=_seconds(response.headers))
                async with asyncio.timeout(DRAIN_SECONDS):
                    await _drain(response)
        except TimeoutError:
            return reply or WebhookReply(error=f"no answer within {timeout:g} seconds")
        except ForbiddenAddressError as error:
            return WebhookReply(error=str(error), forbidden=True)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            return reply or WebhookReply(error=f"{type(error).__name__}: {error}"[:500])
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
    """Read a short reply to its end, so that its connection can be reused."""
    read = 0
    async for part in response.aiter_stream():
        read += len(part)
        if read > MAX_REPLY_BYTES:
            return


def _seconds(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """Return the seconds of ``Retry-After`` if its value is a number. Otherwise return None. A date is ignored, because this
    machine's clock may be wrong."""
    value = next((value for name, value in headers if name.lower() == b"retry-after"), b"")
    return float(value) if value.isdigit() and len(value) < 8 else None
