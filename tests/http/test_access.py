"""Keys, a host's own scheme, no keys on the own machine; ids of requests, headers, origins (A1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from starlette.requests import HTTPConnection

from runyard import Client
from runyard.errors import BackendUnavailableError
from runyard.ports.stores import Backend
from runyard_api.http.app import asgi_app
from runyard_api.http.authentication import Gate
from runyard_api.http.principal import Principal
from runyard_api.http.service import Service
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import SECRET, Caller, transport

SETTINGS = ApiSettings(_env_file=None, cors_origins=["https://app.example"], token_secret=SECRET)


def from_(app: Any, host: str, base: str, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=(host, 1)), base_url=base, headers=headers)


async def test_keys_are_taken_in_two_headers(app: FastAPI, client: Client) -> None:
    _, key = await client.create_key("k", scopes=("read",))
    for headers in ({"Authorization": f"Bearer {key}"}, {"authorization": f"bearer {key}"}, {"X-Api-Key": key}):
        async with httpx.AsyncClient(transport=transport(app), base_url="http://api", headers=headers) as http:
            assert (await http.get("/v1/threads")).status_code == 200


async def test_a_secret_of_another_key_does_not_open(caller: Caller, client: Client) -> None:
    one, two = [(await client.create_key("k"))[1] for _ in range(2)]
    mixed = f"{one.rpartition('_')[0]}_{two.rpartition('_')[2]}"
    assert (await (await caller(key=one)).get("/v1/threads")).status_code == 200
    assert (await (await caller(key=mixed)).get("/v1/threads")).status_code == 401


async def test_revoked_and_expired_keys_are_refused(app: FastAPI, caller: Caller, client: Client) -> None:
    made, key = await client.create_key("k")
    http = await caller(key=key)
    assert (await http.get("/v1/threads")).status_code == 200
    assert await client.revoke_key(made.key_id)
    app.state.service.gate.forget()
    assert (await http.get("/v1/threads")).status_code == 401
    _, short = await client.create_key("k", lifetime=1e-6)
    assert (await (await caller(key=short)).get("/v1/threads")).status_code == 401


async def test_whoami(caller: Caller, client: Client) -> None:
    """A1: what the server takes a key or a token for; any scope may ask."""
    acme = Client(client.backend.for_tenant("acme"))
    made, key = await acme.create_key("inbox", scopes=("respond", "read"), lifetime=3600)
    http, nobody = await caller(key=key), await caller(key=None)
    assert made.expires_at is not None
    own = {"tenant": "acme", "id": made.key_id, "name": "inbox", "key_id": made.key_id}
    told = (await http.get("/v1/whoami")).json()
    expires = datetime.fromisoformat(told.pop("expires_at"))
    assert told == {**own, "scopes": ["read", "respond"], "reads": None}
    assert abs(expires - made.expires_at) < timedelta(milliseconds=1)
    await acme.enqueue("t", "x", "r")
    for run_id in ("r", None):
        token = (await http.post("/v1/stream_tokens", json={"thread_id": "t", "run_id": run_id})).json()
        told = (await nobody.get("/v1/whoami", params={"token": token["token"]})).json()
        expires = datetime.fromisoformat(told.pop("expires_at"))
        assert told == {**own, "scopes": ["read"], "reads": {"thread_id": "t", "run_id": run_id}}
        assert abs(expires - datetime.fromisoformat(token["expires_at"])) < timedelta(milliseconds=2)
    assert (await (await caller(tenant="acme", scopes=("write",))).get("/v1/whoami")).json()["scopes"] == ["write"]
    assert (await nobody.get("/v1/whoami")).status_code == 401


async def test_without_keys_only_the_own_machine(client: Client) -> None:
    """A1: not another machine, not under another name (DNS rebinding), not a page of another site."""
    app = asgi_app(client, auth="off", settings=SETTINGS)
    local, remote = "http://localhost:8000", "http://api.example"
    for host, base, headers, status in (
        ("127.0.0.1", local, {}, 200),
        ("::1", "http://[::1]:8000", {}, 200),
        ("10.0.0.7", local, {}, 401),
        ("127.0.0.1", remote, {}, 403),
        ("127.0.0.1", local, {"Origin": "https://evil.example"}, 403),
        ("127.0.0.1", local, {"Origin": "null"}, 403),
        ("127.0.0.1", local, {"Origin": "http://localhost:3000"}, 200),
        ("127.0.0.1", local, {"Origin": "https://app.example"}, 200),
    ):
        async with from_(app, host, base, **headers) as http:
            assert (await http.post("/v1/threads", json={})).status_code == (201 if status == 200 else status), (
                host,
                base,
                headers,
            )


@pytest.mark.parametrize("odd", ["[", "[::1", "http://["])
async def test_names_that_are_none(client: Client, odd: str) -> None:
    """A2: half an address in Host or Origin is a refusal and no defect."""
    app = asgi_app(client, auth="off", settings=SETTINGS)
    for headers in ({"Host": odd}, {"Origin": odd}):
        async with from_(app, "127.0.0.1", "http://localhost", **headers) as http:
            reply = await http.get("/v1/threads")
            assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), headers


async def test_a_hosts_own_scheme(client: Client) -> None:
    """A1: the hook says who asks; None is 401."""

    async def authenticate(request: HTTPConnection) -> Principal | None:
        user = request.headers.get("x-user")
        return Principal(f"tenant-{user}", frozenset({"read", "write"}), f"user-{user}", name=user) if user else None

    app = asgi_app(client, auth=authenticate, settings=SETTINGS)
    async with from_(app, "10.0.0.1", "http://api", **{"X-User": "ann"}) as ann, from_(app, "10.0.0.1", "http://api") as nobody:
        assert (await ann.post("/v1/threads", json={"thread_id": "t"})).status_code == 201
        assert (await ann.get("/v1/workers")).status_code == 403
        assert (await nobody.get("/v1/threads")).status_code == 401
        token = (await ann.post("/v1/stream_tokens", json={"thread_id": "t"})).json()["token"]
        assert (await nobody.get("/v1/threads/t", params={"token": token})).status_code == 403
    other = Client(client.backend.for_tenant("tenant-ann"))
    assert (await other.thread("t")).thread_id == "t"


async def test_mounted_in_a_hosts_app(client: Client) -> None:
    """A: its own paths stay the host's; Location has the prefix; ids with slashes work."""
    host = FastAPI()

    @host.get("/own")
    async def own() -> str:
        return "host"

    host.mount("/agents", asgi_app(client, auth="off", settings=SETTINGS))
    async with httpx.AsyncClient(transport=transport(host), base_url="http://localhost") as http:
        assert (await http.get("/own")).json() == "host"
        assert (await http.get("/agents/livez")).json() == {"alive": True}
        made = await http.post("/agents/v1/threads", json={"thread_id": "a/b"})
        assert made.headers["location"] == "/agents/v1/threads/a%2Fb"
        assert (await http.get(made.headers["location"])).json()["thread_id"] == "a/b"
        refused = await http.put("/agents/v1/threads")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
        document = (await http.get("/agents/openapi.json")).json()
        assert document["servers"] == [{"url": "/agents"}]


