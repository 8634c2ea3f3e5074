"""The connections of a process to one Redis server, or to all servers of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .cluster import RedisCluster
from .connecting import is_cluster
from .connection import RedisServer
from .key_names import Keys
from .pubsub import Subscribing
from .scripts import Call


class RedisServers(Protocol):
    """The servers of one deployment. :class:`~runyard_backends.redis.connection.RedisServer` describes the methods.

    :meth:`shards_beside` takes a shard, and returns the number of shards on the server of this shard. :meth:`primaries`
    returns each server that takes writes.
    """

    decoding: asyncio.Lock
    room: Callable[[], Sequence[Call]]

    @property
    def keys(self) -> Keys: ...
    async def call(self, *calls: Call) -> list[Any]: ...
    async def call_after(self, optional: Sequence[Call], calls: Sequence[Call]) -> list[Any]: ...
    async def command(self, *args: Any) -> Any: ...
    async def ping(self) -> None: ...
    async def pop_and_call(self, keys: Sequence[str], timeout: float, call: Call) -> Any: ...
    def subscribe(self, channel: str, limit: int = 1000, silence: float | None = None) -> Subscribing: ...
    def shards_beside(self, shard: int) -> int: ...
    async def primaries(self) -> Sequence[RedisServer]: ...
    async def close(self) -> None: ...


def redis_servers(url: str, *, name: str = "runyard") -> RedisServers:
    """Return connections to ``url`` (:mod:`runyard_backends.redis.connecting`). Each connection is opened at its first use.
    ``name``: the name under which the servers list the connections. Raises InvalidInputError."""
    return RedisCluster(url, name=name) if is_cluster(url) else RedisServer(url, name=name)
