"""No route shows one tenant anything of another (A1). The routes come from the OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from runyard import Client
from runyard_api.http.document import operations
from runyard_api.http.routes.route_access import Route
from tests.http.conftest import Caller, ask

THREAD, RUN, MESSAGE = "the-secret-thread", "the-secret-run", "0198c0de-0000-7000-8000-000000000001"

BODIES: dict[str, Any] = {
    "create_thread": {"thread_id": THREAD},
    "update_thread": {"title": "x"},
    "create_run": {"message": "x"},
    "create_runs": {"items": [{"thread_id": THREAD, "message": "x"}]},
    "stream_new_run": {"message": "x"},
    "wait_new_run": {"message": "x"},
    "regenerate": {},
    "cancel_run": {},
    "redrive_run": None,
    "create_stream_token": {"thread_id": THREAD, "run_id": RUN},
    "store_message": {"message": "x"},
    "set_label": {},
    "respond_to_request": {"answer": "x"},
    "respond_on_thread": {"answer": "x"},
    "send_signal": {"name": "paid"},
    "abort_pending": {},
    "fork_thread": {"new_thread_id": "mine"},
    "fork_once": {"message": "x"},
    "fork_many": {"messages": ["x"]},
    "rotate_webhook_secret": {},
    "rotate_secret_of_webhook": {},
    "redeliver_webhook": None,
    "create_webhook": {"url": "https://hooks.example/"},
    "pause_queue": None,
    "resume_queue": None,
    "drain_worker": None,
    "set_limit": {"most": 1},
    "create_key": {"name": "k"},
}
"""What the routes that take something are sent; a route that is missing here is not tested, and says so."""
QUERIES: dict[str, dict[str, str]] = {
    "wait_run": {"wait": "0"},
    "wait_new_run": {"wait": "0"},
    "fork_once": {"wait": "0"},
    "fork_many": {"wait": "0"},
    "diff_threads": {"other": THREAD},
}
LAZY = {"create_run", "create_runs", "wait_new_run", "store_message", "create_thread", "stream_new_run"}
"""A thread that a tenant does not have is made: its own, under the same id."""
LISTS = {"list_threads", "list_runs", "list_requests", "read_feed", "read_usage", "list_agents"}
DEPLOYMENT = {"list_workers", "list_queues", "get_agent", "metrics", "livez", "readyz", "whoami"}
"""Of the whole deployment, for admins and platforms; and of who asks."""
OWN = {
    *("get_webhook_secret", "rotate_webhook_secret", "list_webhooks", "create_webhook", "list_webhook_deliveries"),
    *("list_keys", "create_key", "revoke_key"),
}
"""Of the tenant itself, which has no ids."""
OPERATOR = {
    *("pause_queue", "resume_queue", "drain_worker", "list_limits", "set_limit", "clear_limit"),
    *("examine_deployment", "read_stacks"),
}
"""Of the whole deployment, for admins that belong to no tenant: tests/http/test_operators.py."""
CODES = {
    *("thread_not_found", "run_not_found", "hitl_no_pending_request", "hitl_request_not_found"),
    *("webhook_not_found", "webhook_delivery_not_found"),
}


def every(app: FastAPI) -> list[tuple[str, str, str]]:
    return [(op["operationId"], method, path) for method, path, op in operations(app.openapi())]


async def call(http: httpx.AsyncClient, operation: str, method: str, path: str, request_id: str) -> httpx.Response:
    url = path.format(thread_id=THREAD, run_id=RUN, request_id=request_id, message_id=MESSAGE, label="x", name="scripted",
        queue="q", worker_id="w", key_id="k", webhook_id="h", delivery_id="d", number="0")  # fmt: skip
    body = BODIES[operation] if method in ("post", "patch", "put") else None
    return await http.request(method.upper(), url, json=body, params=QUERIES.get(operation))


@pytest.fixture
async def request_id(client: Client) -> str:
    """The default tenant's secret: a run of a thread that waits for an answer."""
    return await ask(client, THREAD, RUN)


