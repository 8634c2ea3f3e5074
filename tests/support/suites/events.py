"""Tests of every event log on Redis. No event is lost or repeated between stored and live events. A gap announces missing
events.

The tests of each implementation import this module and define the fixture ``redis_url``, the URL of an emptied server. Tests
that need no Redis use ``any_log``.
"""

import asyncio
import json
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from runyard.domain.events import SealedEvent
from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError
from runyard.events.run_stream import follow_run
from runyard.models import Event, Run
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import EVENT_BYTES_PER_READ, EventLog, StreamLimits
from runyard.ports.stores import Backend
from runyard_backends.memory.events import place
from runyard_backends.redis import RedisEventLog, RedisServer
from runyard_backends.redis.events import SEALED_BYTES
from runyard_backends.redis.pubsub import Published

REF = RunRef(1, "r")
FOLLOWERS = 50
"""Most followers of one stream: without a bound, a slow machine would have more and more."""


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[RedisServer]:
    server = RedisServer(redis_url)
    yield server
    await server.close()


@pytest.fixture
def log(server: RedisServer) -> RedisEventLog:
    return RedisEventLog(server)


@pytest.fixture
def any_log(log: RedisEventLog) -> EventLog:
    return log


def event(fence: int, n: int, type_: str = "message.delta", **data: Any) -> Event:
    return Event(id=f"{fence}-{n}", type=type_, thread_id="t", run_id=REF.run_id, data=data)


def events(fence: int, first: int, last: int) -> list[Event]:
    return [event(fence, n) for n in range(first, last + 1)]


def ids(found: list[Event]) -> list[str | None]:
    return [event.id for event in found]


async def followed(log: RedisEventLog, after: str | None = None) -> list[str | None]:
    return [event.id async for event in log.follow(REF, after) if event is not None]


async def subscribers(server: RedisServer) -> int:
    return int((await server.command("PUBSUB", "SHARDNUMSUB", server.keys.events(REF)))[1])


async def until_subscribed(server: RedisServer, count: int) -> None:
    async with asyncio.timeout(30):
        while await subscribers(server) != count:  # noqa: ASYNC110  # the server has no event for it
            await asyncio.sleep(0.001)


async def test_round_trip(log: RedisEventLog) -> None:
    """E1: an event is read as it was written, including lone surrogates."""
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

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write())
        followers = []
        while not writing.done():
            if len(followers) < FOLLOWERS:
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
    """E1: a reader with an id continues after this event. There is no gap if no event is missing."""
    await log.append(1, [*events(3, 1, 5), event(8, 1, "run.completed")])
    assert ids(await log.read(REF, "3-5")) == ["8-1"]
    assert ids(await log.read(REF, "8-1")) == []


async def test_whether_an_event_is_held(log: RedisEventLog) -> None:
    """E1: one call returns whether the stream holds an event, in a time that does not depend on the stream's length."""
    await log.append(1, events(3, 1, 2))
    asked = ("3-1", "3-2", "3-3", "2-1", "", "nonsense", "-", "+", "3", "9" * 30 + "-1")
    assert [id_ for id_ in asked if await log.holds(REF, id_)] == ["3-1", "3-2"]


@pytest.mark.parametrize("after", ["2-7", "nonsense", "", "99-1"])
async def test_an_unknown_id_yields_a_gap_first(log: RedisEventLog, after: str) -> None:
    """E1: a read that cannot be proved complete starts with a gap."""
    await log.append(1, [*events(3, 1, 2), event(3, 3, "run.completed")])
    found = await log.read(REF, after)
    assert found[0].type == "gap" and found[0].id is None
    assert ids(found[1:]) == ([] if after == "99-1" else ["3-1", "3-2", "3-3"])


