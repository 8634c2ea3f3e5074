"""A delivery belongs to the owner of the webhook for which it was made, also if that webhook is removed at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard.domain.webhooks import DeliveryOutcome, Posting, SigningKey, Webhook
from runyard.ports.stores import Backend
from runyard_backends.conformance.world import T
from runyard_backends.postgres.backend import connect

HOOK = "https://hooks.example/"


@pytest.fixture
async def tenants(postgres_url: str) -> AsyncIterator[tuple[Backend, Backend]]:
    """The stores of two tenants."""
    ours, theirs = [await connect(postgres_url, tenant=name, max_pool_size=2) for name in ("ours", "theirs")]
    yield ours, theirs
    await ours.close()
    await theirs.close()


async def subscribe(backend: Backend, *, tenant: str | None) -> None:
    await backend.webhooks.add(Webhook(webhook_id="hook", tenant=tenant, url=HOOK, events=["message.stored"]))


async def late_delivery(postgres_url: str, ours: Backend) -> None:
    """Make a delivery for a webhook that the leader read before the webhook's removal, which is committed first."""
    await subscribe(ours, tenant="ours")
    connection = await asyncpg.connect(postgres_url)
    try:
        message = "(gen_random_uuid(), 'user', convert_to('{\"content\": []}', 'UTF8'), NULL, NULL)::runyard.new_message"
        await connection.execute(f"SELECT runyard.store_message('ours', $1, {message}, NULL, NULL)", T)
        read = await connection.fetchval("SELECT to_jsonb(w) FROM runyard.webhooks w")
        assert await ours.webhooks.remove("hook")
        await connection.execute("SELECT runyard.spread_webhook(jsonb_populate_record(NULL::runyard.webhooks, $1), 10)", read)
    finally:
        await connection.close()


async def test_removed_webhooks_leave_one_row(postgres_url: str, tenants: tuple[Backend, Backend]) -> None:
    """The row has the highest version of their secrets. A webhook of any id begins after it, also if it is another tenant's, so
    that no secret is used again."""
    ours, theirs = tenants
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("INSERT INTO runyard.removed_webhooks VALUES ('of the previous release', 9)")
        for n in range(3):
            await ours.webhooks.add(Webhook(webhook_id=f"{n}", tenant="ours", url=HOOK, events=["message.stored"]))
            await ours.webhooks.rotate(f"{n}", overlap=60.0)
            assert await ours.webhooks.remove(f"{n}")
        assert await connection.fetchval("SELECT count(*) FROM runyard.removed_webhooks") == 2
    finally:
        await connection.close()
    for webhook_id, version in (("0", 7), ("of the previous release", 10)):
        await theirs.webhooks.add(Webhook(webhook_id=webhook_id, tenant="theirs", url=HOOK, events=["message.stored"]))
        assert await theirs.webhooks.key(webhook_id) == SigningKey(version)


async def taken(backend: Backend) -> Posting:
    (posting,) = await backend.webhooks.take(busy={}, lease=60.0)
    return posting


async def test_a_delivery_to_a_webhook_that_was_just_removed_is_its_owners(
    postgres_url: str, tenants: tuple[Backend, Backend]
) -> None:
    """A1: Nobody else lists it, and nothing signs it."""
    ours, theirs = tenants
    await late_delivery(postgres_url, ours)
    nameless = await connect(postgres_url, max_pool_size=1)
    listed = [len((await backend.webhooks.deliveries()).items) for backend in (ours, theirs, nameless)]
    assert listed == [1, 0, 0]
    assert (await taken(ours)).versions == []
    await nameless.close()


async def test_the_webhook_of_another_tenant_does_not_sign(postgres_url: str, tenants: tuple[Backend, Backend]) -> None:
    """A1: Another tenant's webhook with the same id and URL signs only its own deliveries."""
    ours, theirs = tenants
    await late_delivery(postgres_url, ours)
    await subscribe(theirs, tenant="theirs")
    assert (await taken(ours)).versions == []


async def test_a_webhook_with_another_url_does_not_sign(postgres_url: str, tenants: tuple[Backend, Backend]) -> None:
    """A1: The receiver at the URL of the removed webhook gets no signature of the webhook that has the id afterwards."""
    ours, _ = tenants
    await late_delivery(postgres_url, ours)
    await ours.webhooks.add(Webhook(webhook_id="hook", tenant="ours", url=f"{HOOK}new", events=["message.stored"]))
    assert (await taken(ours)).versions == []


async def test_an_answer_410_disables_no_webhook_of_another_tenant(postgres_url: str, tenants: tuple[Backend, Backend]) -> None:
    """A1: The answer belongs to the removed webhook."""
    ours, theirs = tenants
    await late_delivery(postgres_url, ours)
    await subscribe(theirs, tenant="theirs")
    await ours.webhooks.settle(await taken(ours), DeliveryOutcome("gone", 410))
    kept = await theirs.webhooks.webhook("hook")
    assert kept is not None and kept.disabled_at is None


async def test_a_removal_removes_no_delivery_of_another_tenant(postgres_url: str, tenants: tuple[Backend, Backend]) -> None:
    """A1: The owner still sees what became of the delivery."""
    ours, theirs = tenants
    await late_delivery(postgres_url, ours)
    await subscribe(theirs, tenant="theirs")
    assert await theirs.webhooks.remove("hook")
    assert len((await ours.webhooks.deliveries()).items) == 1
