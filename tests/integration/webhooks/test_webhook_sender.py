"""Where a webhook may go, and what a receiver can do to the one that calls it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
import trustme

from runyard.domain.webhooks import WebhookReply
from runyard_backends.webhooks.addresses import Network, permitted
from runyard_backends.webhooks.sender import HttpSender
from tests.support.receiver import Received, Receiver, answering

LOOPBACK: list[Network] = [ip_network("127.0.0.0/8")]
HEADERS = {"webhook-id": "msg_1", "content-type": "application/json"}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().serving() as running:
        yield running


async def send(url: str, allowed: list[Network] = LOOPBACK, timeout: float = 10.0, **options: Any) -> WebhookReply:
    sender = HttpSender(allowed, **options)
    try:
        return await sender.send(url, HEADERS, b"{}", timeout=timeout)
    finally:
        await sender.close()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "192.0.0.8", "198.18.0.1", "192.0.2.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "fec0::1", "2001:db8::1", "100::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "::7f00:1"),
        *(
            "64:ff9b::7f00:1",
            "64:ff9b:1::10.0.0.1",
            "64:ff9b:1:7f00:0:100:808:808",
            "2002:7f00:1::1",
            "2002:a00:1::",
            "2001:0:0:0:0:0:80ff:fffe",
        ),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not permitted(ip_address(address), [])


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"])
def test_addresses_that_are_public(address: str) -> None:
    assert permitted(ip_address(address), [])


def test_networks_that_were_allowed() -> None:
    allowed: list[Network] = [ip_network("10.1.0.0/16"), ip_network("fd00::/8")]
    inside = ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1")
    outside = ("10.2.0.1", "::ffff:10.2.0.1", "fe80::1", "127.0.0.1")
    assert [permitted(ip_address(address), allowed) for address in (*inside, *outside)] == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.0.0.1."),
        *(
            "localhost",
            "LOCALHOST",
            "0.0.0.0",
            "0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:0:0:1]",
        ),
    ],
)
async def test_no_notation_reaches_this_machine(host: str) -> None:
    """Whatever a name or number means to the resolver is what is judged."""
    async with Receiver().serving("127.0.0.1") as receiver:
        reply = await send(receiver.url(host=host), allowed=[])
        assert reply.status is None and receiver.received == []
        assert reply.forbidden or "not known" in (reply.error or ""), reply  # some resolvers refuse some of them


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Names → the addresses of each answer of the resolver, the last one for ever."""
    known: dict[str, list[list[str]]] = {}
    original: Callable[..., Any] = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in known:
            return original(host, port, *args, **kwargs)
        found = known[host].pop(0) if len(known[host]) > 1 else known[host][0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


async def test_sender_connects_to_the_address_that_it_checked(receiver: Receiver, names: dict[str, list[list[str]]]) -> None:
    """A name that means something else at the next look (DNS rebinding) is looked at once."""
    names["hooks.example"] = [["127.0.0.1"], ["127.0.0.9"]]
    reply = await send(receiver.url(host="hooks.example"), allowed=[ip_network("127.0.0.1/32")])
    assert reply == WebhookReply(204) and names["hooks.example"] == [["127.0.0.9"]]
    assert receiver.received[0].headers["host"] == f"hooks.example:{receiver.port}"
    refused = await send(receiver.url(host="hooks.example"), allowed=[ip_network("127.0.0.1/32")])
    assert refused.forbidden and refused.error is not None and "hooks.example" in refused.error
    assert "127.0.0.9" not in refused.error, "who made the webhook does not learn what the name means inside the network"


async def test_of_several_addresses_only_those_are_tried_that_are_permitted(
    receiver: Receiver, names: dict[str, list[list[str]]]
) -> None:
    names["hooks.example"] = [["10.255.255.1", "127.0.0.3", "127.0.0.1"]]
    assert await send(receiver.url(host="hooks.example")) == WebhookReply(204), "nobody listens at 127.0.0.3: the next one"


async def test_an_address_that_swallows_everything_leaves_time_for_the_next(
    receiver: Receiver, names: dict[str, list[list[str]]]
) -> None:
    """A full queue of connections, as a firewall that drops packets: no refusal comes."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.2", receiver.port))
        full.listen(0)
        for _ in range(4):
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        names["hooks.example"] = [["127.0.0.2", "127.0.0.1"]]
        assert await send(receiver.url(host="hooks.example"), timeout=2.0) == WebhookReply(204)


async def test_tls_proves_the_name(names: dict[str, list[list[str]]]) -> None:
    """The address is pinned; the certificate, and the name that is asked for, are those of the URL's host."""
    names["hooks.example"] = names["other.example"] = [["127.0.0.1"]]
    authority = trustme.CA()
    asked: list[str | None] = []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.sni_callback = lambda _socket, name, _context: asked.append(name)
    authority.issue_cert("hooks.example").configure_cert(server)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with Receiver().serving(tls=server) as receiver:
        assert await send(receiver.url(host="hooks.example", scheme="https"), tls=trusting) == WebhookReply(204)
        wrong = await send(receiver.url(host="other.example", scheme="https"), tls=trusting)
        untrusted = await send(receiver.url(host="hooks.example", scheme="https"))
        assert "certificate" in (wrong.error or "").lower() and "certificate" in (untrusted.error or "").lower()
        assert asked[:2] == ["hooks.example", "other.example"] and len(receiver.received) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(receiver: Receiver, status: int) -> None:
    async def elsewhere(_: Received) -> bytes:
        return answering(status, f"Location: {receiver.url('/secret')}")

    receiver.answer = elsewhere
    assert (await send(receiver.url())).status == status
    assert [request.path for request in receiver.received] == ["/hook"]


async def test_a_receiver_that_hangs(receiver: Receiver) -> None:
    async def hang(_: Received) -> bytes:
        await asyncio.Event().wait()
        return b""

    receiver.answer = hang
    reply = await send(receiver.url(), timeout=0.2)
    assert reply.status is None and "no answer within 0.2 seconds" in (reply.error or "")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"4000\r\n"
        + b"x" * 0x4000
        + b"\r\n"
        + b"4000\r\n"
        + b"x" * 0x4000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n" + b"x" * 100_000,
    ],
)
async def test_an_answer_without_end_is_not_read(receiver: Receiver, said: bytes) -> None:
    async def endless(_: Received) -> bytes:
        return said

    receiver.answer = endless
    assert (await send(receiver.url())).status == 200


