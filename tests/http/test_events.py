"""Threads as event logs, request by request: forks by event number, merged histories, and what callers may try."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI

from runyard import Client
from runyard.models import Message, TextPart, ToolCallPart
from runyard.worker.worker import Worker
from runyard_api.http.document import operations
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import SECRET, Caller, ask
from tests.http.shared_routes import asgi_app, first
from tests.support.agents.remembering import app as remembering
from tests.support.event_log import DEPTH, create, fork, history, items, nested, send


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(
        _env_file=None,
        requests_per_second=1e6,
        burst=10**6,
        token_secret=SECRET,
        failure_burst=10**6,
        compat=["events"],
    )


@pytest.fixture
async def worker(client: Client) -> AsyncIterator[Worker]:
    """A worker that serves the agent that remembers."""
    serving = Worker(remembering, client.backend, grace=1)
    running = asyncio.create_task(serving.run())
    await serving.started.wait()
    yield serving
    serving.stop()
    await running


def refused(reply: httpx.Response, status: int, code: str) -> str:
    """The words of a problem document."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json" and reply.json()["code"] == code, reply.text
    return str(reply.json()["detail"])


async def stored(client: Client, thread: str, count: int) -> list[Message]:
    """A thread with the events 1 to ``count``, written without a run."""
    return [await client.store_message(thread, f"E{n}") for n in range(1, count + 1)]


async def test_a_branch_at_event_9_remembers_what_its_parent_was_told(http: httpx.AsyncClient, worker: Worker) -> None:
    """B4, B6, F1, F8: the walk-through of a fork at event 9."""
    thread = await create(http, title="main")
    assert await send(http, thread, "I am devansh") == "You said 1 things."
    for n in range(2, 7):
        assert await send(http, thread, f"thing {n}") == f"You said {n} things."
    whole = await history(http, thread)
    assert [number for number, _ in whole] == list(range(1, 13))

    branch = await fork(http, thread, 9)
    assert branch.startswith("branch-")
    assert await history(http, branch) == whole[:9]
    assert (await http.get(f"/threads/{branch}/head")).json()["event_number"] == 9
    assert await send(http, branch, "what is my name") == "You are devansh."

    found = await items(http, f"/threads/{branch}/messages")
    numbers = [each["event_number"] for each in found]
    assert numbers == sorted(set(numbers)) and numbers[:9] == list(range(1, 10))
    assert [each["content"] for each in found[9:]] == ["what is my name", "You are devansh."]
    assert await history(http, thread) == whole
    [listed] = await items(http, f"/threads/{thread}/branches")
    assert (listed["thread_id"], listed["from_event_number"]) == (branch, 9)


async def test_a_branch_does_not_know_what_its_parent_was_told_later(http: httpx.AsyncClient, worker: Worker) -> None:
    """F1, F8: neither before the fork, after its event, nor after the fork."""
    thread = await create(http)
    await send(http, thread, "hello")
    await send(http, thread, "I am devansh")
    branch = await fork(http, thread, 2)
    await send(http, thread, "I am eve")
    assert await send(http, branch, "what is my name") == "You did not say."
    assert await send(http, thread, "what is my name") == "You are eve."


async def test_nested_forks_remember_at_any_depth(http: httpx.AsyncClient, worker: Worker) -> None:
    """B6, F8: 20 forks, each of the one before it, in the middle of what that one was told."""
    *path, last = await nested(http, DEPTH)
    numbers = [number for number, _ in await history(http, last)]
    assert numbers == sorted(set(numbers)) and len(numbers) == 2 * (DEPTH + 1) + 2
    assert [text for _, text in await history(http, last)][2:-2:2] == [f"level {n}" for n in range(1, DEPTH + 1)]
    for parent, child in zip(path, [*path[1:], last], strict=True):
        assert [each["thread_id"] for each in await items(http, f"/threads/{parent}/branches")] == [child]
    assert await items(http, f"/threads/{last}/branches") == []


