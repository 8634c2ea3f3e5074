"""The responses of routes: content as JSON, and ETags with the conditions of requests (RFC 9110)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator
from time import monotonic
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Header, Request, Response
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from runyard.domain.webhooks import HIDE_WEBHOOKS
from runyard.models import JsonObject
from runyard.support.turns import turn

from .route_access import shows_webhooks

M = TypeVar("M", bound=BaseModel | JsonObject)

UNSEEN: Final = "no-store"
"""Value of ``Cache-Control`` for responses with secrets. No cache then stores the response."""
_NO_ITEMS: Final = b'{"items":['
MAX_TAGS_CHARACTERS: Final = 2000
"""Maximum number of characters of an If-Match or If-None-Match."""


def reply(content: BaseModel, status: int = 200, **headers: str) -> Response:
    """Return ``content`` as a JSON response. Underscores in the names of ``headers`` stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(to_bytes(content), status, named, media_type="application/json")


def to_bytes(content: BaseModel | JsonObject) -> bytes:
    """Return ``content`` as JSON. Agents may have stored text that is not valid Unicode. Such text is escaped."""
    context = {HIDE_WEBHOOKS: not shows_webhooks.get()}
    try:
        if isinstance(content, dict):
            return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        return content.model_dump_json(context=context).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        return json.dumps(to_jsonable_python(content, context=context, fallback=str)).encode()


_KNOWN: Final = Header(
    max_length=MAX_TAGS_CHARACTERS, description="ETag of the version that the caller has. 304 if it is still current."
)
_MATCH: Final = Header(max_length=MAX_TAGS_CHARACTERS, description="ETag of the version to change. 412 if it is not current.")


async def _if_none_match(request: Request, if_none_match: Annotated[str | None, _KNOWN] = None) -> list[str] | None:
    return None if if_none_match is None else _tags(request.headers.getlist("if-none-match"))


async def _if_match(request: Request, if_match: Annotated[str | None, _MATCH] = None) -> list[str] | None:
    return None if if_match is None else _tags(request.headers.getlist("if-match"))


async def reply_page(page: BaseModel, items: list[M], known: list[str] | None) -> Response:
    """Return ``page`` as a JSON response with an ETag of the content. The first field of ``page`` is the empty list ``items``.
    The response has the argument ``items`` in its place.

    The event loop runs between slices of a large page. Written values are removed from ``items``, so that their memory is freed
    at once. ``known``: the If-None-Match of the request.
    """
    digest = hashlib.blake2b(digest_size=16)
    written = []
    since = monotonic()
    async for item in _written(items):
        written.append(item)
        digest.update(item)
        digest.update(b",")
        since = await turn(since)
    rest = to_bytes(page)
    digest.update(rest)
    content = _NO_ITEMS + b",".join(written) + rest.removeprefix(_NO_ITEMS)
    return reply_if_changed(content, f'"{digest.hexdigest()}"', known)


async def reply_lists(content: BaseModel, **lists: list[M]) -> Response:
    """Return ``content`` as a JSON response. ``lists`` take the places of the empty lists with the same names.

    The event loop runs between slices of large lists. Written values are removed from ``lists``, so that their memory is freed
    at once.
    """
    text = to_bytes(content)
    joined = {name: b",".join([item async for item in _written(items)]) for name, items in lists.items()}
    marks = {name: f'"{name}":['.encode() for name in lists}
    places = sorted((text.index(mark + b"]") + len(mark), name) for name, mark in marks.items())
    pieces, at = [], 0
    for place, name in places:
        pieces += [text[at:place], joined[name]]
        at = place
    return Response(b"".join([*pieces, text[at:]]), media_type="application/json")


async def _written(items: list[M]) -> AsyncGenerator[bytes]:
    """Yield each of ``items`` as JSON. The event loop runs between slices. Written values are removed from ``items``, so that
    their memory is freed at once."""
    since = monotonic()
    items.reverse()
    while items:
        yield to_bytes(items.pop())
        since = await turn(since)


def _tags(lines: list[str]) -> list[str]:
    """Return the tags in all lines of a header. The lines of a header form one list (RFC 9110, 5.3)."""
    return [tag.strip() for tag in ",".join(lines).split(",")]


IfNoneMatch = Annotated[list[str] | None, Depends(_if_none_match)]
IfMatch = Annotated[list[str] | None, Depends(_if_match)]
ANY: Final = ["*"]
"""The value ``*`` of If-Match or If-None-Match, which matches any tag. In a longer list, ``*`` matches no tag (RFC 9110,
13.1)."""


def reply_if_changed(content: bytes, tag: str, known: list[str] | None) -> Response:
    """Return ``content`` as JSON with the ETag ``tag``. Return 304 if ``known`` has the tag. ``known``: the If-None-Match of
    the request."""
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if known is not None and (known == ANY or tag in {each.removeprefix("W/") for each in known}):
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, media_type="application/json")
