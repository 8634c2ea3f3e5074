"""The scheduler on a real server: the suite, what a worker costs it, and while it is restarted or away."""

import asyncio
import time

import pytest

from runyard.errors import BackendUnavailableError
from runyard.ports.scheduling import Job
from runyard.support.store_retries import patiently
from runyard_backends.embedded import EmbeddedRedis
from runyard_backends.redis import RedisEventLog, RedisScheduler, RedisServer
from tests.support.suites.scheduler import *  # noqa: F403
from tests.support.suites.scheduler import QUEUES, SomebodyWaits, claim_within


async def until_somebody_waits(server: RedisServer) -> None:
    async with asyncio.timeout(30):
        while b"blocked_clients:1" not in await server.command("INFO", "clients"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
def somebody_waits() -> SomebodyWaits:
    return until_somebody_waits


async def test_an_idle_worker_is_quiet(server: RedisServer, scheduler: RedisScheduler) -> None:
    """At most two commands a second: a blocking pop and a claim per look."""
    await scheduler.claim("w", QUEUES, 9)

    async def calls() -> int:
        info = (await server.command("INFO", "commandstats")).decode()
        found = {
            line.split(":")[0]: int(line.split("calls=")[1].split(",")[0]) for line in info.splitlines() if "calls=" in line
        }
        return found.get("cmdstat_blpop", 0) + found.get("cmdstat_evalsha", 0)

    before, started = await calls(), time.monotonic()
    for _ in range(2):
        await scheduler.claim("w", QUEUES, 9, wait=60.0)
    assert await calls() - before <= 2 * (time.monotonic() - started)


@pytest.mark.usefixtures("long_waits")
async def test_a_server_that_goes_away_and_comes_back() -> None:
    """Redis stopped, frozen and restarted empty: every call fails fast with the typed error and works again by itself."""
    with EmbeddedRedis() as redis:
        server = RedisServer(redis.url, timeout=2.0)
        scheduler = RedisScheduler(server, RedisEventLog(server))
        await scheduler.submit([Job(1, "r")])
        [held] = await scheduler.claim("w", QUEUES, 1)
        waiting = asyncio.create_task(scheduler.claim("w", QUEUES, 9, wait=60.0))
        await until_somebody_waits(server)
        redis.restart()
        with pytest.raises(BackendUnavailableError):
            await waiting
        assert await patiently(lambda: scheduler.missing_jobs([Job(1, "r")])) == [Job(1, "r")]
        assert await scheduler.renew("w", [held]) == [held]

        redis.pause()
        async with asyncio.timeout(30):
            with pytest.raises(BackendUnavailableError):
                await scheduler.submit([Job(1, "r")])
        redis.resume()
        await patiently(lambda: scheduler.submit([Job(1, "r")]))
        assert len(await claim_within(scheduler, "w")) == 1

        redis.kill()
        claims = [scheduler.claim("w", QUEUES, 1, wait=wait) for wait in (0.0, 1.0)]
        for call in (scheduler.submit([Job(1, "r")]), *claims, scheduler.end_wait("w")):
            with pytest.raises(BackendUnavailableError):
                await call
        await server.close()