async def test_any_event_of_a_merged_history_can_be_forked(http: httpx.AsyncClient, client: Client) -> None:
    """F6: also an inherited one. A fork of a fork shows no more than its source."""
    await stored(client, "t", 6)
    one = await fork(http, "t", 4)
    await client.store_message(one, "own")
    whole = await history(http, one)
    assert [text for _, text in whole] == ["E1", "E2", "E3", "E4", "own"] and whole[4][0] > 6
    for n, (number, _) in enumerate(whole, 1):
        assert await history(http, await fork(http, one, number)) == whole[:n]
    for hidden in (5, 6, whole[4][0] + 1):
        reply = await http.post("/commands/fork-thread", json={"source_thread_id": one, "event_number": hidden})
        refused(reply, 404, "message_not_found")


@pytest.mark.parametrize("order", ["oldest_first", "newest_first"])
async def test_pages_drop_and_repeat_nothing(http: httpx.AsyncClient, client: Client, order: str) -> None:
    """B2: through a fork."""
    await stored(client, "t", 7)
    branch = await fork(http, "t", 5)
    for n in range(3):
        await client.store_message(branch, f"own {n}")
    whole = await history(http, branch)
    assert len(whole) == 8
    paged = await history(http, branch, limit=3, order=order)
    assert paged == (whole if order == "oldest_first" else whole[::-1])
    threads = [await fork(http, "t", 1) for _ in range(4)]
    listed = [each["thread_id"] for each in await items(http, "/threads/t/branches", limit=2)]
    assert listed == [branch, *threads]
    assert [each["thread_id"] for each in await items(http, "/threads", limit=2)] == ["t", branch, *threads]


async def test_a_head_may_be_inherited_or_missing(http: httpx.AsyncClient, client: Client) -> None:
    thread = await create(http)
    assert (await http.get(f"/threads/{thread}/head")).json() == {"thread_id": thread, "event_number": None, "message": None}
    await stored(client, thread, 3)
    branch = await fork(http, thread, 2)
    head = (await http.get(f"/threads/{branch}/head")).json()
    assert (head["event_number"], head["message"]["content"]) == (2, "E2")
    await client.store_message(branch, "own")
    head = (await http.get(f"/threads/{branch}/head")).json()
    assert head["message"]["content"] == "own" and head["event_number"] == (await history(http, branch))[-1][0] > 3


async def test_content_that_is_more_than_text_is_parts(http: httpx.AsyncClient, client: Client) -> None:
    """Nothing of a message is dropped: a picture in, a tool call out."""
    thread = await create(http)
    await client.store_message(
        thread, Message.assistant([TextPart(text="see"), ToolCallPart(id="c", name="look", arguments={"at": 1})])
    )
    await client.store_message(thread, Message.user("", metadata={"n": 1}))
    call, empty = await items(http, f"/threads/{thread}/messages")
    assert call["content"] == [
        {"type": "text", "text": "see"},
        {"type": "tool_call", "id": "c", "name": "look", "arguments": {"at": 1}},
    ]
    assert (empty["content"], empty["metadata"]) == ("", {"n": 1})
    parts = [{"type": "text", "text": "a cat?"}, {"type": "image", "data": "aGk=", "media_type": "image/png"}]
    reply = await http.post("/commands/send-message", json={"thread_id": await create(http), "content": parts})
    assert reply.status_code == 202, reply.text
    sent = reply.json()["input"]["content"]
    assert [{name: part[name] for name in given} for part, given in zip(sent, parts, strict=True)] == parts


async def test_a_fork_inside_a_tool_cycle_is_refused(http: httpx.AsyncClient, client: Client) -> None:
    """F6: with the nearest events at which the thread can be forked."""
    await stored(client, "t", 1)
    await client.store_message("t", Message.assistant([ToolCallPart(id="c", name="look")]))
    reply = await http.post("/commands/fork-thread", json={"source_thread_id": "t", "event_number": 2})
    refused(reply, 409, "fork_boundary")


