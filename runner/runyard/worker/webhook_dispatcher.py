"""The webhook dispatcher: the leader sends due webhook deliveries, at most a certain number at the same time, and stores their
outcomes.

The dispatcher takes each delivery under a lease. If the dispatcher dies, the deliveries without a stored outcome are due again
when their leases end. The next leader sends them. The store keeps deliveries, leases and tries, but not the unresponsive
endpoints. A new leader must learn which endpoints are unresponsive. ``WebhookPolicy`` (``domain/webhooks.py``) has the number
of tries and the first pause. The constants below define the later pauses.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import structlog

from ..domain.webhook_secrets import derived
from ..domain.webhooks import NO_SECRET, DeliveryOutcome, Posting, WebhookPolicy, WebhookReply, check_url
from ..errors import BackendUnavailableError, DataCorruptedError, InvalidInputError
from ..ports.stores import Backend, WebhookSender
from ..support import metrics
from ..support.store_retries import patiently
from .signed_webhook import body_of, signed

POLL_SECONDS: Final = 0.5
"""Seconds until the next read of the store, if the last read found no due delivery."""
MEASURE_SECONDS: Final = 5.0
"""Seconds between two measurements of the oldest waiting delivery."""
MAX_IN_FLIGHT: Final = 64
"""Maximum number of deliveries in flight."""
MAX_IN_FLIGHT_PER_ENDPOINT: Final = 8
"""Maximum number of deliveries in flight to one endpoint."""
MAX_IN_FLIGHT_UNRESPONSIVE: Final = 32
"""Maximum number of deliveries in flight to unresponsive endpoints.