async def test_a_hosts_own_request_state_is_not_read(client: Client) -> None:
    """A: the middleware of a host may use any names in ``request.state``."""
    host = FastAPI()

    @host.middleware("http")
    async def own(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        request.state.principal = request.state.headers = request.state.code = request.state.head = "mine"
        return await call_next(request)

    host.mount("/agents", asgi_app(client, auth="off", settings=SETTINGS))
    async with httpx.AsyncClient(transport=transport(host), base_url="http://localhost") as http:
        for path in ("livez", "readyz", "v1/threads"):
            assert (await http.get(f"/agents/{path}")).status_code == 200


@pytest.mark.parametrize("prefix", ["a%20b", "%C5%BC", "a%0D%0AX-Evil%3A%20y", "50%25"])
async def test_mounted_under_any_path(client: Client, prefix: str) -> None:
    """A: where it is mounted may hold what a caller wrote; in a header it is quoted."""
    host = FastAPI()
    host.mount("/{customer}/agents", asgi_app(client, auth="off", settings=SETTINGS))
    async with httpx.AsyncClient(transport=transport(host), base_url="http://localhost") as http:
        made = await http.post(f"/{prefix}/agents/v1/threads", json={"thread_id": "a/50%"})
        assert made.status_code == 201
        assert made.headers["location"] == f"/{prefix}/agents/v1/threads/a%2F50%25"
        assert (await http.get(made.headers["location"])).json()["thread_id"] == "a/50%"


async def test_requests_during_a_connection_attempt_share_its_outcome(settings: ApiSettings, client: Client) -> None:
    """A3: a server that is away holds up every request once, not one behind the other."""
    tries, proceed = 0, asyncio.Event()

    async def connect() -> Backend:
        nonlocal tries
        tries += 1
        await proceed.wait()
        if tries == 1:
            raise BackendUnavailableError("away")
        return client.backend

    service = Service(connect, owned=False, gate=Gate("off", settings, tenant=""), settings=settings)
    asking = [asyncio.create_task(service.backend()) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()
    proceed.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert tries == 1 and isinstance(found[0], asyncio.CancelledError)
    assert all(isinstance(error, BackendUnavailableError) for error in found[1:])
    assert await service.backend() is client.backend and tries == 2
    await service.close()


async def test_headers_for_browsers_and_operators(http: httpx.AsyncClient) -> None:
    given = "0198c0de-0000-7000-8000-000000000001"
    reply = await http.get("/v1/threads", headers={"X-Request-Id": given})
    assert reply.headers["x-request-id"] == given
    assert (await http.get("/v1/threads", headers={"X-Request-Id": "nonsense\tx"})).headers["x-request-id"] != given
    assert reply.headers["x-content-type-options"] == "nosniff" and reply.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "strict-transport-security" not in reply.headers


async def test_cors_admits_only_configured_origins(client: Client) -> None:
    app = asgi_app(client, settings=SETTINGS)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    async with httpx.AsyncClient(transport=transport(app), base_url="http://api") as http:
        good = await http.options("/v1/threads", headers={"Origin": "https://app.example", **asked})
        assert good.status_code == 200 and good.headers["access-control-allow-origin"] == "https://app.example"
        bad = await http.options("/v1/threads", headers={"Origin": "https://evil.example", **asked})
        assert bad.status_code == 400 and "access-control-allow-origin" not in bad.headers
        refused = await http.get("/v1/threads", headers={"Origin": "https://app.example"})
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "https://app.example"


async def test_probes_and_metrics(http: httpx.AsyncClient, caller: Caller) -> None:
    nobody = await caller(key=None)
    assert (await nobody.get("/livez")).json() == {"alive": True}
    assert (await nobody.get("/readyz")).json()["ready"] is True
    await http.get("/v1/threads/no-such-thread")
    text = (await http.get("/metrics")).text
    assert 'runyard_http_rejected_total{code="thread_not_found"}' in text
    assert 'runyard_http_request_seconds_count{method="GET",route="/v1/threads/{thread_id}",status="404"}' in text
    assert "no-such-thread" not in text


async def test_the_key_of_a_scraper_reads_metrics_and_nothing_else(caller: Caller) -> None:
    """A1: Prometheus keeps its key in a file, which should open no conversation."""
    scraper, reader = await caller(scopes=("metrics",)), await caller(scopes=("read", "write", "respond"))
    assert (await scraper.get("/metrics")).status_code == 200
    assert (await scraper.get("/v1/threads")).status_code == (await scraper.get("/v1/workers")).status_code == 403
    assert (await reader.get("/metrics")).status_code == 403


@pytest.mark.parametrize("given", [{"scopes": ()}, {"scopes": ("root",)}, {"lifetime": 0}, {"lifetime": -1}])
async def test_keys_that_cannot_be(client: Client, given: Any) -> None:
    with pytest.raises(ValueError):
        await client.create_key("k", **given)
