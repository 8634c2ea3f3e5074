"""The memory stores with the scheduler and the event log on Redis."""

from __future__ import annotations

from ..redis import RedisEventLog, RedisScheduler, redis_servers
from . import MemoryBackend, MemoryWorld
from .state import Clock


class MemoryOnRedis(MemoryBackend):
    """One tenant's backend on a new database in memory. The Redis server at the URL ``redis`` schedules the runs and stores
    their events.

    The backends that :meth:`for_tenant` returns share the connections to Redis. Closing this backend closes the connections of
    all these backends.
    """

    def __init__(self, redis: str, tenant: str, now: Clock, page_bytes: int) -> None:
        self._server = redis_servers(redis)
        events = RedisEventLog(self._server)
        super().__init__(MemoryWorld(now, page_bytes, events, RedisScheduler(self._server, events)), tenant)

    async def close(self) -> None:
        """Close every connection to Redis."""
        await self._server.close()
