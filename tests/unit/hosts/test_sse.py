"""The answers with which a program of the user streams a run (E1, E2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from typing import Any

import httpx
import pytest
from django.conf import settings as django_settings
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from runyard import App, Client, Event, Message, RunContext
from runyard.client.sync import Portal, SyncRunHandle
from runyard.errors import RunNotFoundError, RunyardError
from runyard.testing import deployment
from runyard_api.hosts import sse
from runyard_api.hosts.starlette import sse_response

if not django_settings.configured:
    django_settings.configure(DEFAULT_CHARSET="utf-8")

from django.test import RequestFactory

from runyard_api.hosts import django as for_django

app = App()


@app.agent
async def writer(ctx: RunContext) -> None:
    await ctx.stream_text("two\nlines")
    await ctx.append(Message.assistant("two\nlines"))


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with deployment(app) as client:
        yield client


def read(body: str) -> list[tuple[str, Event]]:
    """The ids and the events of a stream."""
    found = []
    for block in body.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if "event" in fields:
            event = Event.model_validate(json.loads(fields["data"]))
            assert event.type == fields["event"]
            found.append((fields.get("id", ""), event))
    return found


def served(client: Client) -> httpx.AsyncClient:
    web = FastAPI()

    @web.get("/{run}")
    async def stream(run: str, request: Request) -> Response:
        return await sse_response(client.handle("t", run), request)

    @web.exception_handler(RunyardError)
    async def refused(request: Request, error: RunyardError) -> JSONResponse:
        return JSONResponse(error.to_dict(), error.http_status)

    return httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://web")


async def test_starlette_streams_resumes_ends_and_refuses(client: Client) -> None:
    await client.enqueue("t", "go", "r")
    async with served(client) as web:
        answer = await web.get("/r")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
        events = read(answer.text)
        assert events[-1][1].type == "run.completed"
        assert "two\nlines" in "".join(str(event.data.get("text", "")) for _, event in events)
        middle = events[len(events) // 2][0]
        assert read((await web.get("/r", headers={"Last-Event-ID": middle})).text) == events[len(events) // 2 + 1 :]
        assert (await web.get("/r", headers={"Last-Event-ID": events[-1][0]})).status_code == 204
        assert (await web.get("/never")).status_code == 404, "before the answer begins"


async def test_django_async_and_sync_views_send_the_same(client: Client) -> None:
    handle = await client.enqueue("t", "go", "r")
    await handle.result(10)
    request = RequestFactory().get("/")
    answer = await for_django.sse_response(handle, request)
    body = b"".join([piece async for piece in answer]).decode()  # type: ignore[attr-defined]
    assert read(body)[-1][1].type == "run.completed" and answer["Cache-Control"] == "no-cache"
    last = RequestFactory().get("/", headers={"Last-Event-ID": read(body)[-1][0]})
    assert (await for_django.sse_response(handle, last)).status_code == 204
    with pytest.raises(RunNotFoundError):
        await for_django.sse_response(client.handle("t", "never"), request)


def test_a_sync_view_blocks_only_its_own_thread() -> None:
    portal = Portal()
    entering = deployment(app)
    try:
        client = portal.wait(entering.__aenter__())
        handle = SyncRunHandle(portal, portal.wait(client.enqueue("t", "go", "r")))
        answer = for_django.blocking_sse_response(handle, RequestFactory().get("/"))
        assert read(b"".join(answer).decode())[-1][1].type == "run.completed"  # type: ignore[call-overload]
        portal.wait(entering.__aexit__(None, None, None))
    finally:
        portal.close()


async def test_a_silent_run_sends_comments_and_a_reader_that_leaves_closes_the_source() -> None:
    closed = asyncio.Event()

    async def silent() -> AsyncGenerator[Event]:
        try:
            await asyncio.Event().wait()
            yield Event(id="1-1", type="run.started", thread_id="t", run_id="r")
        finally:
            closed.set()

    stream = sse.frames(silent(), 0.01)
    assert [await anext(stream) for _ in range(3)] == [sse.RETRY, sse.COMMENT, sse.COMMENT]
    await stream.aclose()
    assert closed.is_set()


@pytest.mark.parametrize("slow", [False, True], ids=["at-once", "slow-to-close"])
async def test_a_client_that_leaves_a_silent_run_ends_the_response_without_an_error(slow: bool) -> None:
    """E2: Starlette cancels every await of the response, also those with which the stream closes its source."""
    closed, commented = asyncio.Event(), asyncio.Event()

    async def silent() -> AsyncGenerator[Event]:
        try:
            await asyncio.Event().wait()
            yield Event(id="1-1", type="run.started", thread_id="t", run_id="r")
        finally:
            if slow:
                await asyncio.sleep(0.02)
            closed.set()

    async def receive() -> dict[str, Any]:
        await commented.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("body") == sse.COMMENT:
            commented.set()

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    async with asyncio.timeout(5):
        await StreamingResponse(sse.frames(silent(), 0.01))(scope, receive, send)
        await closed.wait()
