"""Errors about webhooks."""

from __future__ import annotations

from .stores import CheckpointerError


class WebhookNotFoundError(CheckpointerError):
    """The tenant has no such webhook."""

    code = "webhook_not_found"
    http_status = 404


class WebhookDeliveryNotFoundError(CheckpointerError):
    """The tenant has no such delivery, the delivery has not ended, or its webhook was removed or disabled."""

    code = "webhook_delivery_not_found"
    http_status = 404


class WebhookConflictError(CheckpointerError):
    """Another webhook has this id.

    Over HTTP, an earlier request with the same ``Idempotency-Key`` created the other webhook.
    """

    code = "webhook_conflict"


class TooManyWebhooksError(CheckpointerError):
    """The tenant has the maximum number of webhooks. ``details["limit"]`` is this number. Remove a webhook first."""

    code = "too_many_webhooks"
