"""Subscriptions, deliveries, and what goes between the dispatcher and its ports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from ..errors import InvalidInputError
from ..legible import brief
from ..models import FEED_TYPES, FeedType

MAX_URL_LENGTH: Final = 2048
RUN_EVENTS: Final = tuple(type_ for type_ in FEED_TYPES if type_.startswith("run."))
"""What a webhook is told unless it asks for other things."""

DeliveryStatus = Literal["pending", "delivered", "failed"]
DELIVERY_STATUSES: Final[tuple[DeliveryStatus, ...]] = get_args(DeliveryStatus)

TryOutcome = Literal["delivered", "retried", "failed", "gone"]
"""``gone``: the receiver said that it wants nothing more (410)."""
TRY_OUTCOMES: Final[tuple[TryOutcome, ...]] = get_args(TryOutcome)


class Webhook(BaseModel):
    """A subscription to the feed of ``tenant``, or of every tenant (None). ``disabled_at``: since when its receiver has been
    gone. ``secret`` signs what is sent; it is there only in the answer to the call that made the subscription, and only where
    the deployment's secret is known."""

    model_config = ConfigDict(extra="forbid")

    webhook_id: str
    tenant: str | None
    url: str
    events: list[FeedType]
    secret: str | None = None
    created_at: datetime | None = None
    disabled_at: datetime | None = None


class WebhookDelivery(BaseModel):
    """One event on its way to one URL. ``delivery_id`` is the ``webhook-id`` of every try. ``webhook_id`` is None if the URL
    came with the run. ``created_at``: of the event. ``next_at``: of the next try. ``http_status``, ``error``: of the last."""

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
    """What a receiver verifies with. ``secret`` is of ``version``; until ``both_until`` the version before signs as well."""

    model_config = ConfigDict(extra="forbid")

    secret: str = Field(repr=False)
    version: int
    both_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Which secret signs: its ``version``, and until when the one before signs as well. ``secret``: only from a store that
    cannot leave the derivation to the client."""

    version: int = 1
    both_until: datetime | None = None
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """A delivery that the dispatcher took: it comes again when its lease is over, unless it is settled. ``tries`` counts this
    one. ``versions``: of the secrets that sign it, the current one first; none if its webhook was removed. ``webhook_id``: None
    if the URL came with the run. ``endpoint``: scheme, host and port of the URL."""

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
class Outcome:
    """What came of a try. ``pause``: seconds until the next, of one that is ``retried``."""

    kind: TryOutcome
    http_status: int | None = None
    error: str | None = None
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a receiver answered: ``status``, or why there is none. ``forbidden``: the address is one that may not be reached,
    which another try does not change. ``retry_after``: seconds that it asked for."""

    status: int | None = None
    error: str | None = None
    forbidden: bool = False
    retry_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookPolicy:
    """How webhooks are delivered. ``secret`` (``whsec_…``, or several with commas between them while one takes the place of
    another) is the deployment's: what signs is derived from it. ``timeout``: seconds for one try. ``tries``: at most; the pause
    after the first is ``backoff`` seconds, then three times the one before, four hours at most."""

    secret: str | None = field(default=None, repr=False)
    timeout: float = 10.0
    tries: int = 12
    backoff: float = 5.0


def check_url(url: str, name: str) -> str:
    """``url`` if it is one that a webhook can have: http or https, a host, no credentials, no fragment, 2048 characters.

    Where it leads is judged by the worker that calls it. Raises InvalidInputError.
    """
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isascii()
    except (ValueError, AttributeError):
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


def check_events(events: Iterable[str] | None) -> list[FeedType]:
    """``events`` in the order of the feed's types, without repetitions; those of runs if None. Raises InvalidInputError."""
    asked = set(RUN_EVENTS if events is None else [events] if isinstance(events, str) else events)
    if not asked or asked - set(FEED_TYPES):
        wrong = ", ".join(sorted(asked - set(FEED_TYPES))) or "none"
        raise InvalidInputError(f"events are some of {', '.join(FEED_TYPES)}; got {wrong}", field="events")
    return [type_ for type_ in FEED_TYPES if type_ in asked]
