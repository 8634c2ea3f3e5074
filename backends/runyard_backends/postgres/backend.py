"""The backend for ``postgresql://``: Postgres has the state, and Redis the jobs and the event streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Final

import asyncpg

from runyard.errors import InvalidInputError, RunyardError
from runyard.events.streams import DirectStreams
from runyard.ports.fan_outs import FanOutStore
from runyard.ports.graph_checkpoints import GraphCheckpointStore
from runyard.ports.results import PAGE_BYTES
from runyard.ports.runs import RunStore
from runyard.ports.scheduling import Effects, EventLog, Scheduler, StreamLimits
from runyard.ports.stores import (
    DEFAULT_MAX_POOL_CONNECTIONS,
    DEFAULT_MIN_POOL_CONNECTIONS,
    Backend,
    Checkpointer,
    Feed,
    KeyStore,
    LimitStore,
    QueueStore,
    ThreadStore,
    UsageStore,
    WorkerStore,
)
from runyard.ports.streams import Streams
from runyard.ports.timelines import TimelineStore
from runyard.ports.webhooks import WebhookStore

from ..redis.events import RedisEventLog
from ..redis.scheduler import RedisScheduler
from ..redis.servers import RedisServers, redis_servers
from . import codec
from .api_keys import PostgresKeyStore
from .checkpointer import PostgresCheckpointer
from .connecting import CACHE_SIZE, Connector, session_timeouts, split_url
from .database import DEFAULT_COMMAND_SECONDS, Database
from .driver_errors import DRIVER_ERRORS, translated
from .fan_outs import PostgresFanOutStore
from .feed import PostgresFeed
from .graph_checkpoints import PostgresGraphCheckpointStore
from .limits import PostgresLimitStore
from .migrate import check_schema
from .runs import PostgresRunStore
from .threads import PostgresThreadStore
from .timelines import PostgresTimelineStore
from .unconfigured_redis import NoEventLog, NoScheduler
from .usage import PostgresUsageStore
from .webhooks import PostgresWebhookStore
from .workers import PostgresQueueStore, PostgresWorkerStore

LISTEN_CONNECTION: Final = "runyard-listen"
"""Name under which Postgres lists the connection for notifications."""
LISTEN_TIMEOUT_SECONDS: Final = 5.0
"""Seconds within which the server must answer on the connection for notifications."""
LISTEN_CHECK_SECONDS: Final = 10.0
"""Seconds without a notification after which the connection is checked."""

MAX_TENANTS: Final = 1_000
"""Maximum number of tenants whose backends are kept. Concurrent calls of a tenant share the batches of its backend."""


class PostgresBackend:
    """The backend of one tenant. ``listen_url``: the URL of the connection for LISTEN. This connection must not lead through
    PgBouncer. ``stream_limits``: the limits of the event streams."""

    def __init__(
        self, db: Database, redis: RedisServers | None, tenant: str, listen_url: str, stream_limits: StreamLimits | None = None
    ) -> None:
        self.db, self.redis, self.tenant, self.listen_url, self.stream_limits = db, redis, tenant, listen_url, stream_limits
        self.remote = False
        self.checkpointer: Checkpointer = PostgresCheckpointer(db, tenant)
        self.threads: ThreadStore = PostgresThreadStore(db, tenant)
        self.runs: RunStore = PostgresRunStore(db, tenant)
        self.feed: Feed = PostgresFeed(db, tenant)
        self.usage: UsageStore = PostgresUsageStore(db, tenant)
        self.timelines: TimelineStore = PostgresTimelineStore(db, tenant)
        self.fan_outs: FanOutStore = PostgresFanOutStore(db, tenant)
        self.limits: LimitStore = PostgresLimitStore(db)
        self.webhooks: WebhookStore = PostgresWebhookStore(db, tenant)
        self.workers: WorkerStore = PostgresWorkerStore(db)
        self.queues: QueueStore = PostgresQueueStore(db)
        self.keys: KeyStore = PostgresKeyStore(db, tenant)
        self.graphs: GraphCheckpointStore = PostgresGraphCheckpointStore(db, tenant)
        self.scheduler: Scheduler = NoScheduler()
        self.events: EventLog = NoEventLog()
        if redis is not None:
            self.events = events = RedisEventLog(redis, stream_limits)
            self.scheduler = RedisScheduler(redis, events)
        self.streams: Streams = DirectStreams(self)
        self._others: dict[str, Backend] = {}

    def for_tenant(self, tenant: str) -> Backend:
        """Return a backend on the same connections, bound to another tenant."""
        if tenant == self.tenant:
            return self
        if tenant not in self._others:
            if len(self._others) >= MAX_TENANTS:
                del self._others[next(iter(self._others))]
            self._others[tenant] = PostgresBackend(self.db, self.redis, tenant, self.listen_url, self.stream_limits)
        return self._others[tenant]

    async def check(self) -> None:
        """Check that Postgres answers and takes writes, and that this code can run on its schema. Raises
        BackendUnavailableError, SchemaUninitialized, SchemaMismatch."""
        await self.db.check_writable()
        await check_schema(self.db)

    async def notifications(self) -> AsyncGenerator[Effects]:
        """Yield the effects of calls that do not return their effects. Yield empty effects when a host's transaction has
        accepted a run. Also yield empty effects after each new connection, because notifications may have been lost before."""
        heard = asyncio.Event()
        told: list[str] = []
        url, _ = split_url(self.listen_url)
        connect = Connector(url, LISTEN_CONNECTION, session_timeouts(DEFAULT_COMMAND_SECONDS))

        def wake(*_: object) -> None:
            heard.set()

        def receive(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            if payload:
                told.append(str(payload))
            heard.set()

        while True:
            try:
                with translated():
                    connection = await _listening(connect, receive)
            except RunyardError:
                await asyncio.sleep(1)
                continue
            try:
                connection.add_termination_listener(wake)
                heard.set()
                while not connection.is_closed():
                    if not await _set_within(heard, LISTEN_CHECK_SECONDS):
                        if await _answers(connection):
                            continue
                        break
                    heard.clear()
                    effects = Effects()
                    while told:
                        effects += codec.effects(told.pop())
                    yield effects
            finally:
                connection.terminate()

    async def close(self) -> None:
        """Close every connection."""
        if self.redis is not None:
            await self.redis.close()
        await self.db.close()


async def _listening(connect: Connector, receive: Callable[..., None]) -> asyncpg.Connection:
    """Return a connection that calls ``receive`` for each notification."""
    async with asyncio.timeout(LISTEN_TIMEOUT_SECONDS):
        connection = await connect()
        try:
            await connection.add_listener("runyard_accept", receive)
        except BaseException:
            connection.terminate()
            raise
    return connection


async def _answers(connection: asyncpg.Connection) -> bool:
    """Return True if the server still answers. A query is needed, because a server without power does not close its
    connections."""
    try:
        async with asyncio.timeout(LISTEN_TIMEOUT_SECONDS):
            await connection.execute("SELECT 1")
    except DRIVER_ERRORS:
        return False
    return True


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until ``event`` is set. Return False if it is not set after ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def connect(
    url: str,
    *,
    redis: str | None = None,
    tenant: str = "",
    min_pool_size: int = DEFAULT_MIN_POOL_CONNECTIONS,
    max_pool_size: int = DEFAULT_MAX_POOL_CONNECTIONS,
    listen_url: str | None = None,
    statement_cache_size: int | None = None,
    command_timeout: float = DEFAULT_COMMAND_SECONDS,
    page_bytes: int = PAGE_BYTES,
    history_cache_bytes: int = 0,
    stream_limits: StreamLimits | None = None,
    name: str = "runyard",
) -> Backend:
    """Connect to Postgres at ``url`` and to Redis at ``redis``.

    ``redis``: a URL (:mod:`runyard_backends.redis.connecting`), or None to use only the stores. ``tenant``: the tenant of the
    backend. ``min_pool_size`` and ``max_pool_size`` limit the number of Postgres connections. ``listen_url``: the URL of a
    direct connection to Postgres, if ``url`` leads through PgBouncer. ``statement_cache_size``: the number of prepared
    statements of a connection. Behind PgBouncer in transaction mode, set ``statement_cache_size`` to 0. If it is None, the
    value in the URL is used, or else the driver's default. ``command_timeout``: seconds that a call may take. ``page_bytes``:
    maximum number of bytes of a page of a list. A larger entry is a page of its own. ``history_cache_bytes``: maximum number of
    bytes of the histories that the process keeps in memory for its attempts, 0 for none. ``stream_limits``: the limits of the
    event streams. Set the same limits in every process. ``name``: the name under which both servers list the connections.
    Raises SchemaUninitialized, SchemaMismatch, BackendUnavailableError. Raises InvalidInputError for ``fakeredis://``, because
    the other processes that use Postgres cannot reach a server inside this process.
    """
    if redis is not None and redis.startswith("fakeredis:"):
        raise InvalidInputError("fakeredis:// works with memory:// only; give the URL of a Redis server", field="redis")
    db = await Database.connect(
        url,
        min_pool_size=min_pool_size,
        max_pool_size=max_pool_size,
        command_timeout=command_timeout,
        name=name,
        page_bytes=page_bytes,
        history_cache_bytes=history_cache_bytes,
        **({} if statement_cache_size is None else {CACHE_SIZE: statement_cache_size}),
    )
    try:
        await check_schema(db)
        server = redis_servers(redis, name=name) if redis is not None else None
    except BaseException:
        await db.close()
        raise
    return PostgresBackend(db, server, tenant, listen_url or url, stream_limits)
