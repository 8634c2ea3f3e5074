"""What comes in is bounded, and whatever it is, the answer is a clear 4xx (A2)."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import resource
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from runyard import Client
from runyard.domain.size_limits import MAX_NESTING
from runyard.errors import RequestError
from runyard.models import HitlRequest, JsonObject, JsonValue
from runyard_api.http.app import ROUTERS
from runyard_api.http.paths import check_text
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import SECRET, Caller, transport
from tests.http.shared_routes import asgi_app
from tests.support.api_server import serving

PROMPT = "/v1/threads/t/runs"
JSON = {"Content-Type": "application/json"}


def problem(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = reply.json()
    assert (found["code"], found["status"], found["type"]) == (code, status, f"urn:runyard:problem:{code}")
    assert found["instance"] == f"urn:uuid:{reply.headers['x-request-id']}"
    return found


HOSTILE: dict[str, tuple[bytes, int, str]] = {
    "deep lists": (b'{"message": "x", "metadata": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", 422, "invalid_request"),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 422, "invalid_request"),
    "unclosed": (b"[" * 1_000_000, 422, "invalid_request"),
    "NUL in text": (b'{"message": "a\\u0000b", "metadata": {"k": "\\u0000"}}', 400, "invalid_input"),
    "NUL in an id": (b'{"message": "x", "run_id": "a\\u0000b"}', 422, "invalid_request"),
    "lone surrogate": (b'{"message": "a\\ud800b"}', 422, "invalid_request"),
    "raw surrogate": (b'{"message": "a\xed\xa0\x80b"}', 422, "invalid_request"),
    "invalid UTF-8": (b'{"message": "\xff\xfe"}', 422, "invalid_request"),
    "UTF-16": ('{"message": "x"}'.encode("utf-16"), 422, "invalid_request"),
    "huge integer": (b'{"message": "x", "max_attempts": ' + b"9" * 5_000 + b"}", 422, "invalid_request"),
    "integer beyond the store": (b'{"message": "x", "metadata": {"n": ' + b"9" * 10_000 + b"}}", 422, "invalid_request"),
    "huge exponent": (b'{"message": "x", "delay": 1e999}', 422, "invalid_request"),
    "NaN": (b'{"message": "x", "metadata": {"n": NaN}}', 422, "invalid_request"),
    "infinite metadata": (b'{"message": "x", "metadata": {"n": 1e999}}', 422, "invalid_request"),
    "not an object": (b'"x"', 422, "invalid_request"),
    "null": (b"null", 422, "invalid_request"),
    "no JSON": (b"message=x", 422, "invalid_request"),
    "unknown field": (b'{"message": "x", "mesage": "y"}', 422, "invalid_request"),
    "unknown part": (b'{"message": {"content": [{"type": "video"}]}}', 422, "invalid_request"),
    "unknown field of a part": (b'{"message": {"content": [{"type": "text", "text": "x", "y": 1}]}}', 422, "invalid_request"),
    "date without zone": (b'{"message": "x", "run_at": "2030-01-01T00:00:00"}', 422, "invalid_request"),
    "two due times": (b'{"message": "x", "run_at": "2030-01-01T00:00:00Z", "delay": 1}', 400, "invalid_input"),
    "message id": (b'{"message": {"id": "nope", "content": "x"}}', 400, "invalid_input"),
    "long id": (b'{"message": "x", "run_id": "' + b"x" * 256 + b'"}', 422, "invalid_request"),
    "nothing to say": (b'{"message": null}', 409, "nothing_to_run"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bodies(http: httpx.AsyncClient, client: Client, name: str) -> None:
    body, status, code = HOSTILE[name]
    found = problem(await http.post(PROMPT, content=body, headers=JSON), status, code)
    assert found["detail"] and len(found["detail"]) < 2000
    assert (await client.runs()).items == []


async def test_fields_are_named_by_pointer(http: httpx.AsyncClient) -> None:
    body = {"message": {"content": [{"type": "text", "text": 7}]}, "priority": "urgent", "metadata": {}}
    found = problem(await http.post(PROMPT, json=body), 422, "invalid_request")
    pointers = {(error["location"], error["pointer"]) for error in found["errors"]}
    assert pointers == {("body", "/message/content/0/text"), ("body", "/priority")}
    missing = problem(await http.post(PROMPT, json={"message": {"role": "user"}}), 422, "invalid_request")
    assert [error["pointer"] for error in missing["errors"]] == ["/message/content"]
    assert missing["detail"].startswith("/message/content: ")
    query = problem(await http.get("/v1/runs?limit=0"), 422, "invalid_request")
    assert query["errors"] == [
        {"location": "query", "pointer": "limit", "message": "Input should be greater than or equal to 1"}
    ]


@pytest.mark.parametrize("thread_id", ["a%0Ab", "%7F", "x" * 256, "%E2%80%A8"])
async def test_ids_in_paths_are_checked(http: httpx.AsyncClient, thread_id: str) -> None:
    found = problem(await http.get(f"/v1/threads/{thread_id}"), 422, "invalid_request")
    assert found["errors"][0]["pointer"] == "thread_id"


async def test_bodies_are_bounded(client: Client) -> None:
    """413 from the declared length, without reading; and while reading, where none is declared."""
    app = asgi_app(client, auth="off", settings=ApiSettings(_env_file=None, max_body=1000))
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 100
            yield b" " * 100

    async with httpx.AsyncClient(transport=transport(app), base_url="http://localhost") as http:
        found = problem(await http.post(PROMPT, content=b" " * 50 * 2**20, headers=JSON), 413, "request_too_large")
        assert found["details"] == {"most": 1000}
        problem(await http.post(PROMPT, content=endless(), headers=JSON), 413, "request_too_large")
        assert taken < 2000
        problem(await http.post(PROMPT, content=b"x", headers={**JSON, "X-Large": "x" * 40_000}), 431, "headers_too_large")
        problem(await http.get(f"/v1/threads?{'tag=a:b&' * 5000}"), 431, "headers_too_large")
        many = [(f"X-{n}", "x") for n in range(200)]
        problem(await http.get("/v1/threads", headers=many), 431, "headers_too_large")


async def test_caller_without_the_scope_is_refused_before_its_body_is_read(caller: Caller) -> None:
    """A1: what a body costs, only those can cause who may send it; without a key nothing of it is even taken."""
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b" "

    http = await caller(scopes=("read",))
    for method, url in (
        ("POST", PROMPT),
        ("POST", "/v1/threads"),
        ("PATCH", "/v1/threads/t"),
        ("POST", "/v1/requests/q/respond"),
    ):
        problem(await http.request(method, url, content=b"{", headers=JSON), 403, "forbidden")
        problem(await (await caller(key=None)).request(method, url, content=endless(), headers=JSON), 401, "unauthenticated")
    problem(await http.post("/v1/stream_tokens", content=b"{", headers=JSON), 422, "invalid_request")
    assert taken == 0


async def test_bodies_in_flight_of_one_key_are_bounded(client: Client) -> None:
    """A2: bodies that wait, for their end or for their answer, do not add up; another key is not concerned."""
    app = asgi_app(client, settings=ApiSettings(_env_file=None, max_body=1000, bodies_per_key=1000, token_secret=SECRET))
    keys = [(await client.create_key("k"))[1] for _ in range(2)]
    begun, rest = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"message": "' + b"x" * 600
        begun.set()
        await rest.wait()
        yield b'"}'

    async with httpx.AsyncClient(transport=transport(app), base_url="http://api") as http:
        own, other = ({**JSON, "Authorization": f"Bearer {key}"} for key in keys)
        slow = asyncio.create_task(http.post(PROMPT, content=slowly(), headers=own))
        await begun.wait()
        refused = await http.post(PROMPT, json={"message": "x" * 600}, headers=own)
        problem(refused, 429, "rate_limited")
        assert refused.headers["retry-after"] == "1"
        assert (await http.post(PROMPT, json={"message": "x"}, headers=own)).status_code == 202
        assert (await http.post(PROMPT, json={"message": "x" * 600}, headers=other)).status_code == 202
        rest.set()
        assert (await slow).status_code == 202
        assert (await http.post(PROMPT, json={"message": "x" * 600}, headers=own)).status_code == 202


async def test_a_slow_sender_is_cut(client: Client) -> None:
    app = asgi_app(client, auth="off", settings=ApiSettings(_env_file=None, body_timeout=0.2))
    async with serving(app) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {PROMPT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"mess')
        async with asyncio.timeout(20):
            status = await reader.readline()
        assert b" 408 " in status
        writer.close()


async def test_fifty_megabytes_over_a_connection(client: Client) -> None:
    app = asgi_app(client, auth="off", settings=ApiSettings(_env_file=None))
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        try:
            reply = await http.post(PROMPT, content=b" " * 50 * 2**20, headers=JSON)
        except httpx.WriteError:
            return  # the server answered and closed before all was sent
        problem(reply, 413, "request_too_large")


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the rates stands still, as on a machine that is quick enough."""
    monkeypatch.setattr("runyard_api.http.rates.time", SimpleNamespace(monotonic=lambda: 1000.0))


