"""Ids in paths: any printable text, a slash included.

Servers decode the whole path before it is taken apart, so an id with an encoded slash would look like two segments. Here the
slashes and percent signs of ids stay encoded until :func:`decoded`.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Receive, Scope, Send


class KeepSlashes:
    """Takes the path from what came over the wire."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes | None = scope.get("raw_path")
        if scope["type"] == "http" and raw is not None and b"%" in raw:
            text = raw.split(b"?")[0].decode("latin-1")
            for code in ("%25", "%2F", "%2f"):
                text = text.replace(code, f"%25{code[1:].upper()}")
            scope["path"] = unquote(text)
        await self.app(scope, receive, send)


def decoded(segment: str) -> str:
    """The id that a segment of the path stands for."""
    return segment.replace("%2F", "/").replace("%25", "%")


def route_path(scope: Scope) -> str:
    """The path as the routes see it, without where the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path


def location(root: str, *segments: str) -> str:
    """The path of a resource, for ``Location``. ``root``: where the API is mounted."""
    return f"{root}/v1/" + "/".join(quote(segment, safe="") for segment in segments)
