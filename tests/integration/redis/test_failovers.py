"""A server that became a replica, or refuses writes otherwise: no connection to it stays, and few new ones are made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from runyard.errors import BackendUnavailableError
from runyard.ports.scheduling import Job
from runyard_backends.redis import RedisEventLog, RedisScheduler, RedisServer, pubsub
from runyard_backends.redis.driver_errors import cannot_serve
from tests.integration.redis.test_scheduler import until_somebody_waits
from tests.support.failovers import RedisPair, through
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet import until
from tests.support.redis_nodes import SentinelRedis
from tests.support.suites.events import event
from tests.support.suites.scheduler import claim_within

pytestmark = pytest.mark.xdist_group("failovers")


class Place:
    """A pair behind an address that leads to its primary until :meth:`switch`."""

    def __init__(self, pair: RedisPair, proxy: FaultProxy) -> None:
        self.pair, self.proxy = pair, proxy
        self.url = through(pair.primary.url, proxy.port)

    def switch(self) -> None:
        """Let the address lead to the new primary. Open connections stay where they are."""
        self.proxy.upstream_port = self.pair.primary.port

    async def connections(self) -> int:
        """Those of runyard to the replica."""
        async with Redis.from_url(self.pair.replica.url) as redis:
            return sum(entry["name"] == "runyard" for entry in await redis.client_list())

    async def is_left(self) -> bool:
        """Whether runyard has no connection to the replica."""
        return await self.connections() == 0

    async def connected(self) -> int:
        """All connections that the replica has received so far."""
        async with Redis.from_url(self.pair.replica.url) as redis:
            return int((await redis.info("stats"))["total_connections_received"])


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with RedisPair() as pair, FaultProxy("127.0.0.1", pair.primary.port) as proxy:
        yield Place(pair, proxy)


@pytest.fixture
async def server(place: Place) -> AsyncIterator[RedisServer]:
    server = RedisServer(place.url)
    yield server
    await server.close()


async def soon(call: str, scheduler: RedisScheduler) -> None:
    """Repeat a call until it succeeds."""

    async def succeeds() -> bool:
        try:
            await (scheduler.ping() if call == "ping" else scheduler.submit([Job(1, "r")]))
        except BackendUnavailableError:
            return False
        return True

    await until(succeeds)


async def test_each_call_leaves_the_replica(place: Place, server: RedisServer) -> None:
    """Calls on several connections at once, and a claim that waits; none of them keeps its connection."""
    scheduler = RedisScheduler(server, RedisEventLog(server))
    await asyncio.gather(*(scheduler.submit([Job(n, "r")]) for n in range(9)), *(scheduler.ping() for _ in range(9)))
    assert len(await scheduler.claim("w", ["default"], 99)) == 9
    waiting = asyncio.create_task(scheduler.claim("w", ["default"], 9, wait=2.0))
    await until_somebody_waits(server)
    await place.pair.fail_over()
    with pytest.raises(BackendUnavailableError):
        await waiting
    calls = [scheduler.submit([Job(1, "r")]), scheduler.ping(), scheduler.claim("w", ["default"], 9)]
    for refused in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(refused, BackendUnavailableError)

    await until(place.is_left)
    place.switch()
    await soon("submit", scheduler)
    assert len(await claim_within(scheduler, "w")) >= 1
    await until(place.is_left)


async def test_many_repeated_calls_open_few_connections(place: Place, server: RedisServer) -> None:
    """A failover of a second or longer: the replica is asked a few times, and calls in between fail at once."""
    scheduler = RedisScheduler(server, RedisEventLog(server))
    await scheduler.ping()
    await place.pair.fail_over()
    before, failed, began = await place.connected(), 0, time.monotonic()

    async def repeat() -> None:
        nonlocal failed
        while time.monotonic() < began + 1 or failed < 300:
            with pytest.raises(BackendUnavailableError):
                await scheduler.ping()
            failed += 1
            await asyncio.sleep(0.01)

    await asyncio.gather(*(repeat() for _ in range(20)))
    connected, seconds = await place.connected() - before, time.monotonic() - began
    assert connected <= 100 * seconds, f"{connected} connections for {failed} calls in {seconds:.1f} s"
    place.switch()
    await soon("ping", scheduler)


async def test_a_subscriber_that_only_reads_leaves_the_replica(
    place: Place, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: an API process writes nothing, and what is published elsewhere while the replica copies all data never arrives."""
    monkeypatch.setattr(pubsub, "CHECK_SECONDS", 0.1)
    log = RedisEventLog(server)
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(server.subscribe(server.keys.cancel_channel))
        await place.pair.fail_over()
        with pytest.raises(BackendUnavailableError):
            await asyncio.wait_for(live.get(), 30)
    place.switch()
    await soon("ping", RedisScheduler(server, log))
    await log.append(1, [event(1, 1, "run.completed")])
    await until(place.is_left)


