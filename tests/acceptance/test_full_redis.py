"""Event streams take more than Redis has: runs start and complete, and streams announce what they lost (I1, I9, E4)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.models import new_id
from runyard_backends.embedded import EmbeddedRedis
from tests.support.event_streams import end_faults, order_faults
from tests.support.fleet import SLACK, Fleet, until

FILLING = float(os.environ.get("RUNYARD_TEST_FILLING", "5"))
"""Seconds for which runs say more than Redis can hold, at least."""
ROOM = 10 * 2**20
"""Bytes that Redis has for all data."""
AT_ONCE = 40
"""Runs that wait or are executed at any time."""
WORDS = 20_000
TALKATIVE = f"say {'x' * WORDS} | say {'y' * WORDS}"
"""What a run is asked. It says each word twice, as a delta and as a message."""


@pytest.fixture
async def full(postgres_url: str) -> AsyncIterator[Fleet]:
    """A fleet on a Redis that has ROOM bytes."""
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis())
        client = await stack.enter_async_context(Client.connect(postgres_url, redis=redis.url))
        fleet = Fleet(postgres_url, redis.url, client, client.backend)
        stack.push_async_callback(fleet.stop)
        await fleet.start(slots=30)
        await memory(redis.url, ROOM)
        yield fleet


async def memory(url: str, room: int) -> None:
    """Let the server take ``room`` bytes more."""
    async with Redis.from_url(url) as redis:
        await redis.config_set("maxmemory", (await redis.info("memory"))["used_memory"] + room)


async def until_done(fleet: Fleet, run_ids: list[str]) -> None:
    """Wait until all of these runs, each on a thread of its own name, have completed."""

    async def done() -> bool:
        runs = [await fleet.client.run(run_id, run_id) for run_id in run_ids]
        return all(run.status is RunStatus.COMPLETED for run in runs)

    await until(done, 20 + SLACK * 10)


async def test_runs_start_and_complete_while_streams_fill_redis(full: Fleet) -> None:
    """None waits for memory: each takes about as long at the end as at the beginning. All events of a stream that is left are
    there, or a gap is."""
    client, names, longest = full.client, list[str](), 0.0
    end = time.monotonic() + FILLING

    async def load() -> None:
        nonlocal longest
        while time.monotonic() < end or len(names) * 4 * WORDS < 3 * ROOM:
            names.append(name := new_id())
            began = time.monotonic()
            handle = await client.enqueue(name, TALKATIVE, name)
            assert (await handle.result(30)).run.status is RunStatus.COMPLETED
            longest = max(longest, time.monotonic() - began)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(load())
    assert longest < 10 + 5 * SLACK
    gaps = 0
    for name in (*names[:50], *names[-50:]):
        seen = [event async for event in client.stream(name, name)]
        assert [*order_faults(seen), *end_faults(seen)] == []
        assert [event.type for event in seen if event.type == "message.completed"]
        gaps += any(event.type == "gap" for event in seen)
    assert 40 < gaps < 100, "the oldest streams were dropped, and the newest are whole"
    assert sum((await full.metric("runyard_streams_dropped_total")).values()) > 0
    assert sum((await full.metric("runyard_events_dropped_total")).values()) == 0


async def test_runs_complete_while_streams_cannot_be_written(full: Fleet) -> None:
    """Other data takes all memory. What was offered before completes, and the rest when there is room again."""
    client, names = full.client, [new_id() for _ in range(20)]
    held = await client.enqueue("held", "sleep 1 | say a", "held")
    async with Redis.from_url(full.redis) as redis:

        async def running() -> bool:
            return (await held.run()).status is RunStatus.RUNNING

        await until(running)
        await redis.config_set("maxmemory", 1)
        for name in names:
            await client.enqueue(name, "say a | say b", name)
        assert (await held.result(20)).run.status is RunStatus.COMPLETED
        await redis.config_set("maxmemory", 0)
    await until_done(full, names)
    for name in ("held", *names):
        seen = [event async for event in client.stream(name, name)]
        assert [*order_faults(seen), *end_faults(seen)] == []


async def test_erased_content_is_in_no_stream(fleet: Fleet) -> None:
    """D2: not of the thread's runs, not of its probes, and not by an attempt that was at work."""
    client = fleet.client
    await fleet.start(slots=10)
    await (await client.enqueue("t", "say first-secret", "r1")).result(30)
    await client.fork_once("t", "say probe-secret", "r1", run_id="p", wait=30.0)
    await client.fork("t", "child", "r1")
    await (await client.enqueue("child", "say own", "own")).result(30)
    await client.enqueue("t", "say second-secret | sleep 20 | say third-secret", "r2")
    assert b"secret" in await dump(fleet.redis)

    async def speaking() -> bool:
        return b"second-secret" in await dump(fleet.redis)

    await until(speaking)
    await client.erase_thread("t", cancel=True)

    async def free() -> bool:
        return sum((await fleet.metric("runyard_slots_in_use")).values()) == 0

    await until(free)
    left = await dump(fleet.redis)
    assert b"secret" not in left and b"own" in left


async def dump(url: str) -> bytes:
    """All events in the streams of a Redis server."""
    async with Redis.from_url(url) as redis:
        keys = [key async for key in redis.scan_iter(match="*:events:*")]
        return b"".join([repr(await redis.xrange(key)).encode() for key in keys])
