"""Scheduling and event streams on Redis. All of this data can be lost at any moment, because Postgres has the authoritative
state."""

from .connection import RedisServer
from .events import RedisEventLog
from .scheduler import RedisScheduler
from .servers import RedisServers, redis_servers

__all__ = ["RedisEventLog", "RedisScheduler", "RedisServer", "RedisServers", "redis_servers"]
