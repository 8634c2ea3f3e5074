"""What a web backend holds: enqueue runs, answer them, fork, read. One client, one connection pool.

Every verb commits in the store first; what the commit asks of Redis is applied afterwards and never decides the outcome
(:mod:`runner.effects`). The calls themselves are in :mod:`runner.calls`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Self

from . import registry
from .calls.fanout import FanOutCalls
from .calls.feed import FeedCalls
from .calls.forks import ForkCalls
from .calls.keys import KeyCalls
from .calls.limits import LimitCalls
from .calls.lineage import LineageCalls
from .calls.operations import OperatorCalls
from .calls.usage import UsageCalls
from .calls.webhooks import WebhookCalls
from .ports import Backend

if TYPE_CHECKING:
    from .sync import SyncClient


class Client(ForkCalls, FanOutCalls, LineageCalls, FeedCalls, UsageCalls, LimitCalls, WebhookCalls, OperatorCalls, KeyCalls):
    """Reaches a deployment. Made by :meth:`connect`; closed by :meth:`close` or at the end of ``async with``."""

    def __init__(self, backend: Backend, *, app_version: str | None = None) -> None:
        self.backend = backend
        self.app_version = app_version

    @classmethod
    def connect(cls, url: str, *, tenant: str = "", app_version: str | None = None, **options: Any) -> Connecting:
        """Connect to ``url``: ``client = await Client.connect(url)`` or ``async with Client.connect(url) as client``.

        ``options`` are the backend's: for postgresql ``redis="redis://…"`` and the bounds of the pool; without Redis, runs
        start when the workers' reconciler finds them, seconds later. For https, the HTTP API, they are ``api_key``, which says
        for which tenant, and what :func:`backends.http.connect` takes. ``tenant`` scopes everything. ``app_version``: recorded
        with each run that the client enqueues.

        Raises InvalidInputError for an unknown scheme, BackendUnavailableError, SchemaUninitialized, SchemaMismatch.
        """
        return Connecting(cls, url, tenant, app_version, options)

    @staticmethod
    def sync(url: str, *, tenant: str = "", **options: Any) -> SyncClient:
        """The same client for code without an event loop: see :class:`runner.sync.SyncClient`."""
        from .sync import SyncClient

        return SyncClient(url, tenant=tenant, **options)

    async def close(self) -> None:
        """Close every connection. Runs go on."""
        await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Connecting:
    """A client that is being made: await it, or enter it."""

    def __init__(self, cls: type[Client], url: str, tenant: str, app_version: str | None, options: dict[str, Any]) -> None:
        self._cls, self._url, self._tenant, self._app_version, self._options = cls, url, tenant, app_version, options
        self._client: Client | None = None

    async def _connect(self) -> Client:
        backend = await registry.connect(self._url, tenant=self._tenant, **self._options)
        return self._cls(backend, app_version=self._app_version)

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.close()
