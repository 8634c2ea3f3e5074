"""The stream of a thread on real servers: every run's events, whoever comes, goes, or is emptied meanwhile (E3)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing

import pytest
from redis.asyncio import Redis

from runyard import Client, errors
from runyard.models import Event
from tests.support.event_streams import end_faults, order_faults
from tests.support.fleet import Fleet

BOUND = 60.0
RUNS = 12


async def read(client: Client, completed: int, after: str | None = None) -> list[Event]:
    """Events after the cursor ``after`` until so many runs completed."""
    events: list[Event] = []
    async with asyncio.timeout(BOUND), aclosing(client.stream_thread("t", after)) as stream:
        async for _, event in stream:
            events.append(event)
            if sum(one.type == "run.completed" for one in events) == completed:
                break
    return events


async def own_stream(client: Client, run_id: str) -> list[Event]:
    async with asyncio.timeout(BOUND), aclosing(client.handle("t", run_id).stream()) as stream:
        return [event async for event in stream]


async def test_a_reader_of_a_thread_gets_every_event_of_every_run_once(fleet: Fleet) -> None:
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


async def test_a_flush_in_mid_run_is_announced_to_every_reader_of_the_thread(fleet: Fleet) -> None:
    """E1: of the run that lost events, to readers that come afterwards or come back; the run that comes next is whole."""
    await fleet.start()
    client = fleet.client
    await client.enqueue("t", "say a | sleep 1 | say b", "r0")
    others: list[asyncio.Task[list[Event]]] = []
    live: list[Event] = []
    async with asyncio.timeout(BOUND), aclosing(client.stream_thread("t")) as stream:
        async for cursor, event in stream:
            live.append(event)
            if event.type == "message.delta" and not others:
                async with Redis.from_url(fleet.redis) as redis:
                    await redis.flushdb()
                others = [asyncio.create_task(read(client, 2, after)) for after in (None, cursor)]
                await client.enqueue("t", "say c", "r1")
            if event.type == "run.completed" and event.run_id == "r1":
                break
    first = next(event.id for event in live if event.type == "message.delta")
    readers = [(None, live), (None, await others[0]), (first, await others[1])]
    for last, seen in readers:
        runs = {run_id: [event for event in seen if event.run_id == run_id] for run_id in ("r0", "r1")}
        assert [*order_faults(runs["r0"], last), *end_faults(runs["r0"])] == []
        assert runs["r1"] == await own_stream(client, "r1")
    for _, seen in readers[1:]:
        assert [event.run_id for event in seen if event.type == "gap"][:1] == ["r0"]


async def test_a_thread_stream_ends_when_its_thread_is_deleted(fleet: Fleet) -> None:
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
