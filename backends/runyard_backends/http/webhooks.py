"""Webhooks of the API key's tenant, over HTTP. Needs an API key with the scope admin."""

from __future__ import annotations

from contextlib import suppress

from runyard.domain.derived_ids import derived_id
from runyard.domain.webhooks import DeliveryStatus, SigningKey, Webhook, WebhookDelivery, WebhookSecret
from runyard.errors import WebhookDeliveryNotFoundError, WebhookNotFoundError
from runyard.models import JsonObject, new_id
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.results import Page

from .codec import paging, read, read_page
from .transport import Transport
from .unsupported import DirectOnly


class HttpWebhookStore(DirectOnly):
    """The client's part of :class:`runyard.ports.webhooks.WebhookStore`. The server derives the secrets of webhooks, because
    the client does not have the deployment's secret."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("webhooks")
        self._transport = transport

    async def add(self, webhook: Webhook) -> Webhook:
        """Subscribe to events that are committed after this call. The server chooses the id. If a reply is lost, the request is
        repeated and finds the subscription by its ``Idempotency-Key``."""
        body: JsonObject = {"url": webhook.url, "events": list(webhook.events), "all_tenants": webhook.tenant is None}
        headers = {"Idempotency-Key": derived_id("webhook", webhook.webhook_id)}
        return read(Webhook, (await self._transport.ask("POST", "webhooks", body=body, headers=headers)).data)

    async def webhook(self, webhook_id: str) -> Webhook | None:
        """Return a webhook, or None if it does not exist."""
        with suppress(WebhookNotFoundError):
            return read(Webhook, (await self._transport.ask("GET", "webhooks", webhook_id)).data)
        return None

    async def webhooks(self, page: PageRequest = FIRST_PAGE) -> Page[Webhook]:
        """Return the webhooks, the oldest first."""
        return read_page(Webhook, (await self._transport.ask("GET", "webhooks", query=paging(page))).data)

    async def remove(self, webhook_id: str) -> bool:
        """Remove a webhook. Return True if the webhook existed. If the reply to a successful removal is lost, the request is
        repeated. The repeated request finds no webhook, and the method returns False.
        """
        with suppress(WebhookNotFoundError):
            await self._transport.ask("DELETE", "webhooks", webhook_id)
            return True
        return False

    async def deliveries(
        self, *, status: DeliveryStatus | None = None, page: PageRequest = FIRST_PAGE
    ) -> Page[WebhookDelivery]:
        """Return deliveries, the newest first."""
        query = {"status": status, **paging(page)}
        return read_page(WebhookDelivery, (await self._transport.ask("GET", "webhook_deliveries", query=query)).data)

    async def redeliver(self, delivery_id: str) -> bool:
        """Schedule a delivery again. Return True if the delivery was scheduled.

        If the reply to a successful request is lost, the request is repeated. If the repeated request finds the delivery
        pending, the method returns False.
        """
        with suppress(WebhookDeliveryNotFoundError):
            await self._transport.ask("POST", "webhook_deliveries", delivery_id, "redeliver")
            return True
        return False

    async def key(self, webhook_id: str | None = None) -> SigningKey | None:
        """Return the signing key of a webhook with its secret. If ``webhook_id`` is None, return the key that signs requests to
        the ``webhook`` URLs of the tenant's runs."""
        with suppress(WebhookNotFoundError):
            return _key(read(WebhookSecret, (await self._transport.ask("GET", *_secret_of(webhook_id))).data))
        return None

    async def rotate(
        self, webhook_id: str | None = None, *, overlap: float, rotation_id: str | None = None
    ) -> SigningKey | None:
        """Replace the signing key of a webhook and return the new key. If ``webhook_id`` is None, replace the key that signs
        requests to the ``webhook`` URLs of the tenant's runs. ``overlap``: seconds for which the old key also signs."""
        body: JsonObject = {"overlap": float(overlap), "rotation_id": rotation_id or new_id()}
        with suppress(WebhookNotFoundError):
            reply = await self._transport.ask("POST", *_secret_of(webhook_id), "rotate", body=body)
            return _key(read(WebhookSecret, reply.data))
        return None


def _secret_of(webhook_id: str | None) -> tuple[str, ...]:
    """Return the path of a webhook's secret in the API. If ``webhook_id`` is None, return the path of the secret for the
    ``webhook`` URLs of the tenant's runs."""
    return ("webhook_secret",) if webhook_id is None else ("webhooks", webhook_id, "secret")


def _key(told: WebhookSecret) -> SigningKey:
    return SigningKey(told.version, told.both_until, told.secret)
