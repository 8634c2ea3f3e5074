"""Event streams over a real connection (E1 to E3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.errors import RunNotFoundError
from runyard.models import Event
from runyard.ports.commands import Write
from runyard.ports.refs import RunRef
from runyard.ports.workers import WorkerInfo
from runyard.worker.worker import Worker
from runyard_api.http import sse
from runyard_api.http.idempotency import Key
from runyard_api.http.principal import Principal
from runyard_api.http.request_models import StreamedPrompt
from runyard_api.http.routes import runs
from runyard_api.http.settings import ApiSettings
from runyard_api.http.sse import Entry
from runyard_api.http.tenant_client import caller_of
from tests.http.conftest import SECRET
from tests.http.shared_routes import asgi_app
from tests.support.api_server import Frame, frames, serving
from tests.support.fleet import until

BOUND = 60.0


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(
        _env_file=None, heartbeat=0.1, requests_per_second=1e6, burst=10**6, streams_per_key=3, token_secret=SECRET
    )


@pytest.fixture
async def live(app: FastAPI, client: Client) -> AsyncIterator[httpx.AsyncClient]:
    """A caller over a real connection."""
    _, key = await client.create_key("test", scopes=("read", "write", "respond", "admin"))
    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=BOUND) as http,
    ):
        yield http


async def whole(http: httpx.AsyncClient, method: str, path: str, **more: Any) -> list[Frame]:
    """A stream to its end, without comments."""
    async with asyncio.timeout(BOUND), http.stream(method, path, **more) as reply:
        assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
        return [frame async for frame in frames(reply) if not frame.comment]


async def test_prompt_and_stream_in_one_request(live: httpx.AsyncClient, worker: Worker) -> None:
    """E2: from the beginning to exactly one terminal event, each with its id and as JSON."""
    body = {"message": "say hello there", "run_id": "r"}
    seen = await whole(live, "POST", "/v1/threads/t/runs/stream", json=body)
    assert [frame.type for frame in seen if frame.type != "message.delta"] == [
        *("run.queued", "run.started", "message.completed", "message.started", "message.completed", "run.completed"),
    ]
    assert "".join(frame.data["data"]["text"] for frame in seen if frame.type == "message.delta") == "hello there"
    assert all((frame.id, frame.type) == (frame.data["id"], frame.data["type"]) for frame in seen)
    again = await whole(live, "POST", "/v1/threads/t/runs/stream", json=body)
    assert again == seen


async def test_resume_after_any_event(live: httpx.AsyncClient, worker: Worker) -> None:
    """E1: Last-Event-ID, in a header, goes on after that event; after the last one there is nothing more: 204."""
    seen = await whole(live, "POST", "/v1/threads/t/runs/stream", json={"message": "say a b c", "run_id": "r"})
    path = "/v1/threads/t/runs/r/stream"
    for n, frame in enumerate(seen[:-1]):
        assert await whole(live, "GET", path, headers={"Last-Event-ID": frame.id}) == seen[n + 1 :]
    assert (await live.get(path, headers={"Last-Event-ID": seen[-1].id or ""})).status_code == 204
    assert (await whole(live, "GET", path, headers={"Last-Event-ID": "nonsense"}))[0].type == "gap"


async def test_silence_is_filled_with_comments(live: httpx.AsyncClient) -> None:
    """E3: a proxy sees that the connection lives."""
    await live.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})
    comments = 0
    async with asyncio.timeout(BOUND), live.stream("GET", "/v1/threads/t/runs/r/stream") as reply:
        async for frame in frames(reply):
            comments += frame.comment
            if comments == 3:
                break


async def test_errors_come_before_the_stream(live: httpx.AsyncClient) -> None:
    for path in ("/v1/threads/t/runs/r/stream", "/v1/threads/t/stream"):
        reply = await live.get(path)
        assert (reply.status_code, reply.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("choice", "seconds", "status"), [("cancel", 600, RunStatus.CANCELLED), ("continue", 1, RunStatus.COMPLETED)]
)
async def test_reader_that_leaves_stops_the_run_only_if_asked(
    live: httpx.AsyncClient, client: Client, worker: Worker, choice: str, seconds: int, status: RunStatus
) -> None:
    body = {"message": f"say a | sleep {seconds} | say b", "run_id": "r", "on_disconnect": choice}
    async with asyncio.timeout(BOUND), live.stream("POST", "/v1/threads/t/runs/stream", json=body) as reply:
        async for frame in frames(reply):
            if frame.type == "message.delta":
                break

    async def ended() -> bool:
        return (await client.run("t", "r")).ended

    await until(ended)
    assert (await client.run("t", "r")).status is status


async def test_streams_of_a_key_are_bounded(live: httpx.AsyncClient) -> None:
    """A2: 429 with Retry-After, and room again once one is closed."""
    await live.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})
    path = "/v1/threads/t/runs/r/stream"
    async with live.stream("GET", path), live.stream("GET", path):
        async with live.stream("GET", path):
            refused = await live.get(path)
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            assert refused.headers["retry-after"] == "1"

        async def room() -> bool:
            async with live.stream("GET", path) as reply:
                return reply.status_code == 200

        await until(room)


async def test_request_that_waits_for_a_run_counts_as_a_stream(live: httpx.AsyncClient, client: Client) -> None:
    """A2: a request that is held open is as dear as a stream; refused, it has accepted nothing."""
    await live.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})
    path = "/v1/threads/t/runs/r/stream"
    async with live.stream("GET", path), live.stream("GET", path), live.stream("GET", path):
        assert (await live.get("/v1/threads/t/runs/r/wait?wait=0")).status_code == 429
        for new in ("runs/wait", "fork_once"):
            assert (await live.post(f"/v1/threads/t/{new}?wait=0", json={"message": "y"})).status_code == 429
        assert (await live.post("/v1/threads/t/fork_many?wait=0", json={"messages": ["y"]})).status_code == 429
    assert [run.run_id for run in (await client.runs()).items] == ["r"]


async def test_waits_are_bounded_exactly(live: httpx.AsyncClient, app: FastAPI, client: Client) -> None:
    """A2: with as many waits as a key may have, the next one is refused before anything is accepted. A wait that is over gives
    its place back, whether its run stopped (200) or goes on (202)."""
    rates = app.state.service.rates

    async def held(many: int) -> bool:
        return sum(rates._streams.values()) == many

    async def wait(thread: str, seconds: float = 5.0) -> httpx.Response:
        return await live.post(f"/v1/threads/{thread}/runs/wait?wait={seconds}", json={"message": "x", "run_id": "r"})

    waits = [asyncio.create_task(wait(f"t{n}")) for n in range(3)]
    await until(lambda: held(3))
    for refused in (await wait("late"), await wait("late", 0.0), await live.get("/v1/threads/t0/runs/r/wait")):
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert not [run for run in (await client.runs()).items if run.thread_id == "late"]
    await client.cancel("t0", "r")
    assert (await waits[0]).status_code == 200
    assert (await wait("late", 0.0)).status_code == 202
    assert (await wait("late", 0.01)).status_code == 202
    for n in (1, 2):
        await client.cancel(f"t{n}", "r")
        assert (await waits[n]).status_code == 200
    assert await held(0)


async def test_prompt_whose_stream_is_refused_is_not_accepted(live: httpx.AsyncClient, client: Client) -> None:
    """A2, R2: after a 429 the same prompt may be sent again, also without a run id."""
    await live.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})
    path = "/v1/threads/t/runs/r/stream"
    async with live.stream("GET", path), live.stream("GET", path), live.stream("GET", path):
        refused = await live.post("/v1/threads/t/runs/stream", json={"message": "y"})
        assert refused.status_code == 429
    assert [run.run_id for run in (await client.runs()).items] == ["r"]


async def test_a_prompt_that_is_refused_takes_no_room(live: httpx.AsyncClient) -> None:
    """A2: nor does one whose stream is over."""
    for _ in range(5):
        assert (await live.post("/v1/threads/t/runs/stream", json={"message": None})).status_code == 409
    await live.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})
    async with live.stream("GET", "/v1/threads/t/runs/r/stream") as reply:
        assert reply.status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_reader_without_room_reads_nothing_from_the_store(live: httpx.AsyncClient, client: Client, method: str) -> None:
    """A2: the slot is taken before the thread and the run are looked up."""
    await live.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})
    path = "/v1/threads/t/runs/r/stream"
    async with live.stream("GET", path), live.stream("GET", path), live.stream("GET", path):
        for unknown in ("/v1/threads/none/stream", "/v1/threads/t/runs/none/stream"):
            assert (await live.request(method, unknown)).status_code == 429
            assert (await live.request(method, unknown, headers={"Last-Event-ID": "1-1"})).status_code == 429


async def test_head_of_a_stream_makes_no_cursor_and_takes_no_room(
    live: httpx.AsyncClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2: nor do streams that do not begin."""

    async def cursor(self: Client, thread_id: str) -> str:
        raise AssertionError("a HEAD needs no cursor")

    monkeypatch.setattr(Client, "thread_cursor", cursor)
    await live.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})
    await live.post("/v1/threads/t/runs/r/cancel")
    end = (await live.get("/v1/threads/t/runs/r")).json()["event_id"]
    for _ in range(5):
        for path in ("/v1/threads/t/stream", "/v1/threads/t/runs/r/stream"):
            reply = await live.head(path)
            assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (await live.head("/v1/threads/none/stream")).status_code == 404
        assert (await live.get("/v1/threads/t/runs/none/stream")).status_code == 404
        assert (await live.get("/v1/threads/t/runs/r/stream", headers={"Last-Event-ID": end})).status_code == 204
    assert not app.state.service.rates._streams


