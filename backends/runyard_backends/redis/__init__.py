"""Scheduling and event streams on Redis. All data here may be lost at any moment: Postgres decides, Redis only schedules."""

from .connection import RedisServer
from .events import RedisEventLog
from .scheduler import RedisScheduler

__all__ = ["RedisEventLog", "RedisScheduler", "RedisServer"]
