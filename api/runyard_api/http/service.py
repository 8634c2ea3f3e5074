"""The service that routes share: clients by tenant, authentication, rates and streams. Each process has its own service."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from runyard import Client
from runyard.errors import ForbiddenError, RunyardError
from runyard.ports.stores import Backend

from . import docs, problems
from .auth import Gate, Principal
from .paths import location, route_path
from .rates import Rates
from .settings import ApiSettings
from .sse import Streams, StreamSlot

MAX_TENANTS: Final = 1000
"""Most tenants whose clients are kept. The least recently used client is removed first."""
OPEN: Final = frozenset({"/livez", "/readyz", *docs.PATHS})
"""Paths that need no authentication."""


@dataclass(frozen=True)
class Caller:
    """The principal of a request and the client of its tenant."""

    principal: Principal
    client: Client
    service: Service
    root: str

    def seat(self) -> StreamSlot:
        """Return a slot for a stream. Its permit raises RateLimitedError. The stream ends with the caller's key or token."""
        permit = self.service.rates.stream(self.principal.id)
        return StreamSlot(self.service.streams, permit, self._admitted, self.principal.expires)

    async def _admitted(self) -> bool:
        return await self.service.gate.still_admits(self.principal, self.client.backend.keys)

    def location(self, *segments: str) -> str:
        """Return the path of a resource."""
        return location(self.root, *segments)


class Service:
    """The service of one API process.

    ``connect``: connects the backend at the first use. ``owned``: True if :meth:`close` closes the backend.
    """

    def __init__(self, connect: Callable[[], Awaitable[Backend]], *, owned: bool, gate: Gate, settings: ApiSettings) -> None:
        self.gate = gate
        self.settings = settings
        self.rates = Rates(settings)
        self.streams = Streams(settings.heartbeat, settings.max_stream)
        self._connect, self._owned = connect, owned
        self._connecting: asyncio.Task[Backend] | None = None
        self._backend: Backend | None = None
        self._clients: OrderedDict[str, Client] = OrderedDict()

    async def backend(self) -> Backend:
        """Return the connected backend. Requests during a connection attempt share its outcome.

        Raises BackendUnavailableError, SchemaError.
        """
        if self._backend is None:
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connected(), name="runyard-api-connect")
            return await asyncio.shield(self._connecting)
        return self._backend

    async def _connected(self) -> Backend:
        try:
            self._backend = await self._connect()
        finally:
            self._connecting = None
        return self._backend

    async def caller(self, principal: Principal, root: str) -> Caller:
        """Return ``principal`` with the client of its tenant. ``root``: the path prefix under which the app is mounted.

        Clients are kept: simultaneous calls on one client share a batch.
        """
        client = self._clients.get(principal.tenant)
        if client is None:
            client = self._clients[principal.tenant] = Client((await self.backend()).for_tenant(principal.tenant))
            if len(self._clients) > MAX_TENANTS:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(principal.tenant)
        return Caller(principal, client, self, root)

    async def close(self) -> None:
        """End the streams. Close the backend if this service owns it."""
        self.streams.close()
        if (connecting := self._connecting) is not None:
            connecting.cancel()
            await asyncio.wait((connecting,))
        backend, self._backend = self._backend, None
        self._clients.clear()
        if backend is not None and self._owned:
            await backend.close()


class Guard:
    """Refuses callers that are not authenticated and callers that exceed their rate."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and route_path(scope) not in OPEN:
            try:
                request = HTTPConnection(scope)
                principal = await self.service.gate.admit(request, (await self.service.backend()).keys)
                self._count(principal.id, scope)
                if principal.only is not None and scope["method"] != "GET":
                    raise ForbiddenError("a stream token reads streams and nothing else")
            except RunyardError as error:
                await problems.send(error, scope, receive, send)
                return
            scope["state"]["principal"] = principal
        await self.app(scope, receive, send)

    def _count(self, key: str, scope: Scope) -> None:
        try:
            self.service.rates.take(key)
        finally:
            scope["state"]["headers"] = self.service.rates.headers(key)
