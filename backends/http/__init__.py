"""A backend at the other end of the HTTP API: ``Client.connect("https://…", api_key=…)``, with the calls of a direct client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner import extras
from runner.ports import Backend

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
    """Connect to the API at ``url``, with the path that it is mounted under if there is one.

    ``api_key``: says who asks and for which tenant, so ``tenant`` is not given here. ``timeout``: seconds for an answer.
    ``patience``: seconds for which a request is repeated that no server answers, where a repetition has the same effect, and
    for which a stream waits for a server. ``transport``: of httpx, for proxies, certificates and apps in the same process.

    Raises InvalidInputError, BackendUnavailableError, ExtraMissingError without httpx.
    """
    made: Backend = await extras.load("backends.http.backend").connect(
        url, tenant=tenant, api_key=api_key, timeout=timeout, patience=patience, transport=transport
    )
    return made
