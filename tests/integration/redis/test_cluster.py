"""A cluster of Redis: the schedule in one slot, the event streams over all servers, and slots that change their server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis.crc import key_slot

from runyard.errors import BackendUnavailableError
from runyard.models import Event
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Job, StreamLimits, queued_event
from runyard_backends.redis import RedisEventLog, RedisScheduler
from runyard_backends.redis.cluster import SHARDS, RedisCluster
from runyard_backends.redis.key_names import Keys
from runyard_backends.redis.scripts import Call, script
from tests.support.fleet import free_port, until
from tests.support.redis_nodes import ClusterNode, ClusterRedis, RedisNode
from tests.support.suites.events import event
from tests.support.suites.scheduler import QUEUES, claim_within

pytestmark = pytest.mark.xdist_group("failovers")

RUNS = range(3 * SHARDS)
SCHEDULE = Keys().prefix(0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterRedis]:
    redis = ClusterRedis()
    asyncio.run(redis.start())
    yield redis
    redis.stop()


@pytest.fixture
async def servers(cluster: ClusterRedis) -> AsyncIterator[RedisCluster]:
    for node in await cluster.primaries():
        async with node.connect() as redis:
            await redis.flushall()
    servers = RedisCluster(cluster.url)
    yield servers
    await servers.close()


async def keys_of(node: RedisNode) -> list[str]:
    async with node.connect() as redis:
        return [key.decode() async for key in redis.scan_iter(count=1000)]


async def test_runs_are_scheduled_by_one_server_and_their_events_are_on_all(
    cluster: ClusterRedis, servers: RedisCluster
) -> None:
    """I1, E6: each job is delivered once, with its queued event, also to a worker that waits."""
    log = RedisEventLog(servers)
    scheduler = RedisScheduler(servers, log)
    waiting = asyncio.create_task(claim_within(scheduler, "w"))
    await scheduler.submit([Job(n, "r", queued=queued_event("t", "r", 1, 1)) for n in RUNS])
    deliveries = await waiting
    while len(deliveries) < len(RUNS):
        deliveries += await claim_within(scheduler, "w")
    assert sorted(delivery.job.thread_key for delivery in deliveries) == [*RUNS]
    for n in RUNS:
        assert [found.id for found in await log.read(RunRef(n, "r"))] == ["1-1"]
    found = {node.port: await keys_of(node) for node in await cluster.primaries()}
    assert all(any(":events:" in key for key in keys) for keys in found.values())
    holder = await cluster.primary_of(SCHEDULE)
    for port, keys in found.items():
        assert port == holder.port or not [
            key for key in keys if ":events:" not in key and "stream" not in key and ":sizes:" not in key
        ]
    await scheduler.release("w", deliveries)
    assert not [key for key in await keys_of(holder) if ":lock:" in key or ":job:" in key]


async def test_readers_follow_streams_on_every_server(servers: RedisCluster) -> None:
    """E1, E3: live events arrive once, over one connection per server."""
    log = RedisEventLog(servers)

    async def followed(n: int) -> list[str | None]:
        return [found.id async for found in log.follow(RunRef(n, "r"))]

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        readers = [group.create_task(followed(n)) for n in RUNS]
        for k in range(1, 4):
            type_ = "run.completed" if k == 3 else "message.completed"
            await log.append_many([(RunRef(n, "r"), [Event(id=f"1-{k}", type=type_, thread_id="t", run_id="r")]) for n in RUNS])
            await asyncio.sleep(0)
    assert [reader.result() for reader in readers] == [["1-1", "1-2", "1-3"]] * len(RUNS)


async def test_all_streams_together_keep_to_their_limit(servers: RedisCluster) -> None:
    """The limit of the deployment is divided among the shards, and that of a server among its own."""
    log = RedisEventLog(servers, StreamLimits(total_bytes=SHARDS * 40_000))
    await log.append_many([(RunRef(n, "r"), [event(1, k, text="x" * 5000) for k in (1, 2)]) for n in RUNS])
    usage = await log.trim()
    assert 0 < usage.bytes <= SHARDS * 40_000
    assert sum(servers.shards_beside(shard) == 6 for shard in range(SHARDS)) == 12


async def test_calls_are_measured_once(servers: RedisCluster) -> None:
    """A call of several servers is one call in the metrics, as is a call of a single server. A failed call is counted."""

    def measured(name: str) -> float:
        return REGISTRY.get_sample_value(name, {"server": "redis"}) or 0.0

    async def measure(call: Coroutine[Any, Any, Any]) -> tuple[float, float]:
        names = "runyard_server_call_seconds_count", "runyard_server_calls_failed_total"
        before = [measured(name) for name in names]
        with suppress(BackendUnavailableError):
            await call
        calls, failed = [measured(name) - value for name, value in zip(names, before, strict=True)]
        return calls, failed

    renewals = [Call(script("renew"), servers.keys.prefix(shard), (1000,)) for shard in range(SHARDS)]
    for call in (servers.call(*renewals), servers.call_after(renewals[:1], renewals[1:]), servers.ping()):
        assert await measure(call) == (1, 0)
    lost = RedisCluster(f"redis+cluster://127.0.0.1:{free_port()}")
    assert await measure(lost.ping()) == (1, 1)
    await lost.close()


async def test_a_slot_that_is_moved_key_by_key_loses_nothing(cluster: ClusterRedis, servers: RedisCluster) -> None:
    """I1: calls fail until the slot has moved, because a script must see all keys of its shard. Subscribers are told."""
    scheduler = RedisScheduler(servers, RedisEventLog(servers))
    await scheduler.submit([Job(n, "r") for n in range(20)])
    source = await cluster.primary_of(SCHEDULE)
    target = next(node for node in await cluster.primaries() if node is not source)
    assert isinstance(source, ClusterNode) and isinstance(target, ClusterNode)
    async with servers.subscribe(servers.keys.cancel_channel) as channel:
        await begin_move(source, target)
        for call in (scheduler.submit([Job(99, "r")]), scheduler.claim("w", QUEUES, 9), scheduler.ping()):
            with pytest.raises(BackendUnavailableError):
                await call
        await end_move(cluster, source, target)
        with pytest.raises(BackendUnavailableError):
            await asyncio.wait_for(channel.get(), 30)

    async def submitted() -> bool:
        with suppress(BackendUnavailableError):
            await scheduler.submit([Job(99, "r")])
            return True
        return False

    await until(submitted)
    assert await cluster.primary_of(SCHEDULE) is target
    found = await claim_within(scheduler, "w")
    assert sorted(delivery.job.thread_key for delivery in found) == [*range(20), 99]


async def begin_move(source: ClusterNode, target: ClusterNode) -> None:
    slot = key_slot(SCHEDULE.encode())
    async with target.connect() as redis:
        await redis.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
    async with source.connect() as redis:
        await redis.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.node_id)


async def end_move(cluster: ClusterRedis, source: ClusterNode, target: ClusterNode) -> None:
    slot = key_slot(SCHEDULE.encode())
    async with source.connect() as redis:
        keys = await redis.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        login = ("AUTH", target.password)
        await redis.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, *login, "KEYS", *keys)
    for node in (target, source):
        async with node.connect() as redis:
            await redis.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target.node_id)


async def test_readers_go_on_after_the_loss_of_their_server(cluster: ClusterRedis, servers: RedisCluster) -> None:
    """E1: a reader of a lost server is told, and reads again from its replica. Streams on other servers go on meanwhile."""
    log = RedisEventLog(servers)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for n in RUNS:
        places[(await cluster.primary_of(log._keys.events(RunRef(n, "r")))).port].append(n)
    lost = await cluster.primary_of(log._keys.events(RunRef(RUNS[0], "r")))
    there, elsewhere = places.pop(lost.port)[0], next(iter(places.values()))[0]
    await log.append(there, [event(1, 1)])
    async with servers.subscribe(servers.keys.events(RunRef(there, "r"))) as live:
        await asyncio.to_thread(lost.kill)
        with pytest.raises(BackendUnavailableError):
            await asyncio.wait_for(live.get(), 30)
    await log.append(elsewhere, [event(1, 1)])
    assert [found.id for found in await log.read(RunRef(elsewhere, "r"))] == ["1-1"]

    async def readable() -> bool:
        with suppress(BackendUnavailableError):
            return [found.id for found in await log.read(RunRef(there, "r"))] == ["1-1"]
        return False

    await until(readable, 20)
    await asyncio.to_thread(lost.start)
    await until(cluster.is_whole, 30)
