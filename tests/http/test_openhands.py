"""The fork of OpenHands' agent server, request by request: its options (F7), its statuses, and what callers may try."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI

from runyard import Client, RunContext
from runyard.app import App
from runyard.models import Message, TextPart, ToolCallPart, Usage
from runyard.worker.worker import Worker
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import BOUND, SECRET, Caller, ask
from tests.http.shared_routes import asgi_app

NOBODY: Final = "0198c0de-0000-7000-8000-000000000001"
CHOSEN: Final = "0198c0de-0000-7000-8000-000000000002"


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(
        _env_file=None,
        requests_per_second=1e6,
        burst=10**6,
        token_secret=SECRET,
        failure_burst=10**6,
        compat=["openhands"],
    )


@pytest.fixture
async def source(client: Client, worker: Worker) -> str:
    """A conversation with a completed run."""
    await client.create_thread("s", tags={"k": "v"}, title="Source", extra={"e": 1}, config={"workspace": "/srv/project"})
    (await (await client.enqueue("s", "say hello", "r1")).result(BOUND)).raise_for_status()
    return "s"


async def fork(http: httpx.AsyncClient, id: str = "s", status: int = 201, /, **body: Any) -> Any:
    reply = await http.post(f"/api/conversations/{id}/fork", json=body)
    assert reply.status_code == status, reply.text
    if status >= 400:
        assert reply.headers["content-type"] == "application/problem+json" and reply.json()["detail"]
    return reply.json()


async def test_f7_the_answer_is_a_conversation(http: httpx.AsyncClient, source: str, client: Client) -> None:
    made = await fork(http, title="Debug investigation", tags={"purpose": "debugging"})
    thread = await client.thread(made["id"])
    zero = {
        "model_name": "default",
        "accumulated_cost": 0.0,
        "accumulated_token_usage": {"model": "", "prompt_tokens": 0, "completion_tokens": 0},
    }
    assert made.pop("created_at").endswith("Z") and made.pop("updated_at").endswith("Z")
    assert made == {
        "id": thread.thread_id,
        "title": "Debug investigation",
        "tags": {"title": "Debug investigation", "purpose": "debugging"},
        "execution_status": "idle",
        "agent": {"kind": "Agent", "llm": {"model": "scripted", "usage_id": "default"}, "tools": []},
        "workspace": {"kind": "LocalWorkspace", "working_dir": "/srv/project"},
        "confirmation_policy": {"kind": "NeverConfirm"},
        "security_analyzer": None,
        "max_iterations": 500,
        "stats": {"usage_to_metrics": {"default": zero}},
        "metrics": zero,
        "forked_from_conversation_id": "s",
        "forked_from_event_id": None,
    }
    assert thread.config == {"workspace": "/srv/project"} and thread.extra == {"e": 1}


async def test_f8_the_source_is_unchanged(http: httpx.AsyncClient, source: str, client: Client) -> None:
    """And nothing is appended to the fork."""

    async def state() -> Any:
        return await client.thread(source), (await client.messages(source)).items, (await client.runs(source)).items

    before = await state()
    made = await fork(http)
    assert [m.id for m in (await client.messages(made["id"])).items] == [m.id for m in before[1]]
    assert (await client.runs(made["id"])).items == []
    (await (await client.enqueue(made["id"], "say more")).result(BOUND)).raise_for_status()
    assert await state() == before


async def test_f7_no_options(http: httpx.AsyncClient, source: str) -> None:
    """Without a body, with an empty one, and with null in each field."""
    bare = await http.post("/api/conversations/s/fork")
    nothing = await http.post("/api/conversations/s/fork", content=b"null", headers={"Content-Type": "application/json"})
    assert (bare.status_code, nothing.status_code) == (201, 201)
    made = [bare.json(), nothing.json(), await fork(http), await fork(http, id=None, title=None, tags=None, from_event_id=None)]
    assert len({each["id"] for each in made}) == 4
    assert all((each["title"], each["tags"]) == (None, {}) for each in made)


async def test_f7_metrics_start_at_zero_or_continue(http: httpx.AsyncClient, client: Client) -> None:
    app = App()

    @app.agent("costly")
    async def costly(ctx: RunContext) -> None:
        usage = Usage(requests=1, input_tokens=7, output_tokens=3, cost=0.5)
        await ctx.append(Message.assistant("x", stop_reason="stop", usage=usage))

    worker = Worker(app, client.backend, grace=1)
    running = asyncio.create_task(worker.run())
    (await (await client.enqueue("m", "x", agent="costly")).result(BOUND)).raise_for_status()
    worker.stop()
    await running
    for body, cost, tokens in (
        ({"reset_metrics": False}, 0.5, (7, 3)),
        ({"reset_metrics": True}, 0.0, (0, 0)),
        ({}, 0.0, (0, 0)),
    ):
        made = await fork(http, "m", **body)
        counted = made["metrics"]["accumulated_token_usage"]
        assert (made["metrics"]["accumulated_cost"], counted["prompt_tokens"], counted["completion_tokens"]) == (cost, *tokens)
        assert made["stats"]["usage_to_metrics"]["default"] == made["metrics"]
    assert (await client.thread("m")).usage.cost == 0.5


async def test_f7_the_config_is_copied(http: httpx.AsyncClient, client: Client, worker: Worker) -> None:
    """Values of the config that OpenHands could not read are not in the answer."""
    kept = {
        "workspace": {"kind": "RemoteWorkspace", "working_dir": "/w", "host": "http://h"},
        "confirmation_policy": {"kind": "ConfirmRisky", "threshold": "HIGH"},
        "security_analyzer": {"kind": "LLMSecurityAnalyzer"},
    }
    for n, (config, shown) in enumerate(
        [
            (kept, kept),
            (
                {"workspace": {"id": 7}, "confirmation_policy": "always", "security_analyzer": {"kind": 5}},
                {
                    "workspace": {"kind": "LocalWorkspace", "working_dir": ""},
                    "confirmation_policy": {"kind": "NeverConfirm"},
                    "security_analyzer": None,
                },
            ),
        ]
    ):
        await client.create_thread(f"c{n}", config=config)
        (await (await client.enqueue(f"c{n}", "say x")).result(BOUND)).raise_for_status()
        made = await fork(http, f"c{n}")
        assert {name: made[name] for name in kept} == shown
        assert (await client.thread(made["id"])).config == config


async def test_f4_a_chosen_id(http: httpx.AsyncClient, source: str, client: Client) -> None:
    """409 if it is taken: by the same fork, by another thread, by the source itself. Any form of a UUID is the same id."""
    made = await fork(http, id=CHOSEN.upper().replace("-", ""))
    assert made["id"] == CHOSEN
    for body in ({}, {"title": "other"}):
        assert (await fork(http, "s", 409, id=CHOSEN, **body))["code"] == "thread_already_exists"
    assert (await fork(http, CHOSEN, 409, id=CHOSEN))["code"] == "thread_already_exists"
    assert (await fork(http, NOBODY, 404, id=CHOSEN))["code"] == "thread_not_found"
    assert len((await client.threads(parent_thread_id="s")).items) == 1


async def test_f4_of_two_forks_with_one_id_one_wins(http: httpx.AsyncClient, source: str) -> None:
    replies = await asyncio.gather(*(http.post("/api/conversations/s/fork", json={"id": CHOSEN}) for _ in range(20)))
    assert sorted(reply.status_code for reply in replies) == [201] + [409] * 19


async def test_a_key_makes_repetitions_safe(http: httpx.AsyncClient, source: str) -> None:
    """200 and the same fork, also after the source and the fork have continued."""

    async def asked(**body: Any) -> httpx.Response:
        return await http.post("/api/conversations/s/fork", json=body, headers={"Idempotency-Key": "k1"})

    first = await asked(title="T")
    again = await asked(title="T")
    assert (first.status_code, again.status_code) == (201, 200) and first.json() == again.json()
    assert (await asked(title="U")).status_code == 409


async def test_f6_a_fork_at_an_event(http: httpx.AsyncClient, source: str, client: Client) -> None:
    first = (await client.messages("s")).items[0].id
    made = await fork(http, from_event_id=first.upper())
    assert made["forked_from_event_id"] == first
    assert [m.id for m in (await client.messages(made["id"])).items] == [first]
    assert (await fork(http, "s", 404, from_event_id=NOBODY))["code"] == "message_not_found"
    call = ToolCallPart(id="c", name="look", arguments={})
    open_call = await client.store_message("s", Message.assistant([TextPart(text="x"), call]))
    assert (await fork(http, "s", 409, from_event_id=open_call.id))["code"] == "fork_boundary"
    for wrong in ("x", "", str(first)[:-1], "\0", "00000000-0000-0000-0000-000000000000"):
        await fork(http, "s", 422, from_event_id=wrong)


async def test_f4_nothing_to_fork(http: httpx.AsyncClient, client: Client) -> None:
    """404 for an unknown conversation; 409 for one without a completed run, also while its run waits."""
    assert (await fork(http, NOBODY, 404))["code"] == "thread_not_found"
    await client.create_thread("empty")
    assert (await fork(http, "empty", 409))["code"] == "run_not_completed"
    await ask(client, "waits", "r1")
    assert (await fork(http, "waits", 409))["code"] == "run_not_completed"


async def test_f8_a_fork_of_a_busy_source_is_idle(http: httpx.AsyncClient, source: str, client: Client) -> None:
    await client.enqueue("s", "approve echo x", "r2")
    made = await fork(http)
    assert made["execution_status"] == "idle" and len((await client.messages(made["id"])).items) == 2
    assert (await client.requests(made["id"])).items == []


async def test_f7_an_agent_is_refused(http: httpx.AsyncClient, source: str, client: Client) -> None:
    """Whatever its value is. The native route accepts it."""
    for agent in ({"kind": "Agent", "llm": {"model": "x"}}, "other", None):
        problem = await fork(http, "s", 422, agent=agent)
        assert "agent" in problem["detail"] and "/v1/threads/" in problem["detail"]
    assert (await client.threads(parent_thread_id="s")).items == []


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'"x"',
        b"5",
        b'{"x": 1}',
        b'{"id": "x"}',
        b'{"id": ""}',
        b'{"id": 5}',
        b'{"id": ["0198c0de-0000-7000-8000-000000000002"]}',
        b'{"id": "..", "title": "x"}',
        b'{"title": 5}',
        json.dumps({"title": "x" * 201}).encode(),
        b'{"title": "\\u0000"}',
        b'{"title": "\\ud800"}',
        b'{"tags": []}',
        b'{"tags": {"": "x"}}',
        b'{"tags": {"a\\u0000": "x"}}',
        b'{"tags": {"a": "\\ud800"}}',
        b'{"tags": {"a": "\\u0000"}}',
        b'{"tags": {"a": 1}}',
        b'{"tags": {"a": null}}',
        json.dumps({"tags": {"k" * 65: "x"}}).encode(),
        json.dumps({"tags": {f"k{n}": "x" for n in range(1001)}}).encode(),
        json.dumps({"tags": {"a": "x" * 2**20}}).encode(),
        json.dumps({f"k{n}": 1 for n in range(100_000)}).encode(),
        b'{"reset_metrics": "yes"}',
        b'{"reset_metrics": 1}',
        b'{"reset_metrics": null}',
        b'{"title": "a", "title": 1}',
        b'{"from_event_id": 1e999}',
        b'{"from_event_id": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b"{",
        b"\xff",
        b'{"id": NaN}',
    ],
)
async def test_hostile_bodies(http: httpx.AsyncClient, client: Client, source: str, body: bytes) -> None:
    """A2: nothing is forked, and no body is a 5xx."""
    reply = await http.post("/api/conversations/s/fork", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code in (400, 413, 422), reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert len(reply.content) < 20_000
    assert (await client.threads(parent_thread_id="s")).items == []


async def test_hostile_requests(http: httpx.AsyncClient, source: str) -> None:
    for path, status in (("%FF", 400), ("%00", 400), ("%0A", 422), ("%2E%2E", 422), ("x" * 256, 422), ("x/y", 404), ("", 404)):
        reply = await http.post(f"/api/conversations/{path}/fork")
        assert reply.status_code == status, (path, reply.text)
    url = "/api/conversations/s/fork"
    assert (await http.post(url, params={"include_skills": "true"})).status_code == 422
    assert (await http.post(url, content=b"{}", headers={"Content-Type": "text/plain"})).status_code == 415
    assert (await http.post(url, files={"id": (None, CHOSEN)})).status_code == 415
    assert (await http.get(url)).status_code == 405
    assert (await http.get("/api/conversations/s")).status_code == 404
    assert (await http.post("/api/conversations/s/fork/")).status_code == 404
    assert (await http.post(url, headers={"Idempotency-Key": "x" * 256})).status_code == 422


async def test_any_thread_is_a_conversation(http: httpx.AsyncClient, client: Client, worker: Worker) -> None:
    for id, path in (("a/b", "a%2Fb"), ("50%", "50%25"), ("ä b", "%C3%A4%20b")):
        (await (await client.enqueue(id, "say x")).result(BOUND)).raise_for_status()
        assert (await fork(http, path))["forked_from_conversation_id"] == id


async def test_a1_keys_and_tenants(caller: Caller, source: str, client: Client) -> None:
    """A1: the scope write; threads of another tenant do not exist, and their ids are free."""
    await fork(await caller(key=None), "s", 401)
    await fork(await caller(scopes=("read", "respond")), "s", 403)
    other = await caller(tenant="other")
    assert (await fork(other, "s", 404))["code"] == "thread_not_found"
    mine = await caller(scopes=("write",))
    made = await fork(mine, id=CHOSEN)
    assert (await fork(other, made["id"], 404))["code"] == "thread_not_found"
    assert (await fork(other, "s", 404, id=CHOSEN))["code"] == "thread_not_found"
    stored = (await other.post("/v1/threads/own/messages", json={"message": "x"})).json()
    assert (await fork(other, "own", from_event_id=stored["id"], id=CHOSEN))["forked_from_conversation_id"] == "own"
    assert (await fork(mine, "s", 404, from_event_id=stored["id"]))["code"] == "message_not_found"
    assert len((await client.threads(parent_thread_id="s")).items) == 1


async def test_a1_the_header_of_its_clients(caller: Caller, source: str) -> None:
    """It has the key, under the paths of the compatible API only. A header of the native routes wins."""
    stranger = await caller(key=None)

    async def status(path: str = "/api/conversations/s/fork", **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await stranger.request("POST" if "fork" in path else "GET", path, headers=named)).status_code

    async def key(scope: str) -> str:
        return str((await caller(scopes=(scope,))).headers["authorization"].split()[1])

    writing = await key("write")
    assert await status(X_Session_API_Key=writing) == 201
    assert await status(x_session_api_key=writing) == 201
    assert await status(X_Session_API_Key=await key("read")) == 403
    assert await status(X_Session_API_Key="nonsense") == 401
    assert await status(X_Session_API_Key="") == 401
    assert await status(Authorization="Bearer nonsense", X_Session_API_Key=writing) == 401
    for native, expected in (("nonsense", 401), (await key("read"), 403)):
        assert await status(X_Session_API_Key=writing, X_API_Key=native) == expected
        assert await status(X_API_Key=native, X_Session_API_Key=writing) == expected
    assert await status("/v1/threads", X_Session_API_Key=writing) == 401
    assert await status("/v1/threads/s/fork", X_Session_API_Key=writing) == 401


async def test_pages_of_allowed_origins_may_send_its_header(client: Client, settings: ApiSettings) -> None:
    origin = "https://example.org"
    app = asgi_app(client, auth="keys", settings=settings.model_copy(update={"cors_origins": [origin]}))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,x-session-api-key"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
        reply = await http.options("/api/conversations/s/fork", headers={"Origin": origin, **asked})
    assert reply.status_code == 200 and "X-Session-API-Key" in reply.headers["access-control-allow-headers"]


async def test_health(caller: Caller) -> None:
    """It needs no key and no database. No other path is open."""
    stranger = await caller(key=None)
    healthy = await stranger.get("/health")
    assert (healthy.status_code, healthy.json()) == (200, {"status": "ok"})
    assert (await stranger.head("/health")).status_code == 200
    assert (await stranger.post("/health")).status_code == 405
    assert (await stranger.get("/health", params={"x": 1})).status_code == 422
    for path in ("/health/", "//health", "/health/x", "/healthz", "/%68ealth/..", "/api/conversations/health"):
        assert (await stranger.get(path)).status_code == 401, path


async def test_it_is_off_by_default(client: Client, settings: ApiSettings) -> None:
    plain = settings.model_copy(update={"compat": []})
    app: FastAPI = asgi_app(client, auth="off", settings=plain)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
        assert (await http.get("/health")).status_code == 404
        assert (await http.post("/api/conversations/s/fork")).status_code == 404
    keyed = asgi_app(client, auth="keys", settings=plain)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=keyed), base_url="http://localhost") as http:
        assert (await http.get("/health")).status_code == 401


def test_its_operations_have_a_tag_of_their_own(app: FastAPI) -> None:
    made = app.openapi()
    tagged = {path for path, methods in made["paths"].items() for each in methods.values() if each["tags"] == ["openhands"]}
    assert tagged == {"/health", "/api/conversations/{thread_id}/fork"}
    assert "openhands" in {tag["name"] for tag in made["tags"]}
