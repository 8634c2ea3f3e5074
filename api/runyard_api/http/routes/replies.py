"""The responses of routes: content as JSON, and ETags with the conditions of requests (RFC 9110)."""

from __future__ import annotations

import json
from typing import Annotated, Final

from fastapi import Depends, Header, Request, Response
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from runyard.domain.webhooks import HIDE_WEBHOOKS

from .route_access import shows_webhooks

MAX_TAGS_CHARACTERS: Final = 2000
"""Most characters of an If-Match or If-None-Match."""


def reply(content: BaseModel, status: int = 200, **headers: str) -> Response:
    """Return ``content`` as a JSON response. Underscores in the names of ``headers`` stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(to_bytes(content), status, named, media_type="application/json")


def to_bytes(content: BaseModel) -> bytes:
    """Return ``content`` as JSON. Text that is not valid Unicode is escaped; agents may have stored such text."""
    context = {HIDE_WEBHOOKS: not shows_webhooks.get()}
    try:
        return content.model_dump_json(context=context).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        return json.dumps(to_jsonable_python(content, context=context)).encode()


_KNOWN: Final = Header(
    max_length=MAX_TAGS_CHARACTERS, description="ETag of the version that the caller has. 304 if it is still current."
)
_MATCH: Final = Header(max_length=MAX_TAGS_CHARACTERS, description="ETag of the version to change. 412 if it is not current.")


async def _if_none_match(request: Request, if_none_match: Annotated[str | None, _KNOWN] = None) -> list[str] | None:
    return None if if_none_match is None else _tags(request.headers.getlist("if-none-match"))


async def _if_match(request: Request, if_match: Annotated[str | None, _MATCH] = None) -> list[str] | None:
    return None if if_match is None else _tags(request.headers.getlist("if-match"))


def _tags(lines: list[str]) -> list[str]:
    """Return the tags of all lines of a header, which are one list (RFC 9110, 5.3)."""
    return [tag.strip() for tag in ",".join(lines).split(",")]


IfNoneMatch = Annotated[list[str] | None, Depends(_if_none_match)]
IfMatch = Annotated[list[str] | None, Depends(_if_match)]
ANY: Final = ["*"]
"""The value ``*`` of If-Match or If-None-Match, which matches any tag. In a longer list ``*`` matches none (RFC 9110, 13.1)."""


def reply_if_changed(content: bytes, tag: str, known: list[str] | None) -> Response:
    """Return ``content`` as JSON with the ETag ``tag``, or 304 if ``known``, the If-None-Match of the request, has the tag."""
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if known is not None and (known == ANY or tag in {each.removeprefix("W/") for each in known}):
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, media_type="application/json")
