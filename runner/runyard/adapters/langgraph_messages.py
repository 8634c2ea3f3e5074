"""Conversion of a thread's messages to messages of LangChain, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ..domain.messages import (
    MediaPart,
    Message,
    Part,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from ..formats.wire import to_text
from .json_values import json_of
from .langgraph_media import from_block, to_block

ORIGIN: Final = "langgraph"
"""The key in a message's ``provider_details`` for the id of the message in the state of the graph."""

STOP_REASONS: Final[dict[str, StopReason]] = {
    "stop": "stop",
    "end_turn": "stop",
    "STOP": "stop",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "MAX_TOKENS": "max_tokens",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "refusal",
}


def state_ids(message: Message) -> list[str]:
    """Return the ids that a stored message may have in the state of a graph.

    The ids are the message's id, the ids of its tool results, and the id of the LangChain message from which it was made.
    """
    ids = [message.id, *(_result_id(message, n) for n in range(len(message.tool_results)))]
    origin = (message.provider_details or {}).get(ORIGIN)
    if isinstance(origin, dict) and isinstance(origin.get("id"), str):
        ids.append(origin["id"])
    return ids


def to_langchain(message: Message) -> list[BaseMessage]:
    """Return messages of LangChain for a message of a thread. A message with several tool results becomes several messages."""
    if message.role == "tool":
        return [
            ToolMessage(
                _result_content(result),
                tool_call_id=result.call_id,
                name=result.name,
                status="error" if result.is_error else "success",
                id=_result_id(message, n),
            )
            for n, result in enumerate(message.tool_results)
        ]
    content = _content(message.content)
    if message.role == "assistant":
        calls = [{"name": call.name, "args": call.arguments, "id": call.id} for call in message.tool_calls]
        return [AIMessage(content, tool_calls=calls, id=message.id)]
    kind = SystemMessage if message.role == "system" else HumanMessage
    return [kind(content, id=message.id)]


def from_langchain(message: BaseMessage, state_id: str) -> Message:
    """Convert a message of a graph's state to a message of a thread. ``state_id``: the id of the message in the state.

    Raises InvalidInputError for an image, audio or file block that has neither a URL nor data nor a file id.
    """
    origin: dict[str, Any] = {"id": state_id}
    if message.name:
        origin["name"] = message.name
    fields: dict[str, Any] = {"provider_details": {ORIGIN: origin}}
    if isinstance(message, ToolMessage):
        result = ToolResultPart(
            call_id=message.tool_call_id,
            is_error=message.status == "error",
            name=message.name,
            **_result(message.content),
        )
        return Message.tool(result, **fields)
    parts = _parts(message.content)
    if isinstance(message, AIMessage):
        parts += [
            ToolCallPart(id=call["id"] or f"{state_id}:{n}", name=call["name"], arguments=json_of(call["args"]))
            for n, call in enumerate(message.tool_calls)
        ]
        details = message.response_metadata
        if isinstance(model := details.get("model_name") or details.get("model"), str):
            origin["model"] = model
        reason = STOP_REASONS.get(str(details.get("finish_reason") or details.get("stop_reason") or ""))
        return Message.assistant(parts, usage=_usage(message), stop_reason=reason, **fields)
    if isinstance(message, SystemMessage):
        return Message(role="system", content=parts, **fields)
    return Message.user(parts, **fields)


def text_of(content: str | Sequence[str | dict[str, Any]]) -> str:
    """Return the text in the content of a message or of a piece of a message."""
    if isinstance(content, str):
        return content
    blocks = [block if isinstance(block, str) else block.get("text") for block in content]
    return "".join(text for text in blocks if isinstance(text, str))


def _result_id(message: Message, n: int) -> str:
    return f"{message.id}:{n}"


def _result_content(result: ToolResultPart) -> Any:
    if result.has_parts:
        return _content(result.parts)
    return result.content if isinstance(result.content, str) else to_text(result.content)


def _result(content: str | Sequence[str | dict[str, Any]]) -> dict[str, Any]:
    """Return the content of a tool result. A list of texts and files becomes parts, and any other value is data."""
    blocks = [] if isinstance(content, str) else [block for block in content if isinstance(block, dict)]
    parts = [_part(block) for block in blocks]
    if parts and len(parts) == len(content) and all(part is not None and not isinstance(part, ThinkingPart) for part in parts):
        return {"content": [part.model_dump(exclude_none=True) for part in parts if part is not None], "has_parts": True}
    return {"content": json_of(content)}


def _content(parts: Sequence[Part]) -> Any:
    shown = [part for part in parts if not isinstance(part, ToolCallPart | ToolResultPart)]
    if all(isinstance(part, TextPart) for part in shown):
        return "".join(part.text for part in shown if isinstance(part, TextPart))
    return [block for part in shown if (block := _block(part)) is not None]


def _block(part: TextPart | ThinkingPart | MediaPart) -> dict[str, Any] | None:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ThinkingPart):
        return {"type": "reasoning", "reasoning": part.text}
    return to_block(part)


def _parts(content: str | Sequence[str | dict[str, Any]]) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(text=content)] if content else []
    parts = [TextPart(text=block) if isinstance(block, str) else _part(block) for block in content]
    return [part for part in parts if part is not None]


def _part(block: dict[str, Any]) -> TextPart | ThinkingPart | MediaPart | None:
    kind = block.get("type")
    if kind == "text":
        return TextPart(text=str(block.get("text") or ""))
    if kind in ("reasoning", "thinking"):
        return ThinkingPart(text=str(block.get("reasoning") or block.get("thinking") or ""), signature=block.get("signature"))
    return from_block(block)  # tool calls are in the message's tool_calls, and other blocks of providers have no part


def _usage(message: AIMessage) -> Usage | None:
    used = message.usage_metadata
    if used is None:
        return None
    return Usage(requests=1, input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])
