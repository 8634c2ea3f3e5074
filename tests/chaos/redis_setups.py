"""The ways in which chaos runs Redis: a pair behind an address that moves, a pair under sentinels, and a cluster.

The faults of the schedule are the same. In the pair, faults of the wire are made by a proxy per owner. Sentinels and clusters
tell the clients the addresses of the servers, which no proxy can stand before. There the servers themselves close all
connections, or stop for a moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final, Literal, Protocol

from redis.exceptions import RedisError

from tests.chaos.faults import Fault
from tests.support.failovers import RedisPair, through
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet import until
from tests.support.redis_nodes import DOWN_MS, ClusterRedis, RedisNode, SentinelRedis

Kind = Literal["pair", "sentinel", "cluster"]

STALL_SECONDS: Final = 0.7 * DOWN_MS / 1000
"""Maximum number of seconds for which a server stops without a failover."""
WHOLE_SECONDS: Final = 60.0
"""Seconds within which a server that was lost is a replica in sync."""


class RedisSetup(Protocol):
    """The servers of Redis in one run of chaos."""

    def url(self, owner: str) -> str:
        """Return the URL at which ``owner`` reaches Redis."""

    async def primaries(self) -> list[RedisNode]:
        """Return the servers that take writes."""

    async def flush(self) -> None:
        """Remove all data."""

    async def lose_data(self, seconds: float) -> None:
        """Kill a primary. Start it without its data after ``seconds``."""

    async def fail_over(self, seconds: float) -> None:
        """Let a replica become the primary in place of its own. The clients find it, or the lost server comes back, after
        ``seconds``."""

    async def disturb(self, fault: Fault) -> None:
        """Carry out a fault of the wire, and return when it is over."""


Setup = Callable[[list[str], int], AbstractAsyncContextManager[RedisSetup]]
"""Starts the servers. Takes the owners of the connections, and the seed from which faults are drawn."""


class PairSetup:
    """A pair, and a proxy for each owner that leads to the primary."""

    def __init__(self, pair: RedisPair, proxies: dict[str, FaultProxy]) -> None:
        self._pair, self._proxies = pair, proxies

    def url(self, owner: str) -> str:
        return through(self._pair.primary.url, self._proxies[owner].port)

    async def primaries(self) -> list[RedisNode]:
        return [self._pair.primary]

    async def flush(self) -> None:
        await _flush(self._pair.primary)

    async def lose_data(self, seconds: float) -> None:
        await _restart(self._pair.primary, seconds)

    async def fail_over(self, seconds: float) -> None:
        await self._pair.fail_over()
        await asyncio.sleep(seconds)
        for proxy in self._proxies.values():
            proxy.upstream_port = self._pair.primary.port

    async def disturb(self, fault: Fault) -> None:
        await self._proxies[fault.link[0]].disturb(fault.wire, fault.seconds, fault.amount)


class SelfHealingSetup:
    """Servers that choose a new primary by themselves. ``draw``: chooses the server for a fault."""

    def __init__(self, servers: SentinelRedis | ClusterRedis, draw: random.Random) -> None:
        self._servers, self._draw = servers, draw
        self._one_fault = asyncio.Lock()

    def url(self, owner: str) -> str:
        return self._servers.url

    async def primaries(self) -> list[RedisNode]:
        return await self._servers.primaries()

    async def flush(self) -> None:
        async with self._one_fault:
            for server in await self._servers.primaries():
                await _flush(server)

    async def lose_data(self, seconds: float) -> None:
        async with self._one_fault:
            await _restart(await self._any_primary(), seconds)
            await self._heal()

    async def fail_over(self, seconds: float) -> None:
        async with self._one_fault:
            lost = await self._any_primary()
            await self._servers.lose(lost)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(lost.start)
            await self._heal()

    async def disturb(self, fault: Fault) -> None:
        if self._one_fault.locked():  # the servers have a worse fault
            return
        async with self._one_fault:
            server = await self._any_primary()
            if fault.wire in ("cut", "lose_replies"):
                async with server.connect() as redis:
                    for kind in ("normal", "pubsub"):
                        await redis.execute_command("CLIENT", "KILL", "TYPE", kind)
            else:
                await asyncio.to_thread(server.pause)
                await asyncio.sleep(min(fault.seconds, STALL_SECONDS))
                await asyncio.to_thread(server.resume)

    async def _heal(self) -> None:
        """Wait until each primary has its replica again, because without a replica there is no failover."""

        async def whole() -> bool:
            with suppress(RedisError):
                return await self._servers.is_whole()
            return False

        await until(whole, WHOLE_SECONDS)

    async def _any_primary(self) -> RedisNode:
        return self._draw.choice(await self._servers.primaries())


async def _flush(server: RedisNode) -> None:
    async with server.connect() as redis:
        await redis.flushall()


async def _restart(server: RedisNode, seconds: float) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.start)


@asynccontextmanager
async def pair(owners: list[str], seed: int) -> AsyncIterator[RedisSetup]:
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(RedisPair())
        proxies = {owner: await stack.enter_async_context(FaultProxy("127.0.0.1", servers.primary.port)) for owner in owners}
        yield PairSetup(servers, proxies)


@asynccontextmanager
async def sentinel(owners: list[str], seed: int) -> AsyncIterator[RedisSetup]:
    async with SentinelRedis() as servers:
        yield SelfHealingSetup(servers, random.Random(seed))


@asynccontextmanager
async def cluster(owners: list[str], seed: int) -> AsyncIterator[RedisSetup]:
    async with ClusterRedis() as servers:
        yield SelfHealingSetup(servers, random.Random(seed))


SETUPS: Final[dict[Kind, Setup]] = {"pair": pair, "sentinel": sentinel, "cluster": cluster}
