"""Bodies whose shape is hostile hold up nobody: no 5xx, and the event loop is never silent for long (A2).

``RUNYARD_TEST_SHAPES=10000`` tries that many; each shape in each place as large as may be is among them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final, get_args

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from runyard import Client
from runyard.formats.conversion import Format, from_blob
from runyard.models import HitlRequest, Message, ToolResultPart, new_id
from runyard.support.garbage_collector import settle
from runyard_api.http.settings import ApiSettings
from runyard_backends.postgres.backend import connect
from tests.http import shapes
from tests.http.shared_routes import asgi_app, first
from tests.support.fleet import SLACK

BODIES: Final = int(os.environ.get("RUNYARD_TEST_SHAPES", "120"))
SILENCE: Final = 0.1 * (1 + SLACK)
"""Seconds of the processor that may pass in this process without a turn of the loop. Others may use the machine meanwhile."""
TRIES: Final = 4
"""A pause of the machine is not the body's; what a body takes, it takes each time."""


class Heart:
    """Beats in the loop, and knows the longest silence."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = time.process_time()

    def beat(self) -> None:
        """A turn of the loop."""
        now = time.process_time()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        self._next = asyncio.get_running_loop().call_later(0.001, self.beat)

    def stop(self) -> None:
        """The last silence counts."""
        self._next.cancel()
        self.longest = max(self.longest, time.process_time() - self._last)


@contextmanager
def listening() -> Iterator[Heart]:
    heart = Heart()
    heart.beat()
    try:
        yield heart
    finally:
        heart.stop()


async def send(app: FastAPI, method: str, url: str, body: bytes, kind: bytes = b"application/json") -> int:
    """The status of a request, without a client that would hold up the loop itself."""
    path, _, query = url.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", kind), (b"content-length", b"%d" % len(body))],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "runyard": {},
    }
    parts = [body[at : at + 2**16] for at in range(0, len(body), 2**16)] or [b""]
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def told(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, told)
    return statuses[0]


@pytest.fixture
async def api(postgres_url: str) -> AsyncIterator[FastAPI]:
    backend = await connect(postgres_url)
    limits = ApiSettings(
        _env_file=None,
        max_wait=0.0,
        max_stream=0.01,
        requests_per_second=1e6,
        burst=10**6,
        compat=["acontext", "events", "openhands"],
    )
    client = Client(backend)
    await client.store_message("t", "x")
    await client.backend.checkpointer.save_pending_request("t", HitlRequest(request_id="q", answer_schema={"type": "string"}))
    before = gc.get_threshold()
    settle()  # as an API process does; the tests' own objects are nothing that a body could be blamed for
    yield asgi_app(client, auth="off", settings=limits)
    gc.set_threshold(*before)
    await backend.close()


@pytest.mark.timeout(3600 if BODIES > 1000 else 300)
async def test_no_shape_holds_up_the_loop(api: FastAPI) -> None:
    assert await send(api, "GET", "/v1/threads/t", b"") == 200
    silences: list[tuple[float, str]] = []
    answers: dict[int, int] = {}
    for shape, place, size, cut in shapes.drawn(BODIES, seed=11):
        method, url, _ = shapes.PLACES[place]
        body = shapes.body(shape, place, size, cut)
        best = 1e9
        for _ in range(TRIES):
            with listening() as heart:
                status = await send(api, method, url, body)
            assert status < 500, (shape, place, size, cut)
            best = min(best, heart.longest)
            if best <= SILENCE:
                break
        answers[status] = answers.get(status, 0) + 1
        silences.append((best, f"{shape} as {place}, {len(body)} bytes → {status}"))
    silences.sort(reverse=True)
    worst = "\n".join(f"{silence * 1000:.0f} ms: {words}" for silence, words in silences[:10])
    print(f"\n{answers}\n{worst}")
    assert silences[0][0] <= SILENCE, worst
    assert answers.keys() >= {201, 202, 422} or BODIES < 1000


MESSAGES: Final[dict[str, tuple[int, Message]]] = {
    "empty lists": (20, Message.tool(ToolResultPart(call_id="c", content=[[]] * 24_000))),
    "quotes": (1, Message.tool(ToolResultPart(call_id="c", content=['"' * 7_900_000]))),
    "results": (20, Message.tool(*[ToolResultPart(call_id="c", content={"a": 1})] * 2000)),
    "unknown fields": (40, from_blob("anthropic", {"role": "user", "content": "a", **{f"x{n}": n for n in range(9000)}})),
    "losses": (500, from_blob("anthropic", {"role": "user", "content": "a", **{f"x{n}": n for n in range(110)}})),
}
"""Messages of which a page is slow to convert or to send, and how many of them the page has."""


@pytest.mark.parametrize("shape", MESSAGES)
async def test_no_page_of_messages_holds_up_the_loop(api: FastAPI, postgres_url: str, shape: str) -> None:
    """A2: in each format, and without one."""
    backend = await connect(postgres_url)
    count, message = MESSAGES[shape]
    for _ in range(count):
        await Client(backend).store_message("large", message.model_copy(update={"id": new_id()}))
    await backend.close()
    silences: list[tuple[float, str | None]] = []
    native = {format: f"/v1/threads/large/messages?limit=1000&format={format}" for format in get_args(Format)}
    acontext = {f"acontext {format}": f"/api/v1/session/large/messages?format={format}" for format in ("openai", "acontext")}
    events = {"events": "/threads/large/messages?limit=1000"}
    for format, url in {None: "/v1/threads/large/messages?limit=1000", **native, **acontext, **events}.items():
        best = 1e9
        for _ in range(TRIES):
            with listening() as heart:
                assert await send(api, "GET", url, b"") == 200
            best = min(best, heart.longest)
            if best <= SILENCE:
                break
        silences.append((best, format))
    assert max(silence for silence, _ in silences) <= SILENCE, silences


def form(boundary: bytes, payload: bytes) -> bytes:
    """The body of a form with one field."""
    head = b'--%s\r\nContent-Disposition: form-data; name="payload"\r\n\r\n' % boundary
    return head + payload + b"\r\n--%s--\r\n" % boundary


FORMS: Final[dict[str, tuple[bytes, bytes]]] = {
    "starts of boundaries": (b"", form(b"a", b"\r\n--ax" * (10 * 2**20 // 6 - 100))),
    "a long text": (b"", form(b"a", b'{"format": "openai", "blob": {"role": "user", "content": "%s"}}' % (b"x" * 7_500_000))),
    "a codec": (b"; charset=punycode", form(b"a", b"x" * 200_000)),
}
"""Hostile forms: an option of their type, and the body."""


@pytest.mark.parametrize("shape", FORMS)
async def test_no_form_holds_up_the_loop(api: FastAPI, shape: str) -> None:
    """A2"""
    option, body = FORMS[shape]
    best = 1e9
    for _ in range(TRIES):
        with listening() as heart:
            status = await send(api, "POST", "/api/v1/session/t/messages", body, b"multipart/form-data; boundary=a" + option)
        assert status in (201, 400)
        best = min(best, heart.longest)
        if best <= SILENCE:
            break
    assert best <= SILENCE


def lists(schema: object, seen: set[int]) -> Iterator[dict[str, Any]]:
    """The lists of objects in a schema of pydantic. JSON of any kind is none of them: nothing in it is refused."""
    if id(schema) in seen or not isinstance(schema, dict | list | tuple):
        return
    seen.add(id(schema))
    if isinstance(schema, dict) and schema.get("type") == "list" and schema["items_schema"]["type"] != "definition-ref":
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema:
        yield from lists(inner, seen)


def test_a_list_in_a_body_is_checked_to_its_first_fault() -> None:
    """A2: pydantic makes an object for each fault that it finds."""
    found = {
        route.path: [*lists(TypeAdapter(route.body_field.field_info.annotation).core_schema, set())]
        for route in first("acontext", "events").router.routes
        if isinstance(route, APIRoute) and route.body_field
    }
    assert sum(map(len, found.values())) > 5
    assert [path for path, its in found.items() if not all(each.get("fail_fast") for each in its)] == []