@pytest.mark.parametrize("ends", [False, True])
async def test_the_status_counts_whatever_becomes_of_the_rest(receiver: Receiver, ends: bool) -> None:
    """Any 2xx is an arrival: a body that hangs or breaks off is no reason to send it again."""

    async def begin(_: Received) -> bytes:
        if ends:
            asyncio.get_running_loop().call_soon(receiver.hang_up)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nokay"

    receiver.answer = begin
    assert await send(receiver.url(), timeout=2.0) == WebhookReply(200)


@pytest.mark.parametrize(
    "said", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000]
)
async def test_bytes_that_are_no_http_response_are_an_error(receiver: Receiver, said: bytes) -> None:
    async def talk(_: Received) -> bytes:
        if not said:
            raise ConnectionResetError
        return said

    receiver.answer = talk
    reply = await send(receiver.url(), timeout=5)
    assert reply.status is None and reply.error and not reply.forbidden


async def test_address_where_nobody_listens_is_an_error(receiver: Receiver) -> None:
    assert "ConnectError" in ((await send("http://127.0.0.1:1/")).error or "")
    assert (await send("http://name.invalid/")).error


async def test_retry_after(receiver: Receiver) -> None:
    async def later(_: Received) -> bytes:
        return answering(503, "Retry-After: 120")

    receiver.answer = later
    assert await send(receiver.url()) == WebhookReply(503, retry_after=120.0)


async def test_a_connection_is_used_again(receiver: Receiver) -> None:
    sender = HttpSender(LOOPBACK)
    for _ in range(3):
        assert await sender.send(receiver.url(), HEADERS, b"{}", timeout=5) == WebhookReply(204)
    await sender.close()
    assert len(receiver.received) == 3
