"""The event log on a real server: the suite, what readers cost this process, and while the server is restarted."""

import asyncio
import gc
import re
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import cast

import pytest

from runyard.errors import BackendUnavailableError
from runyard.events.run_stream import follow_run
from runyard.models import Event
from runyard.ports.refs import RunRef
from runyard.ports.stores import Backend
from runyard.support.store_retries import patiently
from runyard_backends.embedded import EmbeddedRedis
from runyard_backends.redis import RedisEventLog, RedisServer
from runyard_backends.redis.events import EVENTS_PER_APPEND
from tests.support.suites.events import *  # noqa: F403
from tests.support.suites.events import EVENTS, REF, Told, event, followed, long_run, until_subscribed


async def test_followers_hear_of_a_lost_server() -> None:
    """Peers' defect: no follower hangs on a dead connection; following again works once the server is back."""
    with EmbeddedRedis() as redis:
        server = RedisServer(redis.url)
        log = RedisEventLog(server)
        following = asyncio.create_task(followed(log))
        await until_subscribed(server, 1)
        redis.restart()
        async with asyncio.timeout(30):
            with pytest.raises(BackendUnavailableError):
                await following
            await patiently(lambda: log.append(1, [event(1, 1, "run.completed")]))
            assert await followed(log) == ["1-1"]
        await server.close()


READERS = 30
"""All that the long run says would be 240 MB for so many."""
EACH = 192 * 1024
"""Bytes that a reader which takes nothing may cost here, with all that the language has around them."""


class Measured:
    """Memory that was taken since the block began and is held."""

    def __enter__(self) -> "Measured":
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()

    def held(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


async def test_reader_that_takes_nothing_is_bounded_in_bytes(server: RedisServer) -> None:
    """E3: a reader whose queue was full reads the stream again as it takes it, not all of it at once."""
    log, said = RedisEventLog(server), long_run()
    with Measured() as memory:
        async with AsyncExitStack() as stack:
            readers = [await stack.enter_async_context(aclosing(log.follow(REF))) for _ in range(READERS)]
            await log.append(1, said[:1])
            assert [await anext(reader) for reader in readers] == said[:1] * READERS
            for n in range(1, EVENTS, 100):
                await log.append(1, said[n : n + 100])
            assert [(await anext(reader), await anext(reader)) for reader in readers] == [tuple(said[1:3])] * READERS
            assert memory.held() < READERS * EACH + 2 * 2**20
            assert [seen async for seen in readers[0]] == said[3:]


async def test_what_a_process_holds_for_its_readers_is_bounded(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: also where each reader's part is small; and nobody misses anything for it."""
    monkeypatch.setattr("runyard_backends.redis.pubsub.MAX_UNREAD_BYTES_IN_ALL", 50_000)
    monkeypatch.setattr("runyard_backends.redis.pubsub.GUARANTEED_BYTES", 5_000)
    log = RedisEventLog(server)
    refs = [RunRef(1, f"r{n}") for n in range(20)]
    said = {ref: [e.model_copy(update={"run_id": ref.run_id}) for e in long_run()[-40:]] for ref in refs}
    for ref in refs:
        for n, e in enumerate(said[ref], 1):
            e.id = f"1-{n}"
    async with AsyncExitStack() as stack:
        readers = {ref: await stack.enter_async_context(aclosing(log.follow(ref))) for ref in refs}
        for ref, events in said.items():
            await log.append(1, events[:1])
            assert await anext(readers[ref]) == events[0]
        with Measured() as memory:
            for n in range(1, 40):
                await log.append_many([(ref, events[n : n + 1]) for ref, events in said.items()])
            assert memory.held() < 50_000 + 20 * 10_000 + 200_000  # all of it is 3 MB
        for ref, reader in readers.items():
            assert [e async for e in reader] == said[ref][1:]


async def test_a_run_that_is_over_is_read_as_it_is_taken(server: RedisServer, log: RedisEventLog) -> None:
    """E3, E4: the streams of finished runs, too; and what the stream proves, nobody asks the store for."""
    said, told = long_run(), Told(log)
    for n in range(0, EVENTS, 100):
        await log.append(1, said[n : n + 100])

    def read(after: str | None = None) -> AsyncGenerator[Event]:
        return follow_run(cast(Backend, told), "t", REF.run_id, after)

    with Measured() as memory:
        async with AsyncExitStack() as stack:
            readers = [await stack.enter_async_context(aclosing(read())) for _ in range(READERS)]
            assert [await anext(reader) for reader in readers] == said[:1] * READERS
            assert memory.held() < READERS * EACH + 2 * 2**20
            assert [seen async for seen in readers[0]] == said[1:]
    assert [seen async for seen in read("1-7")] == said[7:]
    assert told.asked == 0
    await server.command("XDEL", server.keys.events(REF), *(f"1-{n}" for n in range(2, 6)))
    seen = [(e.id, e.type) async for e in read()][:5]
    assert seen == [("1-1", said[0].type), (None, "gap"), ("1-3", "message.completed"), (None, "gap"), ("1-6", said[5].type)]


async def test_events_of_many_runs_are_appended_in_short_scripts(server: RedisServer) -> None:
    """Q3: a deleted thread may have thousands of live runs, which all end. Other clients get their turn between scripts."""
    log = RedisEventLog(server)
    runs = [RunRef(1, f"r{n}") for n in range(5 * EVENTS_PER_APPEND)]
    ends = [Event(id="1-1", type="run.cancelled", thread_id="t", run_id=ref.run_id) for ref in runs]
    before = await executed_scripts(server)
    await log.append(1, ends)
    assert await executed_scripts(server) - before >= 5
    found = [await log.read(ref) for ref in (runs[0], runs[-1])]
    assert [[event.type for event in stored] for stored in found] == [["run.cancelled"]] * 2


async def executed_scripts(server: RedisServer) -> int:
    """The number of scripts that the server has executed."""
    found = re.search(rb"cmdstat_evalsha:calls=(\d+)", cast(bytes, await server.command("INFO", "commandstats")))
    return int(found[1]) if found else 0