async def test_commands_may_be_repeated(http: httpx.AsyncClient, client: Client) -> None:
    """R2, F4: by an id in the body, or by an Idempotency-Key; something else under the id is a conflict."""
    await stored(client, "t", 3)
    cases: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str, int]] = [
        ("create-thread", {"title": "a"}, {"title": "b"}, {"thread_id": "new"}, "thread_already_exists", 201),
        ("send-message", {"thread_id": "t", "content": "a"}, {"content": "b"}, {"run_id": "r"}, "run_conflict", 202),
        (
            *("fork-thread", {"source_thread_id": "t", "event_number": 1}, {"event_number": 2}, {"thread_id": "child"}),
            *("thread_already_exists", 201),
        ),
    ]
    for name, body, other, id_, code, status in cases:
        for given, headers in ((id_, {}), ({}, {"Idempotency-Key": "once"})):
            one, two = [await http.post(f"/commands/{name}", json={**body, **given}, headers=headers) for _ in range(2)]
            assert (one.status_code, two.status_code) == (status, 200), (one.text, two.text)
            assert one.headers["location"] == two.headers["location"] and one.json() == two.json()
            refused(await http.post(f"/commands/{name}", json={**body, **given, **other}, headers=headers), 409, code)
            assert (await http.get(one.headers["location"])).status_code == 200
        plain = [(await http.post(f"/commands/{name}", json=body)).headers["location"] for _ in range(2)]
        assert len({*plain, one.headers["location"]}) == 3
    assert len(await items(http, "/threads/t/branches")) == 4
    bare = await http.post("/commands/create-thread")
    assert bare.status_code == 201


async def test_ids_of_other_operations_are_not_reached_by_a_key(http: httpx.AsyncClient) -> None:
    """The same Idempotency-Key for a native and for this command makes two threads."""
    headers = {"Idempotency-Key": "k"}
    one = await http.post("/v1/threads", json={}, headers=headers)
    two = await http.post("/commands/create-thread", json={}, headers=headers)
    assert (one.status_code, two.status_code) == (201, 201)
    assert one.json()["thread_id"] != two.json()["thread_id"]


async def test_a_command_makes_no_thread(http: httpx.AsyncClient) -> None:
    refused(await http.post("/commands/send-message", json={"thread_id": "none", "content": "x"}), 404, "thread_not_found")
    body = {"source_thread_id": "none", "event_number": 1}
    refused(await http.post("/commands/fork-thread", json=body), 404, "thread_not_found")
    for name in ("messages", "branches", "head"):
        refused(await http.get(f"/threads/none/{name}"), 404, "thread_not_found")
    assert await items(http, "/threads") == []


async def test_the_turn_under_way_is_shown_with_its_status(http: httpx.AsyncClient, client: Client) -> None:
    """B2: and a branch at an event of it does not see what comes later."""
    await ask(client, "t", "r1")
    [message] = await items(http, "/threads/t/messages")
    assert (message["run_id"], message["run_status"], message["event_number"]) == ("r1", "suspended", 1)
    assert [number for number, _ in await history(http, await fork(http, "t", 1))] == [1]


async def test_a_fork_at_an_event_of_an_unsuccessful_run(http: httpx.AsyncClient, client: Client) -> None:
    """F6: it is in no history, and a branch at it shows it."""
    await client.store_message("t", "before")
    await ask(client, "t", "r1")
    await client.cancel("t", "r1")
    assert [number for number, _ in await history(http, "t")] == [1]
    assert [text for _, text in await history(http, await fork(http, "t", 2))] == ["before", "x"]


async def test_a_deleted_parent_leaves_its_branches_their_history(http: httpx.AsyncClient, client: Client) -> None:
    """F8; and the branches of the deleted thread are none of a new thread with its id."""
    await stored(client, "t", 3)
    branch = await fork(http, "t", 2)
    await client.delete_thread("t")
    assert [text for _, text in await history(http, branch)] == ["E1", "E2"]
    refused(await http.get("/threads/t/branches"), 404, "thread_not_found")
    assert await create(http, thread_id="t") == "t"
    assert await items(http, "/threads/t/branches") == []


