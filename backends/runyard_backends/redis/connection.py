"""Connections to one Redis server: pipelined calls of scripts, blocking pops, channels.

A :class:`RedisServer` belongs to one event loop. A call takes at most ``timeout`` seconds. If the server does not reply, the
call raises :class:`~runyard.errors.BackendUnavailableError` and is not repeated by this class. A cancelled call closes its
connection, because a late reply would otherwise be read as the reply to the next call.

If a server replies that it cannot serve, for example because it became a replica, all connections to it are closed. The next
call looks up the host's name again and opens a new connection.

A script that the server refused for lack of memory has changed nothing. :meth:`RedisServer.call` then makes room and sends the
script again. The scripts that only free memory, or that need little, carry the line ``-- allow-oom`` and are never refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple, cast
from weakref import WeakSet

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import BusyLoadingError, NoScriptError, OutOfMemoryError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from runyard.errors import InvalidInputError
from runyard.support.connect_pause import ConnectPause
from runyard.support.optional_imports import load

from .driver_errors import cannot_serve, refuses_writes, translated
from .key_names import Keys
from .pubsub import PubSub, Subscribing


@dataclass(frozen=True, slots=True)
class Script:
    """A file of ``lua/``."""

    source: str
    sha: str


_INCLUDE: Final = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)
_ALLOW_OOM: Final = re.compile(r"^-- allow-oom$", re.MULTILINE)

ROOM_TRIES: Final = 3
"""Maximum number of times that one call makes room."""


def _source(name: str) -> str:
    return resources.files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")


@cache
def script(name: str) -> Script:
    """Load the script ``lua/<name>.lua``, with the files that it includes, and with its flag for the server."""
    source = _INCLUDE.sub(lambda line: _source(line[1]), _source(name))
    if _ALLOW_OOM.search(source):
        source = f"#!lua flags=allow-oom\n{source}"
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


class Call(NamedTuple):
    """One execution of ``script`` with its only key and its arguments (strings, bytes or numbers)."""

    script: Script
    key: str
    args: Sequence[Any]


class RedisServer:
    """Connections to ``url``, opened when needed. ``fakeredis://`` is a server inside this process, for tests
    (:mod:`runyard_backends.redis.fake`).

    namespace, shards: see :class:`~runyard_backends.redis.key_names.Keys`. timeout: seconds that one call may take,
    connecting included. max_connections: the maximum number of connections for calls. Each concurrent :meth:`pop_and_call` has
    one more, and all channels together have one more. name: the name under which the server lists the connections.
    The attribute ``decoding`` is the lock to hold while decoding a page of events. ``room`` returns the calls that free memory.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "runyard",
        shards: int = 1,
        timeout: float = 2.0,
        max_connections: int = 16,
        name: str = "runyard",
    ) -> None:
        self._factory = _connections(url, timeout, name)
        self.keys = Keys(namespace, shards)
        self.decoding = asyncio.Lock()
        self.room: Callable[[], Sequence[Call]] = tuple
        self._timeout = timeout
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[AbstractConnection] = []
        self._idle_poppers: list[AbstractConnection] = []
        self._usable: WeakSet[AbstractConnection] = WeakSet()
        self._pause = ConnectPause()
        self._closed = False
        self._pubsub = PubSub(self._connection, timeout, self.ping)

    async def call(self, *calls: Call) -> list[Any]:
        """Send ``calls`` in one round trip, and return their replies in the same order."""
        with translated():
            return _checked(await self._replies(calls))

    async def call_after(self, optional: Sequence[Call], calls: Sequence[Call]) -> list[Any]:
        """Send the calls ``optional`` and then ``calls`` in one round trip. Return the replies to ``calls``. An ``optional``
        call may be refused."""
        with translated():
            return _checked((await self._replies([*optional, *calls]))[len(optional) :])

    async def command(self, *args: Any) -> Any:
        """Send one command and return its reply."""
        with translated():
            async with asyncio.timeout(self._timeout):
                return _checked(await self._exchange([args]))[0]

    async def ping(self) -> None:
        """Check that the server takes writes. The command is a write and writes nothing, because its key never exists."""
        await self.command("SET", self.keys.ping, "", "XX")

    async def pop_and_call(self, keys: Sequence[str], timeout: float, call: Call) -> Any:
        """Remove the first element of one of the lists ``keys``, execute ``call`` and return its reply. Wait up to ``timeout``
        seconds for the element; ``call`` is executed even if none comes.

        The server receives both commands at the start and executes them one after the other. It therefore executes ``call``
        even after the caller has stopped waiting for the reply.
        """
        with translated():
            async with asyncio.timeout(timeout + self._timeout):
                # Wait at least 1 ms, because zero would mean to wait without end.
                pop = ("BLPOP", *keys, f"{max(timeout, 0.001):.3f}")
                popped, reply = await self._pipelined([pop, _evalsha(call)], self._idle_poppers)
            if isinstance(reply, NoScriptError):
                [reply] = await self.call(call)
            return _checked([popped, reply])[1]

    def subscribe(self, channel: str, limit: int = 1000, silence: float | None = None) -> Subscribing:
        """Subscribe to the messages that are published on ``channel`` after this call. ``limit``: the maximum number of unread
        messages. ``silence``: see :class:`~runyard_backends.redis.pubsub.Subscription`."""
        return self._pubsub.subscribe(channel, limit, silence)

    async def close(self) -> None:
        """Close every connection. Calls in progress fail."""
        self._closed = True
        await self._pubsub.close()
        await self._close_idle()

    async def _replies(self, calls: Sequence[Call]) -> list[Any]:
        """Send ``calls`` in one round trip. The reply to a refused call is a ResponseError."""
        async with asyncio.timeout(self._timeout):
            replies = await self._executed(calls)
            for _ in range(ROOM_TRIES):
                refused = [i for i, reply in enumerate(replies) if isinstance(reply, OutOfMemoryError)]
                room = self.room() if refused else ()
                if not room:
                    break
                again = await self._executed([*room, *(calls[i] for i in refused)])
                for i, reply in zip(refused, again[len(room) :], strict=True):
                    replies[i] = reply
            return replies

    async def _executed(self, calls: Sequence[Call]) -> list[Any]:
        """Send ``calls`` in one round trip, and those whose scripts the server does not know once more."""
        if not calls:
            return []
        replies = await self._exchange([_evalsha(call) for call in calls])
        missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            sources = {calls[i].script.sha: calls[i].script.source for i in missing}
            loads: list[tuple[Any, ...]] = [("SCRIPT", "LOAD", source) for source in sources.values()]
            again = [_evalsha(calls[i]) for i in missing]
            for i, reply in zip(missing, (await self._exchange(loads + again))[len(loads) :], strict=True):
                replies[i] = reply
        return replies

    async def _exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send ``commands`` in one round trip and return their replies. The reply to a refused command is a ResponseError."""
        async with self._free:
            return await self._pipelined(commands, self._idle)

    async def _pipelined(self, commands: Sequence[tuple[Any, ...]], idle: list[AbstractConnection]) -> list[Any]:
        replies: list[Any] = []
        connection = await self._ready(idle)
        try:
            # The driver packs in Python, which takes several times as long.
            packed = b"".join(map(pack_command, commands))
            await connection.send_packed_command(packed, check_health=False)
            for _ in commands:
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(error)
            for reply in replies:
                if isinstance(reply, ResponseError) and cannot_serve(reply):
                    await self._abandon(connection, reply)
        except BusyLoadingError as error:
            await self._abandon(connection, error)
            raise
        finally:
            await self._give_back(connection, idle)
        return replies

    async def _abandon(self, connection: AbstractConnection, error: RedisError) -> None:
        """Close every connection to the server that replied ``error`` over ``connection``. Connections in use are closed
        after their calls.

        Subscriptions end too, and the subscribers read their stores again. Otherwise they would miss messages: those of another
        server do not arrive over these connections, and a replica receives none while it copies all data of its primary. If the
        server is a primary that refuses writes, subscriptions end at most once in CHECK_SECONDS.
        """
        if connection in self._usable:  # otherwise a call that was in progress at the same time has done this
            self._usable.clear()
            self._pause.failed(str(error))
            self._pubsub.lose(seldom=refuses_writes(error))
            await self._close_idle()

    async def _close_idle(self) -> None:
        idle = self._idle + self._idle_poppers
        self._idle.clear()
        self._idle_poppers.clear()
        for connection in idle:
            await connection.disconnect(nowait=not self._closed)

    async def _connection(self) -> AbstractConnection:
        if self._closed:
            raise RedisConnectionError("this RedisServer was closed")
        self._pause.check()
        connection = cast(AbstractConnection, self._factory.make_connection())  # type: ignore[no-untyped-call]
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            if not isinstance(error, TimeoutError | RedisTimeoutError):  # no pause: calls that time out do not flood the server
                self._pause.failed(str(error))
            raise
        self._usable.add(connection)
        return connection

    async def _ready(self, idle: list[AbstractConnection]) -> AbstractConnection:
        """Return an idle connection that the server has not closed. Open a new one if there is none."""
        while idle:
            connection = idle.pop()
            # The driver's can_read_destructive() starts and cancels a read, which takes a tenth of the time of a round trip.
            if (reader := connection._reader) is not None and not reader.at_eof():
                return connection
            await connection.disconnect(nowait=True)
        return await self._connection()

    async def _give_back(self, connection: AbstractConnection, idle: list[AbstractConnection]) -> None:
        # The driver has already disconnected a connection on which a late reply may still arrive.
        if connection.is_connected and connection in self._usable and not self._closed:
            idle.append(connection)
        else:
            await connection.disconnect(nowait=True)


def _connections(url: str, timeout: float, name: str) -> ConnectionPool:
    """Return a pool that makes connections to ``url``. Raises InvalidInputError if ``url`` is not a Redis URL."""
    if url.startswith("fakeredis://"):
        fake: ConnectionPool = load(f"{__package__}.fake").connections(url, name)
        return fake
    try:
        # RedisServer sets one timeout for a whole round trip. The driver's socket timeout would start a task for each write.
        return ConnectionPool.from_url(url, socket_timeout=None, socket_connect_timeout=timeout, client_name=name)
    except ValueError:  # the error's text has a part of the URL, which may be a password
        raise InvalidInputError("not a Redis URL; expected redis://USER:PASSWORD@HOST:PORT/DATABASE", field="redis") from None


def _evalsha(call: Call) -> tuple[Any, ...]:
    return "EVALSHA", call.script.sha, 1, call.key, *call.args


def _checked(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
    return replies
