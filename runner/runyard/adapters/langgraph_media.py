"""Conversion of images, sounds and files between messages of LangChain and parts of a thread's messages.

LangChain writes a file as a block. A block has one of three forms: LangChain's content block, version 0 of this block
(``source_type``), or the block of a provider. The forms differ in the names of a few fields. Some forms put these fields into
an inner object.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from ..domain.messages import AudioPart, DocumentPart, FilePart, ImagePart, MediaPart
from ..errors import InvalidInputError
from ..formats.media import USUAL_TYPES, data_of, media_part, split_data_url
from ..formats.openai_chat import SOUNDS

PLAIN: Final = "text/plain"

INSIDE: Final[Mapping[str, str]] = {
    "image": "source",
    "document": "source",
    "image_url": "image_url",
    "input_audio": "input_audio",
    "file": "file",
}
"""Type of a block → the key of the inner object that contains the file."""
TYPES: Final = frozenset({*INSIDE, "audio", "video", "text-plain", "media", "input_image", "input_file"})
"""The types of blocks that are files."""


def to_block(part: MediaPart) -> dict[str, Any] | None:
    """Return a file as a content block of LangChain. Return None for a file that has neither a URL nor data.

    A file with neither a URL nor data is not sent to a model (M5).
    """
    if part.url is None and part.data is None:
        return None
    media_type = part.media_type or (USUAL_TYPES[part.type] if part.url is None else None)
    kind: str = part.type if isinstance(part, ImagePart | AudioPart) else "file"
    if (media_type or "").startswith("video/"):
        kind = "video"
    fields = {"url": part.url, "base64": part.data, "mime_type": media_type, "filename": getattr(part, "name", None)}
    return {"type": kind, **{name: value for name, value in fields.items() if value is not None}}


def from_block(block: Mapping[str, Any]) -> MediaPart | None:
    """Return the part for a block. Return None if the block is not a file.

    Raises InvalidInputError for a file that has neither a URL nor data nor a file id.
    """
    kind = block.get("type")
    if kind not in TYPES:
        return None
    inside = block.get(INSIDE.get(kind, ""))
    given = {**block, **inside} if isinstance(inside, Mapping) else {**block, "url": block.get("url") or inside}
    media_type = _text(given, "mime_type", "media_type") or SOUNDS.get(str(given.get("format")))
    name = _text(given, "filename", "name", "title")
    url, data = _text(given, "url", "image_url", "file_url"), _data(given, "base64", "data", "bytes", "file_data")
    text = _text(given, "text") if data is None else None
    if given.get("type") == "text":  # the data of a document of Anthropic whose source is a text
        text, data = _text(given, "data"), None
    if text is not None:
        media_type, data = media_type or PLAIN, data_of(text)
    for value in (url, data):
        if value is not None and (split := split_data_url(value)) is not None:
            (media_type, data), url = split, None
    if url is None and data is None:
        return _by_id(kind, given, name)
    if kind in ("image", "image_url", "input_image"):
        return ImagePart(url=url, data=data, media_type=media_type)
    if kind in ("audio", "input_audio"):
        return AudioPart(url=url, data=data, media_type=media_type)
    if kind == "document" and media_type is None:
        return DocumentPart(url=url, data=data, name=name)
    return media_part(media_type, url=url, data=data, name=name)


def _by_id(kind: str, given: Mapping[str, Any], name: str | None) -> FilePart:
    file_id = _text(given, "file_id") or (_text(given, "id") if given.get("source_type") == "id" else None)
    if file_id is None:
        raise InvalidInputError(
            f"a block of the type {kind} has no file: give it a url, or base64 with a mime_type, or a file_id", field="messages"
        )
    return FilePart(file_id=file_id, name=name)


def _text(given: Mapping[str, Any], *names: str) -> str | None:
    return next((value for name in names if isinstance(value := given.get(name), str) and value), None)


def _data(given: Mapping[str, Any], *names: str) -> str | None:
    raw = next((value for name in names if isinstance(value := given.get(name), bytes)), None)
    return base64.b64encode(raw).decode() if raw is not None else _text(given, *names)
