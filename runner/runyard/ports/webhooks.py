"""The protocol of the stores of webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..domain.webhooks import DeliveryOutcome, DeliveryStatus, Posting, SigningKey, Webhook, WebhookDelivery
from .queries import FIRST_PAGE, PageRequest
from .results import Page


class WebhookStore(Protocol):
    """Webhook subscriptions and deliveries (R11, E5).

    A store shows the subscriptions that its tenant owns, and their deliveries. The tenant ``""`` also owns the subscriptions to
    all tenants. The dispatcher's verbs ``take``, ``settle`` and ``oldest`` cover every tenant.

    ``add``: subscribe to later commits, and return the subscription. A repetition with the same id changes nothing. Raises
    WebhookConflictError, TooManyWebhooksError. ``webhooks``: return the subscriptions, the oldest first. ``remove``: return
    whether the subscription existed. ``redeliver``: return whether the delivery will be sent again. ``take``: make deliveries
    of committed changes. Return at most ``limit`` due deliveries, endpoint by endpoint, beginning after the endpoint ``after``.
    ``each``: the maximum number of deliveries to one endpoint that are in flight. ``busy``: for each endpoint, the number of
    deliveries that are in flight already. If a delivery is not settled within ``lease`` seconds, it is due again. ``settle``:
    store the outcome of a try. If a later try has begun, only the outcome ``delivered`` is stored. ``oldest``: return the age
    in seconds of the oldest delivery that has not arrived. ``key``: return the version of the secret that signs the deliveries
    of a subscription. If ``webhook_id`` is None, return the version for the ``webhook`` URLs of the tenant's runs. ``rotate``:
    change to the next version of the secret. For ``overlap`` seconds, the previous version also signs. A repetition with the
    ``rotation_id`` of the last rotation changes nothing. ``key`` and ``rotate`` return None if there is no such subscription.
    """

    async def add(self, webhook: Webhook) -> Webhook: ...
    async def webhook(self, webhook_id: str) -> Webhook | None: ...
    async def webhooks(self, page: PageRequest = FIRST_PAGE) -> Page[Webhook]: ...
    async def remove(self, webhook_id: str) -> bool: ...
    async def deliveries(
        self, *, status: DeliveryStatus | None = None, page: PageRequest = FIRST_PAGE
    ) -> Page[WebhookDelivery]: ...
    async def redeliver(self, delivery_id: str) -> bool: ...
    async def key(self, webhook_id: str | None = None) -> SigningKey | None: ...
    async def rotate(
        self, webhook_id: str | None = None, *, overlap: float, rotation_id: str | None = None
    ) -> SigningKey | None: ...
    async def take(
        self, *, busy: Mapping[str, int], after: str = "", limit: int = 64, each: int = 8, lease: float = 30.0
    ) -> list[Posting]: ...
    async def settle(self, posting: Posting, outcome: DeliveryOutcome) -> None: ...
    async def oldest(self) -> float | None: ...
