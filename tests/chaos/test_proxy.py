"""The fault proxy does what it says, and nothing once it is healed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.support.fault_proxy import FaultProxy

BRIEF = 0.2


@dataclass
class Echo:
    """A server that answers each line with itself, and remembers what reached it."""

    port: int = 0
    heard: list[bytes] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(100):
                self.heard.append(chunk)
                self.arrived.set()
                if chunk.endswith(b"\n"):
                    writer.write(b"".join(self.heard).split(b"\n")[-2] + b"\n")
        except ConnectionError:
            pass
        writer.transport.abort()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    server.close()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    async with FaultProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@dataclass
class Caller:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, proxy: FaultProxy) -> Caller:
        return cls(*await asyncio.open_connection("127.0.0.1", proxy.port))

    async def call(self, line: bytes) -> bytes:
        self.writer.write(line)
        async with asyncio.timeout(BRIEF):
            return await self.reader.readline()

    async def is_cut(self) -> bool:
        try:
            async with asyncio.timeout(5):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True


async def test_proxy_forwards_both_ways(proxy: FaultProxy) -> None:
    one, two = await Caller.connect(proxy), await Caller.connect(proxy)
    assert await one.call(b"a\n") == b"a\n"
    assert await two.call(b"b\n") == b"b\n"


async def test_cut_resets_every_connection_once(proxy: FaultProxy) -> None:
    callers = [await Caller.connect(proxy) for _ in range(2)]
    for caller in callers:
        await caller.call(b"a\n")
    proxy.cut()
    assert all([await caller.is_cut() for caller in callers])
    assert await (await Caller.connect(proxy)).call(b"b\n") == b"b\n"


async def test_slow_delays_both_ways(proxy: FaultProxy) -> None:
    caller = await Caller.connect(proxy)
    proxy.slow(BRIEF)
    with pytest.raises(TimeoutError):
        await caller.call(b"a\n")
    assert await caller.reader.readline() == b"a\n"


async def test_hold_swallows_and_heal_resets_who_lost_something(proxy: FaultProxy, echo: Echo) -> None:
    idle, busy = await Caller.connect(proxy), await Caller.connect(proxy)
    await idle.call(b"a\n")
    await busy.call(b"b\n")
    proxy.hold()
    late = await Caller.connect(proxy)
    for caller in (busy, late):
        with pytest.raises(TimeoutError):
            await caller.call(b"c\n")
    assert echo.heard == [b"a\n", b"b\n"]
    proxy.heal()
    assert await busy.is_cut()
    assert await late.is_cut()
    assert await idle.call(b"d\n") == b"d\n"


async def test_cut_after_some_bytes(proxy: FaultProxy, echo: Echo) -> None:
    caller = await Caller.connect(proxy)
    proxy.cut_after(3)
    caller.writer.write(b"abcdef\n")
    assert await caller.is_cut()
    await asyncio.wait_for(echo.arrived.wait(), 5)
    assert echo.heard == [b"abc"]


async def test_a_lost_reply_was_processed(proxy: FaultProxy, echo: Echo) -> None:
    caller = await Caller.connect(proxy)
    proxy.lose_replies()
    caller.writer.write(b"a\n")
    assert await caller.is_cut()
    assert echo.heard == [b"a\n"]
    assert await (await Caller.connect(proxy)).call(b"b\n") == b"b\n"


async def test_a_server_that_is_down_is_a_reset() -> None:
    async with FaultProxy("127.0.0.1", 1) as nowhere:
        assert await (await Caller.connect(nowhere)).is_cut()
