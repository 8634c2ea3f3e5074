"""Connections to a cluster of Redis. Each call is sent to the server that holds the hash slot of its key.

The shard in the name of a key determines the hash slot. All keys of the schedule are in shard 0. Therefore one server has the
whole schedule, and a worker waits on one connection. The event streams are spread over all shards.

The first call reads the map of hash slots to servers. The map is read again after the loss of a server, and after a reply that
another server holds the hash slot.

A script needs all keys of its shard on one server. A script with several keys declares only the prefix of its shard, which is
never a key. While a hash slot is being moved key by key, the old server therefore replies ASK, and does not execute the script.
Calls for this hash slot then raise BackendUnavailableError.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

from runyard.errors import BackendUnavailableError, RunyardError
from runyard.support.connect_pause import ConnectPause
from runyard.support.metrics import measured_call

from .connecting import Address, ClusterUrl
from .connection import RedisServer, checked
from .driver_errors import cannot_serve, has_moved, translated
from .key_names import Keys
from .pubsub import Subscription
from .scripts import Call

SHARDS: Final = 16
"""Number of shards in a cluster. The number must be the same in every process of a deployment. All streams of a shard are on
one server."""
ROUNDS: Final = 3
"""Maximum number of times that a call is sent. A call is sent again if a server replies that another server holds the hash
slot."""
TOPOLOGY_SECONDS: Final = 0.5
"""Seconds to wait for one server's list of the hash slots."""
REREAD_SECONDS: Final = 0.05
"""Minimum seconds between two reads of the hash slots. This minimum protects the servers when many calls fail."""
OPTIONAL_SECONDS: Final = 0.5
"""Maximum seconds to wait for the replies to optional calls. After that, the required calls are sent."""


