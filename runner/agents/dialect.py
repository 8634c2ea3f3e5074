"""runyard's messages in pydantic-ai's words, and back.

A :class:`~runner.models.Message` holds what people and other formats need: text, thinking, images, tool calls and results. What
else pydantic-ai keeps of a message (a provider's ids and proofs, its built-in tools, other media, why a call is to be made
again) is stored beside it under ``metadata["pydantic_ai"]``, and only what is there to store::

    {"parts": [{"provider_name": "anthropic"}, {}, {"part_kind": "compaction", …}], "response": {"model_name": "…"}}

An entry of ``parts`` with a ``part_kind`` is a part of its own; one without completes the next part of ``content``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
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

KEPT: Final = "pydantic_ai"
"""The key of a message's metadata."""
STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "stop": "stop",
    "length": "max_tokens",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
    "error": "error",
}
FINISH_REASONS: Final = {reason: finish for finish, reason in STOP_REASONS.items()}
OF_THE_RUN: Final = ("parts", "usage", "timestamp", "kind", "run_id", "conversation_id", "finish_reason", "workspace_ref")
"""Fields of a response that the message has elsewhere, or that belong to one execution."""


def to_model(messages: Sequence[Message]) -> list[ModelMessage]:
    """``messages`` as pydantic-ai's: one response per assistant message, one request for everything between two of them."""
    names: dict[str, str] = {}
    told: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant":
            names.update({call.id: call.name for call in message.tool_calls})
            if parts := _parts(message, names):
                told.append(_response(message, parts))
        elif told and told[-1]["kind"] == "request":
            told[-1]["parts"] += _parts(message, names)
        else:
            told.append({"kind": "request", "parts": _parts(message, names)})
    return ModelMessagesTypeAdapter.validate_json(to_json(told))


def from_response(response: ModelResponse) -> Message:
    """A model's answer as an assistant message, with what it cost."""
    [told] = _told([response])
    parts, kept = _held(told["parts"], {})
    about = {name: value for name, value in told.items() if name not in OF_THE_RUN and (name, value) != ("state", "complete")}
    metadata: JsonObject = {}
    if kept or about:
        metadata[KEPT] = ({"parts": kept} if kept else {}) | ({"response": about} if about else {})
    finish = response.finish_reason or ("tool_call" if response.tool_calls else "stop")
    return Message.assistant(parts, stop_reason=STOP_REASONS[finish], usage=usage_of(response), metadata=metadata)


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
            prompts.append(Message(role="user", content=parts, metadata={KEPT: {"parts": kept}} if kept else {}))
    if not results:
        return prompts
    parts, kept = _held(results, {part["tool_call_id"]: part["tool_name"] for part in results if "tool_name" in part})
    return [Message(role="tool", content=parts, metadata={KEPT: {"parts": kept}} if kept else {}), *prompts]


def tool_message(request: ModelRequest) -> Message:
    """One tool's result, together with what it shows the model as the user: one message, so that they are stored together."""
    told = _told([request])[0]["parts"]
    parts, kept = _held(told[:1], {part["tool_call_id"]: part["tool_name"] for part in told if "tool_name" in part})
    if len(told) > 1:
        kept = [*(kept or [{}]), *told[1:]]
    return Message(role="tool", content=parts, metadata={KEPT: {"parts": kept}} if kept else {})


def mark_final(message: Message) -> Message:
    """Say that the results in ``message`` are the run's last word: nothing is asked of the model after them."""
    kept = message.metadata.get(KEPT)
    message.metadata[KEPT] = {**(kept if isinstance(kept, dict) else {}), "final": True}
    return message


def is_final(message: Message) -> bool:
    """Whether :func:`mark_final` marked it."""
    kept = message.metadata.get(KEPT)
    return isinstance(kept, dict) and kept.get("final") is True


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
    for message in told:
        for part in message["parts"]:
            part.pop("timestamp", None)
    return told


def _response(message: Message, parts: list[dict[str, Any]]) -> dict[str, Any]:
    kept = message.metadata.get(KEPT)
    about = kept.get("response") if isinstance(kept, dict) else None
    told: dict[str, Any] = {"kind": "response", "parts": parts, **(about if isinstance(about, dict) else {})}
    if (finish := FINISH_REASONS.get(message.stop_reason or "stop")) is not None:
        told["finish_reason"] = finish
    if (usage := message.usage) is not None:
        told["usage"] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return told


def _parts(message: Message, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """A message's parts as pydantic-ai tells them, with what was kept beside them."""
    held = _base(message.role, message.content, names)
    kept = message.metadata.get(KEPT)
    entries = kept.get("parts") if isinstance(kept, dict) else None
    if not isinstance(entries, list):
        return list(held)
    own = message.role != "user"  # what the user is shown is one part, whatever pydantic-ai calls it
    merged = [dict(e) if own and "part_kind" in e else next(held, {}) | e for e in entries if isinstance(e, dict)]
    return [part for part in [*merged, *held] if "part_kind" in part]


def _base(role: str, content: Sequence[Part], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """What ``content`` is in pydantic-ai's words: a message of the user is one part, of the others each part is one."""
    if role == "user":
        yield {"part_kind": "user-prompt", "content": _prompt(content)}
        return
    for part in content:
        match part:
            case TextPart() if role == "system":
                yield {"part_kind": "system-prompt", "content": part.text}
            case TextPart():
                yield {"part_kind": "text", "content": part.text}
            case ThinkingPart():
                told = {"part_kind": "thinking", "content": part.text}
                yield told | ({"signature": part.signature} if part.signature is not None else {})
            case ImagePart():
                yield {"part_kind": "file", "content": _image(part)}
            case ToolCallPart():
                told = {"part_kind": "tool-call", "tool_name": part.name, "tool_call_id": part.id}
                yield told | {"args": part.arguments}
            case ToolResultPart():
                yield {
                    "part_kind": "tool-return",
                    "tool_name": names.get(part.call_id, "tool"),
                    "tool_call_id": part.call_id,
                    "content": part.content,
                    "outcome": "failed" if part.is_error else "success",
                }


def _prompt(content: Iterable[Part]) -> str | list[Any]:
    shown = [part for part in content if isinstance(part, ImagePart | TextPart)]
    items = [_image(part) if isinstance(part, ImagePart) else part.text for part in shown]
    return items[0] if len(items) == 1 and isinstance(items[0], str) else items


def _image(part: ImagePart) -> dict[str, Any]:
    told = {"kind": "image-url", "url": part.url} if part.url is not None else {"kind": "binary", "data": part.data}
    if part.media_type is not None:
        told["media_type"] = part.media_type
    elif part.url is None:
        told["media_type"] = "image/png"
    return told


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
        [base] = _base(role, content, names)
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
    if isinstance(told, str) and isinstance(held, dict):
        return bool(_parsed(told) == held)
    if isinstance(told, list) and isinstance(held, list) and len(told) == len(held):
        return all(_same(one, other) for one, other in zip(told, held, strict=True))
    if isinstance(told, dict) and isinstance(held, dict) and "kind" in told:
        return {name: value for name, value in told.items() if name not in ("identifier", "force_download")} == held
    return bool(told == held)
