"""The backends for ``sqlite://`` and ``mysql://``: the stores of a program without workers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

from runyard.ports.fan_outs import FanOutStore
from runyard.ports.graph_checkpoints import GraphCheckpointStore
from runyard.ports.results import PAGE_BYTES
from runyard.ports.runs import RunStore
from runyard.ports.scheduling import Effects, EventLog, Scheduler
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
from runyard.support import optional_imports
from runyard.support.store_retries import LOCKED_SECONDS

from ..unsupported import Refusing
from .checkpointer import SqlCheckpointer
from .database import Database
from .refusals import no_workers
from .run_store import SqlRunStore
from .thread_store import SqlThreadStore


class SqlBackend:
    """The stores of one tenant on a SQL database. Every part that needs a worker or Redis raises CapabilityMissingError."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant, self.remote = db, tenant, False
        self.checkpointer: Checkpointer = SqlCheckpointer(db, tenant)
        self.threads: ThreadStore = SqlThreadStore(db, tenant)
        self.runs = cast(RunStore, SqlRunStore(db, tenant))
        self.feed = cast(Feed, self._missing("feed"))
        self.usage = cast(UsageStore, self._missing("usage"))
        self.timelines = cast(TimelineStore, self._missing("timelines"))
        self.fan_outs = cast(FanOutStore, self._missing("fan_outs"))
        self.limits = cast(LimitStore, self._missing("limits"))
        self.webhooks = cast(WebhookStore, self._missing("webhooks"))
        self.workers = cast(WorkerStore, self._missing("workers"))
        self.queues = cast(QueueStore, self._missing("queues"))
        self.keys = cast(KeyStore, self._missing("keys"))
        self.graphs = cast(GraphCheckpointStore, self._missing("graphs"))
        self.scheduler = cast(Scheduler, self._missing("scheduler"))
        self.events = cast(EventLog, self._missing("events"))
        self.streams = cast(Streams, self._missing("streams"))

    def _missing(self, part: str) -> Refusing:
        return Refusing(part, no_workers(self.db.name))

    def for_tenant(self, tenant: str) -> Backend:
        """Return a backend on the same connections, bound to another tenant."""
        return SqlBackend(self.db, tenant)

    async def check(self) -> None:
        """Check that the database answers, and that this code can run on its schema. Raises BackendUnavailableError,
        SchemaError."""
        await self.db.check()

    async def notifications(self) -> AsyncGenerator[Effects]:
        """Raise CapabilityMissingError, because only workers need notifications."""
        raise no_workers(self.db.name)("notifications")
        yield Effects()

    async def close(self) -> None:
        """Close every connection."""
        await self.db.close()


async def connect_sqlite(
    url: str, *, tenant: str = "", busy_seconds: float = LOCKED_SECONDS, page_bytes: int = PAGE_BYTES
) -> Backend:
    """Connect to the SQLite file at ``url``. If the file does not exist, make the file and its schema.

    ``url``: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``. ``tenant``: the tenant of the backend. ``busy_seconds``:
    maximum seconds for which a write waits while another process writes. ``page_bytes``: maximum size of a list page in bytes.
    A larger entry is a page of its own. Raises BackendUnavailableError if the file cannot be used. Raises ExtraMissingError if
    aiosqlite is not installed. Raises InvalidInputError for an invalid URL. Raises LockedError, SchemaMismatch,
    DataCorruptedError.
    """
    database: Database = await optional_imports.load("runyard_backends.sql.sqlite").connect_database(
        url, busy_seconds=busy_seconds, page_bytes=page_bytes
    )
    return SqlBackend(database, tenant)


async def connect_mysql(
    url: str,
    *,
    tenant: str = "",
    min_pool_size: int = DEFAULT_MIN_POOL_CONNECTIONS,
    max_pool_size: int = DEFAULT_MAX_POOL_CONNECTIONS,
    page_bytes: int = PAGE_BYTES,
) -> Backend:
    """Connect to the MySQL or MariaDB database at ``url``.

    ``url``: ``mysql://user:password@host:3306/database``. ``tenant``: the tenant of the backend. ``min_pool_size``,
    ``max_pool_size``: bounds of the number of connections. ``page_bytes``: maximum size of a list page in bytes. A larger entry
    is a page of its own. Raises ExtraMissingError if asyncmy is not installed. Raises InvalidInputError for an invalid URL.
    Raises SchemaUninitialized, SchemaMismatch, BackendUnavailableError.
    """
    database: Database = await optional_imports.load("runyard_backends.sql.mysql").connect_database(
        url, min_pool_size=min_pool_size, max_pool_size=max_pool_size, page_bytes=page_bytes
    )
    return SqlBackend(database, tenant)
