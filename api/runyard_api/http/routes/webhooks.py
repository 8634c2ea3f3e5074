"""Routes of the secret that signs webhooks of a tenant's runs (R11)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Response

from runyard.domain.webhooks import WebhookSecret
from runyard.errors import CapabilityMissingError

from ..idempotency import Idempotency
from ..operator_bodies import RotateSecret
from .documentation import operation
from .replies import UNSEEN, reply
from .route_access import Administers, Route

router = APIRouter(tags=["webhooks"], route_class=Route)


@router.get(
    "/v1/webhook_secret",
    **operation(CapabilityMissingError, s200=(WebhookSecret, "The secret with which a receiver verifies signatures.")),
)
async def get_webhook_secret(caller: Administers) -> Response:
    """Read the secret with which receivers verify webhooks of this tenant's runs. Every tenant has its own secret."""
    found = await caller.client.webhook_secret()
    assert found is not None  # every tenant has one
    return reply(found, Cache_Control=UNSEEN)


@router.post(
    "/v1/webhook_secret/rotate",
    **operation(CapabilityMissingError, s200=(WebhookSecret, "The new secret, which signs later deliveries and retries.")),
)
async def rotate_webhook_secret(
    caller: Administers, key: Idempotency, body: Annotated[RotateSecret | None, Body()] = None
) -> Response:
    """Replace the secret that signs webhooks. The old secret also signs for `overlap` more seconds. Set
    `overlap` to 0 after a leak.

    A repetition with the same `rotation_id` or `Idempotency-Key` returns the same secret, until the next rotation.
    """
    asked = body or RotateSecret()
    rotation_id = asked.rotation_id or key.id("rotate")
    made = await caller.client.rotate_webhook_secret(overlap=asked.overlap, rotation_id=rotation_id)
    assert made is not None
    return reply(made, Cache_Control=UNSEEN)
