"""What the routes share: a client per tenant, who may pass, and what is counted. Nothing that another process would miss."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.client import Client
from runner.errors import ForbiddenError, RunyardError
from runner.ports import Backend

from . import docs, problems
from .auth import Gate, Principal
from .paths import location, route_path
from .rates import Rates
from .settings import ApiSettings
from .sse import Seat, Streams

TENANTS: Final = 1000
"""Tenants whose clients are kept; the one that asked longest ago is forgotten first."""
OPEN: Final = frozenset({"/livez", "/readyz", *docs.PATHS})
"""Paths that show nothing of anybody, and are answered to everybody."""


@dataclass(frozen=True)
class Caller:
    """Who asks, and the client of their tenant."""

    principal: Principal
    client: Client
    service: Service
    root: str

    def seat(self) -> Seat:
        """For a stream. Its permit raises RateLimitedError on entry; it ends with the key or token that it was opened with."""
        permit = self.service.rates.stream(self.principal.id)
        return Seat(self.service.streams, permit, self._admitted, self.principal.expires)

    async def _admitted(self) -> bool:
        return await self.service.gate.still_admits(self.principal, self.client.backend.keys)

    def location(self, *segments: str) -> str:
        """The path of a resource."""
        return location(self.root, *segments)


class Service:
    """One API process. ``connect`` makes its backend with the first request that needs it; ``owned``: close it in the end."""

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
        """The backend, connected; who comes while that is tried shares the outcome. Raises BackendUnavailableError,
        SchemaError."""
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
        """``principal``, who came by ``root``, with the client of its tenant, which is kept: calls that meet share a batch."""
        client = self._clients.get(principal.tenant)
        if client is None:
            client = self._clients[principal.tenant] = Client((await self.backend()).for_tenant(principal.tenant))
            if len(self._clients) > TENANTS:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(principal.tenant)
        return Caller(principal, client, self, root)

    async def close(self) -> None:
        """End the streams, close what was connected."""
        self.streams.close()
        if (connecting := self._connecting) is not None:
            connecting.cancel()
            await asyncio.wait((connecting,))
        backend, self._backend = self._backend, None
        self._clients.clear()
        if backend is not None and self._owned:
            await backend.close()


class Guard:
    """Lets nobody pass that is not known, and nobody too often."""

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
