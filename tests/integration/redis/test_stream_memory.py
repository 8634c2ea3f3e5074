"""The memory of event streams on a real server: the suite, the account against the truth, and a server without free memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress

import pytest
from redis.exceptions import OutOfMemoryError

from runyard.errors import BackendUnavailableError, RunyardError
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Job, StreamLimits, queued_event
from runyard_backends.embedded import EmbeddedRedis
from runyard_backends.redis import RedisEventLog, RedisScheduler, RedisServer
from tests.support.suites.stream_memory import *  # noqa: F403
from tests.support.suites.stream_memory import event, held, logging, said, total

ROOM = 4 * 2**20
"""Bytes that the server has for all data."""


async def used(server: RedisServer) -> int:
    """Bytes that the server uses, once it has freed what was deleted before."""
    while True:
        info = (await server.command("INFO", "memory")).decode()
        if "lazyfree_pending_objects:0" in info:
            return int(info.split("used_memory:")[1].split()[0])
        await asyncio.sleep(0.001)


STREAMS = {"short": [100], "simple": [100] * 7, "deltas": [30] * 300, "long": [5000] * 20, "one large": [100_000, 10, 10]}
"""Sizes of the events of a stream."""


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS.keys())
async def test_the_account_is_close_to_the_truth(redis_url: str, events: list[int]) -> None:
    """Never much less than what the server spends, keys and indexes included."""
    async with logging(redis_url, StreamLimits()) as (server, log):
        await log.append(0, [event("first", 1)])  # the server keeps the script of the first call
        await server.command("FLUSHALL", "SYNC")
        before, streams = await used(server), 200
        for n in range(streams):
            await log.append(n, [event(f"run-{n:032}", m, size=size) for m, size in enumerate(events, 1)])
        spent = await used(server) - before
        assert 0.9 * spent < await total(server) < 1.6 * spent


@pytest.fixture(scope="module")
def tight_redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as redis:
        yield redis


@pytest.fixture
async def tight(tight_redis: EmbeddedRedis) -> AsyncIterator[RedisServer]:
    """An empty server that has ROOM bytes for data."""
    server = RedisServer(tight_redis.url)
    await server.command("CONFIG", "SET", "maxmemory", 0)
    await server.command("FLUSHALL")
    await server.command("CONFIG", "SET", "maxmemory", await used(server) + ROOM)
    yield server
    await server.close()


async def filled(server: RedisServer) -> None:
    """Take the rest of the server's memory with data of somebody else."""
    for size in (50_000, 1000, 50):
        with suppress(BackendUnavailableError):
            while True:
                await server.command("RPUSH", f"other:{size}", "x" * size)


