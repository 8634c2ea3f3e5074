"""The service that routes share: clients by tenant, authentication, rates and streams. Each process has its own service."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from runyard import Client
from runyard.errors import ForbiddenError, RunyardError
from runyard.ports.stores import Backend
from runyard_backends.webhooks.addresses import Network

from . import console, docs, problems
from .authentication import Gate
from .rates import Rates
from .request_state import route_path, state_of
from .settings import ApiSettings
from .sse import Streams

OPEN: Final = frozenset({"/livez", "/readyz", *docs.PATHS})
"""Native paths that need no authentication."""


class Service:
    """The service of one API process.

    ``connect``: a function that connects to the store and returns the backend. It is called at the first use. ``owned``: True
    if :meth:`close` must close the backend. ``namespace``: the namespace of the clients, or None for the namespace of the
    program. ``webhook_networks``: networks that are not public and may receive webhooks. The attribute ``clients`` has the
    clients by tenant. The least recently used client is first (:func:`runyard_api.http.tenant_client.caller_of`).
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Backend]],
        *,
        owned: bool,
        gate: Gate,
        settings: ApiSettings,
        namespace: str | None = None,
        webhook_networks: Collection[Network] = (),
    ) -> None:
        self.gate = gate
        self.webhook_networks = webhook_networks
        self.settings = settings
        self.namespace = namespace
        self.rates = Rates(settings)
        self.streams = Streams(settings.heartbeat, settings.max_stream)
        self._connect, self._owned = connect, owned
        self._connecting: asyncio.Task[Backend] | None = None
        self._backend: Backend | None = None
        self.clients: OrderedDict[str, Client] = OrderedDict()

    async def backend(self) -> Backend:
        """Return the connected backend. Simultaneous requests share one attempt to connect.

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

    async def close(self) -> None:
        """End the streams. Close the backend if this service owns it."""
        self.streams.close()
        if (connecting := self._connecting) is not None:
            connecting.cancel()
            await asyncio.wait((connecting,))
        backend, self._backend = self._backend, None
        self.clients.clear()
        if backend is not None and self._owned:
            await backend.close()


def service_of(request: HTTPConnection) -> Service:
    """Return the service that the routes share."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


class Guard:
    """Refuses unauthenticated callers, and callers that exceed their rate. ``open_paths`` need no authentication."""

    def __init__(self, app: ASGIApp, service: Service, open_paths: Collection[str] = OPEN) -> None:
        self.app, self.service, self.open_paths = app, service, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_open(route_path(scope)):
            try:
                request = HTTPConnection(scope)
                principal = await self.service.gate.admit(request, (await self.service.backend()).keys)
                self._count(principal.id, scope)
                if principal.only is not None and scope["method"] != "GET":
                    raise ForbiddenError("a stream token can only read streams")
            except RunyardError as error:
                await problems.send(error, scope, receive, send)
                return
            state_of(scope)["principal"] = principal
        await self.app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self.open_paths or console.is_open(path)

    def _count(self, key: str, scope: Scope) -> None:
        try:
            self.service.rates.take(key)
        finally:
            state_of(scope)["headers"] = self.service.rates.headers(key)
