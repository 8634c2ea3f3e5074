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
            text, root = raw.split(b"?")[0].decode("latin-1"), str(scope.get("root_path", ""))
            end = _end_of(root, text)
            mounted, own = unquote(text[:end]), text[end:]
            for code in ("%25", "%2F", "%2f"):
                own = own.replace(code, f"%25{code[1:].upper()}")
            scope["path"] = mounted + unquote(own)
        await self.app(scope, receive, send)


def _end_of(root: str, path: str) -> int:
    """Where what ``root`` decodes ends in ``path``; 0 if it is not there."""
    ends = (n for n in range(len(root), min(len(path), 12 * len(root)) + 1) if path[n : n + 1] in ("", "/"))
    return next((n for n in ends if unquote(path[:n]) == root), 0)


def decoded(segment: str) -> str:
    """The id that a segment of the path stands for."""
    return segment.replace("%2F", "/").replace("%25", "%")


def route_path(scope: Scope) -> str:
    """The path as the routes see it, without where the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path


def location(root: str, *segments: str) -> str:
    """The path of a resource, for ``Location``. ``root``: where the API is mounted.

    An id of dots alone would be taken for a way up.
    """
    quoted = (quote(segment, safe="") for segment in segments)
    return f"{quote(root)}/v1/" + "/".join(part.replace(".", "%2E") if not part.strip(".") else part for part in quoted)
