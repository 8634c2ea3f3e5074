"""Connections to one Redis server, for pipelined script calls, blocking pops and subscriptions to channels.

A :class:`RedisServer` belongs to one event loop. A call takes at most ``timeout`` seconds. If the server does not reply, the
call raises :class:`~runyard.errors.BackendUnavailableError` and is not repeated by this class. A cancelled call closes its
connection, so that the next call cannot read the late reply as its own.

A server may reply that it cannot serve, for example because it became a replica. After such a reply, all connections to this
server are closed. The next call looks up the host's name or asks the sentinels, and opens a new connection. If a call gets no
reply in time, the idle connections are closed. If a new connection leads to another address, all older connections are closed.

A script that the server refuses for lack of memory has changed nothing. :meth:`RedisServer.call` then makes room and sends the
script again. A script with the line ``-- allow-oom`` is never refused for lack of memory. Such a script frees memory or needs
little memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakSet

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, BusyLoadingError, NoScriptError, OutOfMemoryError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from runyard.support.connect_pause import ConnectPause
from runyard.support.metrics import measured_call

from .connecting import Connector, connector
from .driver_errors import cannot_serve, refuses_writes, translated
from .key_names import Keys
from .pubsub import PubSub, Subscribing
from .scripts import Call

ROOM_TRIES: Final = 3
"""Maximum number of times that one call frees memory."""


class RedisServer:
    """Connections to ``url`` (:mod:`runyard_backends.redis.connecting`), or connections of a connector. Each connection is
    opened when a call needs it.

    namespace, shards: see :class:`~runyard_backends.redis.key_names.Keys`. timeout: seconds that one call may take, including
    the time to connect. max_connections: the maximum number of connections for calls. Each concurrent :meth:`pop_and_call` has
    one more connection, and all channels together have one more connection. name: the name under which the server lists the
    connections. Attributes: ``decoding`` is a lock that a reader holds while it decodes a page of events. ``room`` returns the
    calls that free memory. ``own_shard`` is a shard that the server holds.
    """

    def __init__(
        self,
        url: str | Connector,
        *,
        namespace: str = "runyard",
        shards: int = 1,
        timeout: float = 2.0,
        max_connections: int = 16,
        name: str = "runyard",
    ) -> None:
        self._open = connector(url, timeout, name) if isinstance(url, str) else url
        self.keys = Keys(namespace, shards)
        self.own_shard = 0
        self.decoding = asyncio.Lock()
        self.room: Callable[[], Sequence[Call]] = tuple
        self._timeout = timeout
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[AbstractConnection] = []
        self._idle_poppers: list[AbstractConnection] = []
        self._usable: WeakSet[AbstractConnection] = WeakSet()
        self._place: tuple[Any, Any] = None, None
        self._pause = ConnectPause()
        self._closed = False
        self._pubsub = PubSub(self._connection, timeout, self.ping)

    async def call(self, *calls: Call) -> list[Any]:
        """Send ``calls`` in one round trip. Return the replies in the order of ``calls``."""
        with measured_call("redis"), translated():
            return checked(await self.replies(calls))

    async def call_after(self, optional: Sequence[Call], calls: Sequence[Call]) -> list[Any]:
        """Send the calls ``optional`` and then ``calls`` in one round trip. Return the replies to ``calls``. The server may
        refuse an ``optional`` call."""
        with measured_call("redis"), translated():
            return checked((await self.replies([*optional, *calls]))[len(optional) :])

    async def command(self, *args: Any) -> Any:
        """Send one command and return its reply."""
        with measured_call("redis"), translated():
            return checked(await self.replies_to([args]))[0]

    async def ping(self) -> None:
        """Check that the server takes writes. ``SET`` with ``XX`` is a write, but it sets only a key that exists. This key
        never exists, so nothing changes."""
        await self.command("SET", self.keys.ping(self.own_shard), "", "XX")

    async def pop_and_call(self, keys: Sequence[str], timeout: float, call: Call) -> Any:
        """Wait up to ``timeout`` seconds for an element of one of the lists ``keys``, and remove the element. Then execute
        ``call``, even if no element came, and return its reply.

        The pop and ``call`` are sent together at the start. The server therefore executes ``call`` even if the caller no
        longer waits for the reply.
        """
        with translated():
            # Wait at least 1 ms, because the server treats zero as no limit.
            pop = ("BLPOP", *keys, f"{max(timeout, 0.001):.3f}")
            try:
                async with asyncio.timeout(timeout + self._timeout):
                    popped, reply = await self._pipelined([pop, _evalsha(call)], self._idle_poppers)
            except TimeoutError:
                await self._close_idle()
                raise
            if isinstance(reply, NoScriptError):
                [reply] = await self.call(call)
            return checked([popped, reply])[1]

    async def replies(self, calls: Sequence[Call]) -> list[Any]:
        """Send ``calls`` in one round trip. The reply to a refused call is a ResponseError. Raises the driver's errors."""
        try:
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
        except TimeoutError:
            await self._close_idle()
            raise

    async def replies_to(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send ``commands`` in one round trip. The reply to a refused command is a ResponseError. Raises the driver's
        errors."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(commands)
        except TimeoutError:
            await self._close_idle()
            raise

    def shards_beside(self, shard: int) -> int:
        """Return the number of shards on the server that holds ``shard``. One server holds all shards."""
        return self.keys.shards

    async def primaries(self) -> Sequence[RedisServer]:
        """Return this server."""
        return [self]

    def subscribe(self, channel: str, limit: int = 1000, silence: float | None = None) -> Subscribing:
        """Subscribe to the messages that are published on ``channel`` after this call. ``limit``: the maximum number of unread
        messages. ``silence``: see :class:`~runyard_backends.redis.pubsub.Subscription`."""
        return self._pubsub.subscribe(channel, limit, silence)

    async def close(self) -> None:
        """Close every connection. Calls in progress fail."""
        self._closed = True
        await self._pubsub.close()
        await self._close_idle()
        await self._open.close()

    async def _executed(self, calls: Sequence[Call]) -> list[Any]:
        """Send ``calls`` in one round trip. If the server does not know a script, load the script and send its calls again."""
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
            # The driver's own encoder, in Python, takes several times as long.
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
        """Close every connection to the server that replied ``error`` over ``connection``. A connection in use is closed after
        its call.

        Subscriptions also end, because they could miss messages. Messages of a new primary do not arrive over these
        connections. A replica receives no messages while it copies all data of its primary. After the end of a subscription,
        its subscriber reads the stored data again. If the server is a primary that refuses writes, subscriptions end at most
        once in CHECK_SECONDS.
        """
        if connection in self._usable:  # a concurrent call may have done this before
            self._pause.failed(str(error))
            await self._leave(seldom=refuses_writes(error))

    async def _leave(self, *, seldom: bool = False) -> None:
        """Close every open connection. A connection in use is closed after its call. ``seldom``: see PubSub.lose."""
        self._usable.clear()
        self._pubsub.lose(seldom=seldom)
        await self._close_idle()

    async def _close_idle(self) -> None:
        """Close the idle connections to a server that did not answer in time or cannot be used. New connections can lead to
        another server."""
        idle = self._idle + self._idle_poppers
        self._idle.clear()
        self._idle_poppers.clear()
        for connection in idle:
            await connection.disconnect(nowait=not self._closed)

    async def _connection(self) -> AbstractConnection:
        if self._closed:
            raise RedisConnectionError("this RedisServer was closed")
        self._pause.check()
        try:
            connection = await self._open()
        except ResponseError as error:  # the server refuses the connection, for example its database
            self._pause.failed(str(error))
            raise AuthenticationError(str(error)) from error
        except (RedisError, OSError) as error:
            if not isinstance(error, TimeoutError | RedisTimeoutError):  # calls that time out do not flood the server
                self._pause.failed(str(error))
            raise
        place = getattr(connection, "host", None), getattr(connection, "port", None)
        if place != self._place:
            if self._usable:  # the sentinels name another primary
                await self._leave()
            self._place = place
        self._usable.add(connection)
        return connection

    async def _ready(self, idle: list[AbstractConnection]) -> AbstractConnection:
        """Return an idle connection that the server has not closed. If there is none, open a new connection."""
        while idle:
            connection = idle.pop()
            # The driver's own check, can_read_destructive(), costs a tenth of a round trip, because it starts and cancels a
            # read.
            if (reader := connection._reader) is not None and not reader.at_eof():
                return connection
            await connection.disconnect(nowait=True)
        return await self._connection()

    async def _give_back(self, connection: AbstractConnection, idle: list[AbstractConnection]) -> None:
        # If a late reply can still arrive on a connection, the driver has already disconnected it.
        if connection.is_connected and connection in self._usable and not self._closed:
            idle.append(connection)
        else:
            await connection.disconnect(nowait=True)


def _evalsha(call: Call) -> tuple[Any, ...]:
    return "EVALSHA", call.script.sha, 1, call.key, *call.args


def checked(replies: list[Any]) -> list[Any]:
    """Return ``replies``. Raise the first ResponseError in them."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
    return replies
