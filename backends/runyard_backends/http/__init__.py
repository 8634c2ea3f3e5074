"""The backend that uses the HTTP API (``Client.connect("https://…", api_key=…)``)."""

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
    """Connect to the API at ``url``. If the API is mounted under a path, ``url`` includes this path.

    ``api_key``: identifies the caller and the tenant. ``tenant``: must be empty, because the key determines the tenant.
    ``timeout``: seconds to wait for a reply. ``patience``: seconds for which a request without a reply is repeated. A request
    is repeated only if sending it twice has the same effect as sending it once. A stream waits ``patience`` seconds for a
    server. ``transport``: an httpx transport, for proxies, certificates and apps in the same process.

    Raises InvalidInputError if an argument is invalid. Raises BackendUnavailableError if the API cannot be reached or is not
    ready. Raises ExtraMissingError if httpx is not installed.
    """
    made: Backend = await optional_imports.load("runyard_backends.http.backend").connect(
        url, tenant=tenant, api_key=api_key, timeout=timeout, patience=patience, transport=transport
    )
    return made
