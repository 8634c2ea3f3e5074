"""A compatible API: its routes, the header of its API keys, and the shape of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter
from starlette.types import ASGIApp, Receive, Scope, Send

from ..problems import ERROR_SHAPE, ErrorShape
from ..request_state import route_path, state_of

API_KEY: Final = b"x-api-key"
"""The name of the native header of an API key, in the form of ASGI: lower-case bytes."""


@dataclass(frozen=True, slots=True)
class Compat:
    """The API of another system.

    ``prefix``: the beginning of the paths of all its routes. ``tag`` and ``description``: the tag of its operations in the
    OpenAPI document. ``shape``: a function that returns the response for an error of these routes. Without a ``shape``, errors
    are problem documents. ``key_header``: another header that can contain the API key on these routes. ``open_paths``: paths
    that need no authentication.
    """

    tag: str
    description: str
    routers: tuple[APIRouter, ...]
    prefix: str = ""
    shape: ErrorShape | None = None
    key_header: str | None = None
    open_paths: frozenset[str] = frozenset()


class ErrorShapes:
    """Sends errors under the prefix of a compatible API in the shape that the API's clients expect. Errors of the middleware
    are included.
    """

    def __init__(self, app: ASGIApp, mounted: Sequence[Compat]) -> None:
        self.app, self.mounted = app, [each for each in mounted if each.shape is not None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = route_path(scope)
            if (compat := next((each for each in self.mounted if path.startswith(each.prefix)), None)) is not None:
                state_of(scope)[ERROR_SHAPE] = compat.shape
        await self.app(scope, receive, send)


class KeyHeaders:
    """Renames the key header of a compatible API to the native header. A request that already has the native header stays
    unchanged."""

    def __init__(self, app: ASGIApp, mounted: Sequence[Compat]) -> None:
        self.app = app
        self.renamed = [(each.prefix, each.key_header.lower().encode()) for each in mounted if each.key_header is not None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = route_path(scope)
            native = any(name == API_KEY for name, _ in scope["headers"])
            for prefix, header in self.renamed:
                if path.startswith(prefix) and not native:
                    scope["headers"] = [(API_KEY if name == header else name, value) for name, value in scope["headers"]]
        await self.app(scope, receive, send)
