"""Conversion of a message's content for pydantic-ai. Only this module passes data of a caller to pydantic-ai.

The module passes on only the fields that its code names (M5). The types of runyard have checked the values of these fields.
Files without a URL and without valid data are skipped. Files in a provider's file store are skipped too. A part is also skipped
if a model does not accept it in the message's role, for example a tool call of the user.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..domain.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    MediaPart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from ..formats.media import USUAL_TYPES

FILES: Final = "has_files"
"""The mark of a tool result whose content includes files of pydantic-ai.

The content of a result without this mark is plain JSON.
"""
URL_KINDS: Final[Mapping[str, str]] = {
    "image": "image-url",
    "audio": "audio-url",
    "video": "video-url",
}
"""The kind that pydantic-ai gives to a file at a URL. The key is the type of the message part with the file.

For a file part, the key is the first half of its media type. For pydantic-ai, any other file is a document.
"""


def shown(role: str, content: Sequence[Part], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the parts of ``content`` for pydantic-ai. The content of a user's message becomes one part.

    ``names``: names of tools by call id.
    """
    if role == "user":
        yield {"part_kind": "user-prompt", "content": _prompt(content)}
        return
    for part in content:
        match part:
            case TextPart() if role == "system":
                yield {"part_kind": "system-prompt", "content": part.text}
            case TextPart() if role == "assistant":
                yield {"part_kind": "text", "content": part.text}
            case ThinkingPart() if role == "assistant":
                fields = {"part_kind": "thinking", "content": part.text}
                yield fields | ({"signature": part.signature} if part.signature is not None else {})
            case ImagePart(url=None) | AudioPart(url=None) | DocumentPart(url=None) | FilePart(url=None) if role == "assistant":
                if (file := _file(part)) is not None:
                    yield {"part_kind": "file", "content": file}
            case ToolCallPart() if role == "assistant":
                fields = {"part_kind": "tool-call", "tool_name": part.name, "tool_call_id": part.id}
                yield fields | {"args": part.arguments}
            case ToolResultPart() if role in ("tool", "system"):
                yield {
                    "part_kind": "tool-return",
                    "tool_name": names.get(part.call_id) or part.name or "tool",
                    "tool_call_id": part.call_id,
                    "outcome": "failed" if part.is_error else "success",
                    **_returned(part),
                }
            case TextPart() | ImagePart() | AudioPart() | DocumentPart() | FilePart() if role == "tool":
                if prompt := _prompt([part]):
                    yield {"part_kind": "user-prompt", "content": prompt}


def _returned(part: ToolResultPart) -> dict[str, Any]:
    """Return the content of a tool result. Only files that this function makes from parts of the result are files for
    pydantic-ai. JSON that has the form of a file stays JSON."""
    if not part.has_parts:
        return {"content": part.content}
    content = _prompt(part.parts)
    return {"content": content} | ({FILES: True} if any(isinstance(item, dict) for item in content) else {})


def _prompt(content: Sequence[Part]) -> str | list[Any]:
    items: list[Any] = []
    for part in content:
        match part:
            case TextPart():
                items.append(part.text)
            case ImagePart() | AudioPart() | DocumentPart() | FilePart() if file := _file(part):
                items.append(file)
    return items[0] if len(items) == 1 and isinstance(items[0], str) else items


def _file(part: MediaPart) -> dict[str, Any] | None:
    if part.url is not None:
        kind = (part.media_type or "").partition("/")[0] if isinstance(part, FilePart) else part.type
        fields: dict[str, Any] = {"kind": URL_KINDS.get(kind, "document-url"), "url": part.url}
    elif (data := _base64(part.data)) is not None:
        fields = {"kind": "binary", "data": data}
    else:
        return None
    if part.media_type is not None:
        fields["media_type"] = part.media_type
    elif part.url is None:
        fields["media_type"] = USUAL_TYPES[part.type]
    return fields


def _base64(data: str | None) -> str | None:
    """Return ``data`` in the base64 alphabet that pydantic accepts. Return None for invalid base64."""
    try:
        padded = (data or "").translate(_STANDARD) + "=" * (-len(data or "") % 4)
        return base64.urlsafe_b64encode(base64.b64decode(padded, validate=True)).decode() or None
    except (binascii.Error, ValueError):
        return None


_STANDARD: Final = str.maketrans("-_", "+/")
