"""The HTTP API as an ASGI application. A server can serve the application alone, or a host can mount it in its FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from runyard import Client
from runyard.errors import InvalidInputError, RunyardError
from runyard.ports.stores import Backend
from runyard.support import backend_urls, metrics
from runyard.support.logging import plain_tracebacks
from runyard.support.settings import Settings

from . import console, docs, problems
from .authentication import Auth, Gate
from .bounds import Bounds
from .compat import registry
from .compat.layer import Compat, ErrorShapes, KeyHeaders
from .document import document
from .head import Head
from .paths import KeepSlashes
from .routes import (
    batches,
    deployment,
    diagnosis,
    fan_outs,
    forks,
    health,
    messages,
    operations,
    requests,
    runs,
    signals,
    streams,
    threads,
    timelines,
    usage,
    webhooks,
    whoami,
)
from .service import OPEN, Guard, Service
from .settings import ApiSettings
from .telemetry import Telemetry

CONNECTION: Final = "runyard-api"
"""Name under which Postgres and Redis list the connections of an API process."""
ROUTERS: Final = (
    threads,
    runs,
    batches,
    timelines,
    streams,
    messages,
    requests,
    signals,
    fan_outs,
    forks,
    deployment,
    diagnosis,
    operations,
    usage,
    webhooks,
    whoami,
    health,
)
TAGS: Final = [
    {"name": "threads", "description": "Conversations."},
    {"name": "runs", "description": "Prompts, and the runs that answer them."},
    {"name": "messages", "description": "The messages of a thread, which form a tree."},
    {"name": "requests", "description": "Questions and approvals that wait for a human."},
    {"name": "signals", "description": "Values for runs that wait for them."},
    {"name": "forks", "description": "Threads and probes that start from a snapshot."},
    {"name": "feed", "description": "The changes of all threads, in the order of their commits."},
    {"name": "usage", "description": "Tokens, cost and time of runs, by day."},
    {"name": "webhooks", "description": "URLs that receive events, their secrets and their deliveries."},
    {"name": "deployment", "description": "Agents, workers, queues and limits."},
    {"name": "access", "description": "The caller, and API keys."},
    {"name": "probes", "description": "Liveness, readiness and metrics."},
]
ASKED: Final = (
    *("Authorization", "Content-Type", "Idempotency-Key", "If-Match", "If-None-Match", "Last-Event-ID"),
    *("X-Api-Key", "X-Request-Id", "traceparent", "tracestate"),
)
TOLD: Final = ("ETag", "Location", "RateLimit", "RateLimit-Policy", "Retry-After", "X-Request-Id")
"""Headers that CORS allows for pages of other origins. ASKED are headers of requests, and TOLD headers of responses."""
FRAMEWORK_TELEMETRY: Final[Any] = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""Switches off FastAPI's own telemetry. The spans of this telemetry contain the query, which can contain a token. FastAPI's
telemetry also trusts the sampling flag of any caller. Versions of FastAPI without telemetry ignore this value."""
LICENSE: Final = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
SERVERS: Final = [{"url": "/", "description": "The server of this document."}]
DESCRIPTION: Final = """\
Agent conversations as durable, distributed, forkable runs.

A request that creates something may carry an id that you choose. If you send the same request with the same id again, the API
creates nothing more and returns the same object. You can repeat such a request after any failure. Errors are problem documents
(RFC 9457) with a stable `code`. Lists come in pages: pass `next` as `cursor` to get the next page. The headers `RateLimit` and
`RateLimit-Policy` have the number of requests that a key may make at once, and the seconds until it may make more.
"""


