"""Webhooks: subscriptions, deliveries, and the values that the dispatcher exchanges with its ports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from ..errors import InvalidInputError, TooManyWebhooksError, WebhookConflictError
from .events import FEED_TYPES, FeedType
from .quoting import brief

MAX_URL_LENGTH: Final = 2048
MAX_WEBHOOKS: Final = 100
"""Maximum number of subscriptions of a tenant, and of subscriptions to all tenants.

The leader reads each subscription twice a second.
"""
RUN_EVENTS: Final = tuple(type_ for type_ in FEED_TYPES if type_.startswith("run."))
"""Default events of a subscription."""

DeliveryStatus = Literal["pending", "delivered", "failed"]
DELIVERY_STATUSES: Final[tuple[DeliveryStatus, ...]] = get_args(DeliveryStatus)

TryOutcome = Literal["delivered", "retried", "failed", "gone"]
"""The outcome of one try. ``gone``: the receiver answered 410 and wants no more deliveries."""
TRY_OUTCOMES: Final[tuple[TryOutcome, ...]] = get_args(TryOutcome)


class Webhook(BaseModel):
    """A subscription to the feed of ``tenant``, or of every tenant (None).

    The tenant ``""`` owns the subscriptions to every tenant.

    ``disabled_at``: the time at which the receiver answered 410. ``secret``: the secret that signs the deliveries. Only the
    call that makes the subscription returns the secret. The process that makes this call needs the setting
    RUNYARD_WEBHOOK_SECRET.
    """

    model_config = ConfigDict(extra="forbid")

    webhook_id: str
    tenant: str | None
    url: str
    events: list[FeedType]
    secret: str | None = None
    created_at: datetime | None = None
    disabled_at: datetime | None = None

    @property
    def owner(self) -> str:
        """The tenant that sees and manages the subscription and its deliveries."""
        return self.tenant or ""

    def check_same(self, webhook: Webhook) -> None:
        """Raise WebhookConflictError if ``webhook`` differs from this subscription.

        ``webhook``: the subscription that a request with the same id describes.
        """
        differs = [name for name in ("tenant", "url", "events") if getattr(self, name) != getattr(webhook, name)]
        if differs:
            raise WebhookConflictError(
                f"webhook {self.webhook_id} exists with another {', '.join(differs)}; choose another id",
                webhook_id=self.webhook_id,
                differs=differs,
            )


NO_SECRET: Final = "RUNYARD_WEBHOOK_SECRET is not set for the workers; nothing is sent unsigned"
"""The ``error`` of a delivery whose worker has no secret to sign it."""


class WebhookDelivery(BaseModel):
    """One feed entry for one URL, with its tries.

    ``delivery_id``: the header ``webhook-id`` of every try. ``webhook_id``: None if the URL is the run's ``webhook``.
    ``created_at``: the time of the feed entry. ``next_at``: the time of the next try. ``http_status``, ``error``: the outcome
    of the last try.
    """

    model_config = ConfigDict(extra="forbid")

    delivery_id: str
    webhook_id: str | None = None
    url: str
    type: FeedType
    thread_id: str
    run_id: str | None = None
    status: DeliveryStatus
    created_at: datetime
    tries: int = 0
    next_at: datetime | None = None
    delivered_at: datetime | None = None
    failed_at: datetime | None = None
    http_status: int | None = None
    error: str | None = None


class WebhookSecret(BaseModel):
    """The secret with which a receiver verifies deliveries.

    ``version``: the version number of ``secret``. ``both_until``: the time until which the previous version also signs.
    """

    model_config = ConfigDict(extra="forbid")

    secret: str = Field(repr=False)
    version: int
    both_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The version number of the secret that signs, and the time until which the previous version also signs.

    ``secret``: the secret itself, or None if the client of the store can derive it.
    """

    version: int = 1
    both_until: datetime | None = None
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """A delivery that the dispatcher took. The dispatcher holds a lease on the delivery.

    If the lease ends before the outcome is stored, the delivery is due again.

    ``tries``: the number of tries, including this try. ``versions``: the version numbers of the secrets that sign the delivery,
    the current version first. The list is empty if the webhook was removed. ``webhook_id``: None if the URL is the run's
    ``webhook``. ``endpoint``: scheme, host and port of the URL.
    """

    number: int
    delivery_id: str
    tenant: str
    webhook_id: str | None
    versions: Sequence[int]
    url: str
    endpoint: str
    type: FeedType
    thread_id: str
    run_id: str | None
    created_at: datetime
    tries: int


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of a try. ``pause``: seconds until the next try of a delivery that is ``retried``."""

    kind: TryOutcome
    http_status: int | None = None
    error: str | None = None
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class WebhookReply:
    """A receiver's answer.

    ``status``: the HTTP status, or None without an answer. ``error``: the reason why there is no answer, or None.
    ``forbidden``: True if the address of the URL is not allowed, so that every retry would also fail. ``retry_after``: the
    pause in seconds that the receiver requested, or None.
    """

    status: int | None = None
    error: str | None = None
    forbidden: bool = False
    retry_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookPolicy:
    """The settings of the delivery of webhooks.

    ``secret``: the deployment's secret (``whsec_…``), from which the signing secrets are derived. While this secret is being
    rotated, ``secret`` is a comma-separated list of secrets. ``timeout``: seconds for one try. ``tries``: the maximum number
    of tries of a delivery. ``backoff``: seconds between the first and the second try. Each later pause is three times the
    previous pause, up to four hours, with a jitter of ± 20 %.
    """

    secret: str | None = field(default=None, repr=False)
    timeout: float = 10.0
    tries: int = 12
    backoff: float = 5.0


def check_url(url: str, name: str) -> str:
    """Return ``url`` if it is valid for a webhook. Otherwise raise InvalidInputError.

    A valid URL has http or https, a host, no credentials, no fragment, and at most 2048 ASCII characters. The worker that sends
    to the URL checks whether the address of the host is allowed.
    """
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isascii()
    except (ValueError, TypeError, AttributeError):
        fits = False
    if (
        not fits
        or len(url) > MAX_URL_LENGTH
        or not url.isprintable()
        or any(sign in url for sign in " #\\")
        or "@" in parts.netloc
    ):
        raise InvalidInputError(
            f"{name} is an http or https URL of ASCII without credentials and fragment, got {brief(url)}", field=name
        )
    return url


def check_room(subscriptions: int) -> None:
    """Raise TooManyWebhooksError if ``subscriptions``, the number of a tenant's subscriptions, has reached its maximum."""
    if subscriptions >= MAX_WEBHOOKS:
        raise TooManyWebhooksError(
            f"there are already {MAX_WEBHOOKS} webhooks, which is the maximum; remove one", limit=MAX_WEBHOOKS
        )


def check_events(events: Iterable[str] | None) -> list[FeedType]:
    """Return ``events`` in the order of FEED_TYPES, without repetitions. For None, return RUN_EVENTS.

    Raises InvalidInputError for an unknown event, and for an empty list.
    """
    asked = set(RUN_EVENTS if events is None else [events] if isinstance(events, str) else events)
    if not asked or asked - set(FEED_TYPES):
        wrong = ", ".join(sorted(asked - set(FEED_TYPES))) or "none"
        raise InvalidInputError(f"events are some of {', '.join(FEED_TYPES)}; got {wrong}", field="events")
    return [type_ for type_ in FEED_TYPES if type_ in asked]


HIDE_WEBHOOKS: Final = "hide_webhooks"
"""A key of pydantic's serialization context. If the context has this key, the webhook in a run's options is masked."""


def masked(url: str) -> str:
    """Return ``url`` as ``https://host/…``, without its path and credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an invalid IPv6 address: a run enqueued in SQL can have one
        return "…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…" if parts.scheme and parts.netloc else "…"
