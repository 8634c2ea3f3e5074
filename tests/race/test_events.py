"""The event log: nothing is lost or repeated between what is stored and what is live, and what is missing is announced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from backends.embedded import EmbeddedRedis
from backends.memory.events import MemoryEventLog
from backends.redis import RedisEventLog, RedisServer
from runner.errors import BackendUnavailableError
from runner.exchange import RunRef
from runner.models import Event

REF = RunRef(1, "r")


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[RedisServer]:
    server = RedisServer(redis_url)
    yield server
    await server.close()


@pytest.fixture
def log(server: RedisServer) -> RedisEventLog:
    return RedisEventLog(server)


def event(fence: int, n: int, type_: str = "message.delta", **data: Any) -> Event:
    return Event(id=f"{fence}-{n}", type=type_, thread_id="t", run_id=REF.run_id, data=data)


def events(fence: int, first: int, last: int) -> list[Event]:
    return [event(fence, n) for n in range(first, last + 1)]


def ids(found: list[Event]) -> list[str | None]:
    return [event.id for event in found]


async def followed(log: RedisEventLog, after: str | None = None) -> list[str | None]:
    return [event.id async for event in log.follow(REF, after) if event is not None]


async def subscribers(server: RedisServer) -> int:
    return int((await server.command("PUBSUB", "NUMSUB", server.keys.events(REF)))[1])


async def until_subscribed(server: RedisServer, count: int) -> None:
    async with asyncio.timeout(5):
        while await subscribers(server) != count:  # noqa: ASYNC110  # the server has no event for it
            await asyncio.sleep(0.001)


async def test_round_trip(log: RedisEventLog) -> None:
    """E1: an event comes back as it was written, lone surrogates included."""
    first = event(1, 1, "run.started", text="\ud800", list=[1, None, {"a": 2.5}])
    await log.append(1, [first])
    assert await log.read(REF) == [first]


@pytest.mark.parametrize("after", [None, "1-40"])
async def test_nothing_is_lost_between_backlog_and_live(server: RedisServer, log: RedisEventLog, after: str | None) -> None:
    """E1: followers that join at any moment of a running stream see every event once and in order."""
    await log.append(1, events(1, 1, 50))

    async def write() -> None:
        for n in range(51, 400):
            await log.append(1, [event(1, n)])
        await log.append(1, [event(1, 400, "run.completed")])

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write())
        followers = []
        while not writing.done():
            followers.append(tasks.create_task(followed(log, after)))
            await asyncio.sleep(0.005)
    expected = [f"1-{n}" for n in range(1 if after is None else 41, 401)]
    assert len(followers) > 3
    for follower in followers:
        assert follower.result() == expected
    await until_subscribed(server, 0)


async def test_a_zombie_cannot_speak(server: RedisServer, log: RedisEventLog) -> None:
    """I2: an attempt with a lower fence, and a repetition, reach neither the stream nor its followers."""
    await log.append(1, [event(1, 1), event(5, 1)])
    following = asyncio.create_task(followed(log))
    await until_subscribed(server, 1)
    await log.append(1, [event(1, 2), event(4, 9), event(5, 1), event(5, 2), event(5, 2), event(5, 3, "run.completed")])
    assert await following == ["1-1", "5-1", "5-2", "5-3"] == ids(await log.read(REF))


async def test_resume_after_an_id(log: RedisEventLog) -> None:
    """E1: Last-Event-ID resumes after that event, without a gap when nothing is missing."""
    await log.append(1, [*events(3, 1, 5), event(8, 1, "run.completed")])
    assert ids(await log.read(REF, "3-5")) == ["8-1"]
    assert ids(await log.read(REF, "8-1")) == []


async def test_whether_an_event_is_held(log: RedisEventLog) -> None:
    """E1: a reader that comes back is told so in one step, however long the stream is."""
    await log.append(1, events(3, 1, 2))
    asked = ("3-1", "3-2", "3-3", "2-1", "", "nonsense", "-", "+", "3", "9" * 30 + "-1")
    assert [id_ for id_ in asked if await log.holds(REF, id_)] == ["3-1", "3-2"]


@pytest.mark.parametrize("after", ["2-7", "nonsense", "", "99-1"])
async def test_an_unknown_id_yields_a_gap_first(log: RedisEventLog, after: str) -> None:
    """E1: what cannot be proved complete starts with a gap."""
    await log.append(1, [*events(3, 1, 2), event(3, 3, "run.completed")])
    found = await log.read(REF, after)
    assert found[0].type == "gap" and found[0].id is None
    assert ids(found[1:]) == ([] if after == "99-1" else ["3-1", "3-2", "3-3"])


async def test_a_trimmed_stream_says_so(server: RedisServer) -> None:
    """I9: an id that was trimmed, and a start that was trimmed, yield a gap; the direct successor of an id does not."""
    log = RedisEventLog(server, max_events=100)
    await log.append(1, events(1, 1, 1000))
    kept = ids(await log.read(REF))
    assert kept[0] is None and 100 <= len(kept) < 1000
    oldest = int(str(kept[1]).split("-")[1])
    assert ids(await log.read(REF, f"1-{oldest - 2}")) == [None, *kept[1:]]
    assert ids(await log.read(REF, f"1-{oldest - 1}")) == kept[1:]


async def test_attempts_that_were_trimmed_whole_are_a_gap(server: RedisServer) -> None:
    """I9: the oldest event that is left may be the first of its attempt, with whole attempts missing before it."""
    log = RedisEventLog(server, max_events=100)
    await log.append(1, [event(fence, 1) for fence in range(1, 500)])
    kept = ids(await log.read(REF))
    assert kept[0] is None and kept[1] != "1-1" and None not in kept[1:]
    assert ids(await log.read(REF, "1-1")) == kept


async def test_a_hole_is_announced(server: RedisServer, log: RedisEventLog) -> None:
    """I9: numbers that were never written are a gap, stored or live."""
    await log.append(1, [event(1, 1), event(1, 3)])
    following = asyncio.create_task(followed(log))
    await until_subscribed(server, 1)
    await log.append(1, [event(1, 6), event(2, 1), event(3, 2, "run.completed")])
    assert await following == ["1-1", None, "1-3", None, "1-6", "2-1", None, "3-2"]


async def test_an_emptied_redis_is_a_gap_at_most(server: RedisServer, log: RedisEventLog) -> None:
    """FLUSHALL: a live follower goes on; who resumes is told."""
    await log.append(1, events(1, 1, 2))
    async with aclosing(log.follow(REF)) as following:
        seen = [await anext(following), await anext(following)]
        await server.command("FLUSHALL")
        await server.command("SCRIPT", "FLUSH")
        assert ids(await log.read(REF, "1-2")) == [None]
        await log.append(1, [event(1, 3)])
        await log.append(1, [event(1, 4, "run.completed")])
        seen += [event async for event in following]
    assert ids(seen) == ["1-1", "1-2", "1-3", "1-4"]
    assert ids(await log.read(REF, "1-1")) == [None, "1-3", "1-4"]


async def test_a_slow_reader_is_bounded_and_misses_nothing(server: RedisServer) -> None:
    """E3: what a full queue dropped is read from the stream."""
    log = RedisEventLog(server, backlog=10)
    async with aclosing(log.follow(REF)) as following:
        await log.append(1, [event(1, 1)])
        seen = [await anext(following)]
        for n in range(2, 300):
            await log.append(1, [event(1, n)])
        await log.append(1, [event(1, 300, "run.completed")])
        seen += [event async for event in following]
    assert ids(seen) == [f"1-{n}" for n in range(1, 301)]


@pytest.mark.parametrize("kind", ["redis", "memory"])
async def test_silence_shows_and_loses_nothing(kind: str, log: RedisEventLog) -> None:
    """E1: a follower that asks for it is told of silence, again and again, and then has every event once."""
    found = log if kind == "redis" else MemoryEventLog()
    await found.append(1, [event(1, 1)])
    async with aclosing(found.follow(REF, silence=0.02)) as following:
        seen = [await anext(following) for _ in range(3)]
        await found.append(1, [event(1, 2), event(1, 3, "run.completed")])
        seen += [event async for event in following]
    assert [event and event.id for event in seen[:3]] == ["1-1", None, None]
    assert [event.id for event in seen if event] == ["1-1", "1-2", "1-3"]


async def test_a_stream_ends_where_nothing_follows(log: RedisEventLog) -> None:
    """E2: a suspension that was answered is no end; the end is the last event."""
    await log.append(1, [event(1, 1, "run.started"), event(1, 2, "run.suspended")])
    assert await followed(log) == ["1-1", "1-2"]
    await log.append(1, [event(2, 1, "run.resumed"), event(2, 2, "run.completed")])
    assert await followed(log) == ["1-1", "1-2", "2-1", "2-2"]
    assert await followed(log, "1-2") == ["2-1", "2-2"]


async def test_a_cancelled_follower_leaves_nothing_behind(server: RedisServer, log: RedisEventLog) -> None:
    """E3: never a leak; others on the same run are not disturbed."""
    tasks = [asyncio.create_task(followed(log)) for _ in range(20)]
    await until_subscribed(server, 1)
    for task in tasks[1:]:
        task.cancel()
    await asyncio.wait(tasks[1:])
    await log.append(1, [event(1, 1, "run.completed")])
    assert await tasks[0] == ["1-1"]
    await until_subscribed(server, 0)


async def test_followers_hear_of_a_lost_server() -> None:
    """Peers' defect: no follower hangs on a dead connection; following again works once the server is back."""
    with EmbeddedRedis() as redis:
        server = RedisServer(redis.url)
        log = RedisEventLog(server)
        following = asyncio.create_task(followed(log))
        await until_subscribed(server, 1)
        redis.restart()
        async with asyncio.timeout(10):
            with pytest.raises(BackendUnavailableError):
                await following
            await log.append(1, [event(1, 1, "run.completed")])
            assert await followed(log) == ["1-1"]
        await server.close()