async def test_a_primary_without_its_replicas_takes_no_writes(place: Place, server: RedisServer) -> None:
    """NOREPLICAS, in a script and outside: the error of a server that cannot be used, until it can."""
    await place.pair.in_sync()
    scheduler = RedisScheduler(server, RedisEventLog(server))
    await scheduler.submit([Job(1, "r")])
    async with Redis.from_url(place.pair.primary.url) as redis:
        await redis.config_set("min-replicas-to-write", 2)
        for call in (scheduler.ping(), scheduler.claim("w", ["default"], 1)):
            with pytest.raises(BackendUnavailableError):
                await call
        await redis.config_set("min-replicas-to-write", 0)
    await soon("ping", scheduler)
    assert len(await claim_within(scheduler, "w")) == 1


async def test_a_primary_that_refuses_writes_ends_subscriptions_seldom(
    place: Place, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NOREPLICAS: what is published still arrives, and each subscriber that was ended reads Postgres."""
    monkeypatch.setattr(pubsub, "CHECK_SECONDS", 3600.0)  # the rounds take less on any machine
    await place.pair.in_sync()
    await server.ping()
    ended = refused = 0
    async with Redis.from_url(place.pair.primary.url) as redis:
        await redis.config_set("min-replicas-to-write", 2)
        for _ in range(4):
            async with server.subscribe(server.keys.cancel_channel) as live:
                before = refused
                while refused == before:  # between the attempts to connect a call fails at once
                    try:
                        await server.ping()
                    except BackendUnavailableError as error:
                        refused += "NOREPLICAS" in str(error) and "cannot take writes" in str(error)
                    await asyncio.sleep(0.01)
                await redis.execute_command("SPUBLISH", server.keys.cancel_channel, "x")
                try:
                    await asyncio.wait_for(live.get(), 30)
                except BackendUnavailableError:
                    ended += 1
                    await soon_subscribed(server)
        assert ended == 1
        monkeypatch.setattr(pubsub, "CHECK_SECONDS", 0.0)
        async with server.subscribe(server.keys.cancel_channel) as live:
            with pytest.raises(BackendUnavailableError):
                async with asyncio.timeout(30):
                    while True:
                        with suppress(BackendUnavailableError):
                            await server.ping()
                        with suppress(TimeoutError):
                            await asyncio.wait_for(live.get(), 0.01)


async def test_a_frozen_primary_is_left_when_the_sentinels_name_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections stay open and answer nothing. Idle ones are not tried one after another, and subscribers are told, before
    any of them sends a PING."""
    monkeypatch.setattr(pubsub, "PING_AFTER_SECONDS", 3600.0)
    async with SentinelRedis() as redis:
        server = RedisServer(redis.url, timeout=1.0)
        scheduler = RedisScheduler(server, RedisEventLog(server))
        try:
            await asyncio.gather(*(scheduler.ping() for _ in range(9)))
            frozen = await redis.primary()
            async with server.subscribe(server.keys.cancel_channel) as live:
                await redis.lose(frozen, frozen=True)
                await soon("ping", scheduler)
                with pytest.raises(BackendUnavailableError):
                    await asyncio.wait_for(live.get(), 30)
            await scheduler.submit([Job(1, "r")])
            assert len(await claim_within(scheduler, "w")) == 1
        finally:
            await server.close()


async def soon_subscribed(server: RedisServer) -> None:
    """Repeat a subscription until it succeeds."""

    async def succeeds() -> bool:
        try:
            async with server.subscribe("other"):
                return True
        except BackendUnavailableError:
            return False

    await until(succeeds)


async def test_a_full_server_is_not_ready_and_keeps_its_connections(place: Place, server: RedisServer) -> None:
    """OOM: no other server would help. Locks are renewed, and no job can be taken."""
    scheduler = RedisScheduler(server, RedisEventLog(server))
    await scheduler.submit([Job(1, "r")])
    [held] = await scheduler.claim("w", ["default"], 1)
    async with Redis.from_url(place.pair.primary.url) as redis:
        await redis.config_set("maxmemory", 1)
        connected = int((await redis.info("stats"))["total_connections_received"])
        for _ in range(3):
            with pytest.raises(BackendUnavailableError, match="maxmemory"):
                await scheduler.ping()
        assert await scheduler.renew("w", [held]) == []
        assert int((await redis.info("stats"))["total_connections_received"]) == connected
        await redis.config_set("maxmemory", 0)
    await scheduler.ping()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist to disk.", True),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", True),
        ("CLUSTERDOWN The cluster is down", True),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", True),
        ("Error running script (call to f_1): @user_script:8: -READONLY You can't write against a read only replica.", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("Error running script (call to f_1): @user_script:8: user_script:8: READONLY is no word of ours", False),
        ("ERR unknown command 'READONLYX'", False),
    ],
)
def test_replies_of_servers_that_cannot_be_used(text: str, expected: bool) -> None:
    assert cannot_serve(ResponseError(text)) is expected
