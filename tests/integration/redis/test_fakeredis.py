"""Where fakeredis differs from a real server. Each difference is asserted on both, so that one that has gone shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis
from redis.asyncio import Redis

from runyard.errors import RunyardError
from runyard_backends.redis import RedisServer


@pytest.fixture
async def real(redis_url: str) -> AsyncIterator[RedisServer]:
    server = RedisServer(redis_url)
    yield server
    await server.close()


@pytest.fixture
async def fake() -> AsyncIterator[RedisServer]:
    server = RedisServer("fakeredis://")
    yield server
    await server.close()


async def reply(server: RedisServer, *command: Any) -> Any:
    """What the server answers; of a refusal, what it says."""
    try:
        return await server.command(*command)
    except RunyardError as error:
        return str(error.__cause__)


async def test_only_the_real_one_counts_its_work(real: RedisServer, fake: RedisServer) -> None:
    """So what an idle worker costs a server is measured on the real one alone."""
    assert b"blocked_clients:0" in await reply(real, "INFO", "clients")
    assert "unknown command 'info'" in await reply(fake, "INFO", "clients")


async def test_a_failed_command_of_a_script_is_located_by_the_real_one(real: RedisServer, fake: RedisServer) -> None:
    for server in (real, fake):
        await server.command("SET", "text", "x")
    command = ("EVAL", "return redis.call('INCR', KEYS[1])", 1, "text")
    assert "not an integer or out of range script: " in await reply(real, *command)
    assert await reply(fake, *command) == "value is not an integer or out of range"


async def test_a_name_that_is_not_defined_is_an_error_of_the_real_one(real: RedisServer, fake: RedisServer) -> None:
    command = ("EVAL", "return tostring(nosuch)", 0)
    assert "nonexistent global variable 'nosuch'" in await reply(real, *command)
    assert await reply(fake, *command) == b"nil"


async def test_a_script_that_sets_a_global_name_is_refused(real: RedisServer, fake: RedisServer) -> None:
    """The real one before the script, the other one after it."""
    refused = [await reply(server, "EVAL", "surplus = 1", 0) for server in (real, fake)]
    assert "readonly table" in refused[0] and "global variables: surplus" in refused[1]


async def test_scripts_of_the_fake_one_reach_the_machine(real: RedisServer, fake: RedisServer) -> None:
    """They are those of runyard, so nothing is lost by it; what a user may send is data."""
    command = ("EVAL", "return type(rawget(_G, 'io')) .. type(rawget(_G, 'python'))", 0)
    assert await reply(real, *command) == b"nilnil"
    assert await reply(fake, *command) == b"tabletable"


async def test_cmsgpack_is_the_real_ones_own(real: RedisServer, fake: RedisServer) -> None:
    """fakeredis has none; that of runyard reads, which is all that the scripts do."""
    command = ("EVAL", "return type(cmsgpack.unpack) .. type(cmsgpack.pack)", 0)
    assert await reply(real, *command) == b"functionfunction"
    assert await reply(fake, *command) == b"functionnil"
    async with FakeRedis(server=FakeServer()) as bare:
        assert await bare.eval("return type(cmsgpack)", 0) == b"nil"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110  # no server has an event for it
            await asyncio.sleep(0.001)


async def test_fakeredis_by_itself_serves_clients_that_left(redis_url: str) -> None:
    """A cancelled wait takes an element from those who are left; `runyard_backends.redis.fake` forgets such a client."""
    fake_server = FakeServer()
    real, bare = Redis.from_url(redis_url), FakeRedis(server=fake_server)

    async def waiting_at_real() -> bool:
        return bool((await real.info("clients"))["blocked_clients"])

    async def waiting_at_bare() -> bool:
        return any(socket._blocked for socket in fake_server.sockets)

    for client, somebody_waits in ((real, waiting_at_real), (bare, waiting_at_bare)):
        async with client:
            popping = asyncio.ensure_future(cast(Awaitable[object], client.blpop("list", timeout=60)))
            await until(somebody_waits)
            popping.cancel()
            await asyncio.wait([popping])
            if client is real:
                await until(lambda: negated(waiting_at_real()))
            await cast(Awaitable[int], client.rpush("list", "x"))
            if client is bare:
                await until(lambda: negated(waiting_at_bare()))
            assert await cast(Awaitable[int], client.llen("list")) == (1 if client is real else 0)


async def negated(condition: Awaitable[bool]) -> bool:
    return not await condition
