"""Conversion of answers, results and approvals of the OpenAI Agents SDK to stored messages, and back.

``openai_attempt.py`` asks humans for approvals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agents.items import ToolApprovalItem

from ..domain.messages import Message, ToolCallPart
from ..domain.size_limits import JsonObject
from ..errors import InvalidInputError
from ..formats.conversion import from_blob
from ..formats.openai_responses import FORMAT
from . import openai_items

KEPT: Final = "openai_agents"
"""The key of the adapter's data in a message's provider_details. The data can be trusted, because only agents write it."""


def shown(message: Message) -> list[JsonObject]:
    """Return the items of a stored message for a model (M5).

    If this adapter made the message, its items are returned unchanged, with one exception. The Responses API accepts only its
    own ids, which begin with ``msg_``. A ``message`` item with another id is therefore reduced to its type, role and text. For
    any other message, only its parts are converted.
    """
    if KEPT not in (message.provider_details or {}):
        return openai_items.for_model(message)
    return [_plain(item) if _is_foreign(item) else item for item in kept(message)]


def _is_foreign(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "message" and not str(item.get("id")).startswith("msg_")


def _plain(item: Mapping[str, Any]) -> JsonObject:
    content = item.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    text = "".join(part.get("text") or part.get("refusal") or "" for part in parts)
    return {"type": "message", "role": item.get("role"), "content": text}


def kept(message: Message) -> list[JsonObject]:
    """Return the items of a message that this adapter made, unchanged."""
    details = (message.provider_details or {}).get(KEPT)
    items = details.get("items") if isinstance(details, dict) else None
    return items if isinstance(items, list) else openai_items.to_items(message)


def answer_message(items: Sequence[JsonObject]) -> Message:
    """Return the message for an answer. An item that no part of a message can hold is left out."""
    parts = [part for message in openai_items.to_messages(items) if message.role == "assistant" for part in message.content]
    try:
        return from_blob(FORMAT, [*items]) if items else Message.assistant([])
    except InvalidInputError:
        return Message.assistant(parts)


def beside(message: Message, items: Sequence[JsonObject]) -> JsonObject:
    """Return the data to store with the message.

    If the message alone cannot be converted back to ``items``, the data contains ``items``.
    """
    return {} if openai_items.to_items(message) == [*items] else {"items": [*items]}


def dumped(item: Any) -> JsonObject:
    """Return an item of an answer as JSON. The JSON has the type and the fields that the provider sent."""
    dumped: JsonObject = item if isinstance(item, dict) else item.model_dump(mode="json", exclude_unset=True)
    return {**dumped, "type": item["type"] if isinstance(item, dict) else item.type}


def is_call(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a tool call, or a hosted MCP server's request for an approval."""
    type_ = str(item.get("type"))
    return type_.endswith("_call") or type_ == "mcp_approval_request"


def call_id(item: Mapping[str, Any]) -> Any:
    """Return the id of a call. If a call of a hosted tool has no call id, return the id of its item."""
    return item.get("call_id") or item.get("id")


def result_key(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the type of a result and the id of its call. Return None for an item that is not a result."""
    type_ = str(item.get("type"))
    if type_ == "mcp_approval_response":
        return type_, str(item.get("approval_request_id"))
    return (type_, str(item.get("call_id"))) if type_.endswith("_output") else None


def returned(output: Any) -> Any:
    """Return the output of a stored result in the form in which a tool returns it."""
    if not isinstance(output, list):
        return output
    return [{**part, "type": str(part.get("type")).removeprefix("input_")} for part in output]


def said(items: Sequence[JsonObject]) -> str | None:
    """Return the text of the last message in an answer. This text is the output of an agent without an output type."""
    for item in reversed(items):
        if item.get("type") == "message" and isinstance(item.get("content"), list):
            return "".join(part["text"] for part in item["content"] if part.get("type") == "output_text")
    return None


def call_of(item: ToolApprovalItem) -> ToolCallPart:
    """Return the call for which the SDK asks for an approval."""
    raw = item.raw_item if isinstance(item.raw_item, dict) else item.raw_item.model_dump(mode="json")
    arguments = raw.get("arguments", raw.get("action", raw.get("operation")))
    given = parsed(arguments) if isinstance(arguments, str | None) else {"action": arguments}
    return ToolCallPart(id=str(call_id(raw)), name=item.name or str(raw.get("type")), arguments=given)


def parsed(arguments: str | None) -> JsonObject:
    """Return the arguments of a call as an object."""
    try:
        parsed = json.loads(arguments) if arguments else {}
    except ValueError:
        return {"input": arguments}
    return parsed if isinstance(parsed, dict) else {"input": parsed}
