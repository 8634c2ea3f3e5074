"""The part of a backend that a client needs, over the HTTP API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, cast

import httpx

from runyard.errors import InvalidInputError
from runyard.models import FeedEntry
from runyard.ports.fan_outs import FanOutStore
from runyard.ports.graph_checkpoints import GraphCheckpointStore
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.results import Page
from runyard.ports.runs import RunStore
from runyard.ports.scheduling import Effects, EventLog, Scheduler
from runyard.ports.stores import (
    Backend,
    Checkpointer,
    Feed,
    KeyStore,
    LimitStore,
    QueueStore,
    ThreadStore,
    UsageStore,
    WorkerStore,
)
from runyard.ports.streams import Streams
from runyard.ports.timelines import TimelineStore
from runyard.ports.webhooks import WebhookStore

from .codec import paging, read_page
from .fan_outs import HttpFanOutStore
from .operations import HttpKeyStore, HttpLimitStore, HttpQueueStore, HttpWorkerStore
from .runs import HttpRunStore
from .streams import HttpStreams
from .threads import HttpThreadStore
from .timelines import HttpTimelineStore
from .transport import Transport
from .unsupported import DirectOnly, only_direct
from .usage import HttpUsageStore
from .webhooks import HttpWebhookStore

CONNECT_SECONDS: Final = 5.0
"""Maximum seconds for opening a connection."""


class HttpFeed:
    """The feed of the API key's tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self, page: PageRequest = FIRST_PAGE) -> Page[FeedEntry]:
        """Return the entries after ``page.cursor``, or from the oldest kept entry if ``page.cursor`` is None."""
        return read_page(FeedEntry, (await self._transport.ask("GET", "feed", query=paging(page))).data)


class HttpBackend:
    """A backend for clients, which calls the HTTP API of a deployment. The API key determines the tenant. Workers need a direct
    connection."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.tenant, self.remote = "", True
        self.feed: Feed = HttpFeed(transport)
        self.usage = cast(UsageStore, HttpUsageStore(transport))
        self.timelines: TimelineStore = HttpTimelineStore(transport)
        self.fan_outs = cast(FanOutStore, HttpFanOutStore(transport))
        self.threads = cast(ThreadStore, HttpThreadStore(transport))
        self.runs = cast(RunStore, HttpRunStore(transport))
        self.workers = cast(WorkerStore, HttpWorkerStore(transport))
        self.checkpointer = cast(Checkpointer, DirectOnly("checkpointer"))
        self.limits = cast(LimitStore, HttpLimitStore(transport))
        self.queues = cast(QueueStore, HttpQueueStore(transport))
        self.keys = cast(KeyStore, HttpKeyStore(transport))
        self.graphs = cast(GraphCheckpointStore, DirectOnly("graphs"))
        self.webhooks = cast(WebhookStore, HttpWebhookStore(transport))
        self.scheduler = cast(Scheduler, DirectOnly("scheduler"))
        self.events = cast(EventLog, DirectOnly("events"))
        self.streams: Streams = HttpStreams(transport, self.threads, self.runs)

    def for_tenant(self, tenant: str) -> Backend:
        """Raise CapabilityMissingError, because the API key gives access to its own tenant only."""
        raise only_direct("another tenant")

    async def check(self) -> None:
        """Check that the API is ready. Raises BackendUnavailableError if it is not."""
        await self._transport.check()

    async def notifications(self) -> AsyncGenerator[Effects]:
        """Raise CapabilityMissingError, because only workers need notifications."""
        raise only_direct("notifications")
        yield Effects()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


async def connect(
    url: str,
    *,
    tenant: str,
    api_key: str | None,
    timeout: float,
    patience: float,
    transport: httpx.AsyncBaseTransport | None,
) -> Backend:
    """Connect to the API; see :func:`runyard_backends.http.connect`."""
    if tenant:
        raise InvalidInputError("over HTTP the API key determines the tenant; leave tenant out", field="tenant")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise InvalidInputError("the API key contains characters that are not allowed in a key", field="api_key")
    http = httpx.AsyncClient(
        base_url=_base(url),
        headers={"Authorization": f"Bearer {api_key}"} if api_key is not None else {},
        timeout=httpx.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        transport=transport,
    )
    backend = HttpBackend(Transport(http, patience))
    try:
        await backend.check()
    except BaseException:
        await backend.close()
        raise
    return backend


def _base(url: str) -> httpx.URL:
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInputError(f"not a URL: {error}", field="url") from None
    if base.userinfo:  # with a user and password in the URL, httpx would not send the API key
        raise InvalidInputError("the URL of an API must not contain a user or a password; give the key as api_key", field="url")
    if not base.host or base.query or base.fragment:
        raise InvalidInputError("the URL of an API is a host with an optional path, without query and fragment", field="url")
    return base
