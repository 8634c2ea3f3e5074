"""The owner of a webhook is its tenant, or the tenant without a name. Only the owner lists and redelivers its deliveries
(A1)."""

from __future__ import annotations

import pytest

from runyard.domain.webhooks import SigningKey

from .webhooks import HOOK, deliveries, settle, subscribe, take
from .world import World

pytestmark = pytest.mark.asyncio


class TestWebhookOwners:
    async def test_subscription_gets_events_of_its_tenant_or_of_all_tenants(self, world: World) -> None:
        """A subscription receives the events of its tenant, or the events of all tenants. Only the owner of a subscription sees
        it and its deliveries. The tenant without a name owns the subscriptions to all tenants."""
        other = World(await world.factory(tenant="other"), world.factory)
        await subscribe(world)
        await subscribe(other, "theirs", "https://theirs.example/")
        await subscribe(world, "all", "https://all.example/", tenant=None)
        await world.turn("mine")
        await other.turn("foreign")
        postings = await take(other)
        assert sorted((p.webhook_id or "", p.tenant, p.run_id) for p in postings) == [
            ("all", "", "mine"),
            ("all", "other", "foreign"),
            ("hook", "", "mine"),
            ("theirs", "other", "foreign"),
        ]
        mine, theirs = world.backend.webhooks, other.backend.webhooks
        assert [w.webhook_id for w in (await mine.webhooks()).items] == ["hook", "all"]
        assert [w.webhook_id for w in (await theirs.webhooks()).items] == ["theirs"]
        assert [(d.webhook_id, d.run_id) for d in await deliveries(other)] == [("theirs", "foreign")]
        assert sorted((d.webhook_id, d.run_id) for d in await deliveries(world)) == [
            ("all", "foreign"),
            ("all", "mine"),
            ("hook", "mine"),
        ]
        assert await mine.webhook("theirs") is None is await theirs.webhook("all") is await theirs.webhook("hook")
        assert (await theirs.webhook("theirs"), await mine.webhook("all")) != (None, None)
        for stranger, webhook_id in ((mine, "theirs"), (theirs, "all"), (theirs, "hook")):
            assert not await stranger.remove(webhook_id)
            assert await stranger.key(webhook_id) is None is await stranger.rotate(webhook_id, overlap=0.0)
        (foreign,) = [p for p in postings if p.webhook_id == "theirs"]
        await settle(other, foreign, "failed")
        assert not await mine.redeliver(foreign.delivery_id)
        (copied,) = [p for p in postings if (p.webhook_id, p.tenant) == ("all", "other")]
        await settle(world, copied, "failed")
        assert not await theirs.redeliver(copied.delivery_id)
        assert await mine.redeliver(copied.delivery_id)
        await mine.remove("all")
        assert {d.webhook_id for d in await deliveries(other)} == {"theirs"}
        await other.backend.close()

    async def test_a_subscription_made_again_has_another_secret(self, world: World) -> None:
        """A subscription is removed and made again with the same id. The new subscription gets another secret, because the old
        secret may have leaked. The old deliveries, to the old URL, are not sent again."""
        store = world.backend.webhooks
        await subscribe(world)
        await world.turn("r1")
        (old,) = await take(world)
        await settle(world, old, "failed")
        await store.rotate("hook", overlap=60.0)
        for version, url in ((3, "https://new.example/"), (4, HOOK)):
            assert await store.remove("hook")
            await subscribe(world, url=url)
            assert await store.key("hook") == SigningKey(version)
            assert await store.redeliver(old.delivery_id) == (url == HOOK)
        (again,) = await take(world)
        assert (again.delivery_id, [*again.versions]) == (old.delivery_id, [4])

    async def test_no_secret_of_a_removed_subscription_is_used_again(self, world: World) -> None:
        """The version of a new subscription is higher than the versions of all removed subscriptions, for any id."""
        store = world.backend.webhooks
        for webhook_id, rotations in (("one", 4), ("two", 1)):
            await subscribe(world, webhook_id)
            for _ in range(rotations):
                last = await store.rotate(webhook_id, overlap=0.0)
            assert await store.remove(webhook_id)
        assert last == SigningKey(7)
        await subscribe(world, "one")
        assert await store.key("one") == SigningKey(8)

    async def test_an_id_of_another_tenant_moves_no_delivery(self, world: World) -> None:
        """A1: A tenant makes a webhook with the id and the URL of another tenant's removed webhook. The old deliveries stay
        with their owner. The old deliveries are not sent again, because the secret of the new webhook would sign them."""
        other = World(await world.factory(tenant="other"), world.factory)
        mine, theirs = world.backend.webhooks, other.backend.webhooks
        await subscribe(world)
        await world.turn("r1")
        (old,) = await take(world)
        await settle(world, old, "failed")
        first = await mine.key("hook")
        assert await mine.remove("hook")
        await subscribe(other)
        assert (await theirs.key("hook")) == SigningKey(2) != first
        assert not await mine.redeliver(old.delivery_id) and not await theirs.redeliver(old.delivery_id)
        assert await take(world) == [] == await deliveries(other)
        assert [d.run_id for d in await deliveries(world)] == ["r1"]
        await other.turn("r2")
        (posting,) = await take(world)
        assert (posting.tenant, [*posting.versions]) == ("other", [2])
        await other.backend.close()
