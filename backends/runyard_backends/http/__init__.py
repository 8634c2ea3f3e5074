"""The backend that uses the HTTP API: ``Client.connect("https://…", api_key=…)``, with the calls of a direct client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.ports.stores import Backend
from runyard.support import optional_imports

if TYPE_CHECKING:
    import httpx

__all__ = ["connect"]


async def connect(
    url: str,
    *,
    tenant: str = "",
    api_key: str | None = None,
    timeout: float = 30.0,
    patience: float = 30.0,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Backend:
    """Connect to the API at ``url``, including the path under which it is mounted, if any.

    ``api_key``: identifies the caller and the tenant, so ``tenant`` must not be given. ``timeout``: seconds to wait for an
    answer. ``patience``: seconds for which an unanswered request is repeated, if a repetition has the same effect, and for
    which a stream waits for a server. ``transport``: an httpx transport, for proxies, certificates and apps in the same
    process.

    Raises InvalidInputError, BackendUnavailableError, and ExtraMissingError without httpx.
    """
    made: Backend = await optional_imports.load("runyard_backends.http.backend").connect(
        url, tenant=tenant, api_key=api_key, timeout=timeout, patience=patience, transport=transport
    )
    return made
