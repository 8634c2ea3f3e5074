"""An API over the memory backend, and callers with keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from runyard import Client
from runyard.domain.api_keys import Scope
from runyard.models import HitlRequest
from runyard.ports.commands import Write
from runyard.ports.refs import RunRef
from runyard.ports.workers import WorkerInfo
from runyard.testing.scripted_agent import app as scripted
from runyard.worker.worker import Worker
from runyard_api.http.settings import ApiSettings
from runyard_api.http.sse import Entry
from runyard_backends.memory import MemoryWorld, connect
from tests.http.conformity import Documented
from tests.http.shared_routes import asgi_app, first
from tests.support.api_server import serving
from tests.support.fault_proxy import FaultProxy

BOUND: Final = 60.0
"""Seconds that anything may take."""

SECRET: Final = "0123456789abcdef" * 2
"""Signs stream tokens."""

Caller: TypeAlias = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
def settings() -> ApiSettings:
    """No limits that a test could meet by accident; tests replace what they are about."""
    return ApiSettings(
        _env_file=None, requests_per_second=1e6, burst=10**6, max_wait=5.0, token_secret=SECRET, failure_burst=10**6
    )


@pytest.fixture
async def world() -> MemoryWorld:
    """The database behind the API."""
    return MemoryWorld()


@pytest.fixture
async def client(world: MemoryWorld) -> Client:
    """A direct client of the default tenant."""
    return Client(await connect(world=world))


@pytest.fixture(autouse=True)
def every_event_is_documented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a stream of the test sends is of the document's shape."""
    frame = Entry.frame
    sent: list[bytes] = []

    def overheard(entry: Entry) -> Iterator[bytes]:
        sent.append(b"".join(frame(entry)).partition(b"data: ")[2])
        return frame(entry)

    monkeypatch.setattr(Entry, "frame", overheard)
    yield
    for data in sent:
        said_of_the_api().check_event(data)


@pytest.fixture
def app(client: Client, settings: ApiSettings) -> FastAPI:
    """The API with API keys."""
    return asgi_app(client, auth="keys", settings=settings)


@cache
def said_of_the_api(*compat: str) -> Documented:
    """The document of the API with these compatible APIs, made once: no other setting changes it."""
    return Documented(first(*compat).openapi())


def transport(app: Any) -> httpx.ASGITransport:
    return httpx.ASGITransport(app=app)


@pytest.fixture
async def caller(app: FastAPI, world: MemoryWorld, settings: ApiSettings) -> AsyncIterator[Caller]:
    """Makes HTTP clients: ``await caller(tenant="t", scopes=("read",))``; ``key=None``: without one.

    The headers of every answer are held against the document."""
    said = said_of_the_api(*settings.compat)

    async def documented(response: httpx.Response) -> None:
        said.check_headers(response)

    async with AsyncExitStack() as stack:

        async def make(
            tenant: str = "",
            scopes: tuple[Scope, ...] = ("read", "write", "respond", "admin"),
            key: str | None = "",
            lifetime: float | None = None,
        ) -> httpx.AsyncClient:
            if key == "":
                owner = Client(await connect(world=world, tenant=tenant))
                _, key = await owner.create_key("test", scopes=scopes, lifetime=lifetime)
            headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
            hooks: Any = {"response": [documented]}
            http = httpx.AsyncClient(transport=transport(app), base_url="http://api", headers=headers, event_hooks=hooks)
            return await stack.enter_async_context(http)

        yield make


@pytest.fixture
async def http(caller: Caller) -> httpx.AsyncClient:
    """A caller of the default tenant with every scope."""
    return await caller()


@pytest.fixture
async def worker(client: Client) -> AsyncIterator[Worker]:
    """A worker that serves the scripted agent."""
    serving = Worker(scripted, client.backend, grace=1)
    running = asyncio.create_task(serving.run())
    await serving.started.wait()
    yield serving
    serving.stop()
    await running


@pytest.fixture
async def key(client: Client) -> str:
    """A key of the default tenant."""
    return (await client.create_key("test", scopes=("admin",)))[1]


@pytest.fixture
async def remote(app: FastAPI, key: str) -> AsyncIterator[Client]:
    """The API's client, over no network."""
    async with Client.connect("http://api", api_key=key, transport=transport(app)) as remote:
        yield remote


@pytest.fixture
async def proxy(app: FastAPI) -> AsyncIterator[FaultProxy]:
    """A served API behind a wire that breaks when it is told to."""
    async with serving(app) as url:
        port = urlsplit(url).port
        assert port is not None
        async with FaultProxy("127.0.0.1", port) as proxy:
            yield proxy


@pytest.fixture
async def far(proxy: FaultProxy, key: str) -> AsyncIterator[Client]:
    """A client over that wire."""
    async with Client.connect(f"http://127.0.0.1:{proxy.port}", api_key=key, timeout=BOUND) as far:
        yield far


async def ask(client: Client, thread_id: str, run_id: str, agent: str | None = None) -> str:
    """A run that waits for an answer in words; the request's id."""
    await client.enqueue(thread_id, "x", run_id, agent=agent)
    key = await client.backend.threads.thread_key(thread_id)
    assert key is not None
    await client.backend.workers.register(WorkerInfo(worker_id=f"w-{thread_id}", queues=["default"]))
    [claim] = await client.backend.runs.claim(f"w-{thread_id}", [RunRef(key, run_id)])
    assert claim.attempt is not None
    request = HitlRequest(payload={"question": "color?"}, answer_schema={"type": "string"})
    await client.backend.runs.suspend(Write(attempt=claim.attempt), [request])
    return request.request_id
