"""The memory backend: the executable specification of the stores, and a backend for tests in one process.

Forks and branches copy what they see; nothing is remembered about cuts, so the rules can be read off the code. No verb awaits
between reading and writing, so each is atomic. ``memory://`` is a database of its own; ``memory://name`` is shared by every
connection of the process that names it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from runner.exchange import PAGE_BYTES, Effects
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

from .checkpointer import MemoryCheckpointer
from .events import MemoryEventLog
from .feed import MemoryFeed
from .keys import MemoryKeyStore
from .limits import MemoryLimitStore
from .queues import MemoryQueueStore
from .runs import MemoryRunStore
from .scheduler import MemoryScheduler
from .state import Clock, Database, wall_clock
from .threads import MemoryThreadStore
from .usage import MemoryUsageStore
from .webhooks import MemoryWebhookStore
from .workers import MemoryWorkerStore

__all__ = ["MemoryBackend", "MemoryWorld", "connect"]


class MemoryWorld:
    """What the connections to one database share.

    ``now``: the clock, which a test may control. ``page_bytes``: of one page of a list at most, but for a single entry.
    """

    def __init__(self, now: Clock = wall_clock, page_bytes: int = PAGE_BYTES) -> None:
        self.db = Database(now, page_bytes)
        self.events = MemoryEventLog()
        self.scheduler = MemoryScheduler(now, self.events)


class MemoryBackend:
    """One tenant's connection to a world."""

    def __init__(self, world: MemoryWorld, tenant: str) -> None:
        self.tenant = tenant
        self.world = world
        self.checkpointer: Checkpointer = MemoryCheckpointer(world.db, tenant)
        self.threads: ThreadStore = MemoryThreadStore(world.db, tenant)
        self.runs: RunStore = MemoryRunStore(world.db, tenant)
        self.feed: Feed = MemoryFeed(world.db, tenant)
        self.usage: UsageStore = MemoryUsageStore(world.db, tenant)
        self.limits: LimitStore = MemoryLimitStore(world.db)
        self.webhooks: WebhookStore = MemoryWebhookStore(world.db, tenant)
        self.workers: WorkerStore = MemoryWorkerStore(world.db)
        self.queues: QueueStore = MemoryQueueStore(world.db)
        self.keys: KeyStore = MemoryKeyStore(world.db, tenant)
        self.scheduler: Scheduler = world.scheduler
        self.events: EventLog = world.events

    def for_tenant(self, tenant: str) -> Backend:
        """The same world, bound to another tenant."""
        return MemoryBackend(self.world, tenant)

    async def check(self) -> None:
        """It is there."""

    async def notifications(self) -> AsyncGenerator[Effects]:
        """Yields at once, then what calls that return nothing ask of the scheduler."""
        with self.world.db.listen() as told:
            yield Effects()
            while True:
                yield await told.get()

    async def close(self) -> None:
        """Nothing to free: the world lives as long as somebody holds it."""


_worlds: WeakValueDictionary[str, MemoryWorld] = WeakValueDictionary()


async def connect(
    url: str = "memory://",
    *,
    tenant: str = "",
    now: Clock | None = None,
    page_bytes: int = PAGE_BYTES,
    world: MemoryWorld | None = None,
) -> Backend:
    """Connect to ``memory://`` (a fresh database) or ``memory://name`` (one shared in this process).

    ``now`` is the clock of a database that is made here, and ``page_bytes`` what a page of a list has at most, but for a single
    entry; ``world`` joins an existing one.
    """
    if world is None:
        name = urlsplit(url).netloc
        world = _worlds.get(name) if name else None
        if world is None:
            world = MemoryWorld(now or wall_clock, page_bytes)
            if name:
                _worlds[name] = world
    return MemoryBackend(world, tenant)