async def test_a_trimmed_stream_says_so(server: RedisServer) -> None:
    """I9: a read from a trimmed id, or from a trimmed start, yields a gap. A read whose next event is stored yields none."""
    log = RedisEventLog(server, StreamLimits(events=100))
    await log.append(1, events(1, 1, 1000))
    kept = ids(await log.read(REF))
    assert kept[0] is None and 100 <= len(kept) < 1000
    oldest = int(str(kept[1]).split("-")[1])
    assert ids(await log.read(REF, f"1-{oldest - 2}")) == [None, *kept[1:]]
    assert ids(await log.read(REF, f"1-{oldest - 1}")) == kept[1:]


async def test_attempts_that_were_trimmed_whole_are_a_gap(server: RedisServer) -> None:
    """I9: the oldest stored event may be the first of its attempt although whole attempts before it are missing."""
    log = RedisEventLog(server, StreamLimits(events=100))
    await log.append(1, [event(fence, 1) for fence in range(1, 500)])
    kept = ids(await log.read(REF))
    assert kept[0] is None and kept[1] != "1-1" and None not in kept[1:]
    assert ids(await log.read(REF, "1-1")) == kept


async def test_a_hole_is_announced(server: RedisServer, log: RedisEventLog) -> None:
    """I9: missing event numbers are a gap, in stored and in live events."""
    await log.append(1, [event(1, 1), event(1, 3)])
    following = asyncio.create_task(followed(log))
    await until_subscribed(server, 1)
    await log.append(1, [event(1, 6), event(2, 1), event(3, 2, "run.completed")])
    assert await following == ["1-1", None, "1-3", None, "1-6", "2-1", None, "3-2"]


async def test_an_emptied_redis_is_a_gap_at_most(server: RedisServer, log: RedisEventLog) -> None:
    """After FLUSHALL a live follower continues, and a reader that resumes gets a gap."""
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
    """E3: events that a full queue dropped are read from the stream."""
    log = RedisEventLog(server, backlog=10)
    async with aclosing(log.follow(REF)) as following:
        await log.append(1, [event(1, 1)])
        seen = [await anext(following)]
        for n in range(2, 300):
            await log.append(1, [event(1, n)])
        await log.append(1, [event(1, 300, "run.completed")])
        seen += [event async for event in following]
    assert ids(seen) == [f"1-{n}" for n in range(1, 301)]


async def test_silence_shows_and_loses_nothing(any_log: EventLog) -> None:
    """E1: a follower with ``silence`` gets None after each silence. It still gets every event once."""
    await any_log.append(1, [event(1, 1)])
    async with aclosing(any_log.follow(REF, silence=0.02)) as following:
        seen = [await anext(following) for _ in range(3)]
        await any_log.append(1, [event(1, 2), event(1, 3, "run.completed")])
        seen += [event async for event in following]
    assert [event and event.id for event in seen[:3]] == ["1-1", None, None]
    assert [event.id for event in seen if event] == ["1-1", "1-2", "1-3"]


async def test_a_stream_ends_where_nothing_follows(log: RedisEventLog) -> None:
    """E2: a suspension that was answered is not the end of a stream. The end is the last event."""
    await log.append(1, [event(1, 1, "run.started"), event(1, 2, "run.suspended")])
    assert await followed(log) == ["1-1", "1-2"]
    await log.append(1, [event(2, 1, "run.resumed"), event(2, 2, "run.completed")])
    assert await followed(log) == ["1-1", "1-2", "2-1", "2-2"]
    assert await followed(log, "1-2") == ["2-1", "2-2"]


async def test_a_cancelled_follower_leaves_nothing_behind(server: RedisServer, log: RedisEventLog) -> None:
    """E3: a cancelled follower leaves no subscription, and other followers of the run continue."""
    tasks = [asyncio.create_task(followed(log)) for _ in range(20)]
    await until_subscribed(server, 1)
    for task in tasks[1:]:
        task.cancel()
    await asyncio.wait(tasks[1:])
    await log.append(1, [event(1, 1, "run.completed")])
    assert await tasks[0] == ["1-1"]
    await until_subscribed(server, 0)


