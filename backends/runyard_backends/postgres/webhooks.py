"""Webhooks on Postgres: subscriptions and deliveries. Deliveries are created from the entries of the feed. A sender takes a
delivery under a lease."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runyard.domain.webhooks import (
    MAX_WEBHOOKS,
    DeliveryOutcome,
    DeliveryStatus,
    Posting,
    SigningKey,
    Webhook,
    WebhookDelivery,
)
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.results import Page

from .. import cursors
from . import codec
from .database import Database

_HIGHEST: Final = 2**63 - 1


class PostgresWebhookStore:
    """Webhooks of one tenant. ``take``, ``settle`` and ``oldest`` cover all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def add(self, webhook: Webhook) -> Webhook:
        """Subscribe to events that are committed after this call. A repetition with the same id returns the webhook unchanged.
        Raises WebhookConflictError, TooManyWebhooksError."""
        given = (webhook.webhook_id, webhook.tenant, webhook.url, webhook.events)
        stored = Webhook(**await self.db.one("add_webhook", *given, MAX_WEBHOOKS))
        stored.check_same(webhook)
        return stored

    async def webhook(self, webhook_id: str) -> Webhook | None:
        """Return a webhook that the tenant owns, or None."""
        row = await self.db.row("webhook", self.tenant, webhook_id)
        return Webhook(**row) if row is not None else None

    async def webhooks(self, page: PageRequest = FIRST_PAGE) -> Page[Webhook]:
        """Return the webhooks that the tenant owns, the oldest first. Raises InvalidCursorError."""
        after = cursors.moment(page.cursor) if page.cursor is not None else (cursors.START[0], "")
        rows = await self.db.rows("webhooks", self.tenant, *after, page.limit + 1)
        last = rows[page.limit - 1] if len(rows) > page.limit else None
        following = cursors.encode([last["created_at"].isoformat(), last["webhook_id"]]) if last is not None else None
        return Page([Webhook(**row) for row in rows[: page.limit]], following)

    async def remove(self, webhook_id: str) -> bool:
        """Remove a webhook. Return True if the webhook existed."""
        removed: bool = await self.db.value("remove_webhook", self.tenant, webhook_id)
        return removed

    async def deliveries(
        self, *, status: DeliveryStatus | None = None, page: PageRequest = FIRST_PAGE
    ) -> Page[WebhookDelivery]:
        """Return deliveries, the newest first. Raises InvalidCursorError."""
        limit, cursor = page.limit, page.cursor
        before = cursors.numbers(cursor, 1, below=_HIGHEST)[0] if cursor is not None else _HIGHEST
        rows = await self.db.rows("webhook_deliveries", self.tenant, status, before, limit + 1)
        more = cursors.encode([rows[limit - 1]["delivery_no"]]) if len(rows) > limit else None
        return Page([_delivery(row) for row in rows[:limit]], more)

    async def redeliver(self, delivery_id: str) -> bool:
        """Make a delivery due again if it arrived or failed. Return False if the delivery does not exist or is pending, or if
        its webhook was removed or disabled."""
        again: bool = await self.db.value("redeliver", self.tenant, delivery_id)
        return again

    async def key(self, webhook_id: str | None = None) -> SigningKey | None:
        """Return the signing key of the webhook ``webhook_id``. If ``webhook_id`` is None, return the signing key for the URLs
        of the tenant's runs."""
        if webhook_id is None:
            return _key(await self.db.row("webhook_key_of_tenant", self.tenant)) or SigningKey()
        return _key(await self.db.row("webhook_key", self.tenant, webhook_id))

    async def rotate(
        self, webhook_id: str | None = None, *, overlap: float, rotation_id: str | None = None
    ) -> SigningKey | None:
        """Sign with the next version of the secret. ``overlap``: seconds for which the previous version also signs. A call with
        the ``rotation_id`` of the last rotation has no effect."""
        if webhook_id is None:
            row = await self.db.row("rotate_webhook_key_of_tenant", self.tenant, overlap, rotation_id)
        else:
            row = await self.db.row("rotate_webhook_key", self.tenant, webhook_id, overlap, rotation_id)
        return _key(row) or await self.key(webhook_id)

    async def take(
        self, *, busy: Mapping[str, int], after: str = "", limit: int = 64, each: int = 8, lease: float = 30.0
    ) -> list[Posting]:
        """Make deliveries from committed events, and take due deliveries. See :class:`runyard.ports.stores.WebhookStore`."""
        rows = await self.db.rows("take_webhooks", codec.to_json(dict(busy)), after, limit, each, lease)
        return sorted(map(_posting, rows), key=lambda posting: (posting.endpoint, posting.number))

    async def settle(self, posting: Posting, outcome: DeliveryOutcome) -> None:
        """Store the outcome of a try of a delivery."""
        status, error = outcome.http_status, outcome.error
        await self.db.value("settle_webhook", posting.number, posting.tries, outcome.kind, status, error, outcome.pause)

    async def oldest(self) -> float | None:
        """Return the age in seconds of the oldest delivery that has not arrived, or None."""
        seconds: float | None = await self.db.value("oldest_webhook")
        return seconds


def _key(row: codec.Row | None) -> SigningKey | None:
    return SigningKey(row["version"], row["both_until"]) if row is not None else None


def _posting(row: codec.Row) -> Posting:
    given = dict(row)
    return Posting(number=given.pop("delivery_no"), **given)


def _delivery(row: codec.Row) -> WebhookDelivery:
    given = {name: row[name] for name in WebhookDelivery.model_fields if name != "status"}
    status = "delivered" if row["delivered_at"] else "failed" if row["failed_at"] else "pending"
    return WebhookDelivery(**given, status=status)