@pytest.mark.usefixtures("no_time_passes")
async def test_requests_per_second_of_a_key(client: Client) -> None:
    """429 and Retry-After; another key is not concerned."""
    app = asgi_app(client, settings=ApiSettings(_env_file=None, requests_per_second=0.5, burst=3, token_secret=SECRET))
    for _ in range(2):
        _, key = await client.create_key("k")
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport(app), base_url="http://api", headers=headers) as http:
            passed = [await http.get("/v1/threads") for _ in range(3)]
            assert [reply.status_code for reply in passed] == [200] * 3
            assert [rate(reply) for reply in passed] == [("2", "2"), ("1", "4"), ("0", "2")]
            refused = await http.get("/v1/threads")
            problem(refused, 429, "rate_limited")
            assert rate(refused) == ("0", refused.headers["retry-after"]) == ("0", "2")
    async with httpx.AsyncClient(transport=transport(app), base_url="http://api") as nobody:
        assert "ratelimit" not in (await nobody.get("/v1/threads")).headers


def rate(reply: httpx.Response) -> tuple[str, str]:
    """How many requests are left, and when there are more, as the answer says."""
    assert reply.headers["ratelimit-policy"] == '"key";q=3;w=6'
    found = re.fullmatch(r'"key";r=(\d+);t=(\d+)', reply.headers["ratelimit"])
    assert found is not None
    return found[1], found[2]