EVENTS, SIZE = 2000, 4000
"""Number and size of the events of the long run: 8 MB in all."""


def long_run() -> list[Event]:
    return [event(1, n, text=f"{n:0{SIZE}}", attempt=1) for n in range(1, EVENTS)] + [event(1, EVENTS, "run.completed")]


async def test_readers_of_a_stream_decode_and_encode_an_event_once(log: RedisEventLog) -> None:
    """E3: an event that several readers hold is in memory once. It is freed after the last of them has continued."""
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(aclosing(log.follow(REF))) for _ in range(3)]
        await log.append(1, [event(1, 1)])
        assert ids([await anext(reader) for reader in readers]) == ["1-1"] * 3
        large = event(1, 2, text="x" * 100_000 + "\ud800")
        await log.append(1, [large])
        seen = [await anext(reader) for reader in readers]
        assert seen == [large] * 3 and {id(each) for each in seen} == {id(seen[0])}
        assert seen[0].to_json() is seen[1].to_json() and json.loads(seen[2].to_json()) == large.__dict__
        assert seen[0].model_copy(update={"id": None}).to_json() != seen[0].to_json()
        gone = weakref.ref(seen.pop())
        seen.clear()
        await log.append(1, [event(1, 3)])
        assert ids([await anext(reader) for reader in readers]) == ["1-3"] * 3
        assert gone() is None


async def test_a_page_holds_so_many_bytes_whatever_comes_first(log: RedisEventLog) -> None:
    """E3: large events follow small ones. The reader estimates the size of events from the events before them."""
    sizes = [10] * 40 + [50_000] * 3 + [10] * 200 + [EVENT_BYTES_PER_READ] * 3 + [10]
    said = [event(1, n, text="x" * size) for n, size in enumerate(sizes, 1)]
    await log.append(1, said)
    found, after = list[Event](), None
    while page := await log.read(REF, after, page=True):
        assert len(page) == 1 or sum(len(str(e.data)) for e in page) <= EVENT_BYTES_PER_READ
        found += page
        after = page[-1].id
    assert found == said


class Told:
    """A store with a completed run. It proves the end of the run."""

    def __init__(self, log: RedisEventLog) -> None:
        self.events, self.runs, self.threads, self.asked = log, self, self, 0

    async def run(self, thread_id: str, run_id: str) -> Run:
        status, end = RunStatus.COMPLETED, f"1-{EVENTS}"
        return Run(thread_id=thread_id, run_id=run_id, status=status, event_id=end, fence=1, accepted_at=datetime.now(UTC))

    async def thread_key(self, thread_id: str) -> int:
        return REF.thread_key

    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = 1) -> list[Event]:
        self.asked += 1
        proved = [event(1, 3, "message.completed"), event(1, EVENTS, "run.completed")]
        return [each for each in proved if place(each.id) > place(after)][:limit]


async def test_large_events_are_held_as_json(log: RedisEventLog) -> None:
    """E1, E3: stored or live, for one reader or many. A small event is decoded at once, a large one when its data is read."""
    large, small = event(1, 1, rows=[{"n": n} for n in range(SEALED_BYTES)]), event(1, 2)
    async with aclosing(log.follow(REF)) as one, aclosing(log.follow(REF)) as two:
        live = [asyncio.ensure_future(anext(one)), asyncio.ensure_future(anext(two))]
        await log.append(1, [large, small])
        seen = [await log.read(REF, page=True), [await live[0], await anext(one)], [await live[1], await anext(two)]]
    assert [[type(each) for each in found] for found in seen] == [[SealedEvent, Event]] * 3
    assert seen == [[large, small]] * 3
    assert [[type(each) for each in found] for found in seen] == [[Event, Event]] * 3


