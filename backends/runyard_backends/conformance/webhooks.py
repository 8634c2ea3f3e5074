"""Webhooks in the store: deliveries from the commit to the end of the last try (R11, E5)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runyard.domain.webhooks import (
    MAX_WEBHOOKS,
    DeliveryOutcome,
    DeliveryStatus,
    Posting,
    SigningKey,
    Webhook,
    WebhookDelivery,
    check_events,
)
from runyard.errors import InvalidCursorError, TooManyWebhooksError, WebhookConflictError
from runyard.models import RunOptions
from runyard.ports.queries import PageRequest
from runyard.ports.workers import Retention

from .world import T, World

pytestmark = pytest.mark.asyncio

HOOK = "https://hooks.example/runs"
OWN = RunOptions(webhook="https://own.example/done")


async def subscribe(world: World, webhook_id: str = "hook", url: str = HOOK, **fields: object) -> None:
    given = {"webhook_id": webhook_id, "tenant": world.backend.tenant, "url": url, "events": check_events(None)}
    await world.backend.webhooks.add(Webhook.model_validate({**given, **fields}))


async def take(world: World, **how: object) -> list[Posting]:
    given = {"busy": {}, "lease": 60.0}
    return await world.backend.webhooks.take(**{**given, **how})  # type: ignore[arg-type]


async def deliveries(world: World, status: DeliveryStatus | None = None) -> list[WebhookDelivery]:
    return (await world.backend.webhooks.deliveries(status=status)).items


async def settle(world: World, posting: Posting, kind: str, **fields: object) -> None:
    await world.backend.webhooks.settle(posting, DeliveryOutcome(kind, **fields))  # type: ignore[arg-type]


def told(postings: list[Posting]) -> list[tuple[str, str | None]]:
    return [(posting.type, posting.run_id) for posting in postings]


class TestWebhooks:
    async def test_a_run_tells_its_own_url_of_its_end(self, world: World) -> None:
        """R11: A run's own URL receives each end of the run once. A run without a URL has no delivery."""
        await world.turn("plain")
        await world.turn("r1", options=OWN)
        await world.failed("r2", options=OWN)
        await world.accept("r3", options=OWN)
        await world.runs.cancel(T, "r3")
        postings = await take(world)
        assert told(postings) == [("run.completed", "r1"), ("run.failed", "r2"), ("run.cancelled", "r3")]
        assert {(p.url, p.endpoint, p.thread_id, p.tries, *p.versions, p.webhook_id) for p in postings} == {
            (OWN.webhook, "https://own.example", T, 1, 1, None)
        }
        assert len({p.delivery_id for p in postings}) == 3
        await world.runs.redrive(T, "r2")
        await world.finish(await world.take("r2"))
        assert told(await take(world)) == [("run.completed", "r2")]
        assert (await world.run("r1")).options.webhook == OWN.webhook

    async def test_a_subscription_begins_when_it_is_made(self, world: World) -> None:
        """E5: A subscription receives its event types in the order of the feed. It begins with the next commit."""
        await world.turn("before")
        await subscribe(world)
        await subscribe(world, "stored", "https://other.example/", events=["message.stored"])
        await world.suspended("r1")
        await world.runs.cancel(T, "r1")
        await world.store("x")
        await world.turn("r2")
        postings = await take(world)
        mine = [p for p in postings if p.webhook_id == "hook"]
        assert told(mine) == [("run.suspended", "r1"), ("run.cancelled", "r1"), ("run.completed", "r2")]
        assert {(p.url, *p.versions) for p in mine} == {(HOOK, 1)}
        assert told([p for p in postings if p.webhook_id == "stored"]) == [("message.stored", None)]
        assert await take(world) == []

    async def test_no_secret_is_kept(self, world: World) -> None:
        await subscribe(world, secret="whsec_hook")
        (shown,) = (await world.backend.webhooks.webhooks()).items
        assert shown == await world.backend.webhooks.webhook("hook")
        assert shown.secret is None and shown.created_at is not None and shown.events == check_events(None)

    async def test_a_repeated_subscription_is_one(self, world: World) -> None:
        """A repeated subscription changes nothing. Another subscription with the same id is refused."""
        await subscribe(world)
        before = await world.backend.webhooks.webhook("hook")
        await subscribe(world)
        with pytest.raises(WebhookConflictError, match="another url"):
            await subscribe(world, url="https://other.example/")
        with pytest.raises(WebhookConflictError, match="another tenant"):
            await subscribe(world, tenant="other")
        assert await world.backend.webhooks.webhook("hook") == before

    async def test_subscriptions_are_bounded_and_come_in_pages(self, world: World) -> None:
        """A tenant has at most MAX_WEBHOOKS subscriptions. Subscriptions to all tenants are counted separately."""
        store, names = world.backend.webhooks, [f"hook-{n:03}" for n in range(MAX_WEBHOOKS)]
        for name in names:
            await subscribe(world, name)
        with pytest.raises(TooManyWebhooksError) as refused:
            await subscribe(world)
        assert refused.value.details == {"limit": MAX_WEBHOOKS}
        await subscribe(world, "hook-000")
        await subscribe(world, "all", tenant=None)
        seen: list[str] = []
        page = await store.webhooks(PageRequest(limit=40))
        while True:
            seen += [webhook.webhook_id for webhook in page.items]
            if page.next is None:
                break
            page = await store.webhooks(PageRequest(limit=40, cursor=page.next))
        assert seen == [*names, "all"]
        assert await store.remove("hook-050")
        await subscribe(world)

    async def test_the_secrets_of_runs_are_rotated_by_tenant(self, world: World) -> None:
        """R11: The secret of a tenant's runs can be rotated. Each try is signed with the current version of the secret. During
        the overlap, the previous version also signs."""
        other = World(await world.factory(tenant="other"), world.factory)
        for each in (world, other):
            await each.turn("r1", options=OWN)
        store = world.backend.webhooks
        assert await store.key() == SigningKey() == await other.backend.webhooks.key()
        before = await take(world, lease=0.0)
        key = await store.rotate(overlap=3600.0)
        assert key is not None and key.version == 2 and key.both_until is not None
        assert await store.key() == key
        again = await take(world, lease=0.0)
        assert [{p.tenant: [*p.versions] for p in taken} for taken in (before, again)] == [
            {"": [1], "other": [1]},
            {"": [2, 1], "other": [1]},
        ]
        assert await store.rotate(overlap=0.0) == SigningKey(3)
        assert {p.tenant: [*p.versions] for p in await take(world)} == {"": [3], "other": [1]}
        await other.backend.close()

    async def test_the_secret_of_a_subscription_is_rotated_by_itself(self, world: World) -> None:
        other = World(await world.factory(tenant="other"), world.factory)
        await subscribe(world)
        await subscribe(world, "all", "https://all.example/", tenant=None)
        await world.turn("r1", options=OWN)
        store = world.backend.webhooks
        assert await store.key("hook") == SigningKey()
        assert await other.backend.webhooks.key("hook") is None is await other.backend.webhooks.rotate("hook", overlap=1.0)
        assert await store.key("none") is None is await store.rotate("none", overlap=1.0)
        key = await store.rotate("hook", overlap=3600.0)
        assert key is not None and key.version == 2 and await store.key() == await store.key("all") == SigningKey()
        versions = {p.webhook_id: [*p.versions] for p in await take(world, lease=0.0)}
        assert versions == {"hook": [2, 1], "all": [1], None: [1]}
        assert await store.rotate("hook", overlap=0.0) == SigningKey(3)
        assert {p.webhook_id: [*p.versions] for p in await take(world)} == {"hook": [3], "all": [1], None: [1]}
        await other.backend.close()

    @pytest.mark.parametrize("hook", [None, "hook"])
    async def test_a_rotation_repeated_is_one(self, world: World, hook: str | None) -> None:
        """A call with the id of the last rotation changes nothing. A call without an id always rotates."""
        await subscribe(world)
        store = world.backend.webhooks
        first = await store.rotate(hook, overlap=60.0, rotation_id="once")
        assert first is not None and first.version == 2
        assert await store.rotate(hook, overlap=60.0, rotation_id="once") == first == await store.key(hook)
        second = await store.rotate(hook, overlap=60.0, rotation_id="another")
        assert second is not None and second.version == 3
        assert await store.rotate(hook, overlap=0.0) == SigningKey(4)
        assert await store.rotate(hook, overlap=0.0) == SigningKey(5)
        assert await store.rotate("none", overlap=1.0, rotation_id="once") is None

    async def test_delivery_that_is_not_settled_is_taken_again(self, world: World) -> None:
        """E5: If the outcome of a delivery was not stored, the delivery is taken again with the same id. The second taking
        counts as another try.
        """
        await world.turn("r1", options=OWN)
        (first,) = await take(world, lease=0.0)
        (second,) = await take(world)
        assert (second.delivery_id, first.tries, second.tries) == (first.delivery_id, 1, 2)
        assert await take(world) == []
        await settle(world, first, "failed")
        assert [d.status for d in await deliveries(world)] == ["pending"], "the outcome of an earlier try is ignored"
        await settle(world, first, "delivered", http_status=200)
        await settle(world, second, "failed", error="late")
        (over,) = await deliveries(world)
        assert (over.status, over.http_status, over.error) == ("delivered", 200, None), "a confirmed delivery stays delivered"

    async def test_a_try_that_fails(self, world: World) -> None:
        await world.turn("r1", options=OWN)
        (first,) = await take(world)
        await settle(world, first, "retried", http_status=500, error="answered 500", pause=60.0)
        (waiting,) = await deliveries(world, status="pending")
        assert (waiting.tries, waiting.http_status, waiting.error) == (1, 500, "answered 500")
        assert waiting.next_at is not None and waiting.next_at > waiting.created_at
        assert await take(world) == []

    async def test_delivery_that_failed_is_listed_and_can_be_sent_again(self, world: World) -> None:
        await world.turn("r1", options=OWN)
        await world.turn("r2", options=OWN)
        one, two = await take(world)
        await settle(world, one, "failed", error="answered 500")
        await settle(world, two, "delivered", http_status=204)
        (failed,) = await deliveries(world, status="failed")
        assert (failed.run_id, failed.error, failed.failed_at is not None) == ("r1", "answered 500", True)
        assert [d.run_id for d in await deliveries(world, status="delivered")] == ["r2"]
        assert await world.backend.webhooks.redeliver(failed.delivery_id)
        assert not await world.backend.webhooks.redeliver(failed.delivery_id), "the delivery is in flight"
        (again,) = await take(world)
        assert (again.delivery_id, again.tries) == (one.delivery_id, 1)

    async def test_receiver_that_is_gone_disables_its_subscription(self, world: World) -> None:
        """Status 410 disables the subscription and fails its pending deliveries. Other subscriptions continue."""
        await subscribe(world)
        await subscribe(world, "next", "https://next.example/")
        await world.turn("r1")
        await world.turn("r2")
        postings = await take(world)
        first = next(p for p in postings if p.webhook_id == "hook")
        await settle(world, first, "gone", http_status=410)
        failed = await deliveries(world, status="failed")
        assert [(d.webhook_id, d.run_id) for d in failed] == [("hook", "r2"), ("hook", "r1")]
        assert not await world.backend.webhooks.redeliver(first.delivery_id)
        hook, other = (await world.backend.webhooks.webhooks()).items
        assert hook.disabled_at is not None and other.disabled_at is None
        await world.turn("r3")
        assert [p.webhook_id for p in await take(world)] == ["next"]

    async def test_removal_takes_along_what_waits(self, world: World) -> None:
        await subscribe(world)
        await world.turn("r1")
        (posting,) = await take(world, lease=0.0)
        assert await world.backend.webhooks.remove("hook")
        assert not await world.backend.webhooks.remove("hook")
        await settle(world, posting, "retried")
        await world.turn("r2")
        assert await take(world) == [] == await deliveries(world)

    async def test_no_endpoint_waits_behind_another(self, world: World) -> None:
        """``each`` limits the deliveries of one endpoint, including the ``busy`` ones that are being sent. ``take`` begins with
        the next endpoint after ``after``."""
        for n in range(4):
            for place in "abc":
                await world.turn(f"{place}{n}", options=RunOptions(webhook=f"https://{place}.example/x"))
        a = "https://a.example"
        first = await take(world, each=2, limit=5, busy={a: 1})
        assert [p.run_id for p in first] == ["a0", "b0", "b1", "c0", "c1"]
        assert [p.run_id for p in await take(world, each=2, after=a)] == ["b2", "b3", "c2", "c3"]
        assert [p.run_id for p in await take(world, each=4, busy={a: 2})] == ["a1", "a2"]

    async def test_deliveries_come_in_pages(self, world: World) -> None:
        for n in range(5):
            await world.turn(f"r{n}", options=OWN)
        seen: list[str | None] = []
        page = await world.backend.webhooks.deliveries(page=PageRequest(limit=2))
        while True:
            seen += [d.run_id for d in page.items]
            if page.next is None:
                break
            page = await world.backend.webhooks.deliveries(page=PageRequest(limit=2, cursor=page.next))
        assert seen == [f"r{n}" for n in reversed(range(5))]

    async def test_a_row_that_the_cursor_names_may_leave_the_list(self, world: World) -> None:
        """The next page begins after its place: in a list of deliveries by status, and in the list of webhooks."""
        store = world.backend.webhooks
        for n in range(4):
            await world.turn(f"r{n}", options=OWN)
        for n in range(4):
            await subscribe(world, f"hook-{n}")
        postings = {posting.delivery_id: posting for posting in await take(world)}
        first = await store.deliveries(status="pending", page=PageRequest(limit=2))
        await settle(world, postings[first.items[-1].delivery_id], "delivered", http_status=204)
        second = await store.deliveries(status="pending", page=PageRequest(limit=2, cursor=first.next))
        assert [d.run_id for page in (first, second) for d in page.items] == ["r3", "r2", "r1", "r0"] and second.next is None
        hooks = await store.webhooks(PageRequest(limit=2))
        assert await store.remove(hooks.items[-1].webhook_id)
        rest = await store.webhooks(PageRequest(limit=2, cursor=hooks.next))
        names = [hook.webhook_id for page in (hooks, rest) for hook in page.items]
        assert names == [f"hook-{n}" for n in range(4)] and rest.next is None
        for cursor in ("x", "e30="):
            with pytest.raises(InvalidCursorError):
                await store.deliveries(page=PageRequest(cursor=cursor))
            with pytest.raises(InvalidCursorError):
                await store.webhooks(PageRequest(cursor=cursor))

    async def test_age_of_the_oldest_delivery_is_reported(self, world: World) -> None:
        assert await world.backend.webhooks.oldest() is None
        await world.turn("r1", options=OWN)
        assert (await world.backend.webhooks.oldest() or 0.0) >= 0.0
        (posting,) = await take(world)
        await settle(world, posting, "delivered", http_status=200)
        assert await world.backend.webhooks.oldest() is None

    async def test_the_feed_is_kept_for_who_has_not_read_it(self, world: World) -> None:
        """E5: An entry is not pruned before each webhook has its delivery. Finished deliveries are pruned after the retention
        of the feed."""
        await subscribe(world)
        await world.turn("r1")
        await world.count()
        nothing = Retention(feed=timedelta(0))
        await world.workers.prune(nothing)
        (posting,) = await take(world)
        await world.workers.prune(nothing)
        assert (await world.backend.feed.read()).items == []
        await world.workers.prune(nothing)
        assert len(await deliveries(world)) == 1, "the delivery is in flight"
        await settle(world, posting, "delivered", http_status=200)
        await world.workers.prune(Retention())
        assert len(await deliveries(world)) == 1
        await world.workers.prune(nothing)
        assert await deliveries(world) == []

    async def test_a_quiet_tenant_keeps_nothing_of_others(self, world: World) -> None:
        other = World(await world.factory(tenant="other"), world.factory)
        await subscribe(other, "quiet")
        await world.turn("r1")
        assert await take(world) == []
        await world.count()
        await world.workers.prune(Retention(feed=timedelta(0)))
        assert (await world.backend.feed.read()).items == []
        await other.backend.close()

    async def test_deletion_ends_nothing_that_is_to_be_told(self, world: World) -> None:
        """Deleting a thread keeps its deliveries, which contain only ids. The run is read when a delivery is sent."""
        await world.turn("r1", options=OWN)
        await world.threads.delete_thread(T)
        assert told(await take(world)) == [("run.completed", "r1")]
