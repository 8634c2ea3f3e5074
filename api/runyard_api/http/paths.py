"""Ids in paths. An id may be any printable text and can contain slashes.

Servers decode the whole path before they split it. An id with an encoded slash would therefore become two segments. This
module keeps the slashes and percent signs of ids encoded until :func:`decoded` is called. Servers also replace bytes that are
not UTF-8. Two different ids could therefore become equal. This module refuses such bytes.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote, unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from runyard.errors import RequestError

from . import problems

_HALF: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class KeepSlashes:
    """Sets the path from the bytes of the request. Refuses a path or a query that :func:`check_text` refuses."""

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
    """Raise RequestError if ``encoded`` has a stray percent sign, invalid UTF-8 or a null character. ``encoded``: a part of a
    URL."""
    if encoded.isascii() and b"%" not in encoded and b"\0" not in encoded:
        return
    if _HALF.search(encoded):
        raise RequestError("a percent sign in the URL is not followed by two hexadecimal digits; write it as %25")
    try:
        found = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise RequestError("the URL contains bytes that are not UTF-8") from None
    if "\0" in found:
        raise RequestError("the URL contains a NUL character")


def _end_of(root: str, path: str) -> int:
    """Return the index in ``path`` at which the decoded ``root`` ends, or 0 if ``path`` does not begin with ``root``."""
    ends = (n for n in range(len(root), min(len(path), 12 * len(root)) + 1) if path[n : n + 1] in ("", "/"))
    return next((n for n in ends if unquote(path[:n]) == root), 0)


def decoded(segment: str) -> str:
    """Return the id that a segment of the path encodes."""
    return segment.replace("%2F", "/").replace("%25", "%")


def location(root: str, *segments: str) -> str:
    """Return the path of a resource, for ``Location``. ``root``: the prefix under which the API is mounted."""
    return f"{quote(root)}/v1/" + "/".join(quote(segment, safe="") for segment in segments)
