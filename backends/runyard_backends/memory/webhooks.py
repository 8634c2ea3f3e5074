"""The memory store of webhooks. Each entry of the feed becomes a delivery for each webhook that subscribed to its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from urllib.parse import urlsplit

from runyard.domain.webhooks import (
    DeliveryOutcome,
    DeliveryStatus,
    Posting,
    SigningKey,
    Webhook,
    WebhookDelivery,
    check_room,
)
from runyard.models import new_id
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.results import Page

from .. import cursors
from ..paging import page_of
from .state import Database, Note


@dataclass
class Subscription:
    """A webhook with its signing key. ``seen``: the number of the last examined feed entry. A delivery was made for this
    entry, or the entry was skipped."""

    webhook: Webhook
    seen: int
    key: SigningKey = field(default_factory=SigningKey)
    rotation_id: str | None = None

    def covers(self, note: Note) -> bool:
        return self.webhook.tenant in (None, note.tenant)


@dataclass
class DeliveryState:
    """A delivery with its number and the tenant of its event. ``owner``: the tenant that sees the delivery."""

    number: int
    tenant: str
    owner: str
    delivery: WebhookDelivery

    @property
    def endpoint(self) -> str:
        parts = urlsplit(self.delivery.url)
        return f"{parts.scheme}://{parts.netloc}".lower()

    def is_of(self, subscription: Subscription) -> bool:
        """True if the delivery was made for ``subscription``. A subscription with the same id may have been made after the
        delivery. Such a subscription has another owner or another URL.
        """
        webhook, made = subscription.webhook, self.delivery
        return (webhook.webhook_id, webhook.owner, webhook.url) == (made.webhook_id, self.owner, made.url)

    @property
    def over_at(self) -> datetime | None:
        """The time at which the delivery arrived or failed. The time is None while the delivery is pending."""
        return self.delivery.delivered_at or self.delivery.failed_at


class MemoryWebhookStore:
    """Webhooks of one tenant. ``take``, ``settle`` and ``oldest`` cover all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def add(self, webhook: Webhook) -> Webhook:
        if (known := self.db.webhooks.get(webhook.webhook_id)) is not None:
            known.webhook.check_same(webhook)
            return known.webhook.model_copy()
        check_room(sum(each.webhook.tenant == webhook.tenant for each in self.db.webhooks.values()))
        kept = webhook.model_copy(update={"created_at": self.db.now(), "secret": None})
        key = SigningKey(self.db.removed_webhook_version + 1)
        self.db.webhooks[webhook.webhook_id] = Subscription(kept, self.db.numbers, key)
        return kept.model_copy()

    async def webhook(self, webhook_id: str) -> Webhook | None:
        known = self._known(webhook_id)
        return known.webhook.model_copy() if known is not None else None

    async def webhooks(self, page: PageRequest = FIRST_PAGE) -> Page[Webhook]:
        last = cursors.moment(page.cursor) if page.cursor is not None else (cursors.START[0], "")
        mine = [each.webhook for each in self.db.webhooks.values() if each.webhook.owner == self.tenant]
        left = sorted((webhook for webhook in mine if _place(webhook) > last), key=_place)
        part = page_of(left, page.limit, lambda each: cursors.of_moment(*_place(each)), lambda _: 1024, self.db.page_bytes)
        return Page([webhook.model_copy() for webhook in part.items], part.next)

    def _known(self, webhook_id: str) -> Subscription | None:
        known = self.db.webhooks.get(webhook_id)
        return known if known is not None and known.webhook.owner == self.tenant else None

    async def remove(self, webhook_id: str) -> bool:
        if (known := self._known(webhook_id)) is None:
            return False
        self.db.removed_webhook_version = max(self.db.removed_webhook_version, known.key.version)
        del self.db.webhooks[webhook_id]
        self.db.deliveries = [
            each
            for each in self.db.deliveries
            if (each.owner, each.delivery.webhook_id) != (self.tenant, webhook_id) or each.delivery.next_at is None
        ]
        return True

    async def deliveries(
        self, *, status: DeliveryStatus | None = None, page: PageRequest = FIRST_PAGE
    ) -> Page[WebhookDelivery]:
        last = cursors.numbers(page.cursor, 1, below=2**63)[0] if page.cursor is not None else 2**63
        mine = [each for each in reversed(self.db.deliveries) if each.owner == self.tenant and each.number < last]
        left = [each for each in mine if status in (None, each.delivery.status)]
        part = page_of(left, page.limit, lambda each: cursors.encode([each.number]), lambda _: 1024, self.db.page_bytes)
        return Page([each.delivery.model_copy() for each in part.items], part.next)

    async def redeliver(self, delivery_id: str) -> bool:
        for each in self.db.deliveries:
            known = self.db.webhooks.get(each.delivery.webhook_id or "")
            heard = each.delivery.webhook_id is None or (
                known is not None and each.is_of(known) and known.webhook.disabled_at is None
            )
            over = each.delivery.next_at is None
            if each.owner == self.tenant and each.delivery.delivery_id == delivery_id and over and heard:
                blank = {"delivered_at": None, "failed_at": None, "http_status": None, "error": None, "tries": 0}
                each.delivery = each.delivery.model_copy(update={**blank, "status": "pending", "next_at": self.db.now()})
                return True
        return False

    async def key(self, webhook_id: str | None = None) -> SigningKey | None:
        if webhook_id is None:
            return self.db.webhook_keys.get(self.tenant, SigningKey())
        known = self._known(webhook_id)
        return known.key if known is not None else None

    async def rotate(
        self, webhook_id: str | None = None, *, overlap: float, rotation_id: str | None = None
    ) -> SigningKey | None:
        before = await self.key(webhook_id)
        if before is None or (rotation_id is not None and rotation_id == self._rotation(webhook_id)):
            return before
        key = SigningKey(before.version + 1, self.db.now() + timedelta(seconds=overlap) if overlap else None)
        if webhook_id is None:
            self.db.webhook_keys[self.tenant], self.db.rotations[self.tenant] = key, rotation_id
        else:
            self.db.webhooks[webhook_id].key, self.db.webhooks[webhook_id].rotation_id = key, rotation_id
        return key

    def _rotation(self, webhook_id: str | None) -> str | None:
        return self.db.rotations.get(self.tenant) if webhook_id is None else self.db.webhooks[webhook_id].rotation_id

    def _versions(self, state: DeliveryState) -> list[int]:
        """Return the versions of the secret that sign a delivery, the current version first."""
        if (webhook_id := state.delivery.webhook_id) is None:
            key = self.db.webhook_keys.get(state.tenant, SigningKey())
        elif (known := self.db.webhooks.get(webhook_id)) is not None and state.is_of(known):
            key = known.key
        else:
            return []
        both = key.both_until is not None and key.both_until > self.db.now()
        return [key.version, key.version - 1] if both else [key.version]

    async def take(
        self, *, busy: Mapping[str, int], after: str = "", limit: int = 64, each: int = 8, lease: float = 30.0
    ) -> list[Posting]:
        """Take up to ``limit`` due deliveries, in the order of their endpoints' names, beginning after the endpoint ``after``.
        ``busy``: for each endpoint, the number of its deliveries that are being sent. These deliveries and the taken deliveries
        of an endpoint are at most ``each`` together. If the outcome of a delivery is not stored within ``lease`` seconds, the
        delivery is due again."""
        for subscription in self.db.webhooks.values():
            self._spread(subscription)
        now = self.db.now()
        due = [(x.endpoint, at, x.number, x) for x in self.db.deliveries if (at := x.delivery.next_at) and at <= now]
        taken: list[Posting] = []
        for endpoint, found in groupby(sorted(place for place in due if place[0] > after), lambda place: place[0]):
            room = max(0, min(limit - len(taken), each - busy.get(endpoint, 0)))
            taken += [self._take(state, lease) for *_, state in list(found)[:room]]
        return taken

    def _spread(self, subscription: Subscription) -> None:
        webhook = subscription.webhook
        if webhook.disabled_at is None:
            for note in self.db.notes:
                if note.number > subscription.seen and subscription.covers(note) and note.type in webhook.events:
                    add_delivery(self.db, note, webhook.url, webhook)
            subscription.seen = self.db.numbers

    def _take(self, state: DeliveryState, lease: float) -> Posting:
        update = {"tries": state.delivery.tries + 1, "next_at": self.db.now() + timedelta(seconds=lease)}
        delivery = state.delivery = state.delivery.model_copy(update=update)
        return Posting(
            number=state.number,
            delivery_id=delivery.delivery_id,
            tenant=state.tenant,
            webhook_id=delivery.webhook_id,
            versions=self._versions(state),
            url=delivery.url,
            endpoint=state.endpoint,
            type=delivery.type,
            thread_id=delivery.thread_id,
            run_id=delivery.run_id,
            created_at=delivery.created_at,
            tries=delivery.tries,
        )

    async def settle(self, posting: Posting, outcome: DeliveryOutcome) -> None:
        for state in self.db.deliveries:
            delivery = state.delivery
            late = delivery.tries != posting.tries and outcome.kind != "delivered"
            if state.number == posting.number and delivery.next_at is not None and not late:
                state.delivery = delivery.model_copy(update=self._after(outcome))
                if outcome.kind == "gone" and delivery.webhook_id is not None:
                    self._disable(state)

    def _after(self, outcome: DeliveryOutcome) -> dict[str, object]:
        now = self.db.now()
        told: dict[str, object] = {"http_status": outcome.http_status, "error": outcome.error}
        if outcome.kind == "retried":
            return {**told, "next_at": now + timedelta(seconds=outcome.pause)}
        if outcome.kind == "delivered":
            return {**told, "status": "delivered", "next_at": None, "delivered_at": now}
        return {**told, "status": "failed", "next_at": None, "failed_at": now}

    def _disable(self, gone: DeliveryState) -> None:
        known = self.db.webhooks.get(gone.delivery.webhook_id or "")
        if known is None or not gone.is_of(known):
            return
        known.webhook = known.webhook.model_copy(update={"disabled_at": self.db.now()})
        for state in self.db.deliveries:
            if state.is_of(known) and state.delivery.next_at is not None:
                over = self._after(DeliveryOutcome("failed", state.delivery.http_status, "the webhook was disabled"))
                state.delivery = state.delivery.model_copy(update=over)

    async def oldest(self) -> float | None:
        waiting = [each.delivery.created_at for each in self.db.deliveries if each.delivery.next_at is not None]
        return (self.db.now() - min(waiting)).total_seconds() if waiting else None


def _place(webhook: Webhook) -> tuple[datetime, str]:
    assert webhook.created_at is not None
    return webhook.created_at, webhook.webhook_id


def add_delivery(db: Database, note: Note, url: str, webhook: Webhook | None = None) -> None:
    """Add a delivery of the feed entry ``note``, which is due immediately. ``webhook``: None if ``url`` is the webhook of a
    single run."""
    delivery = WebhookDelivery(
        delivery_id=f"msg_{new_id().replace('-', '')}",
        webhook_id=webhook.webhook_id if webhook is not None else None,
        url=url,
        type=note.type,
        thread_id=note.thread_id,
        run_id=note.run_id,
        status="pending",
        created_at=note.at,
        next_at=db.now(),
    )
    db.deliveries.append(
        DeliveryState(db.number(), note.tenant, webhook.owner if webhook is not None else note.tenant, delivery)
    )
