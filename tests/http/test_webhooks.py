"""Webhooks over HTTP: subscriptions, their secrets and deliveries, by tenant (R11, E5, A1, A2)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from runyard import Client, errors
from runyard.domain.webhook_secrets import derived
from runyard.domain.webhooks import MAX_WEBHOOKS, DeliveryOutcome, check_events
from runyard.models import Message
from runyard_backends.memory import MemoryWorld, connect
from tests.http.conftest import Caller
from tests.support.receiver import new_secret

URL = "https://hooks.example/a?b=1"


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> str:
    secret = new_secret()
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", secret)
    return secret


async def subscribed(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await http.post("/v1/webhooks", json={"url": URL, **body})
    assert reply.status_code == 201, reply.text
    return dict(reply.json())


async def stored(world: MemoryWorld, tenant: str, outcome: str = "failed") -> None:
    """An event of the tenant, whose deliveries end with ``outcome``."""
    client = Client(await connect(world=world, tenant=tenant))
    await client.store_message(f"t-{tenant}", Message.user("x"))
    for posting in await client.backend.webhooks.take(busy={}):
        await client.backend.webhooks.settle(posting, DeliveryOutcome(outcome))  # type: ignore[arg-type]


async def test_client_over_http_manages_webhooks_as_a_direct_one(
    remote: Client, client: Client, world: MemoryWorld, root: str
) -> None:
    """R11, E5: the same calls, object for object."""
    made = await remote.subscribe_webhook(URL, ["message.stored"])
    assert made.secret == derived(root, "", made.webhook_id, (1,))[0] and made.events == ["message.stored"]
    every = await remote.subscribe_webhook(URL, all_tenants=True)
    assert (every.tenant, every.events) == (None, check_events(None))
    listed = await remote.webhooks()
    assert listed == await client.webhooks() and [each.webhook_id for each in listed.items] == [
        made.webhook_id,
        every.webhook_id,
    ]
    assert {each.secret for each in listed.items} == {None} and made.webhook_id and listed.next is None
    first = await remote.webhooks(limit=1)
    assert (await remote.webhooks(cursor=first.next)).items == listed.items[1:]
    assert await remote.webhook(made.webhook_id) == listed.items[0] and await remote.webhook("none") is None
    secret = await remote.webhook_secret(made.webhook_id)
    assert secret == await client.webhook_secret(made.webhook_id) and secret is not None and secret.secret == made.secret
    rotated = await remote.rotate_webhook_secret(made.webhook_id, overlap=60)
    assert rotated == await client.webhook_secret(made.webhook_id) and rotated is not None and rotated.version == 2
    assert await remote.webhook_secret("none") is None is await remote.rotate_webhook_secret("none")
    await stored(world, "")
    (failed,) = (await remote.webhook_deliveries(status="failed")).items
    assert failed == (await client.webhook_deliveries()).items[0] and failed.webhook_id == made.webhook_id
    assert await remote.redeliver_webhook(failed.delivery_id) and not await remote.redeliver_webhook(failed.delivery_id)
    assert [each.status for each in (await remote.webhook_deliveries(status="pending")).items] == ["pending"]
    assert await remote.remove_webhook(made.webhook_id) and not await remote.remove_webhook(made.webhook_id)
    assert (await client.webhooks()).items == listed.items[1:]


async def test_secret_of_a_webhook_is_in_the_first_answer_only(caller: Caller, root: str) -> None:
    http = await caller(tenant="acme", scopes=("admin",))
    reply = await http.post("/v1/webhooks", json={"url": URL})
    made = reply.json()
    assert reply.headers["cache-control"] == "no-store" and made["secret"].startswith("whsec_")
    path = f"/v1/webhooks/{made['webhook_id']}"
    assert reply.headers["location"] == path
    for read in (path, "/v1/webhooks"):
        assert made["secret"] not in (await http.get(read)).text
    shown = await http.get(f"{path}/secret")
    assert shown.headers["cache-control"] == "no-store" and shown.json()["secret"] == made["secret"]


async def test_server_without_the_root_secret_subscribes_and_tells_no_secret(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNYARD_WEBHOOK_SECRET", raising=False)
    http = await caller()
    made = await subscribed(http)
    assert made["secret"] is None
    reply = await http.get(f"/v1/webhooks/{made['webhook_id']}/secret")
    assert (reply.status_code, reply.json()["code"]) == (501, "capability_missing")


async def test_a_repeated_subscription_is_one(caller: Caller, root: str) -> None:
    """The answer that was lost is given again, with the secret that signs at that time."""
    http, key = await caller(tenant="acme"), {"Idempotency-Key": "once"}
    first, again = [await http.post("/v1/webhooks", json={"url": URL}, headers=key) for _ in range(2)]
    assert (first.status_code, first.json()) == (201, again.json())
    other = await http.post("/v1/webhooks", json={"url": "https://other.example/"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "webhook_conflict")
    stranger = await caller(tenant="other")
    theirs = await stranger.post("/v1/webhooks", json={"url": URL}, headers=key)
    assert theirs.status_code == 201 and theirs.json()["webhook_id"] != first.json()["webhook_id"]
    assert len((await http.get("/v1/webhooks")).json()["items"]) == 1


async def test_tenant_reaches_no_webhook_of_others(caller: Caller, world: MemoryWorld, root: str) -> None:
    """A1: neither another tenant's webhooks and deliveries, nor those that receive the events of all tenants."""
    operator, acme, other = [await caller(tenant=name, scopes=("admin",)) for name in ("", "acme", "other")]
    every = await subscribed(operator, events=["message.stored"], all_tenants=True, url="https://audit.example/")
    mine = await subscribed(acme, events=["message.stored"], url="https://acme.example/")
    await stored(world, "acme")
    refused = await acme.post("/v1/webhooks", json={"url": URL, "all_tenants": True})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    seen = {http: (await http.get("/v1/webhook_deliveries")).json()["items"] for http in (operator, acme, other)}
    assert [[each["webhook_id"] for each in found] for found in seen.values()] == [
        [every["webhook_id"]],
        [mine["webhook_id"]],
        [],
    ]
    for http, strange in ((acme, every), (other, every), (other, mine), (operator, mine)):
        path = f"/v1/webhooks/{strange['webhook_id']}"
        replies = [await http.get(path), await http.get(f"{path}/secret"), await http.post(f"{path}/secret/rotate", json={})]
        replies.append(await http.delete(path))
        assert {(reply.status_code, reply.json()["code"]) for reply in replies} == {(404, "webhook_not_found")}
        assert strange["webhook_id"] not in (await http.get("/v1/webhooks")).text
        for delivery in seen[acme if strange is mine else operator]:
            again = await http.post(f"/v1/webhook_deliveries/{delivery['delivery_id']}/redeliver")
            assert (again.status_code, again.json()["code"]) == (404, "webhook_delivery_not_found")
    assert (await operator.get(f"/v1/webhooks/{every['webhook_id']}")).status_code == 200
    again = await operator.post(f"/v1/webhook_deliveries/{seen[operator][0]['delivery_id']}/redeliver")
    assert again.status_code == 204 and not again.content


