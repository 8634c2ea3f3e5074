"""Who is told of what is committed, and what became of it (semantics: R11, E5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..errors import CapabilityMissingError, InvalidInputError
from ..exchange import Page
from ..legible import brief
from ..models import FeedType, check_id, new_id
from ..webhooks.models import (
    DELIVERY_STATUSES,
    DeliveryStatus,
    SigningKey,
    Webhook,
    WebhookDelivery,
    WebhookSecret,
    check_events,
    check_url,
)
from ..webhooks.secrets import derived
from .base import MOST, Calls, check_limit

OVERLAP: Final = 86400.0
MOST_OVERLAP: Final = 30 * 86400.0
"""Seconds for which two secrets sign: by default, and at most."""


class WebhookCalls(Calls):
    """Subscriptions of URLs to the feed, and their deliveries."""

    async def subscribe_webhook(
        self, url: str, events: Iterable[FeedType] | None = None, *, all_tenants: bool = False
    ) -> Webhook:
        """Tell ``url`` of what is committed from here on. The answer has the ``secret`` that signs it, if this process knows
        RUNYARD_WEBHOOK_SECRET; :meth:`webhook_secret` tells it later.

        ``events``: types of the feed's entries; None: runs that end or are suspended. ``all_tenants``: of every tenant, not
        only the client's. A worker of the deployment sends them; see ``docs/how-to/webhooks.md``.

        Raises InvalidInputError.
        """
        webhook = Webhook(
            webhook_id=new_id(),
            tenant=None if all_tenants else self.backend.tenant,
            url=check_url(url, "url"),
            events=check_events(events),
        )
        await self.backend.webhooks.add(webhook)
        root = _deployment_secret()
        if root is None:
            return webhook
        (secret, *_) = derived(root, self.backend.tenant, webhook.webhook_id, (1,))
        return webhook.model_copy(update={"secret": secret})

    async def webhook_secret(self, webhook_id: str | None = None) -> WebhookSecret | None:
        """What the receiver of a subscription verifies with, or without ``webhook_id`` who receives for this tenant's runs.

        It is derived from RUNYARD_WEBHOOK_SECRET in this process's environment. None if there is no such subscription. Raises
        CapabilityMissingError without that setting.
        """
        return self._told(webhook_id, await self.backend.webhooks.key(webhook_id))

    async def rotate_webhook_secret(
        self, webhook_id: str | None = None, *, overlap: float = OVERLAP, rotation_id: str | None = None
    ) -> WebhookSecret | None:
        """Let another secret sign from here on, what is tried again included; it is returned.

        ``overlap``: seconds for which the one before signs as well, so that receivers can change over; 0 after a leak.
        ``rotation_id``: yours, to make a repetition safe: under that of the last rotation nothing changes, and its secret is
        returned. None if there is no such subscription. Raises InvalidInputError; CapabilityMissingError without
        RUNYARD_WEBHOOK_SECRET, when nothing was changed.
        """
        if not 0 <= overlap <= MOST_OVERLAP:
            raise InvalidInputError(f"overlap is seconds, up to {MOST_OVERLAP:.0f}; got {overlap}", field="overlap")
        if rotation_id is not None:
            check_id(rotation_id, "rotation_id")
        await self.webhook_secret(webhook_id)
        key = await self.backend.webhooks.rotate(webhook_id, overlap=overlap, rotation_id=rotation_id)
        return self._told(webhook_id, key)

    def _told(self, webhook_id: str | None, key: SigningKey | None) -> WebhookSecret | None:
        if key is None:
            return None
        if (secret := key.secret) is None:
            if (root := _deployment_secret()) is None:
                raise CapabilityMissingError(
                    "the secrets of webhooks are derived from RUNYARD_WEBHOOK_SECRET, which is not set here; "
                    "set it as for the workers",
                    capability="webhook_secret",
                )
            (secret, *_) = derived(root, self.backend.tenant, webhook_id, (key.version,))
        return WebhookSecret(secret=secret, version=key.version, both_until=key.both_until)

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
            raise InvalidInputError(f"status is one of {', '.join(DELIVERY_STATUSES)}, got {brief(status)}", field="status")
        check_limit(limit, MOST)
        return await self.backend.webhooks.deliveries(status=status, limit=limit, cursor=cursor)

    async def redeliver_webhook(self, delivery_id: str) -> bool:
        """Send once more what has failed or arrived, under the same id and with all its tries; False if there is no such
        delivery, or if its webhook is gone."""
        return await self.backend.webhooks.redeliver(delivery_id)


def _deployment_secret() -> str | None:
    from ..settings import Settings

    return Settings().webhooks.secret
