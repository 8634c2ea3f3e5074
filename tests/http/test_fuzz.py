"""Bodies that nobody would send: the answer is a problem or a success, never a 5xx (A2).

``RUNYARD_TEST_BODIES=10000`` tries that many.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import resource
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runyard import Client
from runyard_api.http.document import operations
from runyard_api.http.settings import ApiSettings
from runyard_backends.postgres.backend import connect
from tests.http.conftest import transport
from tests.http.shared_routes import asgi_app, first

BODIES = int(os.environ.get("RUNYARD_TEST_BODIES", "150"))
GROWTH = 10 * 2**20
"""Bytes by which the process may grow while all bodies are sent once more."""
MISSING = 501
"""What a route answers that needs something which is not set up here: the secret of webhooks."""

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**40), max_value=10**40),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["t", "r", "\0", "\ud800", "\u2028", "", " ", "x" * 256, "00000000-0000-7000-8000-000000000000", "NaN"]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12
)


def fields(app: FastAPI) -> dict[tuple[str, str], list[str]]:
    """Per operation with a body, the names of its fields."""
    document = app.openapi()
    found = {}
    for method, path, op in operations(document):
        if "requestBody" in op:
            schema = op["requestBody"]["content"]["application/json"]["schema"]
            for part in [schema, *schema.get("anyOf", ())]:
                if name := part.get("$ref", "").rpartition("/")[2]:
                    found[method.upper(), path] = list(document["components"]["schemas"][name]["properties"])
    return found


COMPAT = ("acontext", "events", "openhands")
OPERATIONS = fields(first(*COMPAT))
FIELDS = sorted({name for names in OPERATIONS.values() for name in names})


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()  # NaN, Infinity and lone surrogates included


objects = st.one_of(
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=6),
    st.sampled_from(sorted(OPERATIONS)).flatmap(
        lambda operation: st.fixed_dictionaries({}, optional=dict.fromkeys(OPERATIONS[operation], values))
    ),
)
bodies = st.one_of(objects.map(encoded), values.map(encoded), st.binary(max_size=200))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """hypothesis drives many examples through one loop, with its connections."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def http(loop: asyncio.Runner, module_postgres_url: str) -> Iterator[httpx.AsyncClient]:
    """The API over Postgres, whose driver is the pickier one."""

    async def go() -> AsyncIterator[httpx.AsyncClient]:
        backend = await connect(module_postgres_url)
        limits = ApiSettings(
            _env_file=None, max_wait=0.0, max_stream=0.01, requests_per_second=1e6, burst=10**6, compat=list(COMPAT)
        )
        app = asgi_app(Client(backend), auth="off", settings=limits)
        async with httpx.AsyncClient(transport=transport(app), base_url="http://localhost") as made:
            await made.post("/v1/threads/t/messages", json={"message": "x"})
            yield made
        await backend.close()

    making = go()
    yield loop.run(anext(making))  # type: ignore[arg-type]
    loop.run(anext(making, None))  # type: ignore[arg-type]


def memory() -> int:
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def filled(path: str, **ids: str) -> str:
    """The path with ids in the place of their names."""
    return path.format_map(defaultdict(lambda: "none", {"thread_id": "t", "run_id": "r", "request_id": "q"} | ids))


@pytest.mark.timeout(1500 if BODIES > 1000 else 300)
def test_no_body_is_a_5xx(loop: asyncio.Runner, http: httpx.AsyncClient) -> None:
    """And memory is stable: hypothesis remembers what it tried, so growth is measured while that is sent again."""
    tried: list[tuple[str, str, bytes]] = []

    def ask(method: str, url: str, body: bytes) -> httpx.Response:
        return loop.run(http.request(method, url, content=body, headers={"Content-Type": "application/json"}))

    @settings(
        max_examples=BODIES, deadline=None, phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck)
    )
    @given(st.sampled_from(sorted(OPERATIONS)), bodies)
    def send(operation: tuple[str, str], body: bytes) -> None:
        method, path = operation
        tried.append((method, filled(path), body))
        reply = ask(*tried[-1])
        assert reply.status_code < 500 or reply.status_code == MISSING, (operation, body, reply.text)
        if reply.status_code >= 400:
            kind, words = ("json", "msg") if path.startswith("/api/v1/") else ("problem+json", "detail")
            assert reply.headers["content-type"] == f"application/{kind}" and reply.json()[words]

    send()
    before = memory()
    for request in tried:
        ask(*request)
    assert memory() - before < GROWTH


def test_no_query_is_a_5xx(loop: asyncio.Runner, http: httpx.AsyncClient) -> None:
    """Cursors, filters and ids of any text; cursors that are JSON of the wrong shape among them."""
    paths = sorted({(m, p) for m, p, _ in operations(first(*COMPAT).openapi()) if m == "get"})
    names = (
        *("cursor", "limit", "leaf_id", "other", "agent", "status", "since", "before", "tag", "wait", "order", "thread_id"),
        *("user", "filter_by_configs"),
    )
    cursors = values.map(encoded).map(lambda text: base64.urlsafe_b64encode(text).decode())
    texts = st.one_of(st.text(st.characters(codec="utf-8"), max_size=20), cursors, st.integers().map(str))

    @settings(max_examples=BODIES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(paths), st.dictionaries(st.sampled_from(names), texts, max_size=3), st.one_of(st.just("t"), texts))
    def ask(operation: tuple[str, str], query: dict[str, str], thread_id: str) -> None:
        url = filled(operation[1], thread_id=quote(thread_id, safe="") or "t")
        reply = loop.run(http.get(url, params=query))
        assert reply.status_code < 500 or reply.status_code == MISSING, (url, query, reply.text)

    ask()
