"""Who is told of what is committed, and what became of it (semantics: R11, E5)."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import InvalidInputError
from ..exchange import Page
from ..models import FeedType, new_id
from ..webhooks.models import (
    DELIVERY_STATUSES,
    DeliveryStatus,
    Webhook,
    WebhookDelivery,
    check_events,
    check_url,
    new_secret,
)
from .base import Calls

MOST = 1000


class WebhookCalls(Calls):
    """Subscriptions of URLs to the feed, and their deliveries."""

    async def subscribe_webhook(
        self, url: str, events: Iterable[FeedType] | None = None, *, all_tenants: bool = False
    ) -> Webhook:
        """Tell ``url`` of what is committed from here on. The answer has the ``secret`` that signs it, which is shown only now.

        ``events``: types of the feed's entries; None: runs that end or are suspended. ``all_tenants``: of every tenant, not
        only the client's. A worker of the deployment sends them; see ``docs/how-to/webhooks.md``.

        Raises InvalidInputError.
        """
        webhook = Webhook(
            webhook_id=new_id(),
            tenant=None if all_tenants else self.backend.tenant,
            url=check_url(url, "url"),
            events=check_events(events),
            secret=new_secret(),
        )
        await self.backend.webhooks.add(webhook)
        return webhook

    async def webhooks(self) -> list[Webhook]:
        """The subscriptions of this tenant and those of all tenants together, the oldest first, without their secrets."""
        return await self.backend.webhooks.webhooks()

    async def remove_webhook(self, webhook_id: str) -> bool:
        """Tell it nothing more, also of what is committed already; False if there is no such webhook."""
        return await self.backend.webhooks.remove(webhook_id)

    async def webhook_deliveries(
        self, *, status: DeliveryStatus | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[WebhookDelivery]:
        """What this tenant's webhooks, and those of its runs, were told or are to be told, the newest first.

        ``status``: only ``pending``, ``delivered`` or ``failed``. What is over is kept as long as the feed. Raises
        InvalidInputError, InvalidCursorError.
        """
        if status is not None and status not in DELIVERY_STATUSES:
            raise InvalidInputError(f"status is one of {', '.join(DELIVERY_STATUSES)}, got {status!r:.80}", field="status")
        if not 1 <= limit <= MOST:
            raise InvalidInputError(f"limit is 1 to {MOST}, got {limit}", field="limit")
        return await self.backend.webhooks.deliveries(status=status, limit=limit, cursor=cursor)

    async def redeliver_webhook(self, delivery_id: str) -> bool:
        """Send once more what has failed or arrived, under the same id and with all its tries; False if there is no such
        delivery, or if its webhook is gone."""
        return await self.backend.webhooks.redeliver(delivery_id)
