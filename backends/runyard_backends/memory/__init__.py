"""The memory backend: the executable specification of the stores, and a backend for tests in one process.

Forks and branches copy the messages that they see. With copies, the rules are easy to read in the code. Each method is
atomic, because no method awaits between reading and writing. ``memory://`` opens a new database. All connections of the process
to ``memory://name`` share one database.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from runyard.errors import InvalidInputError
from runyard.events.streams import DirectStreams
from runyard.ports.fan_outs import FanOutStore
from runyard.ports.graph_checkpoints import GraphCheckpointStore
from runyard.ports.results import PAGE_BYTES
from runyard.ports.runs import RunStore
from runyard.ports.scheduling import Effects, EventLog, Scheduler
from runyard.ports.stores import (
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

from .api_keys import MemoryKeyStore
from .checkpointer import MemoryCheckpointer
from .events import MemoryEventLog
from .fan_outs import MemoryFanOutStore
from .feed import MemoryFeed
from .graph_checkpoints import GraphDatabase, MemoryGraphCheckpointStore
from .limits import MemoryLimitStore
from .queues import MemoryQueueStore
from .runs import MemoryRunStore
from .scheduler import MemoryScheduler
from .state import Clock, Database, wall_clock
from .threads import MemoryThreadStore
from .timelines import MemoryTimelineStore
from .usage import MemoryUsageStore
from .webhooks import MemoryWebhookStore
from .workers import MemoryWorkerStore

__all__ = ["MemoryBackend", "MemoryWorld", "connect"]


class MemoryWorld:
    """The state that the connections to one database share.

    ``now``: the clock, which a test may control. ``page_bytes``: maximum size of a list page in bytes. A larger entry is
    a page of its own. ``events`` and ``scheduler``: the event log and the scheduler, by default in memory.
    """

    def __init__(
        self,
        now: Clock = wall_clock,
        page_bytes: int = PAGE_BYTES,
        events: EventLog | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.db = Database(now, page_bytes)
        self.graphs = GraphDatabase()
        own_events = MemoryEventLog()
        self.events = events or own_events
        self.scheduler = scheduler or MemoryScheduler(now, own_events)


class MemoryBackend:
    """One tenant's backend on a database in memory."""

    def __init__(self, world: MemoryWorld, tenant: str) -> None:
        self.tenant, self.remote = tenant, False
        self.world = world
        self.checkpointer: Checkpointer = MemoryCheckpointer(world.db, tenant)
        self.threads: ThreadStore = MemoryThreadStore(world.db, tenant)
        self.runs: RunStore = MemoryRunStore(world.db, tenant)
        self.feed: Feed = MemoryFeed(world.db, tenant)
        self.usage: UsageStore = MemoryUsageStore(world.db, tenant)
        self.timelines: TimelineStore = MemoryTimelineStore(world.db, tenant)
        self.fan_outs: FanOutStore = MemoryFanOutStore(world.db, tenant)
        self.limits: LimitStore = MemoryLimitStore(world.db)
        self.webhooks: WebhookStore = MemoryWebhookStore(world.db, tenant)
        self.workers: WorkerStore = MemoryWorkerStore(world.db)
        self.queues: QueueStore = MemoryQueueStore(world.db)
        self.keys: KeyStore = MemoryKeyStore(world.db, tenant)
        self.graphs: GraphCheckpointStore = MemoryGraphCheckpointStore(world.db, world.graphs, tenant)
        self.scheduler: Scheduler = world.scheduler
        self.events: EventLog = world.events
        self.streams: Streams = DirectStreams(self)

    def for_tenant(self, tenant: str) -> Backend:
        """Return a backend on the same database, bound to another tenant."""
        return MemoryBackend(self.world, tenant)

    async def check(self) -> None:
        """Do nothing, because memory is always reachable."""

    async def notifications(self) -> AsyncGenerator[Effects]:
        """Yield empty effects at the start. Then yield the effects of calls that do not return their effects."""
        with self.world.db.listen() as told:
            yield Effects()
            while True:
                yield await told.get()

    async def close(self) -> None:
        """Do nothing. The database exists as long as an object refers to it."""


_worlds: WeakValueDictionary[str, MemoryWorld] = WeakValueDictionary()


async def connect(
    url: str = "memory://",
    *,
    tenant: str = "",
    now: Clock | None = None,
    page_bytes: int = PAGE_BYTES,
    world: MemoryWorld | None = None,
    redis: str | None = None,
) -> Backend:
    """Connect to ``memory://`` (a new database) or ``memory://name`` (a database shared in this process).

    ``tenant``: the tenant of the backend. ``now``: the clock of a new database. ``page_bytes``: maximum size of a list page in
    bytes. A larger entry is a page of its own. ``world``: an existing database to which the backend connects. ``redis``: the
    URL of a Redis server that schedules the runs of a new database and stores their events. ``fakeredis://`` is a server inside
    this process. By default, the scheduler and the events are in memory. Close a backend with ``redis`` to close its
    connections.

    Raises InvalidInputError if ``redis`` is given for a shared or existing database. Raises ExtraMissingError if ``redis`` is
    ``fakeredis://`` and fakeredis is not installed.
    """
    if redis is not None:
        if world is not None or urlsplit(url).netloc:
            message = "redis needs a new database, with the URL memory://; a shared database already has a scheduler"
            raise InvalidInputError(message, field="redis")
        from .on_redis import MemoryOnRedis  # imported here because the import of the driver takes time

        return MemoryOnRedis(redis, tenant, now or wall_clock, page_bytes)
    if world is None:
        name = urlsplit(url).netloc
        world = _worlds.get(name) if name else None
        if world is None:
            world = MemoryWorld(now or wall_clock, page_bytes)
            if name:
                _worlds[name] = world
    return MemoryBackend(world, tenant)
