"""Postgres for the truth, Redis for the schedule: the backend behind ``postgresql://``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import asyncpg

from backends.redis.connection import RedisServer
from backends.redis.events import RedisEventLog
from backends.redis.scheduler import RedisScheduler
from runner.errors import RunyardError
from runner.exchange import Effects
from runner.ports import (
    Backend,
    Checkpointer,
    EventLog,
    Feed,
    KeyStore,
    LimitStore,
    QueueStore,
    RunStore,
    Scheduler,
    ThreadStore,
    UsageStore,
    WebhookStore,
    WorkerStore,
)

from . import codec
from .checkpointer import PostgresCheckpointer
from .database import Database, translated
from .feed import PostgresFeed
from .keys import PostgresKeyStore
from .limits import PostgresLimitStore
from .migrate import check_schema
from .queues import PostgresQueueStore
from .runs import PostgresRunStore
from .threads import PostgresThreadStore
from .urls import split_url
from .usage import PostgresUsageStore
from .webhooks import PostgresWebhookStore
from .workers import PostgresWorkerStore


class PostgresBackend:
    """One tenant's connection. ``listen_url``: a direct connection for LISTEN where ``url`` goes through PgBouncer."""

    def __init__(self, db: Database, redis: RedisServer | None, tenant: str, listen_url: str) -> None:
        self.db, self.redis, self.tenant, self.listen_url = db, redis, tenant, listen_url
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
        if redis is not None:
            events = RedisEventLog(redis)
            self.scheduler: Scheduler = RedisScheduler(redis, events)
            self.events: EventLog = events

    def for_tenant(self, tenant: str) -> Backend:
        """The same connections, bound to another tenant."""
        return PostgresBackend(self.db, self.redis, tenant, self.listen_url)

    async def check(self) -> None:
        """Raises BackendUnavailableError, SchemaUninitialized, SchemaMismatch."""
        await check_schema(self.db)

    async def notifications(self) -> AsyncGenerator[Effects]:
        """Yields when a host's transaction accepted a run, and after each (re)connection, when one may have been missed; with
        what calls that return nothing ask of Redis."""
        heard = asyncio.Event()
        told: list[str] = []
        url, _ = split_url(self.listen_url)

        def wake(*_: object) -> None:
            heard.set()

        def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            if payload:
                told.append(str(payload))
            heard.set()

        while True:
            try:
                with translated():
                    connection = await asyncpg.connect(url, timeout=5)
                    await connection.add_listener("runyard_accept", hear)
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
    min_pool_size: int = 1,
    max_pool_size: int = 10,
    listen_url: str | None = None,
    name: str = "runyard",
    **settings: Any,
) -> Backend:
    """Connect to Postgres at ``url`` and Redis at ``redis`` (a URL; without it only the stores work).

    ``min_pool_size`` and ``max_pool_size`` bound the Postgres connections; ``name`` is what both servers list them under;
    further ``settings`` go to the pool, for example
    ``statement_cache_size=0`` behind PgBouncer in transaction mode. Raises SchemaUninitialized, SchemaMismatch,
    BackendUnavailableError.
    """
    db = await Database.connect(url, min_pool_size=min_pool_size, max_pool_size=max_pool_size, name=name, **settings)
    try:
        await check_schema(db)
        server = RedisServer(redis, name=name) if redis is not None else None
    except BaseException:
        await db.close()
        raise
    return PostgresBackend(db, server, tenant, listen_url or url)
