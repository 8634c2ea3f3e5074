"""Conversion of cubeloop's messages to runyard's, and back. In this module a message of cubeloop is a JSON object.

The content of a cubeloop message becomes the content of a :class:`~runyard.models.Message`. The other fields are stored under
``provider_details["cubeloop"]``, without empty entries. The other fields are ids of the provider, free-text stop reasons, cache
tokens, times, and details of results. If the cubeloop message cannot be made again from its content and these fields,
``provider_details["cubeloop"]["message"]`` has the whole JSON of the message instead. This happens, for example, if a part has
an unknown type. The key ``cubeloop`` is also used for messages of the package ``cubepi``. Each package therefore reads the
messages of the other package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from ..domain.derived_ids import derived_id
from ..domain.messages import (
    ImagePart,
    Message,
    Part,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from ..domain.quoting import brief
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.validation import new_id
from ..errors import InvalidInputError
from ..formats.media import USUAL_TYPES
from ..formats.wire import to_text

KEPT: Final = "cubeloop"
"""The key of cubeloop's data in a message's provider_details and in a request's payload."""
STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "tool_use": "tool_calls",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "refusal",
    "error": "error",
    "aborted": "aborted",
}
"""cubeloop's stop reasons → runyard's. cubeloop allows any text as a reason.

A reason that is not in this table is stored only in provider_details.
"""
_ROLES: Final = ("user", "assistant", "tool_result")
_IN_MESSAGE: Final = ("role", "content", "run_id", "metadata", "usage", "tool_call_id", "tool_name", "is_error")
"""Fields of a cubeloop message that :class:`Message` also has."""


def encode(fields: Mapping[str, Any], *, message_id: str | None = None) -> Message:
    """Return the message to store for a cubeloop message. Raise InvalidInputError if ``fields`` is not such a message.

    ``fields``: ``model_dump(mode="json")`` of the message. ``message_id``: the id of the stored message, by default the id that
    :func:`stored_id` returns.
    """
    if fields.get("role") not in _ROLES or not isinstance(fields.get("content"), list):
        raise InvalidInputError(f"not a message of cubeloop: {brief(fields)}", field="message")
    try:
        message = _encoded(dict(fields), message_id or stored_id(fields))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"not a message of cubeloop: {type(error).__name__}: {error}", field="message") from None
    if [_without_empty(again) for again in decode([message])] != [_without_empty(fields)]:
        message.provider_details = {KEPT: {"message": dict(fields)}}
    return message


def decode(messages: Iterable[Message]) -> list[JsonObject]:
    """Return stored messages as the fields of cubeloop messages, in order.

    A stored message with several tool results becomes several messages, because cubeloop has one result per message. A part
    without an equivalent in cubeloop, such as an image by URL, becomes a text with the type of the part. A system message
    becomes a user message that is marked as synthetic. The metadata of a message that did not come from cubeloop are left out.
    """
    made: list[JsonObject] = []
    names: dict[str, str] = {}
    for message in messages:
        names.update((call.id, call.name) for call in message.tool_calls)
        kept = (message.provider_details or {}).get(KEPT)
        rest = kept if isinstance(kept, dict) else None
        whole = rest.get("message") if rest else None
        if isinstance(whole, dict):
            made.append(dict(whole))
        elif message.role == "tool":
            made += [_result(message, part, rest, names) for part in message.tool_results]
        else:
            made.append(_decoded(message, rest))
    return made


def stored_id(fields: Mapping[str, Any]) -> str:
    """Return the id under which a cubeloop message is stored.

    The messages of cubeloop 0.15 and later have an id. If this id is not a UUID, the stored id is derived from it. The messages
    of cubepi have no id. If such a message has a time or the provider's response id, the stored id is derived from its fields.
    The same message then gets the same id again. Any other message gets a random id, because a conversation can contain two
    equal messages.
    """
    if given := fields.get("id"):
        try:
            return str(UUID(given))
        except ValueError:
            return derived_id("cubeloop message id", fields.get("run_id") or "", given)
    if fields.get("timestamp") is None and not fields.get("response_id"):
        return new_id()
    return derived_id("cubeloop message", repr(sorted(_without_empty(fields).items())))


def _encoded(fields: JsonObject, message_id: str) -> Message:
    role, stop_reason = fields["role"], fields.get("stop_reason")
    rest = {key: value for key, value in fields.items() if key not in _IN_MESSAGE and not _is_default(key, value)}
    if "stop_reason" in rest and STOP_REASONS.get(str(stop_reason)) == stop_reason:
        del rest["stop_reason"]
    usage = fields.get("usage")
    if isinstance(usage, dict):
        rest.update({"usage": cached} if (cached := {k: v for k, v in usage.items() if k not in _COUNTED and v}) else {})
    metadata, run_id = fields.get("metadata") or {}, fields.get("run_id")
    if not isinstance(metadata, dict) or not (run_id is None or isinstance(run_id, str)):
        raise TypeError("metadata must be an object, and run_id must be a string")
    return Message(
        id=message_id,
        role="tool" if role == "tool_result" else role,
        content=[_tool_result(fields)] if role == "tool_result" else _parts(fields["content"]),
        run_id=run_id,
        stop_reason=STOP_REASONS.get(stop_reason) if isinstance(stop_reason, str) else None,
        usage=_usage(usage) if isinstance(usage, dict) else None,
        metadata=metadata,
        provider_details={KEPT: rest},
    )


