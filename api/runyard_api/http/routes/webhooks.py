"""Routes of webhooks, their secrets and their deliveries (R11, E5). Another route returns the secret that signs deliveries to
the URLs in a tenant's runs.

A key of a tenant manages the webhooks of its tenant. A key that belongs to no tenant also manages webhooks that receive the
events of all tenants.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Query, Response

from runyard.domain.webhooks import DeliveryStatus, Webhook, WebhookSecret
from runyard.errors import (
    CapabilityMissingError,
    ForbiddenError,
    InvalidCursorError,
    TooManyWebhooksError,
    WebhookConflictError,
    WebhookDeliveryNotFoundError,
    WebhookNotFoundError,
)

from ..answers import DeliveryPage, WebhookPage
from ..idempotency import BY_STATE, Idempotency
from ..operator_bodies import RotateSecret, WebhookRequest
from ..tenant_client import Caller
from .arguments import Cursor, DeliveryId, Limit, WebhookId, bounded
from .documentation import operation
from .replies import UNSEEN, reply
from .route_access import Administers, Route

router = APIRouter(tags=["webhooks"], route_class=Route)

OF_WEBHOOK: Final = "/v1/webhooks/{webhook_id}"
SECRET: Final[Any] = (WebhookSecret, "The secret with which a receiver verifies signatures.")
NEW_SECRET: Final[Any] = (WebhookSecret, "The new secret, which signs later deliveries and retries.")


@router.post(
    "/v1/webhooks",
    **operation(
        WebhookConflictError, TooManyWebhooksError, s201=(Webhook, "The webhook, with the secret that signs.", "Location")
    ),
)
async def create_webhook(caller: Administers, key: Idempotency, body: WebhookRequest) -> Response:
    """Create a webhook, which sends later events to a URL. A tenant has at most 100 webhooks. `secret` is null if the server
    has no RUNYARD_WEBHOOK_SECRET.

    A repetition with the same `Idempotency-Key` returns the same webhook.
    """
    if body.all_tenants and caller.principal.tenant:
        raise ForbiddenError("all_tenants needs a key that belongs to no tenant", scope="admin")
    webhook_id = key.id("webhook")
    made = await caller.client.subscribe_webhook(body.url, body.events, all_tenants=body.all_tenants, webhook_id=webhook_id)
    return reply(made, 201, Location=caller.location("webhooks", made.webhook_id), Cache_Control=UNSEEN)


@router.get("/v1/webhooks", **operation(InvalidCursorError, s200=(WebhookPage, "A page of webhooks, the oldest first.")))
async def list_webhooks(caller: Administers, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List the webhooks of the caller's tenant, without their secrets."""
    page = await caller.client.webhooks(limit=bounded(limit, caller), cursor=cursor)
    return reply(WebhookPage(items=page.items, next=page.next))


@router.get(OF_WEBHOOK, **operation(WebhookNotFoundError, s200=(Webhook, "The webhook, without its secret.")))
async def get_webhook(caller: Administers, webhook_id: WebhookId) -> Response:
    """Read one webhook. If the receiver has answered 410, `disabled_at` is set, and no more deliveries are sent."""
    found = await caller.client.webhook(webhook_id)
    if found is None:
        raise _no_webhook(webhook_id)
    return reply(found)


@router.delete(OF_WEBHOOK, **operation(WebhookNotFoundError, s204=(None, "It is removed.")))
async def remove_webhook(caller: Administers, webhook_id: WebhookId) -> Response:
    """Remove a webhook and its pending deliveries."""
    if not await caller.client.remove_webhook(webhook_id):
        raise _no_webhook(webhook_id)
    return Response(status_code=204)


