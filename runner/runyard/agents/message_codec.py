"""Conversion of runyard's messages to pydantic-ai's, and back.

A :class:`~runyard.models.Message` holds the content that people and other formats need: text, thinking, images, tool calls and
results. A message of pydantic-ai has further data: ids and signatures of a provider, built-in tools, other media, and feedback
after which the model repeats a call. This further data is stored under ``provider_details["pydantic_ai"]``, without empty
entries::

    {"parts": [{"provider_name": "anthropic"}, {}, {"part_kind": "compaction", …}], "response": {"model_name": "…"}}

An entry of ``parts`` with a ``part_kind`` is a separate part. An entry without a ``part_kind`` adds data to the next part of
``content``. Only agents store this data (:class:`~runyard.models.Message`). :mod:`.message_content` decides which parts of a
caller's message are sent to a model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    ToolReturnPart,
)
from pydantic_ai.messages import TextPart as ModelTextPart
from pydantic_ai.messages import ThinkingPart as ModelThinkingPart
from pydantic_ai.messages import ToolCallPart as ModelToolCall
from pydantic_ai.usage import RunUsage
from pydantic_core import to_json

from ..domain.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
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
from ..domain.size_limits import JsonObject
from ..formats.media import media_part
from .message_content import FILES, shown

KEPT: Final = "pydantic_ai"
"""The key of pydantic-ai's data in a message's provider_details."""
RECORD: Final = "content_file_digests"
"""The key under which pydantic-ai lists the files in a tool's result."""
STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "stop": "stop",
    "length": "max_tokens",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
    "error": "error",
}
FINISH_REASONS: Final = {reason: finish for finish, reason in STOP_REASONS.items()}
SLICE_BYTES: Final = 2**18
"""Approximate number of bytes of JSON that one call validates. If a single message is larger, the call validates more
bytes."""
OF_THE_RUN: Final = ("parts", "usage", "timestamp", "kind", "run_id", "conversation_id", "finish_reason", "workspace_ref")
"""Fields of a response that are not stored under KEPT.

Either :class:`Message` has a field for the value, or the value is useful in one attempt only.
"""


async def to_model(messages: Sequence[Message]) -> list[ModelMessage]:
    """Return ``messages`` as messages of pydantic-ai.

    Each assistant message becomes one response. All messages between two responses become one request. A long history is
    converted in slices, so that the event loop and other threads can work between two slices.
    """
    made: list[ModelMessage] = []
    for text, returned in _slices(messages):
        if made:
            await asyncio.sleep(0)
        made += _read(text, returned)
    return made


def _slices(messages: Sequence[Message]) -> Iterator[tuple[bytes, dict[int, list[dict[str, Any]]]]]:
    """Yield slices of about SLICE_BYTES. A slice has two parts.

    The first part is a JSON list of pydantic-ai messages, without the content of some tool results. The second part maps the
    index of each message with tool results to all parts of the message.
    """
    texts: list[bytes] = []
    returned: dict[int, list[dict[str, Any]]] = {}
    size = 0
    for dumped in _merged(messages):
        parts = dumped["parts"]
        if dumped["kind"] == "request" and "tool-return" in [part["part_kind"] for part in parts]:
            returned[len(texts)] = parts
            dumped = {**dumped, "parts": [*map(_without_data, parts)]}
        texts.append(to_json(dumped))
        size += len(texts[-1])
        if size >= SLICE_BYTES:
            yield b"[" + b",".join(texts) + b"]", returned
            texts, returned, size = [], {}, 0
    if texts:
        yield b"[" + b",".join(texts) + b"]", returned


def _read(text: bytes, returned: Mapping[int, Sequence[dict[str, Any]]]) -> list[ModelMessage]:
    read = ModelMessagesTypeAdapter.validate_json(text)
    for place, parts in returned.items():
        for part, made in zip(parts, read[place].parts, strict=True):
            if isinstance(made, ToolReturnPart) and FILES not in part:
                made.content = part["content"]
    return read


