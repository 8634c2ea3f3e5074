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
"""Default number of seconds for which the old secret also signs after a rotation."""
MAX_OVERLAP_SECONDS: Final = 30 * 86400.0
"""Maximum number of seconds for which the old secret also signs after a rotation."""


class WebhookCalls(Calls):
    """Manage the subscriptions of URLs to the feed, and their deliveries."""

    async def subscribe_webhook(
        self,
        url: str,
        events: Iterable[FeedType] | None = None,
        *,
        all_tenants: bool = False,
        webhook_id: str | None = None,
    ) -> Webhook:
        """Subscribe ``url`` to the feed's entries from now on. Return the subscription.

        If this process has the setting RUNYARD_WEBHOOK_SECRET, the returned subscription has the ``secret`` that signs the
        deliveries. To read the secret later, call :meth:`webhook_secret`.

        ``events``: the types of the feed entries to send. By default, these are the types for the end and the suspension of a
        run. ``all_tenants``: if True, the entries of every tenant are sent. Only a client without a tenant may set this
        argument. A worker of the deployment sends the entries (``docs/how-to/webhooks.md``). ``webhook_id``: the client's id
        of the subscription, by default a new id. A repetition with the same id returns the same subscription. Over HTTP, the
        server derives the id of the subscription from ``webhook_id``.

        Raises InvalidInputError, TooManyWebhooksError, WebhookConflictError, and over HTTP ForbiddenError.
        """
        if all_tenants and self.backend.tenant:
            raise InvalidInputError(
                f"all_tenants needs a client without a tenant, and this client has the tenant {brief(self.backend.tenant)}; "
                "connect without a tenant",
                field="all_tenants",
            )
        webhook = Webhook(
            webhook_id=new_id() if webhook_id is None else check_id(webhook_id, "webhook_id"),
            tenant=None if all_tenants else self.backend.tenant,
            url=check_url(url, "url"),
            events=check_events(events),
        )
        made = await self.backend.webhooks.add(webhook)
        if self.backend.remote or _deployment_secret() is None:
            return made
        secret = await self.webhook_secret(made.webhook_id)
        return made.model_copy(update={"secret": secret.secret if secret is not None else None})

    async def webhook_secret(self, webhook_id: str | None = None) -> WebhookSecret | None:
        """Return the secret with which the receiver of a subscription verifies deliveries.

        ``webhook_id``: the id of a subscription, or None for the URLs in the tenant's runs (``webhook=`` of an enqueue).
        The secret is derived from the setting RUNYARD_WEBHOOK_SECRET of this process. Over HTTP, the secret is derived from
        this setting of the server. Returns None if there is no such subscription. Raises CapabilityMissingError without this
        setting.
        """
        return self._told(webhook_id, await self.backend.webhooks.key(webhook_id))

    async def rotate_webhook_secret(
        self, webhook_id: str | None = None, *, overlap: float = DEFAULT_OVERLAP_SECONDS, rotation_id: str | None = None
    ) -> WebhookSecret | None:
        """Replace the secret that signs deliveries. Return the new secret.

        Later tries of earlier deliveries are also signed with the new secret. ``webhook_id``: as in :meth:`webhook_secret`.
        ``overlap``: seconds for which the old secret also signs. Receivers must change to the new secret in this time. Use 0 if
        an attacker knows the old secret. ``rotation_id``: the client's id of the rotation. A repetition of the last rotation
        with the same id returns the same secret and changes nothing. Returns None if there is no such subscription. Raises
        InvalidInputError. Without the setting RUNYARD_WEBHOOK_SECRET, the call changes nothing and raises
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
                    "set it to the value that the workers have",
                    capability="webhook_secret",
                )
            (secret, *_) = derived(root, self.backend.tenant, webhook_id, (key.version,))
        return WebhookSecret(secret=secret, version=key.version, both_until=key.both_until)

    async def webhook(self, webhook_id: str) -> Webhook | None:
        """Return a subscription without its secret. Return None if there is no such subscription."""
        return await self.backend.webhooks.webhook(webhook_id)

    async def webhooks(self, *, limit: int = 100, cursor: str | None = None) -> Page[Webhook]:
        """Return the subscriptions of this tenant, the oldest first, without secrets.

        A client without a tenant also lists and manages the subscriptions to all tenants. A tenant has at most 100
        subscriptions. Raises InvalidInputError, InvalidCursorError.
        """
        return await self.backend.webhooks.webhooks(PageRequest(limit=limit, cursor=cursor, most=MAX_PAGE_SIZE))

    async def remove_webhook(self, webhook_id: str) -> bool:
        """Remove a subscription. Entries that were not sent are dropped. Return False if there is no such subscription."""
        return await self.backend.webhooks.remove(webhook_id)

    async def webhook_deliveries(
        self, *, status: DeliveryStatus | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[WebhookDelivery]:
        """Return the deliveries to the tenant's subscriptions and to the URLs in its runs, the newest first.

        A client without a tenant also gets the deliveries of the subscriptions to all tenants.

        ``status``: return only ``pending``, ``delivered`` or ``failed`` deliveries. Deliveries that have ended are kept as
        long as entries of the feed are kept. Raises InvalidInputError, InvalidCursorError.
        """
        if status is not None and status not in DELIVERY_STATUSES:
            raise InvalidInputError(f"status is one of {', '.join(DELIVERY_STATUSES)}, got {brief(status)}", field="status")
        page = PageRequest(limit=limit, cursor=cursor, most=MAX_PAGE_SIZE)
        return await self.backend.webhooks.deliveries(status=status, page=page)

    async def redeliver_webhook(self, delivery_id: str) -> bool:
        """Send a delivery with the status ``failed`` or ``delivered`` again, with the same id and the full number of tries.

        Return False if there is no such delivery, if the delivery is pending, or if its webhook is removed or disabled.
        """
        return await self.backend.webhooks.redeliver(delivery_id)


def _deployment_secret() -> str | None:
    from ..support.settings import Settings

    return Settings().webhooks.secret
