"""Calls about webhooks: subscriptions, their secrets and their deliveries (R11, E5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..domain.events import FeedType
from ..domain.quoting import brief
from ..domain.validation import check_id, new_id
from ..domain.webhook_secrets import derived
from ..domain.webhooks import (
    DELIVERY_STATUSES,
    DeliveryStatus,
    SigningKey,
    Webhook,
    WebhookDelivery,
    WebhookSecret,
    check_events,
    check_url,
)
from ..errors import CapabilityMissingError, InvalidInputError
from ..ports.queries import PageRequest
from ..ports.results import Page
from .arguments import MAX_PAGE_SIZE, Calls

DEFAULT_OVERLAP_SECONDS: Final = 86400.0
"""Default number of seconds for which both the old and the new secret sign after a rotation."""
MAX_OVERLAP_SECONDS: Final = 30 * 86400.0
"""Maximum number of seconds for which both the old and the new secret sign after a rotation."""


class WebhookCalls(Calls):
    """Manage the subscriptions of URLs to the feed, and their deliveries."""

    async def subscribe_webhook(
        self, url: str, events: Iterable[FeedType] | None = None, *, all_tenants: bool = False
    ) -> Webhook:
        """Subscribe ``url`` to the feed's entries from now on. Return the subscription.

        The subscription has the ``secret`` that signs the deliveries if this process has the setting RUNYARD_WEBHOOK_SECRET.
        :meth:`webhook_secret` returns the secret later.

        ``events``: types of feed entries. None stands for runs that end or are suspended. ``all_tenants``: send entries of
        every tenant, not only of the client's. A worker of the deployment sends the entries (``docs/how-to/webhooks.md``).

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
        """Return the secret with which the receiver of a subscription verifies deliveries.

        ``webhook_id`` None stands for the URLs that the tenant's runs name (``webhook=`` of an enqueue). This process, or over
        HTTP the server, derives the secret from its setting RUNYARD_WEBHOOK_SECRET. Returns None if there is no such
        subscription. Raises CapabilityMissingError without this setting.
        """
        return self._told(webhook_id, await self.backend.webhooks.key(webhook_id))

    async def rotate_webhook_secret(
        self, webhook_id: str | None = None, *, overlap: float = DEFAULT_OVERLAP_SECONDS, rotation_id: str | None = None
    ) -> WebhookSecret | None:
        """Replace the secret that signs deliveries and later tries of earlier deliveries. Return the new secret.

        ``webhook_id``: as in :meth:`webhook_secret`. ``overlap``: seconds for which the old secret also signs, so that
        receivers can change over. Use 0 after a leak. ``rotation_id``: the client's id of the rotation. A repetition of the
        last rotation with its id changes nothing and returns the same secret. Returns None if there is no such subscription.
        Raises InvalidInputError. Without the setting RUNYARD_WEBHOOK_SECRET, the call changes nothing and raises
        CapabilityMissingError.
        """
        if not 0 <= overlap <= MAX_OVERLAP_SECONDS:
            raise InvalidInputError(f"overlap is seconds, up to {MAX_OVERLAP_SECONDS:.0f}; got {overlap}", field="overlap")
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
        """Return the subscriptions of this tenant and the subscriptions to all tenants, the oldest first, without secrets."""
        return await self.backend.webhooks.webhooks()

    async def remove_webhook(self, webhook_id: str) -> bool:
        """Remove a subscription. Entries that were not sent are dropped. Return False if there is no such subscription."""
        return await self.backend.webhooks.remove(webhook_id)

    async def webhook_deliveries(
        self, *, status: DeliveryStatus | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[WebhookDelivery]:
        """Return the deliveries to this tenant's webhooks and to the webhooks of its runs, the newest first.

        ``status``: return only ``pending``, ``delivered`` or ``failed`` deliveries. Deliveries that ended are kept as long as
        the feed. Raises InvalidInputError, InvalidCursorError.
        """
        if status is not None and status not in DELIVERY_STATUSES:
            raise InvalidInputError(f"status is one of {', '.join(DELIVERY_STATUSES)}, got {brief(status)}", field="status")
        page = PageRequest(limit=limit, cursor=cursor, most=MAX_PAGE_SIZE)
        return await self.backend.webhooks.deliveries(status=status, page=page)

    async def redeliver_webhook(self, delivery_id: str) -> bool:
        """Send a failed or delivered delivery again, with the same id and the full number of tries.

        Return False if there is no such delivery, if it is pending, or if its webhook is removed or disabled.
        """
        return await self.backend.webhooks.redeliver(delivery_id)


def _deployment_secret() -> str | None:
    from ..support.settings import Settings

    return Settings().webhooks.secret