def _merged(messages: Sequence[Message]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    dumped: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant":
            names |= {part.id: part.name for part in message.content if isinstance(part, ToolCallPart)}
            if parts := _parts(message, names):
                dumped.append(_response(message, parts))
        elif dumped and dumped[-1]["kind"] == "request":
            dumped[-1]["parts"] += _parts(message, names)
        else:
            dumped.append({"kind": "request", "parts": _parts(message, names)})
    return dumped


def from_response(response: ModelResponse) -> Message:
    """Return a model's answer as an assistant message with its usage."""
    [dumped] = _dumped([response])
    parts, kept = _held(dumped["parts"], {})
    about = {name: value for name, value in dumped.items() if name not in OF_THE_RUN and (name, value) != ("state", "complete")}
    details: JsonObject = ({"parts": kept} if kept else {}) | ({"response": about} if about else {})
    finish = response.finish_reason or ("tool_call" if response.tool_calls else "stop")
    reason, usage = STOP_REASONS[finish], usage_of(response)
    return Message.assistant(parts, stop_reason=reason, usage=usage, provider_details={KEPT: details} if details else None)


def from_request(request: ModelRequest) -> list[Message]:
    """Return the messages of a request: its tool results as one message, then its user prompts.

    System prompts and instructions are left out, because they belong to the agent.
    """
    results: list[dict[str, Any]] = []
    prompts: list[Message] = []
    for part in _dumped([request])[0]["parts"]:
        if part["part_kind"] in ("tool-return", "tool-availability-delta"):
            results.append(part)
        elif part["part_kind"] in ("user-prompt", "retry-feedback"):
            parts, kept = _held([part], {})
            prompts.append(Message(role="user", content=parts, provider_details=_details(kept)))
    if not results:
        return prompts
    parts, kept = _held(results, {part["tool_call_id"]: part["tool_name"] for part in results if "tool_name" in part})
    return [Message(role="tool", content=parts, provider_details=_details(kept)), *prompts]


def tool_message(request: ModelRequest) -> Message:
    """Return one message with a tool's result and the user content that the tool adds.

    The result and the content are therefore stored together.
    """
    dumped = _dumped([request])[0]["parts"]
    parts, kept = _held(dumped[:1], {part["tool_call_id"]: part["tool_name"] for part in dumped if "tool_name" in part})
    if len(dumped) > 1:
        kept = [*(kept or [{}]), *dumped[1:]]
    return Message(role="tool", content=parts, provider_details=_details(kept))


def mark_final(message: Message) -> Message:
    """Mark the results in ``message`` as the end of the run. No model request follows such results. Return ``message``."""
    message.provider_details = {**(message.provider_details or {}), KEPT: {**_kept(message), "final": True}}
    return message


def is_final(message: Message) -> bool:
    """Return whether :func:`mark_final` marked the message."""
    return _kept(message).get("final") is True


def _kept(message: Message) -> JsonObject:
    """Return pydantic-ai's data in the message."""
    kept = (message.provider_details or {}).get(KEPT)
    return kept if isinstance(kept, dict) else {}


def _details(parts: list[Any]) -> JsonObject | None:
    return {KEPT: {"parts": parts}} if parts else None


def call_of(call: ModelToolCall) -> ToolCallPart:
    """Return a tool call of a model. The arguments are empty if they are not a JSON object."""
    return ToolCallPart(id=call.tool_call_id, name=call.tool_name, arguments=_arguments(call.args))


def make_storable(part: ModelResponsePart) -> None:
    """Join surrogate pairs that a provider split. Replace lone surrogates, because stores and providers refuse them."""
    match part:
        case ModelTextPart() | ModelThinkingPart():
            part.content = _whole(part.content)
        case ModelToolCall(args=str(args)):
            part.args = _whole(args)
        case ModelToolCall(args=dict(args)) if (text := json.dumps(args, ensure_ascii=False)) != (whole := _whole(text)):
            part.args = json.loads(whole)


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def usage_of(response: ModelResponse) -> Usage:
    """Return the tokens of one response and their cost. The cost is 0 if no price is known."""
    usage, cost = response.usage, response.usage.cost
    if cost is None and response.model_name is not None:
        with suppress(LookupError, ValueError):
            cost = response.cost().total_price
    return Usage(requests=1, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost=float(cost or 0))


def usage_of_run(usage: RunUsage) -> Usage:
    """Return the usage of one execution of an agent."""
    tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return Usage(requests=usage.requests, cost=float(usage.cost or 0), **tokens)


def _dumped(messages: list[ModelMessage]) -> list[dict[str, Any]]:
    dumped: list[dict[str, Any]] = json.loads(ModelMessagesTypeAdapter.dump_json(messages, exclude_none=True))
    for message, written in zip(messages, dumped, strict=True):
        for part, data in zip(message.parts, written["parts"], strict=True):
            data.pop("timestamp", None)
            if isinstance(part, ToolReturnPart):
                if part.files or data.get(RECORD):
                    data[FILES] = True
                else:
                    data.pop(RECORD, None)
    return dumped


def _without_data(part: dict[str, Any]) -> dict[str, Any]:
    """Return ``part`` in a form that pydantic-ai can read.

    If ``part`` is a tool result without files, drop its content. pydantic-ai could otherwise read the JSON of the content as
    files.
    """
    if part["part_kind"] != "tool-return":
        return part
    return {name: value for name, value in part.items() if name != FILES} if FILES in part else {**part, "content": None}


def _response(message: Message, parts: list[dict[str, Any]]) -> dict[str, Any]:
    about = _kept(message).get("response")
    dumped: dict[str, Any] = {"kind": "response", "parts": parts, **(about if isinstance(about, dict) else {})}
    if (finish := FINISH_REASONS.get(message.stop_reason or "stop")) is not None:
        dumped["finish_reason"] = finish
    if (usage := message.usage) is not None:
        dumped["usage"] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return dumped


def _parts(message: Message, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a message's parts as parts of pydantic-ai, with the data that :class:`Message` stores for pydantic-ai."""
    held = shown(message.role, message.content, names)
    entries = _kept(message).get("parts")
    if not isinstance(entries, list):
        return list(held)
    own = message.role != "user"  # a user's content is one part of pydantic-ai and has no entries in ``parts``
    merged = [dict(e) if own and "part_kind" in e else next(held, {}) | e for e in entries if isinstance(e, dict)]
    return [part for part in [*merged, *held] if "part_kind" in part]


def _held(dumped: Sequence[dict[str, Any]], names: Mapping[str, str]) -> tuple[list[Part], list[Any]]:
    """Convert parts of pydantic-ai to parts of a message. Return these parts, and a list of the data that they cannot hold."""
    parts: list[Part] = []
    kept: list[dict[str, Any]] = []
    for part in dumped:
        role, content = _content(part)
        if not content:
            kept.append(part)
            continue
        parts += content
        [base] = shown(role, content, names)
        kept.append({name: value for name, value in part.items() if not _same(value, base.get(name))})
    return parts, kept if any(kept) else []


def _content(part: dict[str, Any]) -> tuple[str, list[Part]]:
    """Return the role of the message, and the list of message parts, for one part of pydantic-ai.

    The list is empty if a message cannot hold the part.
    """
    match part:
        case {"part_kind": "text", "content": str(text)}:
            return "assistant", [TextPart(text=text)]
        case {"part_kind": "thinking", "content": str(text)}:
            return "assistant", [_thinking(text, part)]
        case {"part_kind": "file", "content": {"media_type": str(kind), "data": str(data)}}:
            return "assistant", [media_part(kind, data=data)]
        case {"part_kind": "tool-call", "tool_name": str(name), "tool_call_id": str(call)}:
            return "assistant", [ToolCallPart(id=call, name=name, arguments=_arguments(part.get("args")))]
        case {"part_kind": "tool-return", "tool_call_id": str(call)}:
            failed = part.get("outcome", "success") != "success"
            return "tool", [ToolResultPart(call_id=call, content=part.get("content"), is_error=failed)]
        case {"part_kind": "user-prompt", "content": str(text)}:
            return "user", [TextPart(text=text)]
        case {"part_kind": "user-prompt", "content": list(items)}:
            return "user", [held for item in items if (held := _item(item)) is not None]
        case {"part_kind": "retry-feedback", "content": feedback}:
            return "user", [TextPart(text=feedback if isinstance(feedback, str) else json.dumps(feedback))]
    return "user", []


def _item(item: Any) -> Part | None:
    match item:
        case str():
            return TextPart(text=item)
        case {"kind": "image-url", "url": str(url)}:
            return ImagePart(url=url, media_type=item.get("media_type"))
        case {"kind": "audio-url", "url": str(url)}:
            return AudioPart(url=url, media_type=item.get("media_type"))
        case {"kind": "document-url", "url": str(url)}:
            return DocumentPart(url=url, media_type=item.get("media_type"))
        case {"kind": "video-url", "url": str(url)}:
            return FilePart(url=url, media_type=item.get("media_type"))
        case {"kind": "binary", "data": str(data), "media_type": str(kind)}:
            return media_part(kind, data=data)
    return None


def _thinking(text: str, part: Mapping[str, Any]) -> ThinkingPart:
    signature, provider = part.get("signature"), part.get("provider_name")
    redacted = part.get("id") == "redacted_thinking"
    return ThinkingPart(text=text, signature=signature, provider=provider if signature else None, redacted=redacted)


def _arguments(args: str | Mapping[str, Any] | None) -> JsonObject:
    read = _parsed(args) if isinstance(args, str) else args
    return dict(read) if isinstance(read, Mapping) else {}


def _parsed(args: str) -> Any:
    try:
        return json.loads(args or "{}")
    except ValueError:
        return None


def _same(dumped: Any, held: Any) -> bool:
    """Return whether ``held`` has the same content as ``dumped``.

    An object and its JSON text count as the same arguments of a call. Fields of a file that are derived from other fields are
    not compared.
    """
    if dumped == held:
        return True
    if isinstance(dumped, str) and isinstance(held, dict):
        return bool(_parsed(dumped) == held)
    if isinstance(dumped, list) and isinstance(held, list) and len(dumped) == len(held):
        return all(_same(one, other) for one, other in zip(dumped, held, strict=True))
    if isinstance(dumped, dict) and isinstance(held, dict) and "kind" in dumped:
        return {name: value for name, value in dumped.items() if name not in ("identifier", "force_download")} == held
    return False
