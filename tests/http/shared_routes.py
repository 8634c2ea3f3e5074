"""The API over many backends in one process: FastAPI analyses the parameters of its routes once, and not for each app."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI

from runyard_api.http import app as product
from runyard_api.http.settings import ApiSettings
from runyard_backends.memory import MemoryBackend, MemoryWorld


@cache
def first(*compat: str) -> FastAPI:
    """The app whose routes and document the others with these compatible APIs use. Routes hold no state: a request finds the
    service in the app that receives it."""
    settings = ApiSettings(_env_file=None, compat=list(compat))
    return product.asgi_app(MemoryBackend(MemoryWorld(), ""), auth="off", settings=settings)


def asgi_app(*args: Any, **options: Any) -> FastAPI:
    """Return the API of the arguments. It takes the routes of this process, and their document, from its first app."""
    app = product.asgi_app(*args, **options)
    shared = first(*app.state.service.settings.compat)
    app.router.routes = [*shared.router.routes]
    app.openapi = shared.openapi  # type: ignore[method-assign]
    return app