def asgi_app(
    backend_or_client: Backend | Client | None = None,
    *,
    postgres: str | None = None,
    redis: str | None = None,
    tenant: str | None = None,
    auth: Auth | None = None,
    settings: ApiSettings | None = None,
    **options: Any,
) -> FastAPI:
    """Return the API as an application. The application uses a backend or client of the caller, or connects to servers itself.

    ``postgres`` and ``redis``: URLs, by default the URLs of :class:`runyard.support.settings.Settings`. ``options``: further
    options of the backend. ``tenant``: the tenant of callers without a key, if ``auth`` is off. ``auth``: ``"keys"`` (API
    keys), ``"off"`` (programs of this machine only), or a coroutine function. This function takes the request and returns a
    :class:`~runyard_api.http.principal.Principal`, or None for 401.

    A host can mount the app: ``host.mount("/agents", asgi_app(client, auth=…))``. A mounted app connects at its first request.
    When the host stops, it calls ``app.state.service.close()`` to end the streams.

    Raises ConfigurationError for an invalid setting. Raises it also without a secret for stream tokens, unless ``auth`` is off.
    Raises InvalidInputError if ``settings.compat`` has an unknown name.
    """
    plain_tracebacks()
    found = settings or ApiSettings()
    mounted = registry.named(found.compat)
    backend = backend_or_client.backend if isinstance(backend_or_client, Client) else backend_or_client
    namespace = backend_or_client.namespace if isinstance(backend_or_client, Client) else None
    if backend is not None and (postgres is not None or redis is not None):
        raise InvalidInputError("give a backend or URLs, not both", field="postgres")
    general = Settings() if tenant is None else Settings(tenant=tenant)
    gate = Gate(auth or found.auth, found, tenant=backend.tenant if backend is not None else general.tenant)
    connect = _existing(backend) if backend is not None else _connecting(general, postgres, redis, options)
    service = Service(
        connect,
        owned=backend is None,
        gate=gate,
        settings=found,
        namespace=namespace,
        webhook_networks=general.webhook_allow_private,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.streams.open()
        with suppress(RunyardError):  # /readyz reports the error, and the next request connects again
            await service.backend()
        yield
        await service.close()

    app = FastAPI(
        title="runyard",
        version=version("runyard"),
        description=DESCRIPTION,
        openapi_tags=[*TAGS, *({"name": each.tag, "description": each.description} for each in mounted)],
        license_info=LICENSE,
        servers=SERVERS,
        openapi_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        telemetry=FRAMEWORK_TELEMETRY,
    )
    app.state.service = service
    problems.install(app)
    routers = [*(module.router for module in ROUTERS), *(router for each in mounted for router in each.routers)]
    for router in (*routers, docs.router, *([console.router] if found.console == "on" else ())):
        app.router.routes += router.routes  # include_router would match each request twice
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    _add_middleware(app, service, found, mounted, routes)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    metrics.serve_http((method, route.path, route.status_code or 200) for route in routes for method in route.methods or ())
    return app


def _add_middleware(
    app: FastAPI, service: Service, settings: ApiSettings, mounted: Sequence[Compat], routes: Sequence[APIRoute]
) -> None:
    # The middleware that is added last is the outermost.
    app.add_middleware(KeepSlashes)
    app.add_middleware(Bounds, settings=settings)
    app.add_middleware(Guard, service=service, open_paths=OPEN.union(*(each.open_paths for each in mounted)))
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=sorted({method for route in routes for method in route.methods or ()}),
        allow_headers=(*ASKED, *(each.key_header for each in mounted if each.key_header is not None)),
        expose_headers=TOLD,
    )
    app.add_middleware(Head)
    if settings.console == "on":
        app.add_middleware(console.Protected)
    if mounted:
        app.add_middleware(KeyHeaders, mounted=mounted)
        app.add_middleware(ErrorShapes, mounted=mounted)
    app.add_middleware(Telemetry, trust_traceparent=settings.trust_traceparent)


def _existing(backend: Backend) -> Callable[[], Awaitable[Backend]]:
    async def connect() -> Backend:
        return backend

    return connect


def _connecting(
    general: Settings, postgres: str | None, redis: str | None, options: dict[str, Any]
) -> Callable[[], Awaitable[Backend]]:
    url = postgres or general.postgres_url
    if url.startswith("postgres"):
        pool = {"min_pool_size": general.min_pool_size, "max_pool_size": general.max_pool_size}
        own = {"name": CONNECTION, "page_bytes": general.page_bytes, "stream_limits": general.stream_limits}
        options = {"redis": redis or general.redis_url, **pool, **own, **options}

    async def connect() -> Backend:
        return await backend_urls.connect(url, tenant=general.tenant, **options)

    return connect
