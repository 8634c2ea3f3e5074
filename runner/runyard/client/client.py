"""The client, which enqueues runs, answers requests, forks and reads threads. One client has one connection pool.

Every call commits in the store first. The effects of the commit on Redis follow and do not change the outcome
(:mod:`runyard.client.apply_effects`). The other modules of :mod:`runyard.client` define the calls.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Self

from ..ports.stores import Backend
from ..support import backend_urls
from .fan_out import FanOutCalls
from .feed import FeedCalls
from .forks import ForkCalls
from .lineage import LineageCalls
from .operations import KeyCalls, LimitCalls, OperatorCalls
from .usage import UsageCalls
from .webhooks import WebhookCalls

if TYPE_CHECKING:
    from .sync import SyncClient


class Client(ForkCalls, FanOutCalls, LineageCalls, FeedCalls, UsageCalls, LimitCalls, WebhookCalls, OperatorCalls, KeyCalls):
    """A connection to a deployment. :meth:`connect` opens it. :meth:`close` or the end of ``async with`` closes it."""

    def __init__(self, backend: Backend, *, app_version: str | None = None) -> None:
        self.backend = backend
        self.app_version = app_version

    @classmethod
    def connect(cls, url: str, *, tenant: str = "", app_version: str | None = None, **options: Any) -> Connecting:
        """Connect to ``url``: ``client = await Client.connect(url)`` or ``async with Client.connect(url) as client``.

        ``options``: options of the backend. The options of postgresql are ``redis="redis://…"`` and the bounds of the pool.
        Without ``redis``, the reconciler of the workers submits the client's runs some seconds later. The options of https, the
        HTTP API, are ``api_key``, which sets the tenant, and the arguments of :func:`runyard_backends.http.connect`.
        ``tenant``: the tenant of every call. ``app_version``: recorded with each run that the client enqueues.

        Raises InvalidInputError for an unknown scheme, BackendUnavailableError, SchemaUninitialized, SchemaMismatch.
        """
        return Connecting(cls, url, tenant, app_version, options)

    @staticmethod
    def sync(url: str, *, tenant: str = "", **options: Any) -> SyncClient:
        """Return a connected :class:`runyard.client.sync.SyncClient`, for code without an event loop."""
        from .sync import SyncClient

        return SyncClient(url, tenant=tenant, **options)

    async def close(self) -> None:
        """Close every connection. Runs continue."""
        await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Connecting:
    """A client that is not connected yet. ``await`` and ``async with`` connect it."""

    def __init__(self, cls: type[Client], url: str, tenant: str, app_version: str | None, options: dict[str, Any]) -> None:
        self._cls, self._url, self._tenant, self._app_version, self._options = cls, url, tenant, app_version, options
        self._client: Client | None = None

    async def _connect(self) -> Client:
        backend = await backend_urls.connect(self._url, tenant=self._tenant, **self._options)
        return self._cls(backend, app_version=self._app_version)

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.close()
