"""Routes of the console. The console is a page in the browser that uses only the public HTTP API.

The files are built from ``api/console`` and are part of the wheel. The page works behind any prefix: its URLs are relative to a
base, which this module computes from the depth of the path. The files need no key. The page asks the user for a key.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runyard.errors import RouteNotFoundError

from .request_state import route_path

router = APIRouter(include_in_schema=False)

FILES: Final = Path(__file__).parents[1] / "console_files"
PREFIX: Final = "/console"
ASSETS: Final = "assets/"
TYPES: Final = {".js": "text/javascript", ".css": "text/css"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'self'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
"""Content security policy of the page. Only the sanitizer may turn text into HTML."""
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every response below the prefix, also of errors. No cache may store an error: during an upgrade, this process may
lack a file that another API process has."""
GZIP: Final = re.compile(r"(?:^|,)\s*(?:x-)?gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[^,]*)?(?:,|$)", re.IGNORECASE)
"""Matches an ``Accept-Encoding`` that allows gzip."""
IMMUTABLE: Final = "public, max-age=31536000, immutable"
"""Value of ``Cache-Control`` for assets. The name of an asset contains the hash of its content."""
UNBUILT_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>runyard</title>
<link rel="icon" href="data:,">
<h1>The console is not part of this installation</h1>
<p>{why}</p>
<p>The HTTP API works without it.</p>
</html>
"""
NEVER_BUILT: Final = "It was installed from a source tree in which nobody built the console. `make console` builds it."


@dataclass(frozen=True, slots=True)
class File:
    """A file of the console, plain and compressed."""

    plain: bytes
    compressed: bytes
    media_type: str


def is_open(path: str) -> bool:
    """Return True if ``path`` belongs to the console. The files of the console need no key."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


class Protected:
    """Adds HEADERS to every response of the console, also to refusals of other middleware and of the router."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        open_ = scope["type"] == "http" and is_open(route_path(scope))
        await self.app(scope, receive, protected if open_ else send)


@router.get(PREFIX)
async def console(request: Request) -> Response:
    """Return the page."""
    return _page(request, "console/")


@router.get(PREFIX + "/{path:path}")
async def console_path(request: Request, path: str) -> Response:
    """Return an asset. For any other path, return the page. Its script selects the view that the URL names. Raises
    RouteNotFoundError."""
    if not path.startswith(ASSETS):
        return _page(request, "../" * path.count("/") or "./")
    file = _files().get(path)
    if file is None:
        raise RouteNotFoundError("the console has no such file")
    return _reply(request, file, {"Cache-Control": IMMUTABLE})


def _page(request: Request, base: str) -> Response:
    index = _files().get("index.html")
    if index is None:
        page = UNBUILT_PAGE.format(why=escape(_why()))
        return Response(page, 503, media_type="text/html")
    shown = index.plain.replace(b"{base}", base.encode())
    return Response(shown, headers={"Cache-Control": "no-cache"}, media_type="text/html")


def _reply(request: Request, file: File, headers: dict[str, str]) -> Response:
    headers = {**headers, "Vary": "Accept-Encoding"}
    if GZIP.search(request.headers.get("accept-encoding", "")):
        return Response(file.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.media_type)
    return Response(file.plain, headers=headers, media_type=file.media_type)


def _files() -> dict[str, File]:
    """Return the files of the console by their paths. Return an empty dict if the console was not built."""
    index = FILES / "index.html"
    return _read_all(index.stat().st_mtime_ns) if index.exists() else {}


@lru_cache(maxsize=1)
def _read_all(built_at: int) -> dict[str, File]:
    """Read the files again after each build. ``built_at``: the time of the build."""
    return {path.relative_to(FILES).as_posix(): _read(path) for path in (FILES / "index.html", *(FILES / ASSETS).glob("*"))}


def _read(path: Path) -> File:
    plain = path.read_bytes()
    return File(plain, gzip.compress(plain, mtime=0), TYPES.get(path.suffix, "application/octet-stream"))


def _why() -> str:
    reason = FILES / "unbuilt.txt"
    return reason.read_text(encoding="utf-8") if reason.exists() else NEVER_BUILT