async def test_another_tenant_gets_404_on_every_route(app: FastAPI, caller: Caller, client: Client, request_id: str) -> None:
    before = (await client.thread(THREAD), await client.run(THREAD, RUN), (await client.messages(THREAD)).items)
    tested = 0
    for operation, method, path in every(app):
        if operation in LISTS | DEPLOYMENT | LAZY | OWN | OPERATOR:
            continue
        other = await caller(tenant="other")
        reply = await call(other, operation, method, path, request_id)
        assert reply.status_code == 404, (operation, reply.status_code, reply.text)
        assert reply.json()["code"] in CODES, operation
        tested += 1
    assert tested >= 20
    assert before == (await client.thread(THREAD), await client.run(THREAD, RUN), (await client.messages(THREAD)).items)


async def test_the_same_id_is_another_thread(app: FastAPI, caller: Caller, client: Client, request_id: str) -> None:
    """A prompt makes a thread of the tenant's own; the other tenant's stays as it is."""
    for n, (operation, method, path) in enumerate(every(app)):
        if operation in LAZY - {"stream_new_run"}:
            other = await caller(tenant=f"other-{n}")
            reply = await call(other, operation, method, path, request_id)
            assert reply.status_code in (200, 201, 202), (operation, reply.text)
            assert (await other.get(f"/v1/threads/{THREAD}/runs/{RUN}")).status_code == 404
            assert (await other.get(f"/v1/threads/{THREAD}")).status_code == 200
    assert len((await client.runs(THREAD)).items) == 1


async def test_no_list_shows_another_tenants_ids(app: FastAPI, caller: Caller, request_id: str) -> None:
    other = await caller(tenant="other", scopes=("read", "write", "respond"))
    for operation, method, path in every(app):
        if operation in LISTS:
            reply = await call(other, operation, method, path, request_id)
            assert reply.status_code == 200
            assert not any(secret in reply.text for secret in (THREAD, RUN, request_id)), operation
        if operation in {"list_workers", "list_queues", "metrics"}:
            assert (await call(other, operation, method, path, request_id)).status_code == 403


async def test_every_route_is_one_or_the_other(app: FastAPI) -> None:
    """A route without a thread, run or request in its path is a list, or is named above."""
    for operation, _, path in every(app):
        assert "{" in path or operation in LISTS | DEPLOYMENT | LAZY | OWN | OPERATOR | {"create_stream_token"}, operation


async def test_request_without_a_valid_key_is_refused(app: FastAPI, caller: Caller, request_id: str) -> None:
    for key in (None, "ry_0000000000000000_" + "0" * 64, "nonsense"):
        stranger = await caller(key=key)
        for operation, method, path in every(app):
            reply = await call(stranger, operation, method, path, request_id)
            assert reply.status_code == (200 if operation in {"livez", "readyz"} else 401), operation
            if reply.status_code == 401:
                assert reply.json()["code"] == "unauthenticated" and "Bearer" in reply.headers["www-authenticate"]


async def test_every_route_needs_the_scope_that_it_documents(app: FastAPI, caller: Caller, request_id: str) -> None:
    weak = {scope: await caller(scopes=tuple({"read", "write", "respond"} - {scope})) for scope in ("read", "write", "respond")}
    for method, path, described in operations(app.openapi()):
        operation = described["operationId"]
        if not described["security"]:
            continue
        bearer, header, *_ = described["security"]
        assert bearer["apiKey"] == header["apiKeyHeader"]
        if operation == "whoami":  # everybody may ask
            continue
        [scope] = bearer["apiKey"]
        asked = weak.get(scope, weak["read"])
        reply = await call(asked, operation, method, path, request_id)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), operation


def test_route_whose_parameters_name_no_scope_is_refused_at_its_definition() -> None:
    """A1: nobody forgets the scope of a route."""
    router = APIRouter(route_class=Route)

    async def unguarded() -> None: ...

    with pytest.raises(TypeError, match="names its scope"):
        router.get("/v1/unguarded")(unguarded)
