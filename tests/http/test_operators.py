"""Operators over HTTP: queues, drains, limits and keys, for admins of no tenant, and keys for those of a tenant (A1)."""

from __future__ import annotations

from typing import Any, Final

import pytest

from runyard import Client
from runyard.domain.api_keys import ApiKey, Scope
from runyard.errors import WorkerDeadError
from runyard.models import JsonObject
from runyard.ports.workers import WorkerInfo
from tests.http.conftest import Caller

OPERATOR: dict[tuple[str, str], Any] = {
    ("POST", "/v1/queues/q/pause"): None,
    ("POST", "/v1/queues/q/resume"): None,
    ("POST", "/v1/workers/w/drain"): None,
    ("GET", "/v1/limits"): None,
    ("GET", "/v1/doctor"): None,
    ("GET", "/v1/workers/w/stacks"): None,
    ("PUT", "/v1/limits/queued"): {"most": 0},
    ("DELETE", "/v1/limits/queued"): None,
}
OF_A_TENANT: dict[tuple[str, str], Any] = {
    ("GET", "/v1/keys"): None,
    ("POST", "/v1/keys"): {"name": "k", "scopes": ["admin"]},
    ("DELETE", "/v1/keys/k"): None,
}
BUDGET: Final[JsonObject] = {"per": "run", "on_exceeded": "fail", "limits": {"cost": 0.5}}


async def test_only_an_admin_of_no_tenant_changes_what_concerns_all_tenants(caller: Caller, client: Client) -> None:
    await client.backend.workers.register(WorkerInfo(worker_id="w", queues=["q"]))
    weak = await caller(scopes=("read", "write", "respond", "metrics"))
    of_tenant = await caller(tenant="acme", scopes=("admin",))
    for (method, path), body in OPERATOR.items():
        for http in (weak, of_tenant):
            reply = await http.request(method, path, json=body)
            assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), (method, path)
    for (method, path), body in OF_A_TENANT.items():
        assert (await weak.request(method, path, json=body)).status_code == 403, (method, path)
    assert (await weak.get("/v1/queues")).status_code == 403
    [worker] = await client.workers()
    assert not worker.draining and await client.limits() == []
    assert all(queue.paused_at is None for queue in (await client.queues()).items)


async def test_an_operator_does_over_http_what_it_does_directly(remote: Client, client: Client) -> None:
    await client.backend.workers.register(WorkerInfo(worker_id="w", queues=["q"]))
    paused = await remote.pause_queue("q")
    assert paused == await remote.pause_queue("q")
    assert await remote.queues() == await client.queues()
    await client.pause_queue("r")
    for page in ({"limit": 1}, {"limit": 1, "known": True}):
        first = await remote.queues(**page)
        assert [queue.queue for queue in first.items] == ["q"] and first == await client.queues(**page)
        assert [queue.queue for queue in (await remote.queues(cursor=first.next, **page)).items] == ["r"]
    assert (await remote.backend.queues.queues()).items == (await client.queues()).items
    assert await remote.resume_queue("r")
    assert (await remote.resume_queue("q"), await remote.resume_queue("q")) == (True, False)
    await remote.drain_worker("w")
    assert (await remote.worker("w")).worker_id == "w" and (await client.workers())[0].draining
    with pytest.raises(WorkerDeadError):
        await remote.drain_worker("unknown")
    await remote.set_limit("running_per_agent", 3, subject="writer")
    assert await remote.limits() == await client.limits()
    assert await remote.clear_limit("running_per_agent", subject="writer")
    assert not await remote.clear_limit("running_per_agent", subject="writer")
    key, text = await remote.create_key("inbox", scopes=("read",), lifetime=60)
    assert type(key) is ApiKey and text.startswith(f"ry_{key.key_id}_")
    assert key in await remote.keys() and await remote.keys() == await client.keys()
    assert await remote.revoke_key(key.key_id) and not await remote.revoke_key(key.key_id)


async def test_a_tenant_manages_its_own_keys_only(caller: Caller, client: Client) -> None:
    """A key that a tenant makes belongs to this tenant, whatever the request says. No answer but the first has its text."""
    acme, other = await caller(tenant="acme", scopes=("admin",)), await caller(tenant="other", scopes=("admin",))
    made = await acme.post("/v1/keys", json={"name": "k", "scopes": ["admin"]})
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    assert made.json()["tenant"] == "acme"
    secret, key_id = made.json()["text"], made.json()["key_id"]
    assert secret not in (await acme.get("/v1/keys")).text and key_id not in (await other.get("/v1/keys")).text
    assert (await other.delete(f"/v1/keys/{key_id}")).json() == {"revoked": False}
    mine = await caller(key=secret)
    assert (await mine.get("/v1/whoami")).json()["tenant"] == "acme"
    assert (await mine.post("/v1/queues/q/pause")).status_code == 403
    assert (await acme.post("/v1/keys", json={"name": "k", "tenant": ""})).status_code == 422
    assert (await acme.delete(f"/v1/keys/{key_id}")).json() == {"revoked": True}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/limits/queued", {"most": -1}),
        ("PUT", "/v1/limits/queued", {"most": 2**63}),
        ("PUT", "/v1/limits/queued", {"most": 1.5}),
        ("PUT", "/v1/limits/queued", {"most": 1, "subject": "a"}),
        ("PUT", "/v1/limits/queued_per_tenant", {"most": 1, "subject": "a\x00"}),
        ("PUT", "/v1/limits/queued_per_tenant", {"most": 1, "subject": "x" * 300}),
        ("PUT", "/v1/limits/nonsense", {"most": 1}),
        ("PUT", "/v1/limits/queued", {}),
        ("DELETE", "/v1/limits/nonsense", None),
        ("POST", "/v1/keys", {"name": ""}),
        ("POST", "/v1/keys", {"name": "x" * 101}),
        ("POST", "/v1/keys", {"name": "a\nb"}),
        ("POST", "/v1/keys", {"name": "k", "scopes": []}),
        ("POST", "/v1/keys", {"name": "k", "scopes": ["root"]}),
        ("POST", "/v1/keys", {"name": "k", "scopes": ["read"] * 99}),
        ("POST", "/v1/keys", {"name": "k", "lifetime": 0}),
        ("POST", "/v1/keys", {"name": "k", "lifetime": 1e300}),
        ("POST", "/v1/queues/%00/pause", None),
        ("POST", f"/v1/queues/{'q' * 300}/pause", None),
        ("POST", "/v1/workers/%0A/drain", None),
    ],
)
async def test_bodies_and_names_are_bounded(caller: Caller, client: Client, method: str, path: str, body: Any) -> None:
    admin = await caller(scopes=("admin",))
    before = len(await client.keys())
    reply = await admin.request(method, path, json=body)
    assert reply.status_code in (400, 404, 422), reply.text
    assert await client.limits() == [] and len(await client.keys()) == before