_COUNTED: Final = ("input_tokens", "output_tokens")


def _usage(usage: JsonObject) -> Usage:
    tokens = {name: usage.get(name) or 0 for name in _COUNTED}
    return Usage(requests=1 if any(tokens.values()) else 0, **tokens)


def _parts(content: JsonValue) -> list[Part]:
    """Return the parts of a content. A part of an unknown type becomes a text with the name of the type."""
    assert isinstance(content, list)
    parts: list[Part] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                parts.append(TextPart(text=text))
            case {"type": "thinking", "thinking": str(text)}:
                parts.append(ThinkingPart(text=text))
            case {"type": "tool_call", "id": str(call_id), "name": str(name), "arguments": dict(arguments)}:
                parts.append(ToolCallPart(id=call_id, name=name, arguments=arguments))
            case {"type": "image", "source": str(source)}:
                media_type = part.get("media_type") or None
                by_url = source.startswith(("http://", "https://"))
                where = {"url": source} if by_url else {"data": source}
                parts.append(ImagePart(media_type=media_type, **where))
            case _:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                parts.append(TextPart(text=f"[{kind}]"))
    return parts


def _tool_result(fields: JsonObject) -> ToolResultPart:
    parts = _parts(fields["content"])
    only_text = len(parts) == 1 and isinstance(parts[0], TextPart)
    content: JsonValue = parts[0].text if only_text else [p.model_dump(exclude_none=True) for p in parts]  # type: ignore[union-attr]
    return ToolResultPart(
        call_id=fields["tool_call_id"],
        name=fields.get("tool_name"),
        content=content,
        has_parts=not only_text,
        is_error=bool(fields.get("is_error")),
    )


def _decoded(message: Message, rest: JsonObject | None) -> JsonObject:
    fields = _common(message, rest)
    fields["role"] = "assistant" if message.role == "assistant" else "user"
    fields["content"] = [_shown(part, rest is not None) for part in message.content]
    if message.role == "assistant":
        fields.setdefault("stop_reason", message.stop_reason or "stop")
        if message.usage is not None:
            cached = fields.get("usage")
            counted = {name: getattr(message.usage, name) for name in _COUNTED}
            fields["usage"] = {**counted, **(cached if isinstance(cached, dict) else {})}
    elif message.role == "system" and rest is None:
        fields["metadata"] = {"synthetic": True, "synthetic_source": "system"}
    return fields


def _result(message: Message, part: ToolResultPart, rest: JsonObject | None, names: Mapping[str, str]) -> JsonObject:
    fields = _common(message, rest)
    fields["role"] = "tool_result"
    fields["tool_call_id"] = part.call_id
    fields["tool_name"] = part.name if part.name is not None else names.get(part.call_id, "")
    fields["is_error"] = part.is_error
    if part.has_parts:
        fields["content"] = [_shown(each, rest is not None) for each in part.parts]
    else:
        fields["content"] = [{"type": "text", "text": part.content if isinstance(part.content, str) else to_text(part.content)}]
    return fields


def _common(message: Message, rest: JsonObject | None) -> JsonObject:
    fields: JsonObject = {"id": message.id} if rest is None else dict(rest)
    # cubeloop puts metadata, such as the sender's name, into its prompts. The metadata of a caller's message are left out (M5).
    fields["metadata"], fields["run_id"] = {} if rest is None else message.metadata, message.run_id
    if rest is None and message.created_at is not None:
        fields["timestamp"] = message.created_at.timestamp()
    return fields


def _shown(part: Any, of_cubeloop: bool) -> JsonValue:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ThinkingPart():
            return {"type": "thinking", "thinking": part.text}
        case ToolCallPart():
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
        case ImagePart():
            if part.data is None and not of_cubeloop:
                return {"type": "text", "text": "[image]"}  # cubeloop would send the URL as the data of an image
            media_type = part.media_type or ("" if of_cubeloop else USUAL_TYPES["image"])
            return {"type": "image", "source": part.data or part.url or "", "media_type": media_type}
        case _:
            return {"type": "text", "text": f"[{getattr(part, 'type', 'part')}]"}


_DEFAULTS: Final[Mapping[str, JsonValue]] = {"id": "", "provider_id": "", "model_id": "", "metadata": {}, "is_error": False}
"""Defaults of the fields of cubeloop's messages. The default of every other field is None."""


def _is_default(key: str, value: JsonValue) -> bool:
    return value is None or (key in _DEFAULTS and value == _DEFAULTS[key])


def _without_empty(fields: Mapping[str, Any]) -> JsonObject:
    """Return the fields of a message. Leave out None, default values, empty media types, token counts of 0 and the stop reason
    ``stop``. ``content`` is always returned."""
    kept = {key: value for key, value in fields.items() if not _is_default(key, value)}
    if kept.get("stop_reason") == "stop":
        del kept["stop_reason"]
    content: Sequence[Any] = kept.get("content") or []
    kept["content"] = [_without_media_type(part) if isinstance(part, dict) else part for part in content]
    if isinstance(usage := kept.get("usage"), dict):
        kept["usage"] = {name: tokens for name, tokens in usage.items() if tokens}
    return kept


def _without_media_type(part: Mapping[str, Any]) -> JsonObject:
    """Return a part, without its media type if the media type is empty."""
    return {key: value for key, value in part.items() if key != "media_type" or value}
