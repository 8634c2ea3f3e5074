"""The dispatcher: the leading worker sends what is due, a bounded number at once, and settles what came of it.

A delivery is taken for a lease. A dispatcher that dies leaves what it had in flight to the next one, which sends it again when
the lease is over; everything else is as it was in the store.
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

from .. import metrics
from ..errors import BackendUnavailableError, DataCorruptedError, InvalidInputError
from ..patience import patiently
from ..ports import Backend, Sender
from .models import Outcome, Posting, Reply, WebhookPolicy, check_url
from .payload import body_of, signed
from .secrets import derived

LOOK: Final = 0.5
"""Seconds between two looks of the leader when there was nothing to send."""
MEASURE: Final = 5.0
"""Seconds between two measurements of what waits."""
AT_ONCE: Final = 64
EACH: Final = 8
"""Deliveries in flight: in all, and to one endpoint."""
SILENT: Final = 32
"""Deliveries in flight to endpoints that did not answer last, shared among them, one to each at least: they hold their places
for as long as a try may take."""
REMEMBERED: Final = 1000
"""Such endpoints that are known at most; the one that was tried longest ago is forgotten first."""
FACTOR: Final = 3.0
LONGEST: Final = 4 * 3600.0
"""Seconds between two tries at most."""
JITTER: Final = 0.2
MARGIN: Final = 5.0
"""Seconds that a try may take beside the call itself."""

log = structlog.get_logger("runyard.webhooks")


class Dispatcher:
    """Sends while ``leading()`` says so."""

    def __init__(self, backend: Backend, sender: Sender, leading: Callable[[], bool], policy: WebhookPolicy) -> None:
        self._backend = backend
        self._sender = sender
        self._leading = leading
        self._policy = policy
        self._flights: dict[asyncio.Task[None], str] = {}
        self._silent: dict[str, None] = {}
        self._after = ""
        self._measure_at = float("-inf")

    @property
    def lease(self) -> float:
        """Seconds until a delivery that was taken and not settled comes again."""
        return self._policy.timeout + 2 * MARGIN

    async def run(self) -> None:
        """Send until cancelled; what is in flight then has the time of one try to arrive."""
        try:
            while True:
                taken = await self.step()
                if not taken or len(self._flights) >= AT_ONCE:
                    await self._pause()
        finally:
            metrics.OLDEST_WEBHOOK.set(0)
            await self._land()

    async def step(self) -> int:
        """Look once, if this worker leads, and send what is due; how many that is."""
        if not self._leading():
            metrics.OLDEST_WEBHOOK.set(0)
            return 0
        store, room = self._backend.webhooks, AT_ONCE - len(self._flights)
        postings = (
            await store.take(busy=self._busy(), after=self._after, limit=room, each=EACH, lease=self.lease) if room else []
        )
        # One look after the other begins behind the last endpoint, so that none is starved by those before it.
        self._after = max((posting.endpoint for posting in postings), default="") if len(postings) == room else ""
        for posting in postings:
            flight = asyncio.create_task(self._deliver(posting), name=f"webhook {posting.delivery_id}")
            self._flights[flight] = posting.endpoint
            flight.add_done_callback(self._flights.pop)
        if time.monotonic() >= self._measure_at:
            self._measure_at = time.monotonic() + MEASURE
            metrics.OLDEST_WEBHOOK.set(await store.oldest() or 0.0)
        return len(postings)

    def _busy(self) -> dict[str, int]:
        """The places that each endpoint has taken, or may not take."""
        busy = Counter(self._flights.values())
        if self._silent:
            share = min(EACH, max(1, SILENT // len(self._silent)))
            busy.update(dict.fromkeys(self._silent, EACH - share))
        return dict(busy)

    async def _pause(self) -> None:
        """Until the next look: a while, or until a place is free where there was none."""
        if len(self._flights) >= AT_ONCE:
            await asyncio.wait(self._flights, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(LOOK)

    async def _land(self) -> None:
        if self._flights:
            _, late = await asyncio.wait(self._flights, timeout=self._policy.timeout)
            for flight in late:
                flight.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _deliver(self, posting: Posting) -> None:
        """One try. What cannot be settled comes again."""
        try:
            outcome = await self._outcome(posting)
            metrics.WEBHOOK_DELIVERIES.labels(outcome=outcome.kind).inc()
            await patiently(lambda: self._backend.webhooks.settle(posting, outcome), bound=MARGIN)
        except BackendUnavailableError as error:
            log.warning("a delivery comes again", delivery_id=posting.delivery_id, error=str(error))
        else:
            if outcome.kind in ("failed", "gone"):
                where = posting.endpoint  # the rest of a URL may be a secret
                log.warning("a webhook was not delivered", delivery_id=posting.delivery_id, to=where, error=outcome.error)

    async def _outcome(self, posting: Posting) -> Outcome:
        """One try; a defect counts as one that failed, so that it is not repeated for ever. Raises BackendUnavailableError."""
        try:
            return await self._try(posting)
        except BackendUnavailableError:
            raise
        except Exception as error:
            log.exception("a webhook could not be sent", delivery_id=posting.delivery_id)
            return self._again(posting, Reply(error=f"{type(error).__name__}: {error}"[:500]))

    async def _try(self, posting: Posting) -> Outcome:
        try:
            check_url(posting.url, "webhook")
        except InvalidInputError as error:  # a host's own transaction may have given it
            return Outcome("failed", error=error.message)
        if not posting.versions:
            return Outcome("failed", error="the webhook was removed")
        if self._policy.secret is None:
            return self._again(
                posting, Reply(error="RUNYARD_WEBHOOK_SECRET is not set for the workers, and nothing is sent unsigned")
            )
        body = await self._body(posting)
        secrets = derived(self._policy.secret, posting.tenant, posting.webhook_id, posting.versions)
        headers = signed(posting.delivery_id, body, secrets, datetime.now(UTC))
        reply = await self._sender.send(posting.url, headers, body, timeout=self._policy.timeout)
        self._hear(posting.endpoint, reply)
        return self._judge(posting, reply)

    def _hear(self, endpoint: str, reply: Reply) -> None:
        """Note whether the endpoint answers."""
        self._silent.pop(endpoint, None)
        if reply.status is None and not reply.forbidden:
            self._silent[endpoint] = None
            if len(self._silent) > REMEMBERED:
                del self._silent[next(iter(self._silent))]

    async def _body(self, posting: Posting) -> bytes:
        run = None
        if posting.run_id is not None:
            with suppress(DataCorruptedError):  # the receiver hears that it ended
                run = await self._backend.for_tenant(posting.tenant).runs.run(posting.thread_id, posting.run_id)
        return body_of(posting, run)

    def _judge(self, posting: Posting, reply: Reply) -> Outcome:
        if reply.status is not None and 200 <= reply.status < 300:
            return Outcome("delivered", reply.status)
        if reply.status == 410:
            return Outcome("gone", 410, "the receiver is gone")
        if reply.forbidden:
            return Outcome("failed", error=reply.error)
        return self._again(posting, reply)

    def _again(self, posting: Posting, reply: Reply) -> Outcome:
        error = reply.error or f"answered {reply.status}"
        if posting.tries >= self._policy.tries:
            return Outcome("failed", reply.status, error)
        pause = self.pause(posting.tries) if reply.retry_after is None else max(self.pause(posting.tries), reply.retry_after)
        return Outcome("retried", reply.status, error, min(pause, LONGEST))

    def pause(self, tries: int) -> float:
        """Seconds from the end of a try to the next: exponential, with jitter."""
        with suppress(OverflowError):
            return min(self._policy.backoff * FACTOR ** (tries - 1), LONGEST) * random.uniform(1 - JITTER, 1 + JITTER)
        return LONGEST
