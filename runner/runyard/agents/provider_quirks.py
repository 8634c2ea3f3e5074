"""Adaptation of a conversation to the model that answers next.

Earlier messages may come from another provider or from a caller.

pydantic-ai translates the messages of one provider for another. A provider refuses some translated messages. This module
changes such messages, so that the provider accepts them.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from operator import is_not
from typing import Any, Final

from pydantic_ai import RunContext
from pydantic_ai.capabilities import CapabilityOrdering
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.wrapper import WrapperModel

from .downloads import check
from .durable_tools import Capability

OPENING: Final = "(The assistant speaks first.)"
"""The user message to put before a conversation that begins with a message of the assistant.

Anthropic and Google require a user message first.
"""
_NOT_ANTHROPICS: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""The pattern of a character that Anthropic refuses in the id of a tool call."""


def unwrapped(model: Model[Any]) -> Model[Any]:
    """Return the model inside its wrappers."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model


@dataclass
class Fitted(Capability):
    """Adapts the messages of each model request to the model. The stored messages are not changed.

    Raises FetchNotAllowedError if a file in the messages would be downloaded from a host that is not allowed.
    """

    def get_ordering(self) -> CapabilityOrdering | None:
        return CapabilityOrdering(position="innermost")

    async def before_model_request(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> ModelRequestContext:
        check(request_context.messages)
        return replace(request_context, messages=fitting(request_context.messages, request_context.model))


def fitting(messages: Sequence[ModelMessage], model: Model[Any]) -> list[ModelMessage]:
    """Return ``messages`` in a form that ``model`` accepts."""
    inner = unwrapped(model)
    chat, claude = _is(inner, "openai", "OpenAIChatModel"), _is(inner, "anthropic", "AnthropicModel")
    fitted: list[ModelMessage] = []
    for message in _with_own_ids(messages, claude):
        if isinstance(message, ModelResponse):
            parts = [
                _without_item(part) if chat else part for part in message.parts if not _says_nothing(part, inner.system, claude)
            ]
            if message.parts and not parts:
                continue
            if any(map(is_not, parts, message.parts)) or len(parts) < len(message.parts):
                message = replace(message, parts=parts)
        elif [*map(_is_shown, message.parts)] != sorted(map(_is_shown, message.parts)):
            message = replace(message, parts=sorted(message.parts, key=_is_shown))
        fitted.append(message)
    prompted = next((n for n, message in enumerate(fitted) if _speaks(message)), None)
    if prompted is not None and isinstance(fitted[prompted], ModelResponse):
        fitted.insert(prompted, ModelRequest(parts=[UserPromptPart(OPENING)]))
    return fitted


def _with_own_ids(messages: Sequence[Any], claude: bool) -> Iterator[ModelMessage]:
    """Yield ``messages`` without repeated ids of tool calls.

    A call with the id of an earlier call gets a new id. The result of the call gets the same new id.

    Gemini can return calls without ids. Two stored calls can therefore have the same id. Anthropic refuses such repeated ids.
    Anthropic also refuses an id with a character other than letters, digits, ``_`` and ``-``.
    """
    used: set[str] = set()
    waiting: dict[str, deque[str]] = {}
    for message in messages:
        parts = list(message.parts)
        if isinstance(message, ModelResponse):
            waiting = defaultdict(deque)
        for n, part in enumerate(parts):
            if isinstance(part, ToolCallPart):
                id_ = _own_id(part.tool_call_id, used, claude)
                used.add(id_)
                waiting[part.tool_call_id].append(id_)
            elif isinstance(part, ToolReturnPart | RetryPromptPart) and waiting.get(part.tool_call_id):
                id_ = waiting[part.tool_call_id].popleft()
            else:
                continue
            if id_ != part.tool_call_id:
                parts[n] = replace(part, tool_call_id=id_)
        yield replace(message, parts=parts) if any(map(is_not, parts, message.parts)) else message


def _own_id(given: str, used: set[str], claude: bool) -> str:
    """Return ``given`` if it is a valid id and not in ``used``. Otherwise return another id."""
    base = (_NOT_ANTHROPICS.sub("_", given) if claude else given) or "call"
    names = chain((base,), (f"{base}-{n}" for n in count(len(used) + 1)))
    return next(name for name in names if name not in used)


def _is_shown(part: ModelRequestPart) -> bool:
    """Return whether the part is user content. In a request, user content must come after the results of the model's calls."""
    return part.part_kind in ("user-prompt", "retry-feedback")


def _speaks(message: ModelMessage) -> bool:
    return isinstance(message, ModelResponse) or any(part.part_kind != "system-prompt" for part in message.parts)


def _is(model: Model[Any], provider: str, name: str) -> bool:
    """Return whether ``model`` is an instance of the class ``name``, without an import of the provider's module."""
    module = sys.modules.get(f"pydantic_ai.models.{provider}")
    return module is not None and isinstance(model, getattr(module, name))


def _says_nothing(part: ModelResponsePart, system: str, claude: bool) -> bool:
    """Return whether the part is an empty text. Models write such parts before tool calls.

    Google refuses an empty text. Anthropic also refuses a text of white space. Return False for an empty part with details or
    an id of the next model's provider, because the provider accepts this part.
    """
    if not isinstance(part, TextPart) or (part.provider_name == system and (part.provider_details or part.id)):
        return False
    return not (part.content.strip() if claude else part.content)


def _without_item(part: ModelResponsePart) -> ModelResponsePart:
    """Drop the id of a reasoning item of the Responses API.

    For Chat Completions, pydantic-ai would use this id as the name of a field.
    """
    return replace(part, id=None) if isinstance(part, ThinkingPart) and (part.id or "").startswith("rs_") else part