class RedisCluster:
    """Implements :class:`~runyard_backends.redis.servers.RedisServers`. ``url``: names some servers of the cluster. ``name``:
    the name under which the servers list the connections. ``timeout`` and ``max_connections``: passed to each
    :class:`~runyard_backends.redis.connection.RedisServer`. A call that must also read the hash slots may take ``timeout``
    seconds longer."""

    def __init__(
        self, url: str, *, namespace: str = "runyard", timeout: float = 2.0, max_connections: int = 16, name: str = "runyard"
    ) -> None:
        self.keys = Keys(namespace, SHARDS)
        self.decoding = asyncio.Lock()
        self.room: Callable[[], Sequence[Call]] = tuple
        self._url = ClusterUrl(url, timeout, name)
        self._server_at = partial(
            RedisServer, namespace=namespace, shards=SHARDS, timeout=timeout, max_connections=max_connections, name=name
        )
        self._timeout = timeout
        self._servers: dict[Address, RedisServer] = {}
        self._places: list[Address] = []  # by shard
        self._is_stale = True
        self._read_at = -math.inf
        self._reading = asyncio.Lock()
        self._pause = ConnectPause()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(self, *calls: Call) -> list[Any]:
        """Send ``calls``, in one round trip to each server, and return their replies in the same order."""
        with measured_call("redis"), translated():
            return checked(await self._replies(calls))

    async def call_after(self, optional: Sequence[Call], calls: Sequence[Call]) -> list[Any]:
        """Send the calls ``optional`` and then ``calls``. If all of them go to one server, this is one round trip. Return the
        replies to ``calls``. An ``optional`` call may be refused, or may get no answer within OPTIONAL_SECONDS."""
        with measured_call("redis"), translated():
            await self._read_slots()
            if len(self._by_place([*optional, *calls])) == 1:
                return checked((await self._replies([*optional, *calls]))[len(optional) :])
            with suppress(RedisError, OSError):
                async with asyncio.timeout(OPTIONAL_SECONDS):
                    await self._replies(optional)
            return checked(await self._replies(calls))

    async def command(self, *args: Any) -> Any:
        """Send one command, whose first argument is its key or its channel, and return its reply."""
        with measured_call("redis"), translated():
            for _ in range(ROUNDS):
                server = await self._server(self.keys.shard_of(str(args[1])))
                with self._noticing_losses():
                    [reply] = await server.replies_to([args])
                self._notice_refusals([reply])
                if not has_moved(reply):
                    break
            return checked([reply])[0]

    async def ping(self) -> None:
        """Check that the server of the schedule takes writes."""
        await self.command("SET", self.keys.ping(0), "", "XX")

    async def pop_and_call(self, keys: Sequence[str], timeout: float, call: Call) -> Any:
        """See :meth:`RedisServer.pop_and_call <runyard_backends.redis.connection.RedisServer.pop_and_call>`. All ``keys`` must
        be in the shard of ``call``."""
        with translated():
            server = await self._server(self.keys.shard_of(call.key))
        with self._noticing_losses():
            return await server.pop_and_call(keys, timeout, call)

    @asynccontextmanager
    async def subscribe(self, channel: str, limit: int = 1000, silence: float | None = None) -> AsyncIterator[Subscription]:
        """Subscribe to ``channel`` at the server that holds the channel's hash slot. This server publishes the messages of the
        channel. When the hash slot has moved to another server, the subscription ends with an error."""
        with translated():
            server = await self._server(self.keys.shard_of(channel))
        with self._noticing_losses():
            async with server.subscribe(channel, limit, silence) as subscription:
                yield subscription

    def shards_beside(self, shard: int) -> int:
        """Return the number of shards on the server that holds ``shard``. Before the first read of the hash slots, return the
        number of all shards."""
        return self._places.count(self._places[shard]) if self._places else SHARDS

    async def primaries(self) -> Sequence[RedisServer]:
        """Return the servers that hold the hash slots of the shards."""
        with translated():
            await self._read_slots()
        return [self._servers[place] for place in dict.fromkeys(self._places)]

    async def close(self) -> None:
        """Close every connection. Calls in progress fail."""
        self._closed = True
        await asyncio.gather(*(server.close() for server in self._servers.values()), *self._closing)

    async def _replies(self, calls: Sequence[Call]) -> list[Any]:
        """Send ``calls`` to the servers that hold their hash slots. The reply to a refused call is a ResponseError."""
        replies: list[Any] = [None] * len(calls)
        left = list(range(len(calls)))
        for _ in range(ROUNDS):
            await self._read_slots()
            places = self._by_place([calls[i] for i in left])
            sent = [[left[n] for n in members] for members in places.values()]
            with self._noticing_losses():
                found = await asyncio.gather(
                    *(
                        self._servers[place].replies([calls[i] for i in members])
                        for place, members in zip(places, sent, strict=True)
                    ),
                    return_exceptions=True,
                )
                for members, part in zip(sent, found, strict=True):
                    if isinstance(part, BaseException):
                        raise part
                    for i, reply in zip(members, part, strict=True):
                        replies[i] = reply
            self._notice_refusals(replies)
            left = [i for i in left if has_moved(replies[i])]
            if not left:
                break
        return replies

    def _by_place(self, calls: Sequence[Call]) -> dict[Address, list[int]]:
        """Return the positions of ``calls`` by the address of the server that holds their hash slots."""
        found: defaultdict[Address, list[int]] = defaultdict(list)
        for n, call in enumerate(calls):
            found[self._places[self.keys.shard_of(call.key)]].append(n)
        return found

    async def _server(self, shard: int) -> RedisServer:
        await self._read_slots()
        return self._servers[self._places[shard]]

    @contextmanager
    def _noticing_losses(self) -> Iterator[None]:
        """Mark the hash slots as stale if a server cannot be used. The next call then reads the hash slots again."""
        try:
            yield
        except (RedisError, OSError, BackendUnavailableError):
            self._is_stale = True
            raise

    def _notice_refusals(self, replies: Sequence[Any]) -> None:
        """Mark the hash slots as stale if a server has replied that it cannot be used."""
        if any(isinstance(reply, ResponseError) and cannot_serve(reply) for reply in replies):
            self._is_stale = True

    async def _read_slots(self) -> None:
        """Read the map of hash slots to servers if it is unknown or stale, at most once in REREAD_SECONDS. Raises
        ConnectionError if no server answers."""
        if not self._must_read():
            return
        async with self._reading:
            if not self._must_read():  # a concurrent call has read the hash slots
                return
            if self._closed:
                raise ConnectionError("this RedisCluster was closed")
            self._pause.check()
            try:
                async with asyncio.timeout(self._timeout):
                    places = await self._told_places()
            except (OSError, RunyardError) as error:
                self._pause.failed(str(error) or "no server of the cluster answered in time")
                raise ConnectionError(str(error) or "no server of the cluster answered in time") from error
            self._settle(places)

    def _must_read(self) -> bool:
        return self._is_stale and time.monotonic() >= self._read_at + REREAD_SECONDS

    async def _told_places(self) -> list[Address]:
        """Ask one server after the other for the hash slots, until one of them answers. Return the address of the primary of
        each shard."""
        known = [*dict.fromkeys((*self._servers, *self._url.seeds))]
        random.shuffle(known)  # random, because a server that has lost the other servers would always return old hash slots
        last: Exception = ConnectionError("the cluster has no server")
        for address in known:
            try:
                async with asyncio.timeout(TOPOLOGY_SECONDS):
                    [ranges] = checked(await self._connected(address).replies_to([("CLUSTER", "SLOTS")]))
                return self._places_in(ranges, address)
            except (RedisError, OSError) as error:
                last = error
        raise ConnectionError(f"no server of the Redis cluster returned the map of hash slots to servers ({last})") from last

    def _places_in(self, ranges: Sequence[Sequence[Any]], asked: Address) -> list[Address]:
        """Return the address of each shard's primary. ``ranges``: the reply to CLUSTER SLOTS of the server ``asked``."""
        places = []
        for shard in range(SHARDS):
            slot = key_slot(self.keys.prefix(shard).encode())
            primary = next((part[2] for part in ranges if part[0] <= slot <= part[1]), None)
            if primary is None:
                raise ConnectionError(f"no server holds slot {slot}")
            host = primary[0].decode() if primary[0] else asked[0]  # empty if the server does not know its own address
            places.append((asked[0] if host == "?" else host, int(primary[1])))
        return places

    def _settle(self, places: list[Address]) -> None:
        """Use the servers at ``places``. Close the connections to servers that have lost all their hash slots. Separate tasks
        close them, because a lost server may delay the close."""
        self._places = places
        self._is_stale = False
        self._read_at = time.monotonic()
        for address in {*places} - self._servers.keys():
            self._connected(address)
        for shard, address in enumerate(places):
            self._servers[address].own_shard = shard
        gone = [address for address in self._servers if address not in places and address not in self._url.seeds]
        for address in gone:
            closing = asyncio.create_task(self._servers.pop(address).close(), name="runyard-redis-close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _connected(self, address: Address) -> RedisServer:
        """Return the connections to the server at ``address``. Each connection is opened when a call needs it."""
        if address not in self._servers:
            server = self._servers[address] = self._server_at(self._url.connector(address))
            server.room = partial(self._room_of, address)
        return self._servers[address]

    def _room_of(self, address: Address) -> list[Call]:
        return [call for call in self.room() if self._places[self.keys.shard_of(call.key)] == address]
