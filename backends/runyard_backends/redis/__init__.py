"""Scheduling and event streams on Redis. Redis may lose all of this data at any moment, because Postgres alone decides."""

from .connection import RedisServer
from .events import RedisEventLog
from .scheduler import RedisScheduler

__all__ = ["RedisEventLog", "RedisScheduler", "RedisServer"]
