"""The secret of the key's tenant over HTTP; subscriptions need a direct connection."""

from __future__ import annotations

from typing import Any

from runner.models import JsonObject, new_id
from runner.webhooks.models import SigningKey, WebhookSecret

from .direct import DirectOnly, only_direct
from .wire import Wire


class HttpWebhookStore(DirectOnly):
    """The client's half of :class:`runner.ports.WebhookStore`. The API derives secrets; this side need not know the
    deployment's."""

    def __init__(self, wire: Wire) -> None:
        super().__init__("webhooks")
        self._wire = wire

    async def key(self, webhook_id: str | None = None) -> SigningKey | None:
        """Which secret signs, with the secret; needs a key with the scope admin."""
        if webhook_id is not None:
            raise only_direct("webhook_secret of a subscription")
        return _key((await self._wire.ask("GET", "webhook_secret")).data)

    async def rotate(
        self, webhook_id: str | None = None, *, overlap: float, rotation_id: str | None = None
    ) -> SigningKey | None:
        """The next secret; needs a key with the scope admin."""
        if webhook_id is not None:
            raise only_direct("rotate_webhook_secret of a subscription")
        body: JsonObject = {"overlap": float(overlap), "rotation_id": rotation_id or new_id()}
        return _key((await self._wire.ask("POST", "webhook_secret", "rotate", body=body)).data)


def _key(data: Any) -> SigningKey:
    told = WebhookSecret.model_validate(data)
    return SigningKey(told.version, told.both_until, told.secret)
