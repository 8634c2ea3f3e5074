"""What a client needs of a backend, asked of the HTTP API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import cache
from typing import Final, cast

import httpx
from pydantic import TypeAdapter

from runner.errors import InvalidInputError
from runner.exchange import Effects, Page, WorkerInfo
from runner.models import FeedEntry
from runner.ports import (
    Backend,
    Checkpointer,
    EventLog,
    Feed,
    KeyStore,
    LimitStore,
    QueueStore,
    RunStore,
    Scheduler,
    ThreadStore,
    UsageStore,
    WebhookStore,
    WorkerStore,
)

from .bodies import page
from .direct import DirectOnly, only_direct
from .runs import HttpRunStore
from .streams import HttpRemote
from .threads import HttpThreadStore
from .usage import HttpUsageStore
from .webhooks import HttpWebhookStore
from .wire import Wire

CONNECTING: Final = 5.0
"""Seconds in which a connection has to be open."""


class HttpFeed:
    """The feed of the key's tenant."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def read(self, cursor: str | None = None, *, limit: int = 100) -> Page[FeedEntry]:
        """The entries after ``cursor``."""
        return page(FeedEntry, (await self._wire.ask("GET", "feed", query={"cursor": cursor, "limit": limit})).data)


class HttpWorkerStore(DirectOnly):
    """The deployment's workers, to look at."""

    def __init__(self, wire: Wire) -> None:
        super().__init__("workers")
        self._wire = wire

    async def workers(self) -> list[WorkerInfo]:
        """All workers known, the oldest first; needs a key with the scope admin."""
        return _workers().validate_python((await self._wire.ask("GET", "workers")).data["items"])


class HttpBackend:
    """Reaches a deployment through its API, for the tenant of the key. Workers need a direct connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.tenant = ""
        self.remote = HttpRemote(wire)
        self.feed: Feed = HttpFeed(wire)
        self.usage = cast(UsageStore, HttpUsageStore(wire))
        self.threads = cast(ThreadStore, HttpThreadStore(wire))
        self.runs = cast(RunStore, HttpRunStore(wire))
        self.workers = cast(WorkerStore, HttpWorkerStore(wire))
        self.checkpointer = cast(Checkpointer, DirectOnly("checkpointer"))
        self.limits = cast(LimitStore, DirectOnly("limits"))
        self.queues = cast(QueueStore, DirectOnly("queues"))
        self.keys = cast(KeyStore, DirectOnly("keys"))
        self.webhooks = cast(WebhookStore, HttpWebhookStore(wire))
        self.scheduler = cast(Scheduler, DirectOnly("scheduler"))
        self.events = cast(EventLog, DirectOnly("events"))

    def for_tenant(self, tenant: str) -> Backend:
        """The key's tenant is the only one. Raises CapabilityMissingError."""
        raise only_direct("another tenant")

    async def check(self) -> None:
        """Ask the API whether it is ready. Raises BackendUnavailableError."""
        await self._wire.check()

    async def notifications(self) -> AsyncGenerator[Effects]:
        """Workers' business. Raises CapabilityMissingError."""
        raise only_direct("notifications")
        yield Effects()

    async def close(self) -> None:
        """Close the connections."""
        await self._wire.close()


async def connect(
    url: str,
    *,
    tenant: str,
    api_key: str | None,
    timeout: float,
    patience: float,
    transport: httpx.AsyncBaseTransport | None,
) -> Backend:
    """See :func:`backends.http.connect`."""
    if tenant:
        raise InvalidInputError("over HTTP the API key says for which tenant; leave tenant out", field="tenant")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise InvalidInputError("the API key has characters that no key has", field="api_key")
    http = httpx.AsyncClient(
        base_url=_base(url),
        headers={"Authorization": f"Bearer {api_key}"} if api_key is not None else {},
        timeout=httpx.Timeout(timeout, connect=min(CONNECTING, timeout)),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        transport=transport,
    )
    backend = HttpBackend(Wire(http, patience))
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
        raise InvalidInputError(f"this is no URL: {error}", field="url") from None
    if base.userinfo:  # httpx would send these in the place of the key
        raise InvalidInputError("the URL of an API has no user and no password; give the key as api_key", field="url")
    if not base.host or base.query or base.fragment:
        raise InvalidInputError("the URL of an API is a host and perhaps a path, and nothing behind it", field="url")
    return base


@cache
def _workers() -> TypeAdapter[list[WorkerInfo]]:
    return TypeAdapter(list[WorkerInfo])