async def test_events_of_a_run_that_are_added_together_are_one_message(server: RedisServer, log: RedisEventLog) -> None:
    """E1: followers get each event once, from messages of one or of several events. Large events are several messages."""
    async with server.subscribe(server.keys.events(REF)) as live, AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(aclosing(log.follow(REF))) for _ in range(2)]
        first = [asyncio.ensure_future(anext(reader)) for reader in readers]
        said = [*events(1, 1, 4), event(1, 5, text="x" * 100_000), event(1, 6), event(2, 1), event(2, 2, "run.completed")]
        await log.append_many([(REF, said[:1])])
        assert [await each for each in first] == [said[0]] * 2
        await log.append_many([(REF, [*said[:2], said[0], *said[2:]])])
        rest = [[e async for e in reader if e] for reader in readers]
        assert rest == [said[1:]] * 2 and rest[0][0] is rest[1][0]
        async with asyncio.timeout(10):
            messages = [cast(Published, await live.get()).data for _ in range(3)]
    assert [message.partition(b" ")[0] for message in messages] == [b"1-1", b"*", b"*"]
    assert len(messages[1]) > 100_000 > len(messages[2])


async def test_a_follower_ends_in_the_middle_of_a_message(log: RedisEventLog) -> None:
    """E2: a live suspension ends a stream, also if the attempt after it is in the same message."""
    async with aclosing(log.follow(REF)) as following:
        next_ = asyncio.ensure_future(anext(following))
        await log.append(1, [event(1, 1)])
        seen = [await next_]
        await log.append_many([(REF, [event(1, 2, "run.suspended"), event(2, 1, "run.resumed")])])
        seen += [each async for each in following]
    assert [each and each.id for each in seen] == ["1-1", "1-2"]


TORN = [b"* ", b"* 1-2", b"* 1-2 5 ab", b"* 1-2 x ab", b"* 1-2 %b x" % (b"9" * 30), b"* 1-2 1 \x01", b"* " + b"1" * 200]
"""Messages of several events that cannot be read."""


@pytest.mark.parametrize(
    "odd", [b"", b"garbage", b"1-x y", b"1-3 \xc1", b"1-3 \x01", b"9" * 40 + b"-1 x", b"7-7", *TORN], ids=repr
)
async def test_odd_messages_on_a_channel_cut_no_stream(server: RedisServer, log: RedisEventLog, odd: bytes) -> None:
    """E1: messages that the log did not write are ignored."""
    async with aclosing(log.follow(REF)) as following:
        await log.append(1, [event(1, 1)])
        seen = [await anext(following)]
        await server.command("SPUBLISH", server.keys.events(REF), odd)
        await log.append(1, [event(1, 2), event(1, 3, "run.completed")])
        async with asyncio.timeout(30):
            seen += [event async for event in following]
    assert ids(seen) == ["1-1", "1-2", "1-3"]


async def test_odd_entries_of_a_stream_are_a_gap(server: RedisServer, log: RedisEventLog) -> None:
    """E1: an entry that cannot be decoded counts as lost, and a gap announces it."""
    await log.append(1, [event(1, 1)])
    await server.command("XADD", server.keys.events(REF), "1-2", "e", b"\xc1")
    await server.command("XADD", server.keys.events(REF), "1-3", "odd", "x")
    await log.append(1, [event(1, 4, "run.completed")])
    assert ids(await log.read(REF)) == await followed(log) == ["1-1", None, "1-4"]


async def test_a_key_of_another_type_is_an_unavailable_stream(server: RedisServer, log: RedisEventLog) -> None:
    """E4: a reader continues with the events that the store proves."""
    await server.command("SET", server.keys.events(REF), "x")
    for call in (lambda: log.read(REF), lambda: log.holds(REF, "1-1"), lambda: followed(log)):
        with pytest.raises(BackendUnavailableError):
            await cast(Any, call())
    told = Told(log)
    seen = [(e.id, e.type) async for e in follow_run(cast(Backend, told), "t", REF.run_id)]
    assert seen[-1] == (f"1-{EVENTS}", "run.completed")
