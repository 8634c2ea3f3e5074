"""Conversion of a message's content for pydantic-ai. No other code passes a caller's data to pydantic-ai's constructors.

The conversion is a closed table (M5). A part yields only the fields written here, with values that runyard's own types checked.
Two kinds of parts are skipped: invalid images, and parts that a message of its role cannot have for a model, such as a tool
call of the user.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..domain.messages import ImagePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart


def shown(role: str, content: Sequence[Part], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the parts of ``content`` for pydantic-ai. A user's content is one part. ``names``: names of tools by call id."""
    if role == "user":
        yield {"part_kind": "user-prompt", "content": _prompt(content)}
        return
    for part in content:
        match part:
            case TextPart() if role == "system":
                yield {"part_kind": "system-prompt", "content": part.text}
            case TextPart() if role == "assistant":
                yield {"part_kind": "text", "content": part.text}
            case TextPart() | ImagePart() if role == "tool" and (prompt := _prompt([part])):
                yield {"part_kind": "user-prompt", "content": prompt}
            case ThinkingPart() if role == "assistant":
                fields = {"part_kind": "thinking", "content": part.text}
                yield fields | ({"signature": part.signature} if part.signature is not None else {})
            case ImagePart(url=None) if role == "assistant" and (image := _image(part)):
                yield {"part_kind": "file", "content": image}
            case ToolCallPart() if role == "assistant":
                fields = {"part_kind": "tool-call", "tool_name": part.name, "tool_call_id": part.id}
                yield fields | {"args": part.arguments}
            case ToolResultPart() if role in ("tool", "system"):
                yield {
                    "part_kind": "tool-return",
                    "tool_name": names.get(part.call_id, "tool"),
                    "tool_call_id": part.call_id,
                    "content": part.content,
                    "outcome": "failed" if part.is_error else "success",
                }


def _prompt(content: Sequence[Part]) -> str | list[Any]:
    items: list[Any] = []
    for part in content:
        match part:
            case TextPart():
                items.append(part.text)
            case ImagePart() if image := _image(part):
                items.append(image)
    return items[0] if len(items) == 1 and isinstance(items[0], str) else items


def _image(part: ImagePart) -> dict[str, Any] | None:
    if part.url is not None:
        fields: dict[str, Any] = {"kind": "image-url", "url": part.url}
    elif (data := _base64(part.data)) is not None:
        fields = {"kind": "binary", "data": data}
    else:
        return None
    if part.media_type is not None:
        fields["media_type"] = part.media_type
    elif part.url is None:
        fields["media_type"] = "image/png"
    return fields


def _base64(data: str | None) -> str | None:
    """Return ``data`` in the alphabet of base64 that pydantic accepts, or None if it is not valid base64."""
    try:
        padded = (data or "").translate(_STANDARD) + "=" * (-len(data or "") % 4)
        return base64.urlsafe_b64encode(base64.b64decode(padded, validate=True)).decode() or None
    except (binascii.Error, ValueError):
        return None


_STANDARD: Final = str.maketrans("-_", "+/")
