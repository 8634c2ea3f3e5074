"""The stream of a thread on real servers: every run's events, whoever comes, goes, or is emptied meanwhile (semantics: E3)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing

import pytest
from redis.asyncio import Redis

from runner import errors
from runner.client import Client
from runner.models import Event
from tests.fleet import Fleet

BOUND = 60.0
RUNS = 12


async def read(client: Client, completed: int) -> list[Event]:
    """Events until so many runs completed."""
    events: list[Event] = []
    async with asyncio.timeout(BOUND), aclosing(client.stream_thread("t")) as stream:
        async for _, event in stream:
            events.append(event)
            if sum(one.type == "run.completed" for one in events) == completed:
                break
    return events


async def own_stream(client: Client, run_id: str) -> list[Event]:
    async with asyncio.timeout(BOUND), aclosing(client.handle("t", run_id).stream()) as stream:
        return [event async for event in stream]


async def test_every_event_of_every_run_once(fleet: Fleet) -> None:
    """E3: in lanes beside each other and one behind the other; a reader that comes back at every point misses nothing."""
    await fleet.start()
    client = fleet.client
    await (await client.enqueue("t", "say old", "old")).result(BOUND)
    reading = asyncio.create_task(read(client, RUNS))
    await asyncio.sleep(0)
    for n in range(RUNS):
        await client.enqueue("t", f"say {n} | tool add {n} 1", f"r{n}", parallel=n % 3 == 0)
    events = await reading
    by_run = defaultdict(list)
    for event in events:
        by_run[event.run_id].append(event)
    assert by_run.keys() == {f"r{n}" for n in range(RUNS)}
    for run_id, seen in by_run.items():
        assert seen == await own_stream(client, run_id)


async def test_a_reader_that_leaves_after_each_event_misses_nothing(fleet: Fleet) -> None:
    """E1, E3: a cursor after every single event, and nothing twice."""
    await fleet.start()
    client = fleet.client
    await client.create_thread("t")
    for n in range(3):
        await client.enqueue("t", f"say {n} a b", f"r{n}", delay=0.5)
    seen: list[Event] = []
    cursor: str | None = None
    while sum(event.type == "run.completed" for event in seen) < 3:
        async with asyncio.timeout(BOUND), aclosing(client.stream_thread("t", cursor)) as stream:
            async for cursor, event in stream:  # noqa: B007 - the cursor is for the next reader
                seen.append(event)
                break
    for n in range(3):
        assert [event for event in seen if event.run_id == f"r{n}"] == await own_stream(client, f"r{n}")


async def test_an_emptied_redis_is_survived(fleet: Fleet) -> None:
    """E1: what was lost is announced, and runs that come after it are told of."""
    await fleet.start()
    client = fleet.client
    await client.enqueue("t", "say a | sleep 1 | say b", "r0")
    async with asyncio.timeout(BOUND), aclosing(client.stream_thread("t")) as stream:
        done: set[str] = set()
        async for _, event in stream:
            if event.type == "message.delta" and "r1" not in done:
                done.add("r1")
                async with Redis.from_url(fleet.redis) as redis:
                    await redis.flushdb()
                await client.enqueue("t", "say c", "r1")
            if event.type == "run.completed" and event.run_id == "r1":
                break


async def test_it_ends_with_its_thread(fleet: Fleet) -> None:
    client = fleet.client
    with pytest.raises(errors.ThreadNotFoundError):
        await anext(client.stream_thread("none"))
    await client.enqueue("t", "x", "r")
    async with asyncio.timeout(BOUND), aclosing(client.stream_thread("t")) as stream:
        seen = []
        async for _, event in stream:
            seen.append(event.type)
            await client.delete_thread("t", cancel=True)
    assert seen[0] == "run.queued"
