"""Publish and subscribe: all channels of a process at one server, over one connection.

A :class:`PubSub` connects with the first subscription. When the connection is lost, every subscription raises
:class:`~runyard.errors.BackendUnavailableError`, because it may have missed messages. The subscriber must then read the missed
data from its store. The next subscription opens a new connection.

The channels are sharded channels (SSUBSCRIBE). In a cluster, the scripts publish the messages on the server that holds the hash
slot of the channel's name. The messages stay on this server.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeAlias

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from runyard.errors import BackendUnavailableError, RunyardError

PING_AFTER_SECONDS = 5.0
"""Seconds without a reply after which a PING is sent. Without a reply to the PING within the same time, the connection counts
as lost."""
CHECK_SECONDS = 5.0
"""Seconds between two checks that the server takes writes. A PING is not enough, because replicas answer it too."""

MAX_UNREAD_BYTES = 2**20
"""Maximum bytes of unread messages that one subscription holds. A larger message is held if it is the only unread message."""
MAX_UNREAD_BYTES_IN_ALL = 64 * 2**20
"""Maximum bytes of unread messages that all subscriptions of a process hold together. A message counts once per
subscription."""
GUARANTEED_BYTES = 32 * 2**10
"""Bytes that each subscription may hold, even if all subscriptions together exceed MAX_UNREAD_BYTES_IN_ALL. Therefore slow
subscribers cannot make quick subscribers lose messages."""


class Published:
    """A message, shared by all subscriptions of its channel. ``made`` has weak references to the objects that a subscriber has
    decoded from the message. The other subscribers use these objects."""

    __slots__ = ("data", "made")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.made: list[weakref.ref[Any]] | None = None

    def __len__(self) -> int:
        return len(self.data)


class Unread:
    """Counter of the unread bytes in all subscriptions of a process."""

    def __init__(self) -> None:
        self.size = 0


class Subscription:
    """The messages of one channel since the subscription began. ``limit``: the maximum number of unread messages. ``silence``:
    after this number of seconds without a message, :meth:`get` raises TimeoutError. If ``silence`` is None, :meth:`get` waits
    without a limit. ``unread``: the counter that all subscriptions share.

    A subscription has only one timer, because setting a timer for each message would take longer than passing on the message.
    """

    def __init__(self, limit: int, silence: float | None = None, unread: Unread | None = None) -> None:
        self._limit = limit
        self._messages: deque[Published] = deque()
        self._size = 0
        self._unread = unread if unread is not None else Unread()
        self._ready = asyncio.Event()
        self._dropped = False
        self._lost = False
        self._loop = asyncio.get_running_loop()
        self._silence = silence
        self._silent = False
        self._heard_at = self._loop.time()
        self._timer = None if silence is None else self._loop.call_later(silence, self._listen)

    async def get(self) -> Published | None:
        """Wait for the next message and return it. Return None if messages were dropped. Messages are dropped if more than
        ``limit`` messages or too many bytes are unread.

        Raises TimeoutError after each ``silence`` seconds without a message. After a loss of the connection, returns the
        messages that arrived before the loss. Then raises BackendUnavailableError.
        """
        await self._ready.wait()
        if self._dropped:
            self._dropped = False
            self._settle()
            return None
        if self._silent:
            self._silent = False
            self._settle()
            raise TimeoutError
        if not self._messages:
            raise BackendUnavailableError("the connection to Redis was lost; subscribe again and read the missed data")
        message = self._messages.popleft()
        self._hold(-len(message))
        self._settle()
        return message

    def put(self, message: Published) -> None:
        self._heard_at = self._loop.time()
        self._silent = False
        if self._dropped:  # after get() has returned None, the subscriber reads the missed data from its store
            return
        if self._has_room(len(message)):
            self._messages.append(message)
            self._hold(len(message))
        else:
            self._forget()
            self._dropped = True
        self._ready.set()

    def lose(self) -> None:
        self._lost = True
        self._ready.set()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._forget()

    def _has_room(self, size: int) -> bool:
        if not self._messages:
            return True
        held = self._size + size
        most = GUARANTEED_BYTES if self._unread.size + size > MAX_UNREAD_BYTES_IN_ALL else MAX_UNREAD_BYTES
        return held <= most and len(self._messages) < self._limit

    def _hold(self, size: int) -> None:
        self._size += size
        self._unread.size += size

    def _forget(self) -> None:
        self._messages.clear()
        self._hold(-self._size)

    def _listen(self) -> None:
        assert self._silence is not None
        left = self._heard_at + self._silence - self._loop.time()
        if left <= 0:
            self._heard_at, left = self._loop.time(), self._silence
            self._silent = not self._messages
            if self._silent:
                self._ready.set()
        self._timer = self._loop.call_later(left, self._listen)

    def _settle(self) -> None:
        if not (self._messages or self._dropped or self._silent or self._lost):
            self._ready.clear()


Subscribing: TypeAlias = AbstractAsyncContextManager[Subscription]


class _Channel:
    def __init__(self, confirmed: asyncio.Future[None]) -> None:
        self.confirmed = confirmed
        self.subscriptions: set[Subscription] = set()


class _Link:
    """One connection in subscribed mode, the task that reads it, and the task that calls ``check`` every CHECK_SECONDS."""

    def __init__(self, connection: AbstractConnection, timeout: float, check: Callable[[], Awaitable[None]]) -> None:
        self.connection = connection
        self.alive = True
        self._timeout = timeout
        self._channels: dict[bytes, _Channel] = {}
        # Confirmations arrive in the order of the commands. Between a command and its confirmation, a subscriber may leave and
        # join the channel.
        self._unconfirmed: defaultdict[bytes, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._reader = asyncio.create_task(self._read(), name="runyard-redis-pubsub")
        self._checker = asyncio.create_task(self._check(check), name="runyard-redis-pubsub-check")

    async def join(self, name: bytes, subscription: Subscription) -> None:
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = _Channel(asyncio.get_running_loop().create_future())
            self._unconfirmed[name].append(channel.confirmed)
            channel.subscriptions.add(subscription)
            await self._send("SSUBSCRIBE", name)
        else:
            channel.subscriptions.add(subscription)
        # The future is shielded, because other subscribers wait for it too.
        await asyncio.shield(channel.confirmed)

    async def leave(self, name: bytes, subscription: Subscription) -> None:
        channel = self._channels.get(name)
        if channel is None or subscription not in channel.subscriptions:
            return
        channel.subscriptions.discard(subscription)
        if not channel.subscriptions:
            del self._channels[name]
            if self.alive:
                await self._send("SUNSUBSCRIBE", name)

    def lose(self) -> None:
        """End every subscription. The reader then closes the connection."""
        self._fail()
        self._reader.cancel()

    async def close(self) -> None:
        self.lose()
        self._checker.cancel()
        await asyncio.wait([self._reader, self._checker])
        await self.connection.disconnect()

    async def _send(self, *command: str | bytes) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self.connection.send_command(*command, check_health=False)
        except (RedisError, OSError):
            self._fail()

    async def _read(self) -> None:
        asked = False
        try:
            while self.alive:
                reply = await self.connection.read_response(timeout=PING_AFTER_SECONDS, disconnect_on_error=False)
                if reply is None:
                    if asked:
                        break
                    asked = True
                    await self._send("PING")
                    continue
                asked = False
                if isinstance(reply, list):
                    self._dispatch(reply)
        except (RedisError, OSError):
            pass  # _fail informs every subscriber
        finally:
            self._fail()
            await self.connection.disconnect(nowait=True)

    async def _check(self, check: Callable[[], Awaitable[None]]) -> None:
        """Call ``check`` every CHECK_SECONDS. ``check`` calls :meth:`PubSub.lose` if the server has become a replica."""
        while self.alive:
            await asyncio.sleep(CHECK_SECONDS)
            with suppress(RunyardError):  # the PING detects a server that does not answer
                await check()

    def _dispatch(self, reply: list[bytes]) -> None:
        kind, name = reply[0], reply[1]
        if kind == b"smessage":
            if channel := self._channels.get(name):
                message = Published(reply[2])
                for subscription in channel.subscriptions:
                    subscription.put(message)
        elif kind == b"ssubscribe":
            confirmed = self._unconfirmed[name].popleft()
            if not self._unconfirmed[name]:
                del self._unconfirmed[name]
            if not confirmed.done():
                confirmed.set_result(None)
        elif kind == b"sunsubscribe" and (channel := self._channels.get(name)) and channel.confirmed.done():
            # The server has ended the subscription, although no subscriber has left the channel: the hash slot has moved to
            # another server.
            del self._channels[name]
            for subscription in channel.subscriptions:
                subscription.lose()

    def _fail(self) -> None:
        self.alive = False
        for channel in self._channels.values():
            if not channel.confirmed.done():
                channel.confirmed.set_exception(BackendUnavailableError("the connection to Redis was lost"))
                channel.confirmed.exception()  # mark the exception as retrieved, even if no subscriber is left
            for subscription in channel.subscriptions:
                subscription.lose()


class PubSub:
    """Subscriptions over one connection. ``connect`` opens a connection. ``timeout``: maximum seconds for connecting and for
    joining a channel. ``check``: a function that raises RunyardError if the server does not take writes. If the server is a
    replica, ``check`` calls :meth:`lose`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AbstractConnection]],
        timeout: float,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self._check = check
        self._connecting = asyncio.Lock()
        self._link: _Link | None = None
        self._lost_at = -math.inf
        self._unread = Unread()

    @asynccontextmanager
    async def subscribe(self, channel: str, limit: int, silence: float | None = None) -> AsyncIterator[Subscription]:
        """Subscribe to ``channel`` and wait for the server's confirmation. Inside the block, the subscription gets every
        published message. ``limit``, ``silence``: see :class:`Subscription`."""
        name, subscription, link = channel.encode(), Subscription(limit, silence, self._unread), None
        try:
            try:
                async with asyncio.timeout(self._timeout):
                    link = await self._alive()
                    await link.join(name, subscription)
            except (RedisError, OSError) as error:
                raise BackendUnavailableError(f"Redis is unreachable ({str(error) or 'no answer in time'})") from error
            yield subscription
        finally:
            subscription.close()
            if link is not None:
                await link.leave(name, subscription)

    def lose(self, *, seldom: bool = False) -> None:
        """End every subscription as if the connection was lost. The next subscription opens a new connection. ``seldom``: True
        to do this at most once in CHECK_SECONDS."""
        now = asyncio.get_running_loop().time()
        if self._link is not None and self._link.alive and not (seldom and now < self._lost_at + CHECK_SECONDS):
            self._lost_at = now
            self._link.lose()

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _alive(self) -> _Link:
        async with self._connecting:
            if self._link is None or not self._link.alive:
                if self._link is not None:
                    await self._link.close()
                self._link = None
                self._link = _Link(await self._connect(), self._timeout, self._check)
            return self._link
