"""The caller of a route: a principal, with a client that is bound to the principal's tenant (A1).

A key of one tenant cannot reach another tenant, because a route uses threads and runs only through the client of its caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runyard import Client

from .paths import location
from .principal import Principal
from .service import Service
from .sse import StreamSlot

MAX_TENANTS: Final = 1000
"""Maximum number of tenants whose clients are kept. The least recently used client is removed first."""


@dataclass(frozen=True)
class Caller:
    """The principal of a request and the client of its tenant."""

    principal: Principal
    client: Client
    service: Service
    root: str

    def seat(self) -> StreamSlot:
        """Return the right to open a stream. If the key has too many streams, the use of this right raises RateLimitedError.
        The stream ends when the caller's key or token becomes invalid."""
        permit = self.service.rates.stream(self.principal.id)
        return StreamSlot(self.service.streams, permit, self._admitted, self.principal.expires)

    async def _admitted(self) -> bool:
        return await self.service.gate.still_admits(self.principal, self.client.backend.keys)

    def location(self, *segments: str) -> str:
        """Return the path of a resource."""
        return location(self.root, *segments)


async def caller_of(principal: Principal, service: Service, root: str) -> Caller:
    """Return ``principal`` with the client of its tenant. ``root``: the path prefix under which the app is mounted.

    The service keeps the client of each tenant, because simultaneous calls of one client share a batch.
    """
    client = service.clients.get(principal.tenant)
    if client is None:
        client = service.clients[principal.tenant] = Client(
            (await service.backend()).for_tenant(principal.tenant), namespace=service.namespace
        )
        if len(service.clients) > MAX_TENANTS:
            service.clients.popitem(last=False)
    else:
        service.clients.move_to_end(principal.tenant)
    return Caller(principal, client, service, root)
