"""The format ``acontext``: messages of Acontext, a store of agents' sessions.

A message has ``parts`` and ``meta``. A part has a ``type``, a ``text`` and a ``meta`` with all other values. The roles of
Acontext are user and assistant. Tool results are parts of a user message. This format also has the role ``system``, for a
system prompt. A message that a client reads also has ``id``, ``parent_id`` and ``created_at``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from ..domain.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    MediaPart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from ..domain.size_limits import JsonObject, JsonValue
from .media import media_part
from .wire import Many, Read, Wire, Written, from_text, lose_unknown, parse, result_text, to_text

FORMAT: Final = "acontext"
SET_BY_STORE: Final = frozenset(
    {"id", "parent_id", "session_id", "thread_id", "created_at", "updated_at", "session_task_process_status", "task_id"}
)
"""Fields that only the store sets. They are ignored in a blob, which may come from an earlier read."""


class Text(Wire):
    type: Literal["text"]
    text: str


class ThinkingMeta(Wire):
    signature: str | None = None
    provider: str | None = None
    redacted: bool = False


class Thinking(Wire):
    type: Literal["thinking"]
    text: str = ""
    meta: ThinkingMeta = Field(default_factory=ThinkingMeta)


class FileMeta(Wire):
    type: Literal["base64", "url", "file"] | None = None
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    provider: str | None = None


class File(Wire):
    type: Literal["image", "audio", "video", "file"]
    filename: str | None = None
    meta: FileMeta = Field(default_factory=FileMeta)


class CallMeta(Wire):
    id: str
    name: str
    arguments: str | JsonObject


class ToolCall(Wire):
    type: Literal["tool-call"]
    meta: CallMeta


class ResultMeta(Wire):
    tool_call_id: str
    name: str | None = None
    is_error: bool = False


class ToolResult(Wire):
    type: Literal["tool-result"]
    text: str = ""
    meta: ResultMeta


class Data(Wire):
    """A part that messages cannot hold. Only the original of the message contains this part."""

    type: Literal["data"]


class Entry(Wire):
    role: Literal["user", "assistant", "system"]
    parts: Many[Annotated[Text | Thinking | File | ToolCall | ToolResult | Data, Field(discriminator="type")]]
    meta: JsonObject | None = None


_ONE: Final = TypeAdapter(Entry)


def without_store_fields(blob: JsonObject) -> JsonObject:
    """Return ``blob`` without the fields that the store sets."""
    return {name: value for name, value in blob.items() if name not in SET_BY_STORE}


def with_store_fields(blob: JsonObject, message: Message) -> JsonObject:
    """Return ``blob`` with the fields of ``message`` that the store set. These values replace the values that a caller gave."""
    created = message.created_at.isoformat() if message.created_at is not None else None
    return {"id": message.id, "parent_id": message.parent_id, **without_store_fields(blob), "created_at": created}


def read(blob: JsonValue) -> Read:
    """Return the message for an Acontext message. A user message with a tool result becomes a tool message."""
    made = Read(FORMAT)
    content = without_store_fields(blob) if isinstance(blob, dict) else blob
    one = parse(_ONE, content, FORMAT)
    lose_unknown(made, one, content)
    made.role, made.metadata = one.role, one.meta or {}
    for n, part in enumerate(one.parts):
        if (held := _part(made, part, f"/parts/{n}")) is not None:
            made.parts.append(held)
            if isinstance(held, ToolResultPart) and one.role == "user":
                made.role = "tool"
    return made


def _part(made: Read, part: Wire, at: str) -> Part | None:
    match part:
        case Text():
            return TextPart(text=part.text)
        case Thinking(meta=meta):
            return ThinkingPart(text=part.text, signature=meta.signature, provider=meta.provider, redacted=meta.redacted)
        case ToolCall(meta=meta):
            given = meta.arguments
            arguments = from_text(made, given, f"{at}/meta/arguments") if isinstance(given, str) else given
            return ToolCallPart(id=meta.id, name=meta.name, arguments=arguments)
        case ToolResult(meta=meta):
            return ToolResultPart(call_id=meta.tool_call_id, content=part.text, is_error=meta.is_error, name=meta.name)
        case File():
            return _file(made, part, at)
    made.lose(at, "messages cannot hold this data part")
    return None


def _file(made: Read, part: File, at: str) -> Part | None:
    meta = part.meta
    if meta.data is None and meta.url is None and meta.file_id is None:
        made.lose(at, "the file has no data, no URL and no file id")
        return None
    about = {"url": meta.url, "data": meta.data, "media_type": meta.media_type}
    if part.type in ("image", "audio") and (part.filename is not None or meta.file_id is not None):
        made.lose(f"{at}/filename", "the part has no name and no file id")
    if part.type == "image":
        return ImagePart(**about)
    if part.type == "audio":
        return AudioPart(**about)
    if meta.file_id is None and isinstance(media_part(meta.media_type), DocumentPart):
        return DocumentPart(**about, name=part.filename)
    return FilePart(**about, name=part.filename, file_id=meta.file_id, provider=meta.provider)


def write(message: Message, names: Mapping[str, str]) -> Written:
    """Return one Acontext message for a message."""
    made = Written(names)
    parts = [_write_part(made, part, n) for n, part in enumerate(message.content)]
    with_results = any(isinstance(part, ToolResultPart) for part in message.content)
    if message.role in ("user", "tool") and with_results != (message.role == "tool"):
        made.alter(
            "/role",
            "on reading, the role is tool if there is a tool result, and user if not",
        )
    item: JsonObject = {"role": "user" if message.role == "tool" else message.role, "parts": parts}
    made.items.append(item | ({"meta": message.metadata} if message.metadata else {}))
    return made


def _write_part(made: Written, part: Part, n: int) -> JsonObject:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ThinkingPart():
            meta: JsonObject = {"signature": part.signature, "provider": part.provider, "redacted": part.redacted or None}
            return {"type": "thinking", "text": part.text} | _meta(meta)
        case ToolCallPart():
            arguments = to_text(part.arguments)
            return {"type": "tool-call", "meta": {"id": part.id, "name": part.name, "arguments": arguments}}
        case ToolResultPart():
            text = result_text(part, n, made)
            meta = {"tool_call_id": part.call_id, "name": part.name, "is_error": part.is_error or None}
            return {"type": "tool-result", "text": text} | _meta(meta)
    return _write_file(made, part, n)


def _write_file(made: Written, part: MediaPart, n: int) -> JsonObject:
    kind: str = part.type
    if isinstance(part, DocumentPart | FilePart):
        kind = "video" if (part.media_type or "").startswith("video/") and isinstance(part, FilePart) else "file"
        if isinstance(media_part(part.media_type), DocumentPart) != isinstance(part, DocumentPart):
            made.alter(f"/content/{n}/type", "the media type decides whether the file is a document")
    form = "base64" if part.data is not None else "url" if part.url is not None else None
    meta = {"type": form, "media_type": part.media_type, "data": part.data, "url": part.url}
    name: str | None = None
    if isinstance(part, FilePart):
        meta |= {"type": form or "file", "file_id": part.file_id, "provider": part.provider}
    if isinstance(part, DocumentPart | FilePart):
        name = part.name
    if form is None and not (isinstance(part, FilePart) and part.file_id is not None):
        made.lose(f"/content/{n}", f"this {part.type} part is empty")
    return {"type": kind} | ({"filename": name} if name is not None else {}) | _meta(meta)


def _meta(meta: JsonObject) -> JsonObject:
    given = {name: value for name, value in meta.items() if value is not None}
    return {"meta": given} if given else {}