async def test_threads_under_any_id(http: httpx.AsyncClient, client: Client) -> None:
    for id, path in (("a/b", "a%2Fb"), ("50%", "50%25"), ("ä b", "%C3%A4%20b"), ("..x", "..x"), ("head", "head")):
        await stored(client, id, 2)
        branch = await fork(http, id, 1, thread_id=f"{id}/1")
        assert [text for _, text in await history(http, path)] == ["E1", "E2"]
        assert [each["thread_id"] for each in await items(http, f"/threads/{path}/branches")] == [branch]
        assert (await http.get(f"/threads/{path}/head")).json()["thread_id"] == id
    for path, status in (("%00", 400), ("%FF", 400), ("%2E%2E", 422), ("x" * 300, 422), ("a%0Ab", 422), ("x/y", 404)):
        for suffix in ("/messages", "/branches", "/head"):
            reply = await http.get(f"/threads/{path}{suffix}")
            assert (reply.status_code, "code" in reply.json()) == (status, True), (path, reply.text)


async def test_hostile_commands(http: httpx.AsyncClient, client: Client) -> None:
    """A2: nothing is made, and no answer is a 5xx."""
    await stored(client, "t", 2)
    fork_, sent = {"source_thread_id": "t", "event_number": 1}, {"thread_id": "t", "content": "x"}
    ids: tuple[Any, ...] = ("", ".", "..", "\0", "a\nb", "x" * 256, 5, [], {}, True, "\ud800")
    numbers: tuple[Any, ...] = (0, -1, 2**63, 10**40, 1.0, 1.5, "1", True, None, [1], {}, 1e308)
    contents: tuple[Any, ...] = (
        *(None, 5, {}, [5], [{"type": "text"}], [{"type": "video", "text": "x"}], {"role": "user", "content": "x"}, "\ud800"),
        *([{"type": "text", "text": "x", "more": 1}], [{"type": "text", "text": "x"}] * 2001),
    )
    bodies: list[tuple[str, Any]] = [
        *(("create-thread", {"thread_id": id}) for id in ids),
        *(("create-thread", body) for body in ([], 5, {"id": "x"}, {"title": 5}, {"tags": {"": "x"}}, {"extra": []})),
        *(("send-message", {**sent, "thread_id": id}) for id in (*ids, None)),
        *(("send-message", {**sent, "run_id": id}) for id in ids),
        *(("send-message", {**sent, "content": content}) for content in contents),
        *(
            ("send-message", body)
            for body in (None, [], {}, {"thread_id": "t"}, {**sent, "role": "system"}, {**sent, "agent": "x"})
        ),
        *(("fork-thread", {**fork_, "source_thread_id": id}) for id in (*ids, None)),
        *(("fork-thread", {**fork_, "thread_id": id}) for id in ids),
        *(("fork-thread", {**fork_, "event_number": number}) for number in numbers),
        *(("fork-thread", body) for body in (None, [], {}, {**fork_, "repair": True}, {**fork_, "title": "\ud800"})),
    ]
    json_ = {"Content-Type": "application/json"}
    for name, body in bodies:
        reply = await http.post(f"/commands/{name}", content=json.dumps(body).encode(), headers=json_)
        assert reply.status_code in (400, 422), (name, body, reply.text)
        assert reply.headers["content-type"] == "application/problem+json"
    for content in (b"{", b"", b"\xff", b"[" * 500, b'{"thread_id": "t", "content": "x", "content": 1}'):
        reply = await http.post("/commands/send-message", content=content, headers=json_)
        assert reply.status_code in (400, 422), (content, reply.text)
    plain = await http.post("/commands/send-message", content=b"{}", headers={"Content-Type": "text/plain"})
    refused(plain, 415, "unsupported_media_type")
    large = await http.post("/commands/send-message", content=b"x" * (11 * 2**20), headers=json_)
    refused(large, 413, "request_too_large")
    long = await http.post("/commands/send-message", json={**sent, "content": "x" * (9 * 2**20)})
    refused(long, 413, "message_too_large")
    refused(await http.get("/commands/send-message"), 405, "method_not_allowed")
    refused(await http.post("/commands/delete-thread", json={}), 404, "route_not_found")
    assert [each["thread_id"] for each in await items(http, "/threads")] == ["t"]
    assert (await client.runs("t")).items == []


