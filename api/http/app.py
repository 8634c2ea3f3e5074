"""The HTTP API as an ASGI application, to be served alone or inside a host's own FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from runner import metrics, registry
from runner.client import Client
from runner.errors import InvalidInputError, RunyardError
from runner.ports import Backend
from runner.settings import Settings

from . import docs, problems
from .auth import Auth, Gate
from .document import document
from .head import Head
from .limits import Bounds
from .observe import Observe
from .paths import KeepSlashes
from .routes import deployment, forks, messages, probes, requests, runs, streams, threads, usage, webhooks, whoami
from .service import Guard, Service
from .settings import ApiSettings

CONNECTION: Final = "runyard-api"
"""What the servers list the connections of an API process under."""
ROUTERS: Final = (threads, runs, streams, messages, requests, forks, deployment, usage, webhooks, whoami, probes)
TAGS: Final = [
    {"name": "threads", "description": "Conversations."},
    {"name": "runs", "description": "Prompts and what becomes of them."},
    {"name": "messages", "description": "What was said: a tree per thread."},
    {"name": "requests", "description": "What waits for a human."},
    {"name": "forks", "description": "Threads and probes that start from a snapshot."},
    {"name": "feed", "description": "What was committed, in one order."},
    {"name": "usage", "description": "What runs used, by day."},
    {"name": "webhooks", "description": "What receivers verify with."},
    {"name": "deployment", "description": "Who serves what."},
    {"name": "access", "description": "Who asks."},
    {"name": "probes", "description": "For the platform."},
]
ASKED: Final = (
    *("Authorization", "Content-Type", "Idempotency-Key", "If-Match", "If-None-Match", "Last-Event-ID"),
    *("X-Api-Key", "X-Request-Id", "traceparent"),
)
TOLD: Final = ("ETag", "Location", "RateLimit", "RateLimit-Policy", "Retry-After", "X-Request-Id")
"""Headers that pages of other origins may send and see."""
LICENSE: Final = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
SERVERS: Final = [{"url": "/", "description": "Where this document is served."}]
DESCRIPTION: Final = """\
Agent conversations as durable, distributed, forkable runs.

A request that creates something carries an id of yours; the same request under the same id is answered alike, so repeat it
after any failure. Errors are problem documents (RFC 9457) whose `code` is stable. Lists are pages: `next` is the `cursor` of
the one that follows. `RateLimit` and `RateLimit-Policy` say how many requests a key may make at once, and when there are more.
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
    """The API, over a backend or client that stays the caller's, or over servers of its own.

    ``postgres`` and ``redis``: URLs, by default those of :class:`runner.settings.Settings`; ``options`` are the backend's.
    ``tenant``: of callers without a key, where ``auth`` is off.
    ``auth``: ``"keys"`` (API keys), ``"off"`` (programs of this machine only), or a coroutine function that takes the request
    and returns a :class:`~api.http.auth.Principal`, or None for 401. It connects with the first request, and so can be
    mounted: ``host.mount("/agents", asgi_app(client, auth=…))``. A host ends the streams with ``app.state.service.close()``.
    Raises InvalidInputError where ``settings`` have no secret that signs stream tokens, unless ``auth`` is off.
    """
    found = settings or ApiSettings()
    backend = backend_or_client.backend if isinstance(backend_or_client, Client) else backend_or_client
    if backend is not None and (postgres is not None or redis is not None):
        raise InvalidInputError("give a backend or URLs, not both", field="postgres")
    general = Settings() if tenant is None else Settings(tenant=tenant)
    gate = Gate(auth or found.auth, found, tenant=backend.tenant if backend is not None else general.tenant)
    connect = _existing(backend) if backend is not None else _connecting(general, postgres, redis, options)
    service = Service(connect, owned=backend is None, gate=gate, settings=found)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.streams.open()
        with suppress(RunyardError):  # /readyz says so, and the next request tries again
            await service.backend()
        yield
        await service.close()

    app = FastAPI(
        title="runyard",
        version=version("runyard"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        license_info=LICENSE,
        servers=SERVERS,
        openapi_url=None,
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
    )
    app.state.service = service
    problems.install(app)
    for module in ROUTERS:
        app.include_router(module.router)
    app.include_router(docs.router)
    # The last one added is the first one asked.
    app.add_middleware(KeepSlashes)
    app.add_middleware(Bounds, settings=found)
    app.add_middleware(Guard, service=service)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=found.cors_origins,
        allow_methods=["GET", "POST", "PATCH", "DELETE"],
        allow_headers=ASKED,
        expose_headers=TOLD,
    )
    app.add_middleware(Head)
    app.add_middleware(Observe)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    routes = [route for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)]
    metrics.serve_http((method, route.path, route.status_code or 200) for route in routes for method in route.methods or ())
    return app


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
        options = {"redis": redis or general.redis_url, **pool, "name": CONNECTION, "page_bytes": general.page_bytes, **options}

    async def connect() -> Backend:
        return await registry.connect(url, tenant=general.tenant, **options)

    return connect
