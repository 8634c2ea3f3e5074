"""Messages with files. The body is a form. The field ``payload`` has the JSON, and each file has a field.

Each file becomes base64 data of its part.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.types import Message

from runyard.domain.json_text import Shape, read
from runyard.domain.size_limits import MAX_PARTS
from runyard.errors import InvalidRequestError
from runyard.models import JsonObject

from ...problems import Refusal
from ...reading import MAX_BODY_VALUES, is_form
from ...routes.bodies import Body
from ...routes.route_access import Route

PAYLOAD: Final = "payload"
PIECE_BYTES: Final = 2**16
"""Bytes of a form or of its JSON that are handled before the event loop runs again."""
CHARSETS: Final = (b"", b"utf-8", b"utf8")


class UploadRoute(Route):
    """A route that also accepts a form with files."""

    async def readable(self, request: Request) -> Request:
        if not is_form(request.scope["headers"]):
            return await super().readable(request)
        _, options = parse_options_header(request.headers["content-type"])
        if options.get(b"charset", b"").lower() not in CHARSETS:  # decoders of some other charsets take quadratic time
            raise _refused("", "send the form in UTF-8")
        most = request.app.state.service.settings.max_body
        pieces = Request(request.scope, _Pieces(await request.body()).receive)
        async with pieces.form(max_files=MAX_PARTS, max_fields=1, max_part_size=most) as form:
            return _Read(request, await _with_files(form))


class _Read(Body):
    """A request whose JSON was already read. Its body is not read again."""

    def __init__(self, request: Request, value: JsonObject) -> None:
        kept = [(name, text) for name, text in request.scope["headers"] if name != b"content-type"]
        super().__init__({**request.scope, "headers": [*kept, (b"content-type", b"application/json")]})
        self._value = value

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> JsonObject:
        return self._value


class _Pieces:
    """A body that arrives in pieces. The event loop runs between two pieces."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        piece = self._body[self._at : self._at + PIECE_BYTES]
        self._at += PIECE_BYTES
        return {"type": "http.request", "body": piece, "more_body": self._at < len(self._body)}


async def _with_files(form: FormData) -> JsonObject:
    """Return the JSON of a form's ``payload``. The data of each file is put into the message part whose ``file_field`` names
    the file. Raises Refusal."""
    files: dict[str, UploadFile] = {}
    for field, value in form.multi_items():
        if field in files:
            raise _refused(field, "the form has this field twice")
        if isinstance(value, UploadFile):
            files[field] = value
    payload = await _payload(form.get(PAYLOAD))
    for part in _parts(payload):
        name = part.get("file_field")
        if isinstance(name, str) and (file := files.pop(name, None)) is not None:
            await _inline(part, file)
    if files:
        raise _refused(min(files), "no part names this file in its file_field")
    return payload


async def _inline(part: dict[str, Any], file: UploadFile) -> None:
    """Put the name and the data of ``file`` into ``part``, with the fields in the order of the format."""
    await file.seek(0)
    about = {"type": "base64", "media_type": file.content_type, "data": base64.b64encode(await file.read()).decode()}
    given = part["meta"] if isinstance(part.get("meta"), dict) else {}
    replaced = {"type": part.get("type"), "filename": file.filename, "meta": about | {**given, **about}}
    kept = {name: value for name, value in part.items() if name not in (*replaced, "file_field")}
    part.clear()
    part.update(replaced | kept)


async def _payload(text: Any) -> JsonObject:
    if not isinstance(text, str):
        raise _refused(PAYLOAD, "the form needs this field, with the message as JSON")
    given, shape = text.encode(), Shape(MAX_BODY_VALUES)
    try:
        for at in range(0, len(given), PIECE_BYTES):
            shape.feed(given[at : at + PIECE_BYTES])
            await asyncio.sleep(0)
        payload = read(given)
    except ValueError as error:
        raise _refused(PAYLOAD, f"cannot be read as JSON: {error}") from None
    if not isinstance(payload, dict):
        raise _refused(PAYLOAD, "is JSON, but no object")
    return payload


def _parts(payload: JsonObject) -> list[dict[str, Any]]:
    blob = payload.get("blob")
    parts = blob.get("parts") if isinstance(blob, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _refused(name: str, why: str) -> Refusal:
    at = {"location": "body", "pointer": name, "message": why}
    return Refusal(InvalidRequestError(f"{name:.80}: {why}", errors=[at]))
