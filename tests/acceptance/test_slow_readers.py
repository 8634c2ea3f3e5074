"""Many slow readers of one long run: the API answers others meanwhile, and holds little for each (A2, E3).

``RUNYARD_TEST_READERS=150`` is the long form.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

import pytest

from runyard.models import JsonValue, Message, ToolCallPart
from runyard_backends.conformance.world import T, World, proved, said
from tests.acceptance.test_attacks import Pulse, memory
from tests.acceptance.test_http_server import api
from tests.support.fleet import SLACK, Fleet
from tests.support.long_form import some

READERS: Final = int(os.environ.get("RUNYARD_TEST_READERS", "40"))
MESSAGES: Final = 160
"""A run of 32 MB."""
SIZE: Final = 200_000
VALUES: Final = 20_000
"""Values in one message of many small ones: about 200 KB as JSON and 4 MB as objects."""
TAKEN: Final = 2**15
"""Bytes that a reader takes at a time."""
SECONDS: Final = 8.0
SILENT: Final = 0.1
"""Seconds for which ``/livez`` may be silent; a machine under load may add SLACK."""
EACH: Final = 2**20
"""Bytes that a reader may cost the process."""
FIRST: Final = 2**24
"""Bytes that whatever comes first may cost it: connections to its servers, what is imported late."""


@asynccontextmanager
async def slow(url: str) -> AsyncIterator[asyncio.Task[int]]:
    """A reader of the run's stream that takes little at a time; it returns the bytes that it took."""
    where = urlsplit(url)
    taken = 0
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKEN)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (where.hostname, where.port))
        await loop.sock_sendall(
            connection, f"GET /v1/threads/{T}/runs/r/stream HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode()
        )

        async def read() -> int:
            nonlocal taken
            while got := await loop.sock_recv(connection, TAKEN):
                taken += len(got)
                await asyncio.sleep(0.25)
            return taken

        reading = asyncio.create_task(read())
        try:
            yield reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading


def long_text() -> Message:
    return said("x" * SIZE)


def many_values() -> Message:
    rows: list[JsonValue] = [{"measured": n} for n in range(VALUES // 2)]
    return Message(role="assistant", content=[ToolCallPart(id="c", name="store", arguments={"rows": rows})])


@pytest.mark.parametrize(
    ("stream", "made"), some([("lost", many_values), ("lost", long_text), ("kept", many_values), ("kept", long_text)], 3)
)
async def test_a2_slow_readers_of_a_long_run_silence_nobody(fleet: Fleet, stream: str, made: Callable[[], Message]) -> None:
    """What waits for a reader is bytes: an event of many small values takes many times as much memory as its JSON."""
    world = World(fleet.backend, lambda: None)  # type: ignore[arg-type, return-value]
    attempt = await world.start("r")
    for n in range(MESSAGES):
        await world.runs.append(attempt, [made()], first_event=3 + n)
    await world.finish(attempt, said("done"), first_event=3 + MESSAGES)
    if stream == "kept":
        for event in await proved(world.runs, attempt.ref):
            await fleet.backend.events.append(attempt.thread_key, [event])
    async with (
        api(fleet, "--auth", "off") as (url, process),
        AsyncExitStack() as stack,
    ):
        pulse = Pulse(url)
        beating = asyncio.create_task(pulse.run())
        before = memory(process.pid)
        began = time.monotonic()
        for _ in range(READERS):
            await stack.enter_async_context(slow(url))
        await asyncio.sleep(SECONDS)
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating
        grown = memory(process.pid) - before
    took = time.monotonic() - began
    print(f"\n{stream} {made.__name__}: silent {pulse.longest:.3f} s in {took:.0f} s, {grown / 2**20:.0f} MiB more")
    assert pulse.longest <= SILENT + SLACK
    assert grown <= FIRST + READERS * EACH
