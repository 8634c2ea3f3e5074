"""The secret that signs what is told to the URLs of a tenant's runs (semantics: R11)."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Body, Response

from runner.errors import CapabilityMissingError
from runner.webhooks.models import WebhookSecret

from ..idempotency import Idempotency
from ..schemas import RotateSecret
from .parts import Administers, Route, operation, reply

router = APIRouter(tags=["webhooks"], route_class=Route)

UNSEEN: Final = "no-store"
"""Of ``Cache-Control``: no cache on the way keeps a secret."""


@router.get(
    "/v1/webhook_secret",
    **operation("admin", CapabilityMissingError, s200=(WebhookSecret, "What a receiver verifies with.")),
)
async def get_webhook_secret(caller: Administers) -> Response:
    """Read the secret with which receivers verify what they are told of this tenant's runs; every tenant has its own."""
    found = await caller.client.webhook_secret()
    assert found is not None  # every tenant has one
    return reply(found, Cache_Control=UNSEEN)


@router.post(
    "/v1/webhook_secret/rotate",
    **operation("admin", CapabilityMissingError, s200=(WebhookSecret, "What signs from here on.")),
)
async def rotate_webhook_secret(
    caller: Administers, key: Idempotency, body: Annotated[RotateSecret | None, Body()] = None
) -> Response:
    """Let another secret sign from here on. For `overlap` seconds the one before signs as well; give 0 after a leak.

    The same `rotation_id` or key again is answered with the secret that it made, until the next rotation.
    """
    asked = body or RotateSecret()
    rotation_id = asked.rotation_id or key.id("rotate")
    made = await caller.client.rotate_webhook_secret(overlap=asked.overlap, rotation_id=rotation_id)
    assert made is not None
    return reply(made, Cache_Control=UNSEEN)