async def test_hostile_pages(http: httpx.AsyncClient, client: Client) -> None:
    """A2: limits out of bounds, cursors that were made up or are of another list, unknown parameters."""
    await stored(client, "t", 3)
    for _ in range(2):
        await fork(http, "t", 1)
    cursors = {
        path: (await http.get(path, params={"limit": 1})).json()["next"]
        for path in ("/threads", "/threads/t/branches", "/threads/t/messages")
    }
    for path in cursors:
        for limit in ("0", "-1", "1001", "9" * 30, "1.5", "x", ""):
            refused(await http.get(path, params={"limit": limit}), 422, "invalid_request")
        for cursor in ("x", "AAAA", "\u2028", base64.b64encode(b'{"a":1}').decode()):
            refused(await http.get(path, params={"cursor": cursor}), 400, "invalid_cursor")
        refused(await http.get(path, params={"cursor": "x" * 5000}), 422, "invalid_request")
        refused(await http.get(path, params={"parent_thread_id": "t"}), 422, "invalid_request")
        refused(await http.get(f"{path}?limit=1&limit=2"), 422, "invalid_request")
    refused(await http.get("/threads/t/messages", params={"cursor": cursors["/threads"]}), 400, "invalid_cursor")
    refused(await http.get("/threads/t/branches", params={"cursor": cursors["/threads/t/messages"]}), 400, "invalid_cursor")
    refused(await http.get("/threads/t/messages", params={"order": "random"}), 422, "invalid_request")
    refused(await http.get("/threads/t/head", params={"leaf_id": "x"}), 422, "invalid_request")


async def test_a_history_that_is_known_is_not_sent_again(http: httpx.AsyncClient, client: Client) -> None:
    await stored(client, "t", 2)
    reply = await http.get("/threads/t/messages")
    known = {"If-None-Match": reply.headers["etag"]}
    assert (await http.get("/threads/t/messages", headers=known)).status_code == 304
    await client.store_message("t", "more")
    assert (await http.get("/threads/t/messages", headers=known)).status_code == 200


BODIES: Final[dict[str, Any]] = {
    "events_create_thread": {},
    "events_send_message": {"thread_id": "secret-thread", "content": "x"},
    "events_fork_thread": {"source_thread_id": "secret-thread", "event_number": 1, "thread_id": "mine"},
}


def routes(app: FastAPI) -> Iterator[tuple[str, str, str, Any]]:
    """Operation, method, path and description of each route of the tag."""
    for method, path, described in operations(app.openapi()):
        if described["tags"] == ["events"]:
            yield described["operationId"], method.upper(), path, described


async def test_a1_another_tenant_finds_nothing(app: FastAPI, http: httpx.AsyncClient, caller: Caller, client: Client) -> None:
    await stored(client, "secret-thread", 3)
    branch = await fork(http, "secret-thread", 2, thread_id="secret-branch")
    before = [await history(http, thread) for thread in ("secret-thread", branch)]
    other = await caller(tenant="other")
    tested = 0
    for name, method, path, _ in routes(app):
        reply = await other.request(method, path.format(thread_id="secret-thread"), json=BODIES.get(name))
        if "{" in path or name in ("events_send_message", "events_fork_thread"):
            refused(reply, 404, "thread_not_found")
        elif name == "events_list_threads":
            assert "secret" not in reply.text
        tested += 1
    assert tested == 7
    own = await create(other, thread_id="secret-thread")
    assert await history(other, own) == [] and await items(other, "/threads/secret-thread/branches") == []
    with_cursor = (await http.get("/threads/secret-thread/messages", params={"limit": 1})).json()["next"]
    reply = await other.get("/threads/secret-thread/messages", params={"cursor": with_cursor})
    assert reply.status_code in (200, 400) and "E2" not in reply.text
    assert before == [await history(http, thread) for thread in ("secret-thread", branch)]


