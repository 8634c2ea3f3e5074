"""Tests of the memory limits of event streams on Redis: of one stream, and of all streams together (E1, E4, I9).

The tests of each implementation import this module and define the fixture ``redis_url``, the URL of an emptied server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import cast

import pytest

from runyard.domain.states import RunStatus
from runyard.events.run_stream import follow_run
from runyard.models import Event, Run
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Job, StreamLimits
from runyard.ports.stores import Backend
from runyard_backends.redis import RedisEventLog, RedisScheduler, RedisServer
from runyard_backends.redis.events import FORGOTTEN_MS
from runyard_backends.redis.scripts import Call, script

LARGE = 10_000
"""Characters of the event of a stream."""


@asynccontextmanager
async def logging(redis_url: str, limits: StreamLimits, shards: int = 1) -> AsyncIterator[tuple[RedisServer, RedisEventLog]]:
    server = RedisServer(redis_url, shards=shards)
    try:
        yield server, RedisEventLog(server, limits)
    finally:
        await server.close()


def event(run: str, n: int, type_: str = "message.delta", size: int = LARGE, fence: int = 1) -> Event:
    return Event(id=f"{fence}-{n}", type=type_, thread_id="t", run_id=run, data={"text": "x" * size})


async def said(log: RedisEventLog, thread: int, run: str, type_: str = "message.delta", size: int = LARGE) -> RunRef:
    """Add two events of a run, the second of ``type_``."""
    await log.append(thread, [event(run, 1, size=size), event(run, 2, type_, size=size)])
    return RunRef(thread, run)


async def held(log: RedisEventLog, refs: Sequence[RunRef]) -> list[RunRef]:
    """Return the runs of ``refs`` that have events in the log."""
    return [ref for ref in refs if any(found.id for found in await log.read(ref))]


async def total(server: RedisServer) -> int:
    """Return the bytes of all streams according to the account."""
    found = [await server.command("GET", f"{server.keys.prefix(n)}stream_bytes") for n in range(server.keys.shards)]
    return sum(int(value or 0) for value in found)


async def until_gone(server: RedisServer, ref: RunRef) -> None:
    async with asyncio.timeout(30):
        while await server.command("EXISTS", server.keys.events(ref)):  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


async def until_trimmed(log: RedisEventLog, most: int) -> None:
    """Trim until the streams take at most ``most`` bytes. fakeredis lets a key expire milliseconds before its place in the
    index."""
    async with asyncio.timeout(30):
        while (await log.trim()).bytes > most:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


async def keys(server: RedisServer, pattern: str) -> list[bytes]:
    return sorted(await server.command("KEYS", pattern))


async def test_the_account_never_goes_below_zero(redis_url: str) -> None:
    """Streams are released twice, and after the server has lost the sum. Later streams keep to the limit."""
    async with logging(redis_url, StreamLimits(total_bytes=300_000)) as (server, log):
        await log.trim()
        sum_key = f"{server.keys.prefix(0)}stream_bytes"
        for thread, loses in ((1, False), (2, True)):
            await said(log, thread, "r")
            if loses:
                await server.command("DEL", sum_key)
            for _ in range(2):
                await log.forget([thread])
                assert await total(server) == 0
        await said(log, 3, "shrinking", size=100_000)
        await server.command("DEL", sum_key)
        small = RedisEventLog(server, StreamLimits(bytes=1000, total_bytes=300_000))
        await small.append(3, [event("shrinking", 3, size=10)])
        assert await total(server) == 0
        for n in range(40):
            await said(log, 10 + n, "more")
        assert 0 < await total(server) <= 300_000


@pytest.mark.parametrize("shards", [1, 4])
async def test_streams_keep_to_their_limit_and_runs_that_stopped_go_first(redis_url: str, shards: int) -> None:
    """E4: runs that stopped longest ago lose their streams first, then the runs without an event for the longest time."""
    async with logging(redis_url, StreamLimits(total_bytes=shards * 300_000), shards) as (server, log):
        assert await log.trim()
        running = [await said(log, n, "running") for n in range(5 * shards)]
        stopped = [await said(log, n, "stopped", "run.completed") for n in range(5 * shards)]
        assert await held(log, [*running, *stopped]) == [*running, *stopped]
        more = [await said(log, n, "more", "run.suspended") for n in range(5 * shards, 35 * shards)]
        assert await held(log, running) == running
        assert await total(server) <= shards * 300_000
        if shards == 1:
            left = await held(log, [*stopped, *more])
            assert left == more[-len(left) :] and len(left) > 5
        for n in range(40 * shards):
            await said(log, n, "new")
        assert await held(log, [*running, *stopped, *more]) == []
        usage = await log.trim()
        assert usage.bytes == await total(server) <= shards * 300_000 and usage.dropped > 50 * shards
        for ref in running:
            found = await log.read(ref)
            assert found == [] or [each.type for each in found] == ["gap"]


async def test_a_reader_in_the_middle_of_a_dropped_stream_is_told(redis_url: str) -> None:
    """I9: every reader gets a gap, from any id and whichever events follow."""
    async with logging(redis_url, StreamLimits(total_bytes=250_000)) as (_, log):
        await log.trim()
        ref = RunRef(1, "r")
        await log.append(1, [event("r", n, size=40_000) for n in (1, 2, 3)])  # a page has one of them
        async with AsyncExitStack() as stack:
            reader = await stack.enter_async_context(aclosing(log.follow(ref)))
            assert (await anext(reader)).id == "1-1"  # type: ignore[union-attr]
            for n in range(10):
                await said(log, 2, f"other-{n}")
            await log.append(1, [event("r", 1, "run.started", 10, fence=5), event("r", 2, "run.completed", 10, fence=5)])
            seen = [each.id async for each in reader if each is not None]
        assert seen == [None, "5-1", "5-2"]
        for after in (None, "1-1", "1-3"):
            assert [each.id for each in await log.read(ref, after)] == [None, "5-1", "5-2"], after


async def test_an_attempt_that_was_superseded_stays_silent_behind_a_dropped_stream(redis_url: str) -> None:
    """I2: the stream keeps its last id after its events were dropped."""
    async with logging(redis_url, StreamLimits(total_bytes=30_000)) as (_, log):
        await log.trim()
        ref = RunRef(1, "r")
        await log.append(1, [event("r", 1, fence=7)])
        await said(log, 2, "other")
        assert [each.id for each in await log.read(ref)] == [None]
        await log.append(1, [event("r", 2, fence=5)])
        assert [each.id for each in await log.read(ref)] == [None]
        await log.append(1, [event("r", 2, size=10, fence=7)])
        assert [each.id for each in await log.read(ref)] == [None, "7-2"]


async def test_one_stream_keeps_to_its_bytes(redis_url: str) -> None:
    """A stream that reaches its limit keeps the newest events. No event is cut."""
    async with logging(redis_url, StreamLimits(bytes=100_000)) as (server, log):
        for n in range(1, 60):
            await log.append(1, [event("r", n, size=n % 7 * 1000)])
        ref = RunRef(1, "r")
        found = await log.read(ref)
        assert found[0].type == "gap" and found[-1].id == "1-59"
        assert 80_000 < sum(len(str(each.data)) for each in found) < 115_000
        assert await total(server) < 120_000
        await log.append(1, [event("r", 60, size=300_000)])
        assert [each.id for each in await log.read(ref)] == [None, "1-60"]
        assert (await server.command("XLEN", server.keys.events(ref))) == 1


async def test_a_stream_that_expired_leaves_the_account(redis_url: str) -> None:
    """E4: the stream of a run that stopped expires earlier. If the run continues, its stream is kept for longer again."""
    limits = StreamLimits(running=60.0, stopped=2.0)
    async with logging(redis_url, limits) as (server, log):
        stopped, answered = await said(log, 1, "r", "run.completed"), await said(log, 2, "r", "run.suspended")
        assert 0 < await server.command("PTTL", server.keys.events(stopped)) <= 2000
        await log.append(2, [event("r", 1, size=10, fence=2)])
        assert 50_000 < await server.command("PTTL", server.keys.events(answered)) <= 60_000
        await until_gone(server, stopped)
        await until_trimmed(log, 2 * LARGE + 2000)
        assert 2 * LARGE < await total(server) <= 2 * LARGE + 2000
        assert await keys(server, "*sizes*") == [b"runyard:{0}:sizes:2"]
        await log.append(2, [event("r", 2, "run.failed", fence=2)])
        await until_gone(server, answered)
        await until_trimmed(log, 0)
        kept = {"stream_bytes", "stream_limit", "sizes:2"}
        assert {key.decode().removeprefix("runyard:{0}:") for key in await keys(server, "*")} <= kept


async def test_a_stream_of_a_running_run_is_kept_while_it_goes_on(redis_url: str) -> None:
    """E4: an event prolongs the stream of its run. Events in quick succession write the expiry once."""
    async with logging(redis_url, StreamLimits(running=100.0, stopped=10.0)) as (server, log):
        ref, index = await said(log, 1, "r", size=10), f"{server.keys.prefix(0)}running_streams"
        stream = server.keys.events(ref)
        await server.command("PEXPIRE", stream, 50_000)
        await log.append(1, [event("r", 3, size=10)])
        assert await server.command("PTTL", stream) <= 50_000, "the last event was a moment ago"
        await server.command("ZINCRBY", index, -2000, "1:r")
        before = float(await server.command("ZSCORE", index, "1:r"))
        await log.append(1, [event("r", 4, size=10)])
        assert await server.command("PTTL", stream) > 90_000
        assert float(await server.command("ZSCORE", index, "1:r")) >= before + 2000
        await server.command("DEL", stream)
        await log.append(1, [event("r", 5, size=10)])
        assert await server.command("PTTL", stream) > 90_000, "a stream that was lost is a new one"
        await log.append(1, [event("r", 6, "run.completed", size=10)])
        assert 0 < await server.command("PTTL", stream) <= 10_000 and await server.command("ZCARD", index) == 0


async def test_streams_that_expired_unseen_leave_the_account(redis_url: str) -> None:
    """All processes were stopped for days. The sizes are kept longer than the streams, so that the account stays right."""
    async with logging(redis_url, StreamLimits(running=4.0, stopped=4.0)) as (server, log):
        refs = [await said(log, n, "r") for n in range(5)]
        for key in await keys(server, "*sizes*"):
            assert await server.command("PTTL", key) > 29 * 86_400_000
        for ref in refs:
            await until_gone(server, ref)
        assert await total(server) > 5 * LARGE
        async with asyncio.timeout(30):  # the clock of fakeredis's scripts is behind that of their commands
            while (await log.trim()).bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await total(server) == 0
        assert await keys(server, "*sizes*") == []


@pytest.mark.parametrize("shards", [1, 3])
async def test_deleted_threads_have_no_streams(redis_url: str, shards: int) -> None:
    """D2: one call deletes the streams of all runs of the threads. Later events reach followers and are not stored."""
    async with logging(redis_url, StreamLimits(), shards) as (server, log):
        gone = [await said(log, thread, run) for thread in (1, 2, 12) for run in ("r", "1:r", "x\ny", "other")]
        kept = [await said(log, thread, "r") for thread in (3, 11, 121)]
        await log.forget([1, 2, 12, 99])
        assert await held(log, [*gone, *kept]) == kept
        assert await keys(server, "*events:1:*") + await keys(server, "*events:12:*") == []
        before = await total(server)
        async with server.subscribe(server.keys.events(gone[0])) as live, asyncio.timeout(30):
            await log.append(1, [event("r", 3, "run.cancelled")])
            assert await live.get() is not None
        assert await held(log, gone) == [] and await total(server) == before
        for key in await keys(server, "*sizes*"):
            assert await server.command("PTTL", key) > 0


async def test_many_streams_of_one_thread_are_deleted_in_parts(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runyard_backends.redis.events.STREAMS_PER_CALL", 7)
    async with logging(redis_url, StreamLimits()) as (server, log):
        refs = [await said(log, thread, f"r{n}", size=10) for thread in (1, 2) for n in range(20)]
        await server.call(Call(script("forget"), server.keys.prefix(0), (FORGOTTEN_MS, 7, 1)))
        sizes = f"{server.keys.prefix(0)}sizes:1"
        assert await server.command("HLEN", sizes) == 14
        assert await server.command("PTTL", sizes) > FORGOTTEN_MS, "the streams that are left are in the account"
        await log.forget([1, 2])
        assert await held(log, refs) == [] and await total(server) == 0


async def test_a_trim_is_bounded_and_goes_on_later(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runyard_backends.redis.events.STREAMS_PER_CALL", 5)
    monkeypatch.setattr("runyard_backends.redis.events.CALLS_PER_TRIM", 2)
    async with logging(redis_url, StreamLimits()) as (_, log):
        refs = [await said(log, n, "r", "run.completed") for n in range(10, 40)]
        tight = RedisEventLog(log._server, StreamLimits(total_bytes=1))
        for left in (20, 10):
            await tight.trim()
            assert await held(log, refs) == refs[len(refs) - left :]
        monkeypatch.setattr("runyard_backends.redis.events.TRIM_SECONDS", 0.0)
        for left in (5, 0):
            usage = await tight.trim()
            assert await held(log, refs) == refs[len(refs) - left :]
        assert (usage.bytes, usage.dropped) == (0, 30)


async def test_what_an_ended_run_leaves_in_a_queue_that_nobody_serves_expires(redis_url: str) -> None:
    """The end of a run removes its job. If that call was lost, the keys without a waiting run expire. A tenant without due jobs
    is not in the ring."""
    async with logging(redis_url, StreamLimits()) as (server, log):
        scheduler = RedisScheduler(server, log)
        jobs = [Job(n, "r", queue=f"unserved {n % 3}\n:", tenant=f"{n}:", delay=n % 2 * 5.0) for n in range(60)]
        await scheduler.submit(jobs)
        lasting = {key: await server.command("PTTL", key) for key in await keys(server, "*")}
        assert lasting and all(0 < left <= 86_405_000 for left in lasting.values()), lasting
        for key in lasting:
            await server.command("PEXPIRE", key, 1000)
        assert await scheduler.missing_jobs(jobs[:3]) == []
        for key in lasting:
            ours = any(key == f"runyard:{{0}}:job:{job.id}".encode() for job in jobs[:3])
            assert not ours or await server.command("PEXPIRE", key, 80_000_000)
        assert await scheduler.missing_jobs(jobs[:3]) == []
        for job in jobs[:3]:
            assert await server.command("PTTL", f"{server.keys.prefix(0)}job:{job.id}") <= 80_000_000, "few looks write"
        renewed = {key for key in lasting if await server.command("PTTL", key) > 1000}
        assert {f"runyard:{{0}}:job:{job.id}".encode() for job in jobs[:3]} <= renewed
        assert not {f"runyard:{{0}}:job:{job.id}".encode() for job in jobs[3:]} & renewed
        await scheduler.submit([Job(n, "r", queue=job.queue, tenant=job.tenant, over=True) for n, job in enumerate(jobs)])
        assert await keys(server, "*") == []
        await scheduler.submit([Job(n, "r", tenant=f"{n}", queue="served") for n in range(50)] + [Job(99, "r", queue="served")])
        assert len(await scheduler.claim("w", ["served"], 50)) == 50
        assert len(await server.command("ZRANGE", f"{server.keys.prefix(0)}turns:served", 0, -1)) == 1


class Proving:
    """A store with a run in its second attempt. It proves no event of the first attempt."""

    def __init__(self, log: RedisEventLog) -> None:
        self.events, self.runs, self.threads = log, self, self

    async def run(self, thread_id: str, run_id: str) -> Run:
        facts = {"status": RunStatus.COMPLETED, "event_id": "5-2", "fence": 5, "attempt": 2}
        return Run(thread_id=thread_id, run_id=run_id, accepted_at=datetime.now(UTC), **facts)  # type: ignore[arg-type]

    async def thread_key(self, thread_id: str) -> int:
        return 1

    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = 1) -> list[Event]:
        return [] if after == "5-2" else [event("r", 2, "run.completed", 10, fence=5)]


@pytest.mark.parametrize("lost", ["trimmed", "deleted"])
async def test_a_loss_between_attempts_is_announced(redis_url: str, lost: str) -> None:
    """I9: the first event of an attempt has the number 1, which does not prove that the attempt before is complete."""
    async with logging(redis_url, StreamLimits(total_bytes=250_000)) as (server, log):
        await log.trim()
        await log.append(1, [event("r", n, size=40_000) for n in (1, 2, 3)])
        proving = cast(Backend, Proving(log))
        async with aclosing(follow_run(proving, "t", "r")) as reader:
            assert (await anext(reader)).id == "1-1"
            if lost == "trimmed":
                for n in range(10):
                    await said(log, 2, f"other-{n}")
            else:
                await server.command("DEL", server.keys.events(RunRef(1, "r")))
            second = event("r", 1, "run.started", 10, fence=5)
            second.data["attempt"] = 2
            await log.append(1, [second, event("r", 2, "run.completed", 10, fence=5)])
            seen = [each.id async for each in reader]
        late = [each.id async for each in follow_run(proving, "t", "r")]
    assert late == [None, "5-1", "5-2"]
    assert seen == [None, "5-1", "5-2"]
