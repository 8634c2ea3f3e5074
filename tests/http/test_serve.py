"""`runyard api` as it serves: what comes before a request is bounded too (A2)."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from runyard import Client
from runyard.domain.states import RunStatus
from runyard_api.http import protocol
from runyard_api.http.authentication import Auth
from runyard_api.http.serve import UNACKNOWLEDGED_MS, Server, addresses_of, listen, room_for
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import SECRET
from tests.http.shared_routes import asgi_app

BOUND = 60.0
ANSWER = re.compile(rb"HTTP/1\.1 (?=\d{3} )")
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/threads HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def served(client: Client, auth: Auth = "off", **more: Any) -> AsyncIterator[int]:
    """A served API that takes heads of 4 kB, and waits for 0.3 s between requests."""
    short = {"max_header_bytes": 4096, "body_timeout": BOUND, "idle_timeout": 0.3, "heartbeat": 0.1}
    settings = ApiSettings(_env_file=None, port=0, token_secret=SECRET, **{**short, **more})
    app = asgi_app(client, auth=auth, settings=settings)
    with listen(settings) as listening:
        server = Server(app, addresses_of(listening, console=settings.console == "on"))
        running = asyncio.create_task(server.serve([listening]))
        while not server.started:
            assert not running.done()
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        await running


@pytest.fixture
async def port(client: Client) -> AsyncIterator[int]:
    async with served(client) as port:
        yield port


@pytest.fixture
async def hasty_port(client: Client) -> AsyncIterator[int]:
    """The port of an API that waits for 0.3 s for a head."""
    async with served(client, body_timeout=0.3) as port:
        yield port


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.2)


async def one_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer."""
    async with asyncio.timeout(BOUND):
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(first.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


async def exchange(port: int, *parts: bytes) -> bytes:
    """All that the server says to ``parts``, until it closes by itself; nothing is closed from here."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    async with asyncio.timeout(BOUND):
        found = await reader.read()
    writer.close()
    return found


def problems_in(raw: bytes) -> list[dict[str, Any]]:
    """The problem documents of the answers in ``raw``."""
    return [json.loads(part.partition(b"\r\n\r\n")[2]) for part in ANSWER.split(raw) if b"problem+json" in part]


async def status(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The answer's status and all that follows, until the server closes."""
    async with asyncio.timeout(BOUND):
        first = await reader.readline()
        return int(first.split()[1]) if first else 0, await reader.read()


async def test_one_log_line_has_the_addresses(client: Client) -> None:
    """The line is logged when the server accepts requests. uvicorn logs no lines of its own."""
    with capture_logs() as lines:
        async with served(client) as port:
            logged = [*lines]
        async with served(client, console="off") as other:
            url = lines[-1]["url"]
    [line] = logged
    assert line == {
        "event": "api_listening",
        "log_level": "info",
        "url": f"http://127.0.0.1:{port}",
        "console_url": f"http://127.0.0.1:{port}/console",
    }
    assert url == f"http://127.0.0.1:{other}" and "console_url" not in lines[-1]


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
    assert code == 431 and b"application/problem+json" in rest and b"headers_too_large" in rest
    await asyncio.wait((writing,), timeout=BOUND)
    assert isinstance(writing.exception(), ConnectionError)


@pytest.mark.parametrize(("head", "code"), [(b"GET /livez HTTP/1.1\r\nX-Slow: ", 408), (b"", 0)])
async def test_a_head_that_does_not_come_is_not_waited_for(hasty_port: int, head: bytes, code: int) -> None:
    """Nor a connection on which nothing comes at all; it is closed without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty_port)
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


async def test_reader_that_left_is_noticed_behind_a_pipelined_request(port: int, client: Client) -> None:
    """A2: a request that waits behind a stream on its connection does not hide that its reader is gone."""
    body = b'{"message": "x", "run_id": "r", "on_disconnect": "cancel"}'
    head = b"POST /v1/threads/t/runs/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(BOUND):
        await reader.readuntil(b"run.queued")
        writer.close()
        assert (await client.handle("t", "r").result()).status is RunStatus.CANCELLED


def test_reader_that_takes_nothing_is_cut_off() -> None:
    """E3: what was written and not taken does not keep a connection open for ever."""
    with listen(ApiSettings(_env_file=None, port=0)) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS


@pytest.mark.parametrize(
    "after",
    [b"\r\n", b"\r\n" * 50, b"G", b"GET /livez HTTP/1.1\r\nHost: local"],
    ids=["a line", "lines", "a letter", "half a head"],
)
async def test_what_follows_an_answer_does_not_hold_the_connection(hasty_port: int, after: bytes) -> None:
    """A2: bytes that begin no request, and a second head that does not end, have the time that the first has."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty_port)
    writer.write(LIVEZ)
    assert (await one_answer(reader))[0] == 200
    writer.write(after)
    code, rest = await status(reader)
    assert (code, b"request_timeout" in rest) == ((408, True) if after[:1] == b"G" else (0, False))
    writer.close()


async def test_bytes_that_trickle_do_not_buy_time(hasty_port: int) -> None:
    """A2: a head that grows by a byte now and then is as late as one that does not grow."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty_port)
    writer.write(LIVEZ + b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ")
    assert (await one_answer(reader))[0] == 200

    async def trickle() -> None:
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    writing = asyncio.create_task(trickle())
    code, _ = await status(reader)
    assert code == 408
    writing.cancel()
    await asyncio.wait((writing,))
    writer.close()


async def test_a_body_that_nobody_reads_does_not_hold_the_connection(client: Client) -> None:
    """A2: who was refused early is told that the connection closes, and has time to read that while the body is thrown away."""
    async with served(client, auth="keys") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"Content-Length: 1000000\r\n\r\n{")
        code, headers, _ = await one_answer(reader)
        assert (code, headers["connection"]) == (401, "close")
        writer.write(b"x" * 100_000)
        async with asyncio.timeout(BOUND):
            assert await reader.read() == b""
            with pytest.raises(ConnectionError):
                while True:  # the server does not take the rest for ever
                    writer.write(b"x" * 100_000)
                    await writer.drain()
                    await asyncio.sleep(0.01)
        writer.close()


async def test_a_stream_is_not_cut_for_what_its_reader_sends_meanwhile(hasty_port: int, client: Client) -> None:
    """A2: no request is waited for while an answer is under way; what is no request is answered after it."""
    await client.enqueue("t", "x", "r")
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty_port)
    writer.write(b"GET /v1/threads/t/runs/r/stream HTTP/1.1\r\nHost: localhost\r\n\r\nGET /livez HT")
    async with asyncio.timeout(BOUND):
        await reader.readuntil(b"run.queued")
        for _ in range(10):  # comments, one every 0.1 s: more than the patience with a head
            await reader.readuntil(b": \n\n")
        writer.write(b"\0\r\n\r\n")
        for _ in range(3):
            await reader.readuntil(b": \n\n")
        await client.cancel("t", "r")
        rest = await reader.read()
    assert b"run.cancelled" in rest and [found["code"] for found in problems_in(rest)] == ["bad_request"]
    assert rest.index(b"0\r\n\r\n") < rest.index(b"HTTP/1.1 400")
    writer.close()


async def test_requests_ahead_are_bounded(port: int) -> None:
    """A2: ten thousand small requests fit into one read, and each takes memory until its turn."""
    raw = await exchange(port, LIVEZ * 5000)
    assert raw.count(b"HTTP/1.1 200") == protocol.MAX_PIPELINED + 1
    assert [found["code"] for found in problems_in(raw)] == ["bad_request"]


async def test_trailers_and_framing_are_bounded(port: int) -> None:
    """A2: what stands around a body's bytes counts like headers, and what comes after the body changes none of them."""
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    raw = await exchange(port, head + b"1\r\n{\r\n0\r\nX-Long: ", *[b"x" * 10_000] * 100)
    assert [found["code"] for found in problems_in(raw)] == ["headers_too_large"]
    raw = await exchange(port, head + b"2\r\n{}\r\n0\r\nX-Request-Id: 00000000-0000-0000-0000-000000000001\r\n\r\n")
    assert b" 201 " in raw.split(b"\r\n")[0] and b"000000000001" not in raw


async def test_chunk_extensions_are_bounded_together(port: int, client: Client) -> None:
    """A2: extensions of chunks carry nothing, so they count together, and not from one read to the next."""
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    raw = await exchange(port, head, *[b"1;" + b"x" * 5_000 + b"\r\n \r\n"] * 200, b"2\r\n{}\r\n0\r\n\r\n")
    assert [found["code"] for found in problems_in(raw)] == ["headers_too_large"]
    assert (await client.threads()).items == []


async def test_chunks_may_be_as_small_as_they_like(port: int) -> None:
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    raw = await exchange(port, head, *[b"1\r\n \r\n" * 500] * 40, b"2\r\n{}\r\n0\r\n\r\n")
    assert b" 201 " in raw.split(b"\r\n")[0]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[int]:
    """After each read, the bytes around chunks that count."""
    found: asyncio.Queue[int] = asyncio.Queue()
    take = protocol.Protocol.data_received

    def taken(self: protocol.Protocol, data: bytes) -> None:
        take(self, data)
        found.put_nowait(self._around)

    monkeypatch.setattr(protocol.Protocol, "data_received", taken)
    return found


async def test_chunks_earn_nothing_for_later_ones(port: int, reads: asyncio.Queue[int], client: Client) -> None:
    """A2: of what stands around a chunk only what that one needs does not count."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(BOUND):
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        await reads.get()
        writer.write(b"1\r\n \r\n" * 20_000 + b"1;x=" + b"y" * 100_000 + b"\r\n \r\n2\r\n{}\r\n0\r\n\r\n")
        assert b" 431 " in await reader.readline()
    writer.close()
    assert (await client.threads()).items == []


async def test_a_chunk_in_pieces_needs_no_more_than_a_whole_one(port: int, reads: asyncio.Queue[int]) -> None:
    """A2: however its bytes arrive, and however many digits its size has."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    chunk = [b"1", b"00\r", b"\n" + b" " * 200, b" " * 56 + b"\r", b"\n"]
    around = []
    async with asyncio.timeout(BOUND):
        for piece in (POST + b"Transfer-Encoding: chunked\r\n\r\n", *chunk * 3):
            writer.write(piece)
            around.append(await reads.get())
    writer.close()
    assert around[::5] == [0] * 4 and min(around) >= 0 and max(around) < 8


HOST = b"Host: localhost\r\n"
MALFORMED = {
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "the same host twice": b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "two hosts in HTTP/1.0": b"GET /livez HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    "an empty host": b"GET /livez HTTP/1.1\r\nHost:\r\n\r\n",
    "userinfo": b"GET /livez HTTP/1.1\r\nHost: user@a\r\n\r\n",
    "a space in the host": b"GET /livez HTTP/1.1\r\nHost: a b\r\n\r\n",
    "two hosts in one": b"GET /livez HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "a path in the host": b"GET /livez HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a port of letters": b"GET /livez HTTP/1.1\r\nHost: a:b\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "a signed length": POST + b"Content-Length: +2\r\n\r\n{}",
    "a negative length": POST + b"Content-Length: -2\r\n\r\n{}",
    "an endless length": POST + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another encoding": POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "another encoding in chunks": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "nearly chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /v1/threads HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk too large": POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n",
    "a chunk of letters": POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "HTTP/0.9": b"GET /livez\r\n\r\n",
    "HTTP/2.0": b"GET /livez HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a long method": b"G" * 1000 + b" /livez HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method of its own": b"FROBNICATE /livez HTTP/1.1\r\n" + HOST + b"\r\n",
    "CONNECT": b"CONNECT localhost:1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "no path": b"GET livez HTTP/1.1\r\n" + HOST + b"\r\n",
    "an absolute URL without a path": b"GET http://localhost HTTP/1.1\r\n" + HOST + b"\r\n",
    "bytes in the path": b"GET /livez\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    "a null": b"GET /livez\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "bare newlines": b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    "a folded header": b"GET /livez HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "a header without a name": b"GET /livez HTTP/1.1\r\n" + HOST + b": x\r\n\r\n",
}


async def test_bytes_that_are_no_request_get_one_problem(client: Client) -> None:
    """A2, RFC 9112: each is refused once, as a problem, and nothing behind it on the connection is taken for a request."""
    taken = []
    async with served(client) as port:
        for name, sent in MALFORMED.items():
            raw = await exchange(port, sent + LIVEZ)
            head, found = raw.partition(b"\r\n\r\n")[0].lower(), problems_in(raw)
            told = b" 400 " in head and b"connection: close" in head and len(ANSWER.findall(raw)) == 1
            if not (
                told and [(one["status"], one["code"], bool(one["detail"])) for one in found] == [(400, "bad_request", True)]
            ):
                taken.append((name, raw))
    assert taken == [] and (await client.threads()).items == []


async def test_hosts_that_are_fine(port: int) -> None:
    for host in (b"localhost:8000", b"[::1]:8000", b"api.example.org", b"xn--a_b.example", b"10.0.0.1:"):
        raw = await exchange(port, b"GET /livez HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert b" 200 " in raw.split(b"\r\n")[0], host


async def test_old_clients_need_no_host(port: int) -> None:
    """RFC 9112, 3.2: HTTP/1.0 has none."""
    assert b" 200 " in (await exchange(port, b"GET /livez HTTP/1.0\r\n\r\n")).split(b"\r\n")[0]


OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    "websocket": b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eHh4eA==\r\n",
}


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
@pytest.mark.parametrize("cut", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_an_offer_of_another_protocol_is_passed_over(
    port: int, client: Client, offer: bytes, cut: bool, chunked: bool
) -> None:
    """A2, RFC 9110 (7.8): the request is served with its body, as without the offer, and so are those behind it."""
    said = b'{"title": "mine"}'
    length = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % len(said)
    request = POST + offer + length + (b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said) if chunked else said)
    sent = request + LIVEZ[:-2] + offer + b"\r\n" + request
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for at in range(0, len(sent), 1 if cut else len(sent)):
        writer.write(sent[at : at + (1 if cut else len(sent))])
        await writer.drain()
    assert [(await one_answer(reader))[0] for _ in range(3)] == [201, 200, 201]
    assert [thread.title for thread in (await client.threads()).items] == ["mine", "mine"]
    writer.close()


async def test_an_offer_makes_a_head_no_larger(port: int) -> None:
    raw = await exchange(port, LIVEZ[:-2] + b"Connection: upgrade\r\nUpgrade: " + b"x" * 5000 + b"\r\n\r\n")
    assert [found["code"] for found in problems_in(raw)] == ["headers_too_large"]


async def test_target_that_is_no_path_is_refused_with_a_sentence(port: int) -> None:
    """Not in those of the parser."""
    for target, word in ((b"CONNECT localhost:1", "CONNECT"), (b"GET http://localhost", "path")):
        [found] = problems_in(await exchange(port, target + b" HTTP/1.1\r\n" + HOST + b"\r\n"))
        assert found["code"] == "bad_request" and word in found["detail"] and "callback" not in found["detail"]


@pytest.mark.parametrize("trailers", [b"a: b\r\n" * 1000, b"a: " + b"b" * 6000 + b"\r\n"], ids=["many", "long"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after the body"])
async def test_trailers_are_bounded(port: int, client: Client, trailers: bytes, at_once: bool) -> None:
    """A2: they count for the request, however much of it comes in the same read."""
    request, rest = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", trailers + b"\r\n"
    raw = await exchange(port, *([request + rest] if at_once else [request, rest]))
    assert [found["code"] for found in problems_in(raw)] == ["headers_too_large"] and len(ANSWER.findall(raw)) == 1
    assert (await client.threads()).items == []


async def test_trailers_count_for_one_request_each(port: int) -> None:
    request = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 500 + b"\r\n"
    raw = await exchange(port, request * 3)
    assert raw.count(b"HTTP/1.1 201 ") == 3


async def test_too_many_headers_are_refused(client: Client) -> None:
    async with served(client, max_headers=10, max_header_bytes=2**20) as port:
        raw = await exchange(port, LIVEZ[:-2] + b"a: b\r\n" * 1000 + b"\r\n")
    assert [found["code"] for found in problems_in(raw)] == ["headers_too_large"]


async def test_a_long_path_is_refused_before_it_is_read(port: int) -> None:
    """A2: one that comes in a single read as well, whoever asks."""
    raw = await exchange(port, b"GET /livez?" + b"&a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert [found["code"] for found in problems_in(raw)] == ["headers_too_large"]


async def test_connections_are_bounded(client: Client) -> None:
    """A2: beyond the bound a connection is told so at once; there is room again when others close."""
    async with served(client, max_connections=5, idle_timeout=BOUND) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for reader, writer in held:
            writer.write(LIVEZ)
            assert (await one_answer(reader))[0] == 200
        raw = await exchange(port)
        assert [(found["status"], found["code"]) for found in problems_in(raw)] == [(503, "server_busy")]
        assert b"retry-after: 1" in raw.lower()
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(BOUND):
            while b" 200 " not in await exchange(port, LIVEZ[:-2] + b"Connection: close\r\n\r\n"):
                pass


def test_connections_leave_room_for_other_files() -> None:
    """A2: a process without descriptors could not even refuse."""
    assert room_for(10_000, files=1024) == 1024 - 128
    assert room_for(10_000, files=100_000) == 10_000
    assert room_for(10_000, files=100) == 50