async def test_a1_every_route_needs_its_scope(app: FastAPI, caller: Caller, client: Client) -> None:
    await stored(client, "secret-thread", 1)
    weak = {scope: await caller(scopes=tuple({"read", "write", "respond"} - {scope})) for scope in ("read", "write")}
    stranger, reader = await caller(key=None), await caller(scopes=("read",))
    token = (await reader.post("/v1/stream_tokens", json={"thread_id": "secret-thread"})).json()["token"]
    for name, method, path, described in routes(app):
        url, body = path.format(thread_id="secret-thread"), BODIES.get(name)
        scope = "read" if method == "GET" else "write"
        assert described["security"][0]["apiKey"] == [scope]
        refused(await weak[scope].request(method, url, json=body), 403, "forbidden")
        refused(await stranger.request(method, url, json=body), 401, "unauthenticated")
        refused(await stranger.request(method, url, params={"token": token}, json=body), 403, "forbidden")
    refused(await reader.post("/commands/create-thread", content=b"{"), 403, "forbidden")


async def test_a2_rates_count_here_too(client: Client, settings: ApiSettings) -> None:
    app = asgi_app(client, settings=settings.model_copy(update={"requests_per_second": 0.01, "burst": 2}))
    _, key = await client.create_key("k")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://api", headers={"Authorization": f"Bearer {key}"}
    ) as http:
        replies = [await http.get("/threads") for _ in range(3)]
    refused(replies[2], 429, "rate_limited")
    assert int(replies[2].headers["retry-after"]) >= 1


def test_the_document_has_it_only_if_it_is_mounted(app: FastAPI) -> None:
    """Off by default, and nothing else changes."""
    plain, mounted = first().openapi(), app.openapi()
    assert "events" not in {tag["name"] for tag in plain["tags"]}
    [tag] = [tag for tag in mounted["tags"] if tag not in plain["tags"]]
    assert tag["name"] == "events" and "seq" in tag["description"]
    assert set(mounted["paths"]) - set(plain["paths"]) == {
        *("/commands/create-thread", "/commands/send-message", "/commands/fork-thread", "/threads"),
        *(f"/threads/{{thread_id}}/{name}" for name in ("messages", "branches", "head")),
    }
    assert plain["components"]["schemas"].items() <= mounted["components"]["schemas"].items()
    for _, _, path, described in routes(app):
        assert {"400", "401", "403", "413", "422", "429", "503"} <= described["responses"].keys(), path


async def test_without_the_setting_the_paths_are_unknown(client: Client) -> None:
    app = asgi_app(client, auth="keys", settings=ApiSettings(_env_file=None, token_secret=SECRET))
    _, key = await client.create_key("k")
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api", headers=headers) as http:
        for method, path in (("GET", "/threads"), ("GET", "/threads/t/head"), ("POST", "/commands/create-thread")):
            refused(await http.request(method, path), 404, "route_not_found")


async def test_errors_of_each_mounted_api_have_its_shape(client: Client) -> None:
    """Beside Acontext's envelope, problem documents stay problem documents, whatever the order of the names."""
    for names in (["events", "acontext"], ["acontext", "events"]):
        app = asgi_app(client, auth="keys", settings=ApiSettings(_env_file=None, token_secret=SECRET, compat=names))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api") as http:
            refused(await http.get("/threads"), 401, "unauthenticated")
            refused(await http.get("/v1/threads"), 401, "unauthenticated")
            reply = await http.get("/api/v1/session")
            assert (reply.status_code, reply.json()["error"]) == (401, "unauthenticated")
