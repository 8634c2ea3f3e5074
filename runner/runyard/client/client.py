"""The client enqueues runs, answers requests, forks and reads threads. One client has one connection pool.

Every call commits in the store first. Then the call applies the effects of the commit to Redis. A failure of Redis does not
change the outcome of the call (:mod:`runyard.client.apply_effects`). The other modules of :mod:`runyard.client` define the
calls.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypedDict, Unpack

from ..ports.scheduling import StreamLimits
from ..ports.stores import Backend
from ..support import backend_urls
from ..support.location import locate, namespace_of_program
from .fan_out import FanOutCalls
from .feed import FeedCalls
from .forks import ForkCalls
from .lineage import LineageCalls
from .operations import KeyCalls, LimitCalls, OperatorCalls
from .timelines import TimelineCalls
from .usage import UsageCalls
from .webhooks import WebhookCalls

if TYPE_CHECKING:
    import httpx

    from .sync import SyncClient


class ConnectOptions(TypedDict, total=False):
    """The options of a connection.

    For Postgres and Redis:

    - ``redis``: the URL of Redis.
    - ``min_pool_size``, ``max_pool_size``: the number of connections to Postgres.
    - ``listen_url``: the URL of a direct connection to Postgres. Give this URL if ``url`` is the URL of a PgBouncer.
    - ``statement_cache_size``: 0 if ``url`` is the URL of a PgBouncer in transaction mode.
    - ``command_timeout``: the maximum time of a call, in seconds.
    - ``stream_limits``: the limits of event streams. Use the same limits in all processes.
    - ``name``: the name that both servers show for the connections.

    For MySQL: ``min_pool_size`` and ``max_pool_size``. For SQLite: ``busy_seconds``, the time for which a write waits for a
    write of another process, in seconds.

    For the HTTP API:

    - ``api_key``: the key that determines the tenant.
    - ``timeout``: the time to wait for a reply, in seconds.
    - ``patience``: the time for which a failing request is repeated, in seconds.
    - ``transport``: a transport of httpx, for proxies and certificates.
    """

    redis: str | None
    min_pool_size: int
    max_pool_size: int
    listen_url: str | None
    statement_cache_size: int
    command_timeout: float
    stream_limits: StreamLimits | None
    name: str
    busy_seconds: float
    api_key: str | None
    timeout: float
    patience: float
    transport: httpx.AsyncBaseTransport | None


class Client(
    ForkCalls,
    FanOutCalls,
    TimelineCalls,
    LineageCalls,
    FeedCalls,
    UsageCalls,
    LimitCalls,
    WebhookCalls,
    OperatorCalls,
    KeyCalls,
):
    """A connection to a deployment. :meth:`connect` opens it. :meth:`close` and the end of ``async with`` close it."""

    def __init__(self, backend: Backend, *, app_version: str | None = None, namespace: str | None = None) -> None:
        self.backend = backend
        self.app_version = app_version
        self.namespace = namespace_of_program(namespace)

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        *,
        tenant: str = "",
        namespace: str | None = None,
        app_version: str | None = None,
        **options: Unpack[ConnectOptions],
    ) -> Connecting:
        """Connect to ``url``: ``client = await Client.connect(url)`` or ``async with Client.connect(url) as client``.

        ``url``: the URL of Postgres, of the HTTP API or of another backend. Without ``url``, the client looks for a deployment
        in the environment, then for a ``runyard dev`` of this folder, then in ``.env``. The client connects to the first
        deployment that it finds (:mod:`runyard.support.location`). ``tenant``: the tenant of every call. ``namespace``: the
        namespace of the agents in arguments and of the default agent, as in :class:`runyard.App`. The default is
        RUNYARD_NAMESPACE. ``app_version``: the version that is recorded in each run that this client enqueues. ``options``:
        see :class:`ConnectOptions`. With a ``url`` of Postgres and no ``redis``, the client cannot submit jobs. The reconciler
        then submits the jobs some seconds later.

        Raises InvalidInputError for an unknown scheme, for an option that the backend lacks, and if no deployment is found.
        Raises BackendUnavailableError, LoginRefusedError, SchemaUninitialized, SchemaMismatch.
        """
        return Connecting(cls, url, tenant, app_version, namespace_of_program(namespace), options)

    @staticmethod
    def sync(
        url: str | None = None,
        *,
        tenant: str = "",
        namespace: str | None = None,
        app_version: str | None = None,
        **options: Unpack[ConnectOptions],
    ) -> SyncClient:
        """Return a connected :class:`runyard.client.sync.SyncClient`, for code without an event loop."""
        from .sync import SyncClient

        return SyncClient(url, tenant=tenant, namespace=namespace, app_version=app_version, **options)

    async def close(self) -> None:
        """Close all connections of the client. Runs continue."""
        await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Connecting:
    """A client that is not connected yet. ``await`` and ``async with`` connect it."""

    def __init__(
        self,
        cls: type[Client],
        url: str | None,
        tenant: str,
        app_version: str | None,
        namespace: str,
        options: ConnectOptions,
    ) -> None:
        self._cls, self._url, self._tenant, self._options = cls, url, tenant, options
        self._app_version, self._namespace = app_version, namespace
        self._client: Client | None = None

    async def _connect(self) -> Client:
        url, options = self._url, self._options
        if url is None:
            found = locate(redis=options.get("redis"), api_key=options.get("api_key"))
            url, options = found.url, ConnectOptions(**{**options, **found.options})  # type: ignore[typeddict-item]
        given = {name: value for name, value in options.items() if value is not None}
        backend = await backend_urls.connect(url, tenant=self._tenant, **given)
        return self._cls(backend, app_version=self._app_version, namespace=self._namespace)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the client is not connected, so it has no {name}: write `client = await Client.connect(…)`")

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.close()