def flood(before: str, unit: str, after: str) -> bytes:
    """A body that is nearly as large as may be, with as many faults as it holds."""
    units = (unit.replace("#", f"{n:07}") for n in range((10 * 2**20 - 1000) // len(unit.replace("#", "0000000"))))
    return f"{before}{''.join(units)}{after}".encode()


FLOODS: dict[str, tuple[str, str, str, str]] = {
    "parts of a message": (PROMPT, '{"message": {"content": [', "0,", "0]}}"),
    "fields": (PROMPT, '{"message": "x"', ',"#":0', "}"),
    "fields of a part": (PROMPT, '{"message": {"content": [{"type": "text", "text": "x"', ',"#":0', "}]}}"),
    "fields of a policy": (PROMPT, '{"message": "x", "retry": {"errors": {"a": {"initial": 1', ',"#":0', "}}}}"),
    "policies": (PROMPT, '{"message": "x", "retry": {"errors": {"a": 0', ',"#":0', "}}}"),
    "tags": ("/v1/threads", '{"tags": {"a": 0', ',"#":0', "}}"),
    "candidates": ("/v1/threads/t/fork_many", '{"messages": [', "0,", "0]}"),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_million_faults_are_one(http: httpx.AsyncClient, name: str) -> None:
    """A2: each fault takes memory to describe; a body has room for more of them than a machine has memory."""
    path, *text = FLOODS[name]
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = problem(await http.post(path, content=flood(*text), headers=JSON), 422, "invalid_request")
    assert len(found["errors"]) <= 50
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 300 * 2**20


@pytest.mark.parametrize("field", ["metadata", "message"])
async def test_values_are_counted(http: httpx.AsyncClient, client: Client, field: str) -> None:
    """A2: millions of values would hold up everybody; a long text with as many commas does not."""
    text = "0," * 1_000_000
    if field == "metadata":
        body = f'{{"message": "x", "metadata": {{"a": [{{"b": [{text}0]}}]}}}}'.encode()
        found = problem(await http.post(PROMPT, content=body, headers=JSON), 422, "invalid_request")
        assert "values" in found["detail"] and (await client.runs()).items == []
    else:
        assert (await http.post(PROMPT, json={"message": text})).status_code == 202


@pytest.mark.usefixtures("no_time_passes")
async def test_retry_after_is_long_enough(client: Client) -> None:
    """A2: whole seconds, rounded up: whoever waits so long is not refused again."""
    app = asgi_app(client, auth="off", settings=ApiSettings(_env_file=None, requests_per_second=0.75, burst=1))
    async with httpx.AsyncClient(transport=transport(app), base_url="http://localhost") as http:
        assert (await http.get("/v1/threads")).status_code == 200
        assert (await http.get("/v1/threads")).headers["retry-after"] == "2"


async def test_a_body_must_be_json(http: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        problem(
            await http.post(PROMPT, content=b'{"message": "x"}', headers={"Content-Type": kind}), 415, "unsupported_media_type"
        )
    reply = await http.post(PROMPT, content=b'{"message": "x"}', headers={"Content-Type": "application/json; charset=utf-8"})
    assert reply.status_code == 202


async def test_paths_and_methods(http: httpx.AsyncClient) -> None:
    problem(await http.get("/v1/nothing"), 404, "route_not_found")
    refused = await http.put("/v1/threads/t")
    problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "DELETE, GET, HEAD, PATCH"
    problem(await http.post("/v1/threads/"), 404, "route_not_found")


async def test_body_nested_too_deep_is_refused(http: httpx.AsyncClient) -> None:
    """As everywhere: 100 levels are taken, 101 are not."""
    deepest: JsonObject = {}
    for _ in range(MAX_NESTING - 1):
        deepest = {"k": deepest}
    for status, value in ((400, {"k": deepest}), (201, deepest)):
        for n, field in enumerate(("extra", "config")):
            reply = await http.post("/v1/threads", json={"thread_id": f"t{n}", field: value})
            assert reply.status_code == status, reply.text
    found = problem(await http.patch("/v1/threads/t0", json={"extra": {"k": deepest}}), 400, "invalid_input")
    assert found["details"] == {"field": "extra", "most": MAX_NESTING}
    assert (await http.patch("/v1/threads/t0", json={"extra": deepest})).status_code == 200
    problem(await http.post(PROMPT, json={"message": "x", "metadata": {"k": deepest}}), 400, "invalid_input")
    problem(await http.post("/v1/threads/t0/fork", json={"at_seq": 0, "metadata": deepest}), 400, "invalid_input")


async def test_an_answer_nested_too_deep_is_refused(http: httpx.AsyncClient, client: Client) -> None:
    """H3: the question still waits."""
    await client.backend.checkpointer.save_pending_request("t", HitlRequest(request_id="q"))
    answer: JsonValue = None
    for _ in range(MAX_NESTING + 1):
        answer = [answer]
    for path in ("threads/t", "requests/q"):
        problem(await http.post(f"/v1/{path}/respond", json={"answer": answer}), 400, "invalid_input")
    assert (await client.requests()).items[0].answer is None


async def test_message_too_large_and_full_queues(http: httpx.AsyncClient, client: Client) -> None:
    """R16 through HTTP: 413 and 429 with Retry-After."""
    await client.set_limit("message_bytes", 100)
    problem(await http.post(PROMPT, json={"message": "x" * 200}), 413, "message_too_large")
    await client.set_limit("queued_per_lane", 1)
    assert (await http.post(PROMPT, json={"message": "x"})).status_code == 202
    full = await http.post(PROMPT, json={"message": "x"})
    problem(full, 429, "queue_full")
    assert full.headers["retry-after"] == "1"


async def test_pages_are_bounded(client: Client) -> None:
    app = asgi_app(client, auth="off", settings=ApiSettings(_env_file=None, max_page=10))
    for n in range(12):
        await client.create_thread(f"t{n}")
    async with httpx.AsyncClient(transport=transport(app), base_url="http://localhost") as http:
        first = (await http.get("/v1/threads?limit=11")).json()
        rest = (await http.get("/v1/threads", params={"limit": 11, "cursor": first["next"]})).json()
        assert (len(first["items"]), len(rest["items"]), rest["next"]) == (10, 2, None)
        problem(await http.get("/v1/threads?limit=1001"), 422, "invalid_request")


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"ry_\xe9", b"Bearer " + b"\x80" * 50])
async def test_odd_bytes_in_headers(app: FastAPI, caller: Caller, raw: bytes) -> None:
    http = await caller()
    for name in (b"authorization", b"last-event-id", b"if-none-match", b"x-request-id", b"traceparent", b"content-type"):
        reply = await http.post(PROMPT, content=b'{"message": "x"}', headers=[(name, raw)])
        assert 200 <= reply.status_code < 500, (name, reply.text)


async def test_a_defect_is_one_problem_and_tells_nothing(
    http: httpx.AsyncClient, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret of the server")

    monkeypatch.setattr(client.backend.threads.__class__, "thread", broken)
    reply = await http.get("/v1/threads/t")
    problem(reply, 500, "internal_error")
    assert "secret" not in reply.text and json.loads(reply.text)["detail"]


@pytest.mark.parametrize("id", ["%FF", "%FE", "%C0%AE", "%ED%A0%80", "%F4%90%80%80", "a%00b"])
async def test_path_that_is_no_utf8_is_refused(http: httpx.AsyncClient, client: Client, id: str) -> None:
    """A2: bytes that decode to nothing, or to nothing else than other bytes do, name no thread; nor do they in a query."""
    for path in (f"/v1/threads/{id}/runs", f"/v1/threads/t/runs/{id}/cancel", f"/v1/requests/{id}/respond"):
        problem(await http.post(raw(http, path), json={"message": "x"}), 400, "bad_request")
    problem(await http.get(raw(http, f"/v1/threads?agent={id}")), 400, "bad_request")
    problem(await http.get(raw(http, f"/v1/threads?{id}=x")), 400, "bad_request")
    assert (await client.threads()).items == []


@pytest.mark.parametrize("text", [b"%zz", b"%", b"a%2", b"%%30", b"%FF", b"\xff", b"%00", b"\0"])
def test_texts_that_nothing_decodes(text: bytes) -> None:
    """A2: `%zz` left as it is would name what `%25zz` names."""
    with pytest.raises(RequestError):
        check_text(text)


def raw(http: httpx.AsyncClient, target: str) -> httpx.URL:
    """``target`` as it stands; the client would repair it."""
    return httpx.URL(http.base_url).copy_with(raw_path=target.encode())


@pytest.mark.parametrize("id", ["%2E", "%2E%2E", "%2e%2E"])
async def test_steps_are_no_ids(http: httpx.AsyncClient, client: Client, id: str) -> None:
    """A2, RFC 3986, 5.2.4: a client that resolves the path would ask for something else."""
    for path in (f"/v1/threads/{id}/runs", f"/v1/threads/t/runs/{id}/cancel", f"/v1/requests/{id}/respond"):
        problem(await http.post(raw(http, path), json={"message": "x"}), 422, "invalid_request")
    dots = id.replace("%2E", ".").replace("%2e", ".")
    problem(await http.post("/v1/threads", json={"thread_id": dots}), 422, "invalid_request")
    problem(await http.post(PROMPT, json={"message": "x", "run_id": dots}), 422, "invalid_request")
    assert (await client.threads()).items == []


def routes() -> list[tuple[str, str, set[str]]]:
    """Method, path and names of query parameters of every route."""
    found = [route for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)]
    return [(method, r.path, {p.alias for p in r.dependant.query_params}) for r in found for method in r.methods or ()]


async def test_every_route_refuses_what_it_does_not_know(http: httpx.AsyncClient) -> None:
    """A: `?limt=1` would be a list of everything; and of two values for one thing, one would not count."""
    assert len(routes()) >= 35
    for method, path, names in routes():
        target = re.sub(r"{\w+}", "x", path)
        body = {"json": {}} if method in ("POST", "PATCH") else {}
        found = problem(await http.request(method, f"{target}?limt=1", **body), 422, "invalid_request")
        assert [(e["location"], e["pointer"]) for e in found["errors"]] == [("query", "limt")], target
        for name in names - {"tag"}:
            found = problem(await http.request(method, f"{target}?{name}=1&{name}=1", **body), 422, "invalid_request")
            assert [(e["location"], e["pointer"]) for e in found["errors"]] == [("query", name)], target
            assert found["detail"] == f"{name}: the parameter is repeated; give it once"
    found = problem(await http.get("/v1/threads?limt=1"), 422, "invalid_request")
    assert found["detail"].startswith("limt: unknown parameter; known parameters: agent, cursor, ")
    assert (await http.get("/v1/threads?tag=a:b&tag=c:d")).status_code == 200
    found = problem(await http.get("/v1/threads?" + "&".join(f"p{n}=1" for n in range(500))), 422, "invalid_request")
    assert len(found["errors"]) <= 50


async def test_head_is_get_without_the_content(http: httpx.AsyncClient, client: Client) -> None:
    """RFC 9110, 9.3.2: the same status and headers wherever GET is; what GET does not have, HEAD has not either."""
    await client.enqueue("t", "x", "r")
    seen: set[int] = set()
    for method, path, names in routes():
        target = path.replace("{thread_id}", "t").replace("{run_id}", "r") + ("?wait=0" if "wait" in names else "")
        target += "?other=t" if "other" in names else ""
        async with asyncio.timeout(20):
            head = await http.head(target)
        assert head.content == b""
        if method == "GET" and not path.endswith("/stream"):
            got = await http.get(target)
            assert head.status_code == got.status_code, target
            seen.add(got.status_code)
            if not path.endswith(("/metrics", "/timeline", "/queues")):  # these have times
                assert lasting(head.headers) == lasting(got.headers), target
    assert {200, 202} <= seen and 500 not in seen
    refused = await http.head("/v1/threads/t/fork")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert (await http.head("/v1/threads/nobody")).status_code == 404


async def test_head_opens_no_stream(http: httpx.AsyncClient, app: FastAPI, client: Client) -> None:
    """The headers of a stream, which has no end, and nothing is held for it."""
    await client.enqueue("t", "x", "r")
    for path in ("/v1/threads/t/stream", "/v1/threads/t/runs/r/stream"):
        async with asyncio.timeout(20):
            head = await http.head(path)
        assert (head.status_code, head.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert (await http.head("/v1/threads/t/runs/none/stream")).status_code == 404


def lasting(headers: httpx.Headers) -> dict[str, str]:
    """Those that are the same for the same request once more."""
    return {name: value for name, value in headers.items() if name not in ("x-request-id", "ratelimit")}