@pytest.mark.parametrize("by_token", [False, True])
async def test_a_stream_ends_with_its_key(live: httpx.AsyncClient, app: FastAPI, client: Client, by_token: bool) -> None:
    """A1: what was opened before the key was revoked does not stay open."""
    await live.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})
    made = (await live.post("/v1/stream_tokens", json={"thread_id": "t"})).json()
    async with httpx.AsyncClient(base_url=live.base_url, timeout=BOUND) as browser, asyncio.timeout(BOUND):
        reader, query = (browser, {"token": made["token"]}) if by_token else (live, {})
        async with reader.stream("GET", "/v1/threads/t/stream", params=query) as reply:
            async for frame in frames(reply):
                if frame.comment:
                    [key] = await client.keys()
                    await client.revoke_key(key.key_id)
                    app.state.service.gate.forget()
        assert (await reader.get("/v1/threads/t/stream", params=query)).status_code == 401


class Reader:
    """An ASGI client of a stream that takes so much and no more, and leaves when it is told to."""

    def __init__(self, takes: int = 10**9) -> None:
        self.takes, self.left, self.started = takes, asyncio.Event(), asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.takes -= 1
        if message["type"] == "http.response.body":
            self.started.set()
        if self.takes < 0:
            await asyncio.Event().wait()


