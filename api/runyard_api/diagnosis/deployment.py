"""Examine a deployment with only a client, without a connection to its servers."""

from __future__ import annotations

from typing import Final

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.domain.webhooks import DeliveryStatus
from runyard.errors import CapabilityMissingError, ForbiddenError

from ..pages import gather
from . import checks
from .checks import Finding

MAX_QUEUES: Final = 1000
"""Maximum number of unknown queues to check, in the order of their names. A queue is unknown if no worker serves it, no agent
belongs to it, and it is not paused. All known queues are checked."""
MAX_QUEUED_RUNS: Final = 1000
"""Maximum number of queued runs whose agents and versions are compared with the workers."""

MAX_DELIVERIES: Final = 1000
"""Maximum number of pending deliveries of webhooks to check, and of failed deliveries."""


async def of_deployment(client: Client) -> list[Finding]:
    """Check the workers and the queues with only a client. A client cannot read which worker is the leader. Therefore no
    finding is about the leader."""
    workers = await client.workers()
    found = [finding for finding in checks.of_workers(workers, "unknown") if (finding.about, finding.level) != ("leader", "ok")]
    return [*found, *await of_queues(client), *await of_webhooks(client)]


async def of_webhooks(client: Client) -> list[Finding]:
    """Check the newest MAX_DELIVERIES pending deliveries of webhooks, and as many failed deliveries. Return no finding if the
    backend has no webhooks, or if the caller may not read the deliveries."""
    statuses: tuple[DeliveryStatus, ...] = ("pending", "failed")
    try:
        found = [(await client.webhook_deliveries(status=status, limit=MAX_DELIVERIES)).items for status in statuses]
    except (CapabilityMissingError, ForbiddenError):
        return []
    return list(checks.of_deliveries([delivery for page in found for delivery in page]))


async def of_queues(client: Client) -> list[Finding]:
    """Check all known queues, up to MAX_QUEUES unknown queues, and the newest MAX_QUEUED_RUNS queued runs of the tenant."""
    page = await gather(lambda most, at: client.runs(status=RunStatus.QUEUED, limit=most, cursor=at), MAX_QUEUED_RUNS)
    waiting = checks.of_waiting_runs(page.items, await client.workers())
    known = (await client.backend.queues.queues(known=True)).items
    names = {info.queue for info in known}
    found = await gather(lambda most, at: client.queues(limit=min(most, MAX_QUEUES), cursor=at), MAX_QUEUES + len(known))
    others = [info for info in found.items if info.queue not in names]
    checked = checks.of_queues([*known, *others[:MAX_QUEUES]])
    if found.next is None and len(others) <= MAX_QUEUES:
        return [*waiting, *checked]
    says = f"only {MAX_QUEUES} of the queues that no worker serves were checked"
    return [*waiting, *checked, Finding("warn", "queues", says, "`runyard queues list` shows all queues")]
