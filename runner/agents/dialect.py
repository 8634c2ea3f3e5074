"""runyard's messages in pydantic-ai's words, and back.

A :class:`~runner.models.Message` holds what people and other formats need: text, thinking, images, tool calls and results. What
else pydantic-ai keeps of a message (a provider's ids and proofs, its built-in tools, other media, why a call is to be made
again) is stored beside it under ``provider_details["pydantic_ai"]``, and only what is there to store::

    {"parts": [{"provider_name": "anthropic"}, {}, {"part_kind": "compaction", …}], "response": {"model_name": "…"}}

An entry of ``parts`` with a ``part_kind`` is a part of its own; one without completes the next part of ``content``.
Only agents store it (:class:`~runner.models.Message`); of what a caller stored, a model is told what :mod:`.contents` allows.
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
from pydantic_ai.messages import (
    TextPart as ModelTextPart,
)
from pydantic_ai.messages import (
    ThinkingPart as ModelThinkingPart,
)
from pydantic_ai.messages import (
    ToolCallPart as ModelToolCall,
)
from pydantic_ai.usage import RunUsage
from pydantic_core import to_json

from ..models import (
    ImagePart,
    JsonObject,
    Message,
    Part,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from .contents import shown

KEPT: Final = "pydantic_ai"
"""The key of a message's provider_details."""
FILES: Final = "has_files"
"""Marks a tool's result that holds files of pydantic-ai's; all others are JSON, whatever they look like."""
RECORD: Final = "content_file_digests"
"""Where pydantic-ai says which these are."""
STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "stop": "stop",
    "length": "max_tokens",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
    "error": "error",
}
FINISH_REASONS: Final = {reason: finish for finish, reason in STOP_REASONS.items()}
SLICE: Final = 2**18
"""Bytes of JSON that are validated at once; a message may have more."""
OF_THE_RUN: Final = ("parts", "usage", "timestamp", "kind", "run_id", "conversation_id", "finish_reason", "workspace_ref")
"""Fields of a response that the message has elsewhere, or that belong to one execution."""


def to_model(messages: Sequence[Message]) -> list[ModelMessage]:
    """``messages`` as pydantic-ai's: one response per assistant message, one request for everything between two of them.

    Of a long history :func:`to_model_in_slices` is for the event loop.
    """
    return [message for text, returned in _slices(messages) for message in _read(text, returned)]


async def to_model_in_slices(messages: Sequence[Message]) -> list[ModelMessage]:
    """As :func:`to_model`, with a turn for the event loop and for other threads after each slice: that is one call of C."""
    made: list[ModelMessage] = []
    for text, returned in _slices(messages):
        if made:
            await asyncio.sleep(0)
        made += _read(text, returned)
    return made


def _slices(messages: Sequence[Message]) -> Iterator[tuple[bytes, dict[int, list[dict[str, Any]]]]]:
    """JSON of about SLICE bytes that is to be validated as a list of pydantic-ai's messages, and the parts of those of them,
    by their place in it, that have what tools returned: the JSON is without that."""
    texts: list[bytes] = []
    returned: dict[int, list[dict[str, Any]]] = {}
    size = 0
    for told in _merged(messages):
        parts = told["parts"]
        if told["kind"] == "request" and "tool-return" in [part["part_kind"] for part in parts]:
            returned[len(texts)] = parts
            told = {**told, "parts": [*map(_without_data, parts)]}
        texts.append(to_json(told))
        size += len(texts[-1])
        if size >= SLICE:
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
    told: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant":
            names |= {part.id: part.name for part in message.content if isinstance(part, ToolCallPart)}
            if parts := _parts(message, names):
                told.append(_response(message, parts))
        elif told and told[-1]["kind"] == "request":
            told[-1]["parts"] += _parts(message, names)
        else:
            told.append({"kind": "request", "parts": _parts(message, names)})
    return told


def from_response(response: ModelResponse) -> Message:
    """A model's answer as an assistant message, with what it cost."""
    [told] = _told([response])
    parts, kept = _held(told["parts"], {})
    about = {name: value for name, value in told.items() if name not in OF_THE_RUN and (name, value) != ("state", "complete")}
    details: JsonObject = ({"parts": kept} if kept else {}) | ({"response": about} if about else {})
    finish = response.finish_reason or ("tool_call" if response.tool_calls else "stop")
    reason, usage = STOP_REASONS[finish], usage_of(response)
    return Message.assistant(parts, stop_reason=reason, usage=usage, provider_details={KEPT: details} if details else None)


def from_request(request: ModelRequest) -> list[Message]:
    """What was sent to a model: its tool results as one message, then what it was told as the user.

    System prompts and instructions belong to the agent and not to the conversation, so they are left out.
    """
    results: list[dict[str, Any]] = []
    prompts: list[Message] = []
    for part in _told([request])[0]["parts"]:
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
    """One tool's result, together with what it shows the model as the user: one message, so that they are stored together."""
    told = _told([request])[0]["parts"]
    parts, kept = _held(told[:1], {part["tool_call_id"]: part["tool_name"] for part in told if "tool_name" in part})
    if len(told) > 1:
        kept = [*(kept or [{}]), *told[1:]]
    return Message(role="tool", content=parts, provider_details=_details(kept))


def mark_final(message: Message) -> Message:
    """Say that the results in ``message`` are the run's last word: nothing is asked of the model after them."""
    message.provider_details = {**(message.provider_details or {}), KEPT: {**_kept(message), "final": True}}
    return message