async def test_streams_leave_memory_to_jobs(tight: RedisServer) -> None:
    """Four times of what the server has is said; the streams take half of the limit, and jobs find room all the time."""
    log = RedisEventLog(tight)
    scheduler = RedisScheduler(tight, log)
    await log.trim()
    for n in range(4 * ROOM // 20_000):
        await said(log, n, "r", "run.completed")
        await scheduler.submit([Job(n, "r", queued=queued_event("t", "r", 1, 1))])
    usage = await log.trim()
    maximum = int((await tight.command("CONFIG", "GET", "maxmemory"))[1])
    assert usage.dropped > 100 and await used(tight) < 0.85 * maximum
    assert len(await scheduler.claim("w", ["default"], 10_000)) == 4 * ROOM // 20_000


async def test_a_job_finds_room_among_streams_that_nobody_trimmed(tight: RedisServer) -> None:
    """No leader has set a limit, and the streams took everything: the call that needs memory drops the oldest of them."""
    log = RedisEventLog(tight, StreamLimits(total_bytes=2**40))
    scheduler = RedisScheduler(tight, log)
    tight.room = tuple
    refs: list[RunRef] = []
    with pytest.raises(BackendUnavailableError):
        while True:
            refs.append(await said(log, len(refs), "r", "run.completed"))
    with pytest.raises(BackendUnavailableError):
        await scheduler.submit([Job(n, "r") for n in range(100)])
    log = RedisEventLog(tight)
    await RedisScheduler(tight, log).submit([Job(n, "q", queued=queued_event("t", "q", 1, 1)) for n in range(100)])
    assert len(await scheduler.claim("w", ["default"], 200)) == 100
    left = await held(log, refs)
    assert 0 < len(left) < len(refs) and left == refs[-len(left) :]


async def test_a_full_server_that_does_not_tell_its_memory_recovers(tight: RedisServer, tight_redis: EmbeddedRedis) -> None:
    """A user without the right to ask: a call that finds no room drops a tenth of the streams, and appends keep to that."""
    await tight.command("ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-@dangerous")
    server = RedisServer(re.sub("//.*@", "//blind:secret@", tight_redis.url))
    try:
        log = RedisEventLog(server)
        with pytest.raises(RunyardError, match="permission"):
            await server.command("INFO", "memory")
        scheduler = RedisScheduler(server, log)
        await log.trim()
        refs = [await said(log, n, "r", "run.completed") for n in range(2 * ROOM // 20_000)]
        await scheduler.submit([Job(n, "q", queued=queued_event("t", "q", 1, 1)) for n in range(100)])
        assert len(await scheduler.claim("w", ["default"], 200)) == 100
        left = await held(log, refs)
        assert len(refs) / 4 < len(left) < len(refs) and left == refs[-len(left) :]
        limit = int(await server.command("GET", f"{server.keys.prefix(0)}stream_limit"))
        assert await total(server) <= limit < len(refs) * 20_000
    finally:
        await server.close()


async def test_work_goes_on_when_other_data_takes_all_memory(tight: RedisServer) -> None:
    """What is offered is claimed, renewed and released; a job without room is refused and nothing of it is done; readers of
    events that had no room are told."""
    log = RedisEventLog(tight)
    scheduler = RedisScheduler(tight, log)
    ref = RunRef(1, "r")
    await log.append(1, [event("r", 1)])
    await scheduler.submit([Job(n, "r") for n in range(20)] + [Job(50, "r", delay=0.001)])
    await filled(tight)
    deliveries = await scheduler.claim("w", ["default"], 30)
    assert len(deliveries) == 21 and await scheduler.renew("w", deliveries) == []
    await log.forget([1])
    await filled(tight)
    with pytest.raises(BackendUnavailableError):
        await scheduler.submit([Job(99, "r", queued=queued_event("t", "r", 1, 1))])
    assert await scheduler.missing_jobs([Job(99, "r")]) == [Job(99, "r")]
    with pytest.raises(BackendUnavailableError):
        await log.append(2, [event("r", 1)])
    await scheduler.end_wait("w")
    await scheduler.release("w", deliveries)
    assert len(await tight.command("KEYS", "*lock*")) == 0
    assert await held(log, [ref]) == [] and (await log.trim()).bytes == 0
    await tight.command("DEL", *(await tight.command("KEYS", "other:*")))
    await used(tight)  # Valkey frees large values in the background.
    await scheduler.submit([Job(99, "r")])
    assert len(await scheduler.claim("w", ["default"], 9)) == 1


async def test_many_streams_are_dropped_in_bounded_calls(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with logging(redis_url, StreamLimits()) as (server, log):
        for n in range(0, 15_000, 1000):
            await log.append_many([(RunRef(m, "r"), [event("r", 1, size=10)]) for m in range(n, n + 1000)])
        monkeypatch.setattr("runyard_backends.redis.events.TRIM_SECONDS", 60.0)
        few = RedisEventLog(server, StreamLimits(total_bytes=1))
        dropped = [(await few.trim()).dropped for _ in range(3)]
        assert dropped == [10_000, 20_000, 30_000], "each is emptied first, and then deleted"
        assert await total(server) == 0 and await server.command("DBSIZE") == 3


async def test_making_room_keeps_to_the_timeout_of_the_call(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round trip takes less than the timeout, all of them together more."""
    server = RedisServer(redis_url, timeout=0.1)
    log = RedisEventLog(server)

    async def full(calls: Sequence[object]) -> list[object]:
        await asyncio.sleep(0.06)
        return [OutOfMemoryError("full") for _ in calls]

    monkeypatch.setattr(server, "_executed", full)
    try:
        with pytest.raises(BackendUnavailableError, match="no answer in time"):
            await log.append(1, [event("r", 1)])
    finally:
        await server.close()
