"""Files in messages: data URLs, media types, and the kind of part for a media type.

The module of a format determines which files the format reads and writes. ``result_text`` in ``wire.py`` determines which files
of a tool result are lost when the result becomes text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from ..domain.messages import AudioPart, DocumentPart, FilePart, ImagePart, MediaPart

DATA: Final = "data:"
BASE64: Final = ";base64"

USUAL_TYPES: Final[Mapping[str, str]] = {
    "image": "image/png",
    "audio": "audio/wav",
    "document": "application/pdf",
    "file": "application/octet-stream",
}
"""Type of a part → the media type of its data, if the part does not name a media type."""


def media_part(
    media_type: str | None, *, url: str | None = None, data: str | None = None, name: str | None = None
) -> MediaPart:
    """Return the kind of part that fits the media type.

    ``name`` is dropped for images and sounds, because their parts have no such field.
    """
    kind = (media_type or "").partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return ImagePart(url=url, data=data, media_type=media_type)
    if kind.startswith("audio/"):
        return AudioPart(url=url, data=data, media_type=media_type)
    if kind == "application/pdf" or kind.startswith("text/"):
        return DocumentPart(url=url, data=data, media_type=media_type, name=name)
    return FilePart(url=url, data=data, media_type=media_type, name=name)


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return the media type and the base64 data of a data URL. Return None for any other URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith(DATA) or not head.endswith(BASE64):
        return None
    return head[len(DATA) : -len(BASE64)], data


def data_url(media_type: str, data: str) -> str:
    """Return a data URL."""
    return f"{DATA}{media_type}{BASE64},{data}"


def text_of(data: str) -> str | None:
    """Return the text whose base64 is exactly ``data``. Return None if no text has this base64."""
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return text if data_of(text) == data else None


def data_of(text: str) -> str:
    """Return ``text`` as base64 data."""
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def is_base64(text: str) -> bool:
    """Return whether ``text`` is base64, in the alphabet of MIME or of URLs."""
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        return False
    return True
