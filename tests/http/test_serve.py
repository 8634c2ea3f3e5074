"""`runyard api` as it serves: what comes before a request is bounded too (semantics: A2)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from api.http.app import asgi_app
from api.http.serve import UNANSWERED, Server, listen
from api.http.settings import ApiSettings
from runner.client import Client
from runner.states import RunStatus

BOUND = 20.0


@pytest.fixture
async def port(client: Client) -> AsyncIterator[int]:
    """A served API that takes heads of 4 kB within 0.3 s."""
    settings = ApiSettings(_env_file=None, port=0, auth="off", max_header_bytes=4096, body_timeout=0.3, heartbeat=0.1)
    app = asgi_app(client, auth="off", settings=settings)
    with listen(settings) as listening:
        server = Server(app)
        running = asyncio.create_task(server.serve([listening]))
        while not server.started:
            assert not running.done()
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        await running


async def status(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The answer's status and all that follows, until the server closes."""
    async with asyncio.timeout(BOUND):
        first = await reader.readline()
        return int(first.split()[1]) if first else 0, await reader.read()


async def test_a_head_without_end_is_refused(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: ")

    async def endless() -> None:
        while True:
            writer.write(b"x" * 1000)
            await writer.drain()
            await asyncio.sleep(0.001)

    writing = asyncio.create_task(endless())
    code, rest = await status(reader)
    assert code == 413 and b"application/problem+json" in rest and b"request_too_large" in rest
    await asyncio.wait((writing,), timeout=BOUND)
    assert isinstance(writing.exception(), ConnectionError)


@pytest.mark.parametrize(("head", "code"), [(b"GET /livez HTTP/1.1\r\nX-Slow: ", 408), (b"", 0)])
async def test_a_head_that_does_not_come_is_not_waited_for(port: int, head: bytes, code: int) -> None:
    """Nor a connection on which nothing comes at all; it is closed without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    assert (await status(reader))[0] == code
    writer.close()


async def test_heads_one_behind_the_other(port: int) -> None:
    """Requests on one connection have the time and the size each for itself, and bodies do not count."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"message": "' + b"x" * 50_000 + b'"}'
    head = b"POST /v1/threads/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with asyncio.timeout(BOUND):
        for _ in range(3):
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 201 " in answer.split(b"\r\n")[0]
            await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
    writer.close()


async def test_who_asked_ahead_and_left_has_left(port: int, client: Client) -> None:
    """A2: a request that waits behind a stream on its connection does not hide that its reader is gone."""
    body = b'{"message": "x", "run_id": "r", "on_disconnect": "cancel"}'
    head = b"POST /v1/threads/t/runs/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(BOUND):
        await reader.readuntil(b"run.queued")
        writer.close()
        assert (await client.handle("t", "r").result()).status is RunStatus.CANCELLED


def test_who_takes_nothing_is_cut_off() -> None:
    """E3: what was written and not taken does not keep a connection open for ever."""
    with listen(ApiSettings(_env_file=None, port=0)) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNANSWERED
