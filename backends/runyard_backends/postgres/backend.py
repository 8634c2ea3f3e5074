"""The backend behind ``postgresql://``: Postgres for the state, Redis for the jobs and the event streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import asyncpg

from runyard.errors import InvalidInputError, RunyardError
from runyard.events.streams import DirectStreams
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
    RunStore,
    ThreadStore,
    UsageStore,
    WebhookStore,
    WorkerStore,
)
from runyard.ports.streams import Streams

from ..redis.connection import RedisServer
from ..redis.events import RedisEventLog
from ..redis.scheduler import RedisScheduler
from . import codec
from .api_keys import PostgresKeyStore
from .checkpointer import PostgresCheckpointer
from .database import Database, split_url
from .driver_errors import translated
from .feed import PostgresFeed
from .limits import PostgresLimitStore
from .migrate import check_schema
from .runs import PostgresRunStore
from .threads import PostgresThreadStore
from .unconfigured_redis import NoEventLog, NoScheduler
from .usage import PostgresUsageStore
from .webhooks import PostgresWebhookStore
from .workers import PostgresQueueStore, PostgresWorkerStore


class PostgresBackend:
    """The backend of one tenant. ``listen_url``: the URL of the connection for LISTEN, which must not go through PgBouncer.
    ``stream_limits``: what the event streams may take."""

    def __init__(
        self, db: Database, redis: RedisServer | None, tenant: str, listen_url: str, stream_limits: StreamLimits | None = None
    ) -> None:
        self.db, self.redis, self.tenant, self.listen_url, self.stream_limits = db, redis, tenant, listen_url, stream_limits
        self.checkpointer: Checkpointer = PostgresCheckpointer(db, tenant)
        self.threads: ThreadStore = PostgresThreadStore(db, tenant)
        self.runs: RunStore = PostgresRunStore(db, tenant)
        self.feed: Feed = PostgresFeed(db, tenant)
        self.usage: UsageStore = PostgresUsageStore(db, tenant)
        self.limits: LimitStore = PostgresLimitStore(db)
        self.webhooks: WebhookStore = PostgresWebhookStore(db, tenant)
        self.workers: WorkerStore = PostgresWorkerStore(db)
        self.queues: QueueStore = PostgresQueueStore(db)
        self.keys: KeyStore = PostgresKeyStore(db, tenant)
        self.scheduler: Scheduler = NoScheduler()
        self.events: EventLog = NoEventLog()
        if redis is not None:
            self.events = events = RedisEventLog(redis, stream_limits)
            self.scheduler = RedisScheduler(redis, events)
        self.streams: Streams = DirectStreams(self)

    def for_tenant(self, tenant: str) -> Backend:
        """Return a backend on the same connections, bound to another tenant."""
        return PostgresBackend(self.db, self.redis, tenant, self.listen_url, self.stream_limits)

    async def check(self) -> None:
        """Check that Postgres answers and that this code can run on its schema. Raises BackendUnavailableError,
        SchemaUninitialized, SchemaMismatch."""
        await check_schema(self.db)

    async def notifications(self) -> AsyncGenerator[Effects]:
        """Yield the effects of calls that do not return them to their caller. Yield empty effects when a host's transaction
        accepted a run, and after each connection, because a notification before it may have been missed."""
        heard = asyncio.Event()
        told: list[str] = []
        url, _ = split_url(self.listen_url)

        def wake(*_: object) -> None:
            heard.set()

        def receive(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            if payload:
                told.append(str(payload))
            heard.set()

        while True:
            try:
                with translated():
                    connection = await asyncpg.connect(url, timeout=5)
                    await connection.add_listener("runyard_accept", receive)
            except RunyardError:
                await asyncio.sleep(1)
                continue
            try:
                connection.add_termination_listener(wake)
                heard.set()
                while not connection.is_closed():
                    await heard.wait()
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


async def connect(
    url: str,
    *,
    redis: str | None = None,
    tenant: str = "",
    min_pool_size: int = DEFAULT_MIN_POOL_CONNECTIONS,
    max_pool_size: int = DEFAULT_MAX_POOL_CONNECTIONS,
    listen_url: str | None = None,
    stream_limits: StreamLimits | None = None,
    name: str = "runyard",
    **settings: Any,
) -> Backend:
    """Connect to Postgres at ``url`` and to Redis at ``redis``.

    ``redis``: a URL; with None, only the stores work. ``tenant``: the tenant of the backend. ``min_pool_size`` and
    ``max_pool_size`` limit the number of Postgres connections. ``listen_url``: the URL of a direct connection to Postgres, if
    ``url`` goes through PgBouncer. ``stream_limits``: what the event streams may take, the same in every process. ``name``: the
    name under which both servers list the connections. ``settings``: arguments of asyncpg's pool, for example
    ``statement_cache_size=0`` behind PgBouncer in transaction mode. Raises SchemaUninitialized, SchemaMismatch,
    BackendUnavailableError. Raises InvalidInputError for ``fakeredis://``: the server inside this process would not be seen by
    the other processes that use Postgres.
    """
    if redis is not None and redis.startswith("fakeredis:"):
        raise InvalidInputError("fakeredis:// works with memory:// only; give the URL of a Redis server", field="redis")
    db = await Database.connect(url, min_pool_size=min_pool_size, max_pool_size=max_pool_size, name=name, **settings)
    try:
        await check_schema(db)
        server = RedisServer(redis, name=name) if redis is not None else None
    except BaseException:
        await db.close()
        raise
    return PostgresBackend(db, server, tenant, listen_url or url, stream_limits)