@router.get(f"{OF_WEBHOOK}/secret", **operation(WebhookNotFoundError, CapabilityMissingError, s200=SECRET))
async def get_secret_of_webhook(caller: Administers, webhook_id: WebhookId) -> Response:
    """Read the secret with which the receiver of a webhook verifies deliveries."""
    found = await caller.client.webhook_secret(webhook_id)
    if found is None:
        raise _no_webhook(webhook_id)
    return reply(found, Cache_Control=UNSEEN)


@router.post(f"{OF_WEBHOOK}/secret/rotate", **operation(WebhookNotFoundError, CapabilityMissingError, s200=NEW_SECRET))
async def rotate_secret_of_webhook(
    caller: Administers, key: Idempotency, webhook_id: WebhookId, body: Annotated[RotateSecret | None, Body()] = None
) -> Response:
    """Replace the secret of a webhook. The rules of `rotate_webhook_secret` apply."""
    made = await _rotated(caller, body, key.id("rotate", webhook_id), webhook_id)
    if made is None:
        raise _no_webhook(webhook_id)
    return reply(made, Cache_Control=UNSEEN)


@router.get(
    "/v1/webhook_deliveries", **operation(InvalidCursorError, s200=(DeliveryPage, "A page of deliveries, the newest first."))
)
async def list_webhook_deliveries(
    caller: Administers,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries with this status.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the deliveries to the webhooks of the caller's tenant and to the URLs of its runs."""
    page = await caller.client.webhook_deliveries(status=status, limit=bounded(limit, caller), cursor=cursor)
    return reply(DeliveryPage(items=page.items, next=page.next))


@router.post(
    "/v1/webhook_deliveries/{delivery_id}/redeliver",
    dependencies=BY_STATE,
    **operation(WebhookDeliveryNotFoundError, s204=(None, "The delivery is due at once, with the full number of tries.")),
)
async def redeliver_webhook(caller: Administers, delivery_id: DeliveryId) -> Response:
    """Repeat a delivery that failed or arrived, with the same id. For a pending delivery, the response is 404."""
    if not await caller.client.redeliver_webhook(delivery_id):
        raise WebhookDeliveryNotFoundError(
            f"delivery {delivery_id} does not exist or is pending, or its webhook was removed or disabled",
            delivery_id=delivery_id,
        )
    return Response(status_code=204)


@router.get(
    "/v1/webhook_secret",
    **operation(CapabilityMissingError, s200=SECRET),
)
async def get_webhook_secret(caller: Administers) -> Response:
    """Read the secret with which receivers verify webhooks of this tenant's runs. Every tenant has its own secret."""
    found = await caller.client.webhook_secret()
    assert found is not None  # every tenant has a secret
    return reply(found, Cache_Control=UNSEEN)


@router.post(
    "/v1/webhook_secret/rotate",
    **operation(CapabilityMissingError, s200=NEW_SECRET),
)
async def rotate_webhook_secret(
    caller: Administers, key: Idempotency, body: Annotated[RotateSecret | None, Body()] = None
) -> Response:
    """Replace the secret that signs webhooks. For `overlap` seconds, the old secret also signs. Set `overlap` to 0 after a
    leak.

    A repetition with the same `rotation_id` or `Idempotency-Key` returns the same secret, until the next rotation.
    """
    made = await _rotated(caller, body, key.id("rotate"))
    assert made is not None
    return reply(made, Cache_Control=UNSEEN)


async def _rotated(
    caller: Caller, body: RotateSecret | None, derived_id: str | None, webhook_id: str | None = None
) -> WebhookSecret | None:
    """Rotate the secret of a webhook, or of the URLs of the tenant's runs. ``derived_id``: the id that is derived from the
    Idempotency-Key."""
    asked = body or RotateSecret()
    rotation_id = asked.rotation_id or derived_id
    return await caller.client.rotate_webhook_secret(webhook_id, overlap=asked.overlap, rotation_id=rotation_id)


def _no_webhook(webhook_id: str) -> WebhookNotFoundError:
    return WebhookNotFoundError(f"there is no webhook {webhook_id}", webhook_id=webhook_id)
