"""Ids in paths: any printable text, a slash included.

Servers decode the whole path before it is taken apart, so an id with an encoded slash would look like two segments. Here the
slashes and percent signs of ids stay encoded until :func:`decoded`. And what is no UTF-8 they replace, so that different bytes
would be the same id: here it is refused.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote, unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from runner.errors import RequestError

from . import problems

_HALF: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class KeepSlashes:
    """Takes the path from what came over the wire, and refuses a path or a query that is no text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                check_text(scope.get("raw_path") or b"")
                check_text(scope.get("query_string") or b"")
            except RequestError as error:
                await problems.send(error, scope, receive, send)
                return
        raw: bytes | None = scope.get("raw_path")
        if scope["type"] == "http" and raw is not None and b"%" in raw:
            text, root = raw.split(b"?")[0].decode("latin-1"), str(scope.get("root_path", ""))
            end = _end_of(root, text)
            mounted, own = unquote(text[:end]), text[end:]
            for code in ("%25", "%2F", "%2f"):
                own = own.replace(code, f"%25{code[1:].upper()}")
            scope["path"] = mounted + unquote(own)
        await self.app(scope, receive, send)


def check_text(encoded: bytes) -> None:
    """Raises RequestError if ``encoded``, of a URL, does not stand for text, or for text with a null in it."""
    if encoded.isascii() and b"%" not in encoded and b"\0" not in encoded:
        return
    if _HALF.search(encoded):
        raise RequestError("a percent sign in the URL is not followed by two hexadecimal digits; write it as %25")
    try:
        found = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise RequestError("the URL has bytes that are no UTF-8") from None
    if "\0" in found:
        raise RequestError("the URL has a null in it")


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
    """The path of a resource, for ``Location``. ``root``: where the API is mounted."""
    return f"{quote(root)}/v1/" + "/".join(quote(segment, safe="") for segment in segments)
