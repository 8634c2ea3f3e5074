"""What is added to fakeredis: its names, its `cmsgpack`, and clients that leave."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runyard.errors import InvalidInputError
from runyard.ports.scheduling import Job
from runyard_backends import memory
from runyard_backends.redis import RedisEventLog, RedisScheduler, RedisServer, fake
from tests.support.suites.scheduler import SomebodyWaits

SHOWN = """
local function shown(value)
  if type(value) == 'number' then
    return string.format('%.17g', value)
  elseif type(value) ~= 'table' then
    return tostring(value)
  end
  local out = {}
  for k, v in pairs(value) do
    out[#out + 1] = shown(k) .. '=' .. shown(v)
  end
  table.sort(out)
  return '{' .. table.concat(out, ',') .. '}'
end
return shown(cmsgpack.unpack(ARGV[1]))
"""
"""Lua that writes out what it was given as MessagePack."""


def shown(value: Any) -> bytes:
    """What Lua writes: a list is a table from 1."""
    if value is None or isinstance(value, bool):
        return {None: b"nil", True: b"true", False: b"false"}[value]
    if isinstance(value, int | float):
        return f"{value:.17g}".encode()
    if isinstance(value, list):
        value = dict(enumerate(value, 1))
    if isinstance(value, dict):
        return b"{" + b",".join(sorted(shown(k) + b"=" + shown(v) for k, v in value.items())) + b"}"
    return value if isinstance(value, bytes) else str(value).encode()


numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.floats(width=32, allow_nan=False)
leaves = st.booleans() | numbers | st.text() | st.binary()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-9, 2**40), inner), max_leaves=20
)


@given(values | st.none())
@example(["x" * 20, "x" * 300, "x" * 70_000])
@example([b"x" * 20, b"x" * 300, b"x" * 70_000])
@example([list(range(size)) for size in (20, 300, 70_000)])
@example([dict.fromkeys(range(size), True) for size in (20, 300, 70_000)])
def test_the_fakes_cmsgpack_reads_what_msgpack_writes(value: Any) -> None:
    with fake.fakeredis.FakeRedis(server=fake.server("fakeredis://msgpack")) as client:
        assert client.eval(SHOWN, 0, msgpack.packb(value)) == shown(value)


@pytest.mark.parametrize("damaged", [b"", b"\x81", b"\xa5abc", b"\xc1", b"\x01\x02", b"\xcf\x01"])
def test_the_fakes_cmsgpack_refuses_what_is_damaged(damaged: bytes) -> None:
    with fake.fakeredis.FakeRedis(server=fake.server("fakeredis://")) as client:
        assert client.eval("return tostring(pcall(cmsgpack.unpack, ARGV[1]))", 0, damaged) == b"false"


async def test_a_name_is_shared_while_somebody_holds_it() -> None:
    one, two, other = RedisServer("fakeredis://shared"), RedisServer("fakeredis://shared"), RedisServer("fakeredis://")
    await one.command("SET", "k", "v")
    assert (await two.command("GET", "k"), await other.command("GET", "k")) == (b"v", None)
    for server in (one, two, other):
        await server.close()
    del one, two, server
    gc.collect()
    again = RedisServer("fakeredis://shared")
    assert await again.command("GET", "k") is None
    await again.close()


async def test_a_client_that_left_takes_nothing(redis_url: str, somebody_waits: SomebodyWaits) -> None:
    """Its element is left for others, the script behind its wait is not executed, and no task goes on for it."""
    before = asyncio.all_tasks()
    server = RedisServer(redis_url)
    scheduler = RedisScheduler(server, RedisEventLog(server))
    claiming = asyncio.create_task(scheduler.claim("gone", ["default"], 9, wait=2.0))
    await somebody_waits(server)
    claiming.cancel()
    await asyncio.wait([claiming])
    await scheduler.submit([Job(1, "r")])
    async with asyncio.timeout(10):
        while asyncio.all_tasks() != before:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await server.command("LLEN", server.keys.wake("default")) == 1
    assert len(await scheduler.claim("here", ["default"], 9)) == 1
    await server.close()
    assert not fake.server(redis_url).sockets


async def test_a_database_that_others_share_keeps_its_scheduler() -> None:
    with pytest.raises(InvalidInputError):
        await memory.connect("memory://shared", redis="fakeredis://")
    with pytest.raises(InvalidInputError):
        await memory.connect(world=memory.MemoryWorld(), redis="fakeredis://")
