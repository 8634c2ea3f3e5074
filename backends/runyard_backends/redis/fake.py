"""A Redis server inside this process, for tests. The server is fakeredis. It executes the scripts of ``lua/`` in a Lua
interpreter.

Each use of ``fakeredis://`` makes a new server. All connections of the process to ``fakeredis://name`` share one server. That
server ends with the last connection. No socket is opened, and no thread is started. A command is executed in the event loop
that sends it.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import fakeredis.aioredis
import lupa  # type: ignore[import-untyped]  # noqa: F401  # fakeredis refuses scripts without it
from fakeredis import FakeServer
from redis.asyncio.connection import ConnectionPool

from .scripts import script

SERVER_VERSION: Final = (8, 0)

_servers: WeakValueDictionary[str, FakeServer] = WeakValueDictionary()


class Socket(fakeredis.aioredis.AsyncFakeSocket):
    """The server's side of a connection.

    If a client disconnects during a blocking pop, a real server removes the client. fakeredis keeps the client. The client's
    pop then still takes an element, and its later commands are executed. This class removes the client as a real server does.
    """

    _hung_up = False

    @wraps(fakeredis.aioredis.AsyncFakeSocket.eval)
    def eval(self, script: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        """Execute a script without its first line of flags, which fakeredis does not know."""
        flags = script.startswith(b"#!") and script.find(b"\n")
        return super().eval(script[flags:] if flags else script, numkeys, *keys_and_args)

    def hang_up(self) -> None:
        """End the blocking pop of the client, drop the commands after the pop, and remove the client."""
        self._hung_up = True
        if self._blocked:
            with self._server.lock:
                self._unblock_reason = b"timeout"
                self._db.wake_all()
        else:
            self.close()

    def resume(self) -> None:
        if self._hung_up:
            self.close()
        else:
            super().resume()


class Connection(fakeredis.aioredis.FakeAsyncRedisConnection):
    """The driver's connection to a :class:`Socket`."""

    _sock: Socket | None  # type: ignore[assignment]  # the mixin of fakeredis declares None

    async def _connect(self) -> None:
        await super()._connect()
        # fakeredis has no parameter for the class of its socket.
        assert self._sock is not None
        self._sock.close()
        self._sock = Socket(self._server, self.db, client_class=self._client_class, client_info=self._client_info)
        self._reader = fakeredis.aioredis.FakeReader(self._sock)
        self._writer = fakeredis.aioredis.FakeWriter(self._sock)

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        # Let other tasks run, as they do during a round trip to a real server. Without this line, a task that writes in a loop
        # would block them.
        await asyncio.sleep(0)
        await super().send_packed_command(command, check_health)

    async def disconnect(self, nowait: bool = False, **options: Any) -> None:
        socket = self._sock
        await super().disconnect(nowait, **options)
        if socket is not None:
            socket.hang_up()


def connections(url: str, client_name: str) -> ConnectionPool:
    """Return a pool that makes connections to the server that ``url`` names."""
    return ConnectionPool(connection_class=Connection, server=server(url), client_name=client_name)


def server(url: str) -> FakeServer:
    """Return the server that ``url`` names. Its scripts can use the Lua library ``cmsgpack``."""
    name = urlsplit(url).netloc
    found = _servers.get(name) if name else None
    if found is None:
        found = FakeServer(version=SERVER_VERSION, server_type="valkey")
        with fakeredis.FakeRedis(server=found) as client:
            client.eval(script("cmsgpack").source, 0)
        if name:
            _servers[name] = found
    return found