async def test_key_without_the_scope_manages_no_webhooks(caller: Caller) -> None:
    made = await subscribed(await caller(tenant="acme", scopes=("admin",)))
    weak = await caller(tenant="acme", scopes=("read", "write", "respond", "metrics"))
    path = f"/v1/webhooks/{made['webhook_id']}"
    for method, where in (
        *(("GET", "/v1/webhooks"), ("POST", "/v1/webhooks"), ("GET", path), ("DELETE", path), ("GET", f"{path}/secret")),
        *(("POST", f"{path}/secret/rotate"), ("GET", "/v1/webhook_deliveries"), ("POST", "/v1/webhook_deliveries/x/redeliver")),
    ):
        assert (await weak.request(method, where)).status_code == 403, (method, where)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": None},
        {"url": ["https://a.example/"]},
        *({"url": url} for url in ("", "x", "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/", "javascript:1")),
        *(
            {"url": url}
            for url in ("https://", "https:///x", "https://me:pw@a.example/", "https://me@a.example/", "//a.example")
        ),
        *({"url": url} for url in ("https://a.example/#x", "https://a.example/ x", "https://a.example/\n", "https://a\\b/")),
        *(
            {"url": url}
            for url in ("https://bücher.example/", "https://a.example:0/", "https://a.example:99999/", "http://[::1")
        ),
        {"url": "https://a.example/" + "x" * 2048},
        {"url": URL, "events": []},
        {"url": URL, "events": ["run.guessed"]},
        {"url": URL, "events": ["run.failed"] * 99},
        {"url": URL, "events": "run.failed"},
        {"url": URL, "all_tenants": "yes"},
        {"url": URL, "headers": {"Authorization": "x"}},
        {"url": URL, "tenant": "other"},
        {"url": URL, "webhook_id": "mine"},
        {"url": URL, "secret": "whsec_mine"},
        {"url": URL} | {f"x{n}": n for n in range(5000)},
        [],
    ],
)
async def test_bodies_of_webhooks_are_bounded(http: httpx.AsyncClient, client: Client, body: Any) -> None:
    reply = await http.post("/v1/webhooks", json=body)
    assert reply.status_code in (400, 422) and len(reply.content) < 20_000, reply.text
    assert (await client.webhooks()).items == []


async def test_pages_and_ids_are_checked(http: httpx.AsyncClient) -> None:
    for path in ("/v1/webhooks?limit=0", "/v1/webhooks?limit=100000", "/v1/webhook_deliveries?status=lost", "/v1/webhooks?x=1"):
        assert (await http.get(path)).status_code in (400, 422), path
    for cursor in ("x", "W10=", "WyIyMDMwLTAxLTAxVDAwOjAwOjAwWiIsICJcdTAwMDAiXQ==", "x" * 3000):
        for name in ("webhooks", "webhook_deliveries"):
            assert (await http.get(f"/v1/{name}", params={"cursor": cursor})).status_code in (400, 422), cursor
    for webhook_id in ("%0A", "x" * 300, "none", "a%2Fb"):
        assert (await http.get(f"/v1/webhooks/{webhook_id}")).status_code in (400, 404, 422), webhook_id


async def test_number_of_webhooks_is_bounded(remote: Client) -> None:
    """The dispatcher reads every subscription twice a second."""
    for _ in range(MAX_WEBHOOKS):
        await remote.subscribe_webhook(URL)
    with pytest.raises(errors.TooManyWebhooksError) as refused:
        await remote.subscribe_webhook(URL)
    assert refused.value.details["limit"] == MAX_WEBHOOKS
    await remote.subscribe_webhook(URL, all_tenants=True)


async def test_an_id_of_any_text_makes_a_repetition_safe(remote: Client) -> None:
    first, again = [await remote.subscribe_webhook(URL, webhook_id="hook für " + "x" * 200) for _ in range(2)]
    assert first.webhook_id == again.webhook_id


async def test_a_client_of_a_tenant_subscribes_to_its_tenant_only(world: MemoryWorld) -> None:
    acme = Client(await connect(world=world, tenant="acme"))
    with pytest.raises(errors.InvalidInputError, match="all_tenants"):
        await acme.subscribe_webhook(URL, all_tenants=True)