async def silence() -> AsyncGenerator[Entry]:
    await asyncio.Event().wait()
    yield Entry(None, Event(id=None, type="gap", thread_id="t", run_id="r"))


async def test_reader_that_stalls_is_dropped(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: a reader that stalls is dropped, and its run cancelled where that was asked for."""
    monkeypatch.setattr(sse, "STALLED_SECONDS", 0.05)
    cancelled = asyncio.Event()

    async def cancel() -> None:
        cancelled.set()

    service, reader = app.state.service, Reader(takes=1)
    seat = sse.StreamSlot(service.streams, service.rates.stream("k"), lambda: asyncio.sleep(0, True))
    with pytest.raises(TimeoutError):
        await sse.EventStream(silence(), seat, on_left=cancel)({"type": "http"}, reader.receive, reader.send)
    assert cancelled.is_set()


async def test_no_comment_comes_within_an_event() -> None:
    """E3: a large event goes out piece by piece, and its reader may take its time for each."""
    large = Event(id="1-1", type="message.delta", thread_id="t", run_id="r", data={"text": "x" * (3 * sse.PIECE_BYTES)})
    sent: list[bytes] = []

    async def one() -> AsyncGenerator[Entry]:
        yield Entry("1-1", large)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        await asyncio.sleep(0.01 if len(sent[-1]) == sse.PIECE_BYTES else 0)  # longer than the heartbeat

    seat = sse.StreamSlot(sse.Streams(0.002, 10), nullcontext(), lambda: asyncio.sleep(0, True))
    await sse.EventStream(one(), seat)({"type": "http"}, Reader().receive, send)
    assert max(map(len, sent)) == sse.PIECE_BYTES
    events = b"".join(sent).replace(sse.COMMENT, b"").removeprefix(sse.RETRY)
    assert events == b"id: 1-1\nevent: message.delta\ndata: " + large.to_json() + b"\n\n"
    assert b"".join(sent).count(large.to_json()) == 1


async def test_a_stream_with_much_to_say_lets_others_have_their_turn(app: FastAPI) -> None:
    """A2: entries that are all there wait for nothing, so nothing else would run until the last one is sent."""

    async def much() -> AsyncGenerator[Entry]:
        for n in range(1, 301):
            yield Entry(None, Event(id=f"1-{n}", type="message.delta", thread_id="t", run_id="r", data={"text": "x" * 5000}))

    service, reader, turns = app.state.service, Reader(), 0
    seat = sse.StreamSlot(service.streams, service.rates.stream("k"), lambda: asyncio.sleep(0, True))
    streaming = asyncio.create_task(sse.EventStream(much(), seat)({"type": "http"}, reader.receive, reader.send))
    async with asyncio.timeout(BOUND):
        while not streaming.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns > 300 * 5000 / (2 * sse.TURN_BYTES)


async def test_reader_that_leaves_as_the_run_ends_is_no_failure(app: FastAPI, client: Client) -> None:
    """R10: there is nothing to cancel any more, and that is no failed request."""
    caller = await caller_of(Principal("", frozenset({"write"}), "k"), app.state.service, "")
    body = StreamedPrompt(message="x", run_id="r", on_disconnect="cancel")
    response, reader = await runs.stream_new_run(caller, "t", body, Key(None, "")), Reader()
    running = asyncio.create_task(response({"type": "http"}, reader.receive, reader.send))
    await reader.started.wait()
    await client.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    key = await client.backend.threads.thread_key("t")
    assert key is not None
    [claim] = await client.backend.runs.claim("w", [RunRef(key, "r")])
    assert claim.attempt is not None
    await client.backend.runs.complete([Write(attempt=claim.attempt)])
    reader.left.set()
    async with asyncio.timeout(BOUND):
        await running
    assert (await client.run("t", "r")).status is RunStatus.COMPLETED


STARTED: tuple[str, dict[str, Any]] = ("run.started", {"attempt": 1})
SUSPENDED: tuple[str, dict[str, Any]] = ("run.suspended", {"status": "suspended", "request_ids": ["q"]})
RESUMED: tuple[str, dict[str, Any]] = ("run.resumed", {"attempt": 1, "message_id": None})


@pytest.mark.parametrize(("events", "times"), [((STARTED, SUSPENDED), 0), ((STARTED, SUSPENDED, RESUMED), 1)])
async def test_reader_that_leaves_a_run_that_went_on_cancels_it(events: Any, times: int) -> None:
    """H5, R10: a run that was answered before its stream ended goes on in it, and is cancelled. A run that waits is not."""
    sent, reader, cancelled = asyncio.Event(), Reader(), list[str]()

    async def entries() -> AsyncGenerator[Entry]:
        for n, (kind, data) in enumerate(events, 1):
            yield Entry(None, Event(id=f"1-{n}", type=kind, thread_id="t", run_id="r", data=data))
        sent.set()
        await asyncio.Event().wait()

    async def cancel() -> None:
        cancelled.append("r")

    seat = sse.StreamSlot(sse.Streams(BOUND, BOUND), nullcontext(), lambda: asyncio.sleep(0, True))
    stream = sse.EventStream(entries(), seat, on_left=cancel)
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        group.create_task(stream({"type": "http"}, reader.receive, reader.send))
        await sent.wait()
        reader.left.set()
    assert len(cancelled) == times


async def test_the_stream_of_a_thread_carries_all_its_runs(live: httpx.AsyncClient, worker: Worker) -> None:
    """E3: runs that come and go, in order and once each; and from any cursor on."""
    await live.post("/v1/threads/t/runs/wait", json={"message": "say before", "run_id": "r0"})
    seen: list[Frame] = []
    async with asyncio.timeout(BOUND), live.stream("GET", "/v1/threads/t/stream") as reply:
        await enqueue(live, "r1", "say one", parallel=True)
        await enqueue(live, "r2", "tool add 1 2 | color?")
        async for frame in frames(reply):
            if frame.comment:
                continue
            seen.append(frame)
            if frame.type == "run.suspended":
                await live.post("/v1/threads/t/respond", json={"answer": "blue"})
            if {f.data["run_id"] for f in seen if f.type == "run.completed"} == {"r1", "r2"}:
                break
    for run_id in ("r1", "r2"):
        own = [frame.data for frame in seen if frame.data["run_id"] == run_id]
        assert own == [frame.data for frame in await whole(live, "GET", f"/v1/threads/t/runs/{run_id}/stream")]
    assert {frame.data["run_id"] for frame in seen} == {"r1", "r2"}
    middle = next(n for n, frame in enumerate(seen) if frame.type == "run.suspended")
    expected = [frame.data for frame in seen[middle + 1 :]]
    resumed: list[Any] = []
    headers = {"Last-Event-ID": seen[middle].id or ""}
    async with asyncio.timeout(BOUND), live.stream("GET", "/v1/threads/t/stream", headers=headers) as reply:
        async for frame in frames(reply):
            if not frame.comment:
                resumed.append(frame.data)
            if len(resumed) == len(expected):
                break
    assert sorted(resumed, key=str) == sorted(expected, key=str)


async def enqueue(http: httpx.AsyncClient, run_id: str, message: str, **more: Any) -> None:
    reply = await http.post("/v1/threads/t/runs", json={"message": message, "run_id": run_id, **more})
    assert reply.status_code == 202


async def test_a_foreign_cursor_is_a_gap(live: httpx.AsyncClient) -> None:
    await live.post("/v1/threads", json={"thread_id": "t"})
    async with asyncio.timeout(BOUND), live.stream("GET", "/v1/threads/t/stream", headers={"Last-Event-ID": "7-1"}) as reply:
        async for frame in frames(reply):
            assert frame.type == "gap" and frame.id is not None
            break


async def test_closing_the_server_ends_streams_at_once(client: Client, settings: ApiSettings) -> None:
    """Readers come back elsewhere: the stream ends without a terminal event, and the run goes on."""
    app = asgi_app(client, auth="off", settings=settings)
    await client.enqueue("t", "x", "r")
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=BOUND) as http:
        async with asyncio.timeout(BOUND), http.stream("GET", "/v1/threads/t/runs/r/stream") as reply:
            types = []
            async for frame in frames(reply):
                types.append(frame.type)
                app.state.service.streams.close()
        assert "run.queued" in types and not {"run.completed", "run.cancelled"} & set(types)
    assert (await client.run("t", "r")).status is RunStatus.QUEUED
    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=url, timeout=BOUND) as http,
        http.stream("GET", "/v1/threads/t/runs/r/stream") as reply,
    ):
        assert (await anext(frames(reply))).type == "run.queued"


async def test_an_inherited_run_after_its_thread_was_replaced(live: httpx.AsyncClient, client: Client, worker: Worker) -> None:
    """E1: A fork waits for a run that it inherited, and streams it. It never does so with a run of the same name."""
    await (await client.enqueue("t", "say old", "r")).result(BOUND)
    await client.fork("t", "fork", after_run_id="r")
    stream, wait, timeline = (f"/v1/threads/fork/runs/r/{what}" for what in ("stream", "wait", "timeline"))
    handle = client.handle("fork", "r")
    assert [event.type async for event in handle.stream()][-1] == (await whole(live, "GET", stream))[-1].type == "run.completed"
    assert (await handle.result(BOUND)).text == "old" and "old" in (await live.get(wait)).text

    async def refused() -> None:
        for path in (stream, wait):
            reply = await live.get(path)
            assert reply.status_code == 404 and "which was deleted" in reply.json()["detail"], path
        with pytest.raises(RunNotFoundError, match="which was deleted"):
            await handle.result(BOUND)
        with pytest.raises(RunNotFoundError, match="which was deleted"):
            await anext(handle.stream())
        assert (await live.get(timeline)).json()["answer"] == "old"

    await client.delete_thread("t")
    await refused()
    await (await client.enqueue("t", "say secret", "r")).result(BOUND)
    await refused()


async def test_a_token_opens_one_stream(live: httpx.AsyncClient, app: FastAPI, client: Client, worker: Worker) -> None:
    """A1: for EventSource, which sends no headers: this run's stream, nothing else, until it expires or its key is revoked."""
    await live.post("/v1/threads/t/runs/wait", json={"message": "say a", "run_id": "r"})
    await live.post("/v1/threads/u/runs/wait", json={"message": "say a", "run_id": "r"})
    made = (await live.post("/v1/stream_tokens", json={"thread_id": "t", "run_id": "r"})).json()
    query = {"token": made["token"]}
    async with httpx.AsyncClient(base_url=live.base_url, timeout=BOUND) as browser:
        assert (await whole(browser, "GET", "/v1/threads/t/runs/r/stream", params=query))[-1].type == "run.completed"
        for path in ("/v1/threads/u/runs/r/stream", "/v1/threads/t/stream", "/v1/threads/t/runs/r", "/v1/threads"):
            assert (await browser.get(path, params=query)).status_code == 403, path
        assert (await browser.post("/v1/threads/t/runs", params=query, json={"message": "x"})).status_code == 403
        forged = made["token"][:-4] + "AAAA"
        for token in (forged, "x", "a.b", "", "é.é", made["token"].split(".")[0] + "."):
            assert (await browser.get("/v1/threads/t/runs/r/stream", params={"token": token})).status_code == 401
        short = (await live.post("/v1/stream_tokens", json={"thread_id": "t", "lifetime": 0.001})).json()
        expired = await browser.get("/v1/threads/t/stream", params={"token": short["token"]})
        assert expired.status_code == 401
        [key] = await client.keys()
        await client.revoke_key(key.key_id)
        app.state.service.gate.forget()
        assert (await browser.get("/v1/threads/t/runs/r/stream", params=query)).status_code == 401
