"""The webhook secret of the API key's tenant, over HTTP. Subscriptions need a direct connection."""

from __future__ import annotations

from typing import Any

from runyard.domain.webhooks import SigningKey, WebhookSecret
from runyard.models import JsonObject, new_id

from .transport import Transport
from .unsupported import DirectOnly, only_direct


class HttpWebhookStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.WebhookStore`. The API derives a tenant's secret from the deployment's
    secret, which the client does not have."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("webhooks")
        self._transport = transport

    async def key(self, webhook_id: str | None = None) -> SigningKey | None:
        """Return the tenant's signing key with its secret. Needs an API key with the scope admin. Raises CapabilityMissingError
        if ``webhook_id`` is given."""
        if webhook_id is not None:
            raise only_direct("webhook_secret of a subscription")
        return _key((await self._transport.ask("GET", "webhook_secret")).data)

    async def rotate(
        self, webhook_id: str | None = None, *, overlap: float, rotation_id: str | None = None
    ) -> SigningKey | None:
        """Replace the tenant's signing key and return the new one. ``overlap``: seconds for which the old key also signs. Needs
        an API key with the scope admin. Raises CapabilityMissingError if ``webhook_id`` is given."""
        if webhook_id is not None:
            raise only_direct("rotate_webhook_secret of a subscription")
        body: JsonObject = {"overlap": float(overlap), "rotation_id": rotation_id or new_id()}
        return _key((await self._transport.ask("POST", "webhook_secret", "rotate", body=body)).data)


def _key(data: Any) -> SigningKey:
    told = WebhookSecret.model_validate(data)
    return SigningKey(told.version, told.both_until, told.secret)
