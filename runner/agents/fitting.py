"""Fits a conversation to the model that is asked next: it may have been led with another provider, or by hand.

pydantic-ai translates between providers; here is what it leaves to be refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    TextPart,
    ThinkingPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.wrapper import WrapperModel

from .capability import Capability
from .fetching import check

OPENING: Final = "(The assistant speaks first.)"
"""Said for the user where a conversation begins with the assistant, since Anthropic and Google take no other beginning."""


def unwrapped(model: Model[Any]) -> Model[Any]:
    """The model inside of wrappers."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model


@dataclass
class Fitted(Capability):
    """Sends each request as its model takes it, if nothing has to be fetched for it. What is stored stays as it is."""

    def get_ordering(self) -> CapabilityOrdering | None:
        return CapabilityOrdering(position="innermost")

    async def before_model_request(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> ModelRequestContext:
        check(request_context.messages)
        return replace(request_context, messages=fitting(request_context.messages, request_context.model))


def fitting(messages: Sequence[ModelMessage], model: Model[Any]) -> list[ModelMessage]:
    """``messages`` as ``model`` is to be sent them."""
    inner = unwrapped(model)
    chat, claude = _is(inner, "openai", "OpenAIChatModel"), _is(inner, "anthropic", "AnthropicModel")
    told: list[ModelMessage] = []
    for message in messages:
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
        told.append(message)
    prompted = next((n for n, message in enumerate(told) if _speaks(message)), None)
    if prompted is not None and isinstance(told[prompted], ModelResponse):
        told.insert(prompted, ModelRequest(parts=[UserPromptPart(OPENING)]))
    return told


def _is_shown(part: ModelRequestPart) -> bool:
    """Whether the model reads it as the user's: every result of its calls comes first, whatever one of them shows besides."""
    return part.part_kind in ("user-prompt", "retry-feedback")


def _speaks(message: ModelMessage) -> bool:
    return isinstance(message, ModelResponse) or any(part.part_kind != "system-prompt" for part in message.parts)


def _is(model: Model[Any], provider: str, name: str) -> bool:
    """Whether ``model`` is of the class, whose module is imported if there is such a model."""
    module = sys.modules.get(f"pydantic_ai.models.{provider}")
    return module is not None and isinstance(model, getattr(module, name))


def _says_nothing(part: ModelResponsePart, system: str, claude: bool) -> bool:
    """A text without a word, which models say before they call tools: Google refuses an empty one, Anthropic any white space.
    What the provider itself marked goes back to it."""
    if not isinstance(part, TextPart) or (part.provider_name == system and (part.provider_details or part.id)):
        return False
    return not (part.content.strip() if claude else part.content)


def _without_item(part: ModelResponsePart) -> ModelResponsePart:
    """Chat completions would be sent a reasoning item's id, which the responses API gave, as the name of a field."""
    return replace(part, id=None) if isinstance(part, ThinkingPart) and (part.id or "").startswith("rs_") else part