An endpoint is unresponsive if the last try got no answer. A delivery to such an endpoint can be in flight for a whole timeout.
All unresponsive endpoints share this maximum. Each of them may always have one delivery in flight, even beyond the maximum.
"""
MAX_UNRESPONSIVE_KNOWN: Final = 1000
"""Maximum number of unresponsive endpoints that the dispatcher remembers. If there are more, the dispatcher forgets the
endpoint with the oldest last try."""
BACKOFF_FACTOR: Final = 3.0
MAX_BACKOFF_SECONDS: Final = 4 * 3600.0
"""Maximum number of seconds between two tries."""
BACKOFF_JITTER: Final = 0.2
LEASE_MARGIN_SECONDS: Final = 5.0
"""Seconds that a try may take in addition to the HTTP request."""

log = structlog.get_logger("runyard.webhooks")


class WebhookDispatcher:
    """Sends webhooks while ``leading()`` is true."""

    def __init__(self, backend: Backend, sender: WebhookSender, leading: Callable[[], bool], policy: WebhookPolicy) -> None:
        self._backend = backend
        self._sender = sender
        self._leading = leading
        self._policy = policy
        self._flights: dict[asyncio.Task[None], str] = {}
        self._unresponsive: dict[str, None] = {}
        self._after = ""
        self._measure_at = float("-inf")

    @property
    def lease(self) -> float:
        """Seconds after which a delivery is due again if its outcome was not stored."""
        return self._policy.timeout + 2 * LEASE_MARGIN_SECONDS

    async def run(self) -> None:
        """Send webhooks until cancelled. Then wait for the deliveries in flight, at most for the timeout of one try."""
        try:
            while True:
                taken = await self.step()
                if not taken or len(self._flights) >= MAX_IN_FLIGHT:
                    await self._pause()
        finally:
            metrics.OLDEST_WEBHOOK.set(0)
            await self._finish()

    async def step(self) -> int:
        """If this worker leads, start the due deliveries. Return the number of started deliveries."""
        if not self._leading():
            metrics.OLDEST_WEBHOOK.set(0)
            return 0
        store, room = self._backend.webhooks, MAX_IN_FLIGHT - len(self._flights)
        postings = (
            await store.take(
                busy=self._busy(), after=self._after, limit=room, each=MAX_IN_FLIGHT_PER_ENDPOINT, lease=self.lease
            )
            if room
            else []
        )
        # The next read begins after the last endpoint of this read, so that every endpoint gets its turn.
        self._after = max((posting.endpoint for posting in postings), default="") if len(postings) == room else ""
        for posting in postings:
            flight = asyncio.create_task(self._deliver(posting), name=f"webhook {posting.delivery_id}")
            self._flights[flight] = posting.endpoint
            flight.add_done_callback(self._flights.pop)
        if time.monotonic() >= self._measure_at:
            self._measure_at = time.monotonic() + MEASURE_SECONDS
            metrics.OLDEST_WEBHOOK.set(await store.oldest() or 0.0)
        return len(postings)

    def _busy(self) -> dict[str, int]:
        """Return the number of occupied places of each endpoint. An endpoint has MAX_IN_FLIGHT_PER_ENDPOINT places for
        deliveries.

        Every delivery in flight occupies a place. An unresponsive endpoint may use fewer places. The other places count as
        occupied.
        """
        busy = Counter(self._flights.values())
        if self._unresponsive:
            share = min(MAX_IN_FLIGHT_PER_ENDPOINT, max(1, MAX_IN_FLIGHT_UNRESPONSIVE // len(self._unresponsive)))
            busy.update(dict.fromkeys(self._unresponsive, MAX_IN_FLIGHT_PER_ENDPOINT - share))
        return dict(busy)

    async def _pause(self) -> None:
        """Wait POLL_SECONDS for the next read. If MAX_IN_FLIGHT deliveries are in flight, wait until one of them ends, at most
        POLL_SECONDS."""
        if len(self._flights) >= MAX_IN_FLIGHT:
            await asyncio.wait(self._flights, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(POLL_SECONDS)

    async def _finish(self) -> None:
        if self._flights:
            _, late = await asyncio.wait(self._flights, timeout=self._policy.timeout)
            for flight in late:
                flight.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _deliver(self, posting: Posting) -> None:
        """Make one try, and store its outcome. If the outcome cannot be stored, the delivery is due again when its lease
        ends."""
        try:
            outcome = await self._outcome(posting)
            metrics.WEBHOOK_DELIVERIES.labels(outcome=outcome.kind).inc()
            await patiently(lambda: self._backend.webhooks.settle(posting, outcome), bound=LEASE_MARGIN_SECONDS)
        except BackendUnavailableError as error:
            log.warning("webhook_outcome_not_stored", **_names(posting), error=str(error))
        else:
            if outcome.kind in ("failed", "gone"):
                result = {"tries": posting.tries, "http_status": outcome.http_status, "error": outcome.error}
                log.warning("webhook_delivery_failed", **_names(posting), **result)

    async def _outcome(self, posting: Posting) -> DeliveryOutcome:
        """Make one try. An unexpected error counts as a failed try, because the delivery would otherwise be repeated for ever.

        Raises BackendUnavailableError.
        """
        try:
            return await self._try(posting)
        except BackendUnavailableError:
            raise
        except Exception as error:
            log.exception("webhook_try_failed", **_names(posting), try_number=posting.tries, error=str(error))
            return self._again(posting, WebhookReply(error=f"{type(error).__name__}: {error}"[:500]))

    async def _try(self, posting: Posting) -> DeliveryOutcome:
        try:
            check_url(posting.url, "webhook")
        except InvalidInputError:  # a host program stored the URL, which can contain a secret
            return DeliveryOutcome("failed", error="the stored URL is not valid for a webhook")
        if not posting.versions:
            return DeliveryOutcome("failed", error="the webhook was removed")
        if self._policy.secret is None:
            return self._again(posting, WebhookReply(error=NO_SECRET))
        body = await self._body(posting)
        secrets = derived(self._policy.secret, posting.tenant, posting.webhook_id, posting.versions)
        headers = signed(posting.delivery_id, body, secrets, datetime.now(UTC))
        reply = await self._sender.send(posting.url, headers, body, timeout=self._policy.timeout)
        self._note_reply(posting.endpoint, reply)
        return self._judge(posting, reply)

    def _note_reply(self, endpoint: str, reply: WebhookReply) -> None:
        """Record whether the endpoint answers."""
        self._unresponsive.pop(endpoint, None)
        if reply.status is None and not reply.forbidden:
            self._unresponsive[endpoint] = None
            if len(self._unresponsive) > MAX_UNRESPONSIVE_KNOWN:
                del self._unresponsive[next(iter(self._unresponsive))]

    async def _body(self, posting: Posting) -> bytes:
        run = None
        if posting.run_id is not None:
            with suppress(DataCorruptedError):  # the receiver still gets the event
                run = await self._backend.for_tenant(posting.tenant).runs.run(posting.thread_id, posting.run_id)
        return body_of(posting, run)

    def _judge(self, posting: Posting, reply: WebhookReply) -> DeliveryOutcome:
        if reply.status is not None and 200 <= reply.status < 300:
            return DeliveryOutcome("delivered", reply.status)
        if reply.status == 410:
            return DeliveryOutcome("gone", 410, "the receiver is gone")
        if reply.forbidden:
            return DeliveryOutcome("failed", error=reply.error)
        return self._again(posting, reply)

    def _again(self, posting: Posting, reply: WebhookReply) -> DeliveryOutcome:
        error = reply.error or f"answered {reply.status}"
        if posting.tries >= self._policy.tries:
            return DeliveryOutcome("failed", reply.status, error)
        pause = self.pause(posting.tries) if reply.retry_after is None else max(self.pause(posting.tries), reply.retry_after)
        return DeliveryOutcome("retried", reply.status, error, min(pause, MAX_BACKOFF_SECONDS))

    def pause(self, tries: int) -> float:
        """Return the seconds between a delivery's try number ``tries`` and its next try.

        The pause is exponential, with jitter.
        """
        with suppress(OverflowError):
            return min(self._policy.backoff * BACKOFF_FACTOR ** (tries - 1), MAX_BACKOFF_SECONDS) * random.uniform(
                1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER
            )
        return MAX_BACKOFF_SECONDS


def _names(posting: Posting) -> dict[str, str | None]:
    """Return the fields of ``posting`` for the log. The path of the URL is left out, because it may be a secret."""
    return {
        "webhook_delivery_id": posting.delivery_id,
        "tenant": posting.tenant,
        "endpoint": posting.endpoint,
        "thread_id": posting.thread_id,
        "run_id": posting.run_id,
    }