def is_final(message: Message) -> bool:
    """Whether :func:`mark_final` marked it."""
    return _kept(message).get("final") is True


def _kept(message: Message) -> JsonObject:
    """What an agent kept of the message."""
    kept = (message.provider_details or {}).get(KEPT)
    return kept if isinstance(kept, dict) else {}


def _details(parts: list[Any]) -> JsonObject | None:
    return {KEPT: {"parts": parts}} if parts else None


def call_of(call: ModelToolCall) -> ToolCallPart:
    """A tool call of a model; arguments that are no JSON object are left out."""
    return ToolCallPart(id=call.tool_call_id, name=call.tool_name, arguments=_arguments(call.args))


def make_storable(part: ModelResponsePart) -> None:
    """Put the halves of characters together that a provider cut in two, and replace what has no other half: neither a store
    nor a provider takes them."""
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
    """Tokens of one response and their cost, 0 where no price is known."""
    usage, cost = response.usage, response.usage.cost
    if cost is None and response.model_name is not None:
        with suppress(LookupError, ValueError):
            cost = response.cost().total_price
    return Usage(requests=1, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost=float(cost or 0))


def usage_of_run(usage: RunUsage) -> Usage:
    """What one execution of an agent used."""
    tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return Usage(requests=usage.requests, cost=float(usage.cost or 0), **tokens)


def _told(messages: list[ModelMessage]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(ModelMessagesTypeAdapter.dump_json(messages, exclude_none=True))
    for message, written in zip(messages, told, strict=True):
        for part, data in zip(message.parts, written["parts"], strict=True):
            data.pop("timestamp", None)
            if isinstance(part, ToolReturnPart):
                if part.files or data.get(RECORD):
                    data[FILES] = True
                else:
                    data.pop(RECORD, None)
    return told


def _without_data(part: dict[str, Any]) -> dict[str, Any]:
    """``part`` as pydantic-ai is to read it: a file in what a tool returned is one only if it was one."""
    if part["part_kind"] != "tool-return":
        return part
    return {name: value for name, value in part.items() if name != FILES} if FILES in part else {**part, "content": None}


def _response(message: Message, parts: list[dict[str, Any]]) -> dict[str, Any]:
    about = _kept(message).get("response")
    told: dict[str, Any] = {"kind": "response", "parts": parts, **(about if isinstance(about, dict) else {})}
    if (finish := FINISH_REASONS.get(message.stop_reason or "stop")) is not None:
        told["finish_reason"] = finish
    if (usage := message.usage) is not None:
        told["usage"] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return told


def _parts(message: Message, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """A message's parts as pydantic-ai tells them, with what was kept beside them."""
    held = shown(message.role, message.content, names)
    entries = _kept(message).get("parts")
    if not isinstance(entries, list):
        return list(held)
    own = message.role != "user"  # what the user is shown is one part, whatever pydantic-ai calls it
    merged = [dict(e) if own and "part_kind" in e else next(held, {}) | e for e in entries if isinstance(e, dict)]
    return [part for part in [*merged, *held] if "part_kind" in part]


def _held(told: Sequence[dict[str, Any]], names: Mapping[str, str]) -> tuple[list[Part], list[Any]]:
    """Parts of a message for what pydantic-ai tells, and what they cannot hold (nothing: an empty list)."""
    parts: list[Part] = []
    kept: list[dict[str, Any]] = []
    for part in told:
        role, content = _content(part)
        if not content:
            kept.append(part)
            continue
        parts += content
        [base] = shown(role, content, names)
        kept.append({name: value for name, value in part.items() if not _same(value, base.get(name))})
    return parts, kept if any(kept) else []


def _content(part: dict[str, Any]) -> tuple[str, list[Part]]:
    """The role and the parts that stand for one of pydantic-ai's; none if a message has no such part."""
    match part:
        case {"part_kind": "text", "content": str(text)}:
            return "assistant", [TextPart(text=text)]
        case {"part_kind": "thinking", "content": str(text)}:
            return "assistant", [ThinkingPart(text=text, signature=part.get("signature"))]
        case {"part_kind": "file", "content": {"media_type": str(kind), "data": str(data)}} if kind.startswith("image/"):
            return "assistant", [ImagePart(data=data, media_type=kind)]
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
        case {"kind": "binary", "data": str(data), "media_type": str(kind)} if kind.startswith("image/"):
            return ImagePart(data=data, media_type=kind)
    return None


def _arguments(args: str | Mapping[str, Any] | None) -> JsonObject:
    read = _parsed(args) if isinstance(args, str) else args
    return dict(read) if isinstance(read, Mapping) else {}


def _parsed(args: str) -> Any:
    try:
        return json.loads(args or "{}")
    except ValueError:
        return None


def _same(told: Any, held: Any) -> bool:
    """Whether what is held says the same as what was told: arguments may be text, and files carry fields that follow from
    the others."""
    if told == held:
        return True
    if isinstance(told, str) and isinstance(held, dict):
        return bool(_parsed(told) == held)
    if isinstance(told, list) and isinstance(held, list) and len(told) == len(held):
        return all(_same(one, other) for one, other in zip(told, held, strict=True))
    if isinstance(told, dict) and isinstance(held, dict) and "kind" in told:
        return {name: value for name, value in told.items() if name not in ("identifier", "force_download")} == held
    return False