async def test_a_key_that_expires_makes_no_key_that_expires_later(caller: Caller) -> None:
    """A1: a leaked key is of no use after its expiry."""
    brief = await caller(tenant="acme", scopes=("admin",), lifetime=60)
    for lifetime in (None, 3600):
        reply = await brief.post("/v1/keys", json={"name": "k", "lifetime": lifetime})
        assert reply.json()["expires_at"] == (await brief.get("/v1/whoami")).json()["expires_at"]
    own, shorter = [(await brief.post("/v1/keys", json={"name": "k", "lifetime": n})).json()["expires_at"] for n in (60, 30)]
    assert shorter < own


async def test_names_of_queues_of_other_tenants_are_not_listed(caller: Caller, client: Client) -> None:
    """A1: whoever enqueues names a queue."""
    await client.enqueue("t", "hi", queue="secret-project")
    seen = [
        (await (await caller(tenant=tenant, scopes=("admin",))).get("/v1/queues")).json()["items"] for tenant in ("", "acme")
    ]
    assert [[queue["queue"] for queue in items] for items in seen] == [["secret-project"], []]
    acme = await caller(tenant="acme", scopes=("admin",))
    assert (await acme.get("/v1/queues?known=false")).json() == {"items": [], "next": None}


async def test_an_operator_reads_what_the_doctor_finds(http: Any, client: Client) -> None:
    found = (await http.get("/v1/doctor")).json()["items"]
    assert [each["about"] for each in found if each["level"] == "fail"] == ["workers"]
    await client.backend.workers.register(WorkerInfo(worker_id="w", queues=["q"]))
    found = (await http.get("/v1/doctor")).json()["items"]
    assert "fail" not in {each["level"] for each in found}


async def test_the_stacks_of_a_worker_without_a_port_cannot_be_read(http: Any, client: Client) -> None:
    await client.backend.workers.register(WorkerInfo(worker_id="w", queues=["q"]))
    assert (await http.get("/v1/workers/other/stacks")).json()["code"] == "worker_not_found"
    assert "has no port" in (await http.get("/v1/workers/w/stacks")).json()["detail"]


async def test_a_budget_of_a_later_release_is_left_out(caller: Caller, client: Client) -> None:
    """Each budget is shown that this API knows. A budget that it does not know does not fail the answer."""
    unknown: list[Any] = [{**BUDGET, "per": "day"}, {**BUDGET, "limits": {"cost": {"usd": 1}}}, {}]
    unknown += [{**BUDGET, "window": "1d"}, {**BUDGET, "limits": {"cost": 1, "requests": 2}}]
    budgets: dict[str, Any] = {"a": [unknown[0], BUDGET, *unknown[1:]], "b": unknown, "c": 7, "d": "text"}
    served = dict.fromkeys(budgets, "q")
    await client.backend.workers.register(WorkerInfo(worker_id="w", queues=["q"], agents=served, budgets=budgets))
    http = await caller()
    [worker] = (await http.get("/v1/workers")).json()["items"]
    assert worker["budgets"] == {"a": [BUDGET], "b": [], "c": [], "d": []}
    assert [agent["budgets"] for agent in (await http.get("/v1/agents")).json()["items"]] == [[BUDGET], [], [], []]
    assert (await http.get("/v1/agents/a")).json()["budgets"] == [BUDGET]


async def test_a_tenant_without_admin_does_not_see_budgets(caller: Caller, client: Client) -> None:
    """A1: Budgets tell what the deployment spends. All keys of its operator see them, and keys with the scope admin."""
    registered = WorkerInfo(worker_id="w", queues=["q"], agents={"a": "q"}, budgets={"a": [BUDGET]})
    await client.backend.workers.register(registered)
    scopes: tuple[Scope, ...] = ("read", "write", "respond", "metrics")
    for tenant, has, seen in (("", scopes, [BUDGET]), ("acme", ("admin",), [BUDGET]), ("acme", scopes, None)):
        http = await caller(tenant=tenant, scopes=has)
        [agent] = (await http.get("/v1/agents")).json()["items"]
        assert agent["budgets"] == seen
        assert (await http.get("/v1/agents/a")).json() == agent
