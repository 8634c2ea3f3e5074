"""Fits a conversation to the model that is asked next: it may have been led with another provider, or by hand.

pydantic-ai translates between providers; here is what it leaves to be refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic_ai import RunContext
from pydantic_ai.capabilities import CapabilityOrdering
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ModelResponsePart, ThinkingPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.wrapper import WrapperModel

from .capability import Capability

OPENING: Final = "(The assistant speaks first.)"
"""Said for the user where a conversation begins with the assistant, since Anthropic and Google take no other beginning."""


def unwrapped(model: Model[Any]) -> Model[Any]:
    """The model inside of wrappers."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model


@dataclass
class Fitted(Capability):
    """Sends each request as its model takes it. What is stored stays as it is."""

    def get_ordering(self) -> CapabilityOrdering | None:
        return CapabilityOrdering(position="innermost")

    async def before_model_request(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> ModelRequestContext:
        return replace(request_context, messages=fitting(request_context.messages, request_context.model))


def fitting(messages: Sequence[ModelMessage], model: Model[Any]) -> list[ModelMessage]:
    """``messages`` as ``model`` is to be sent them."""
    told = list(messages)
    if _is_openai_chat(unwrapped(model)):
        told = [_without_items(message) if isinstance(message, ModelResponse) else message for message in told]
    prompted = next((n for n, message in enumerate(told) if _speaks(message)), None)
    if prompted is not None and isinstance(told[prompted], ModelResponse):
        told.insert(prompted, ModelRequest(parts=[UserPromptPart(OPENING)]))
    return told


def _speaks(message: ModelMessage) -> bool:
    return isinstance(message, ModelResponse) or any(part.part_kind != "system-prompt" for part in message.parts)


def _is_openai_chat(model: Model[Any]) -> bool:
    openai = sys.modules.get("pydantic_ai.models.openai")
    return openai is not None and isinstance(model, openai.OpenAIChatModel)


def _without_items(response: ModelResponse) -> ModelResponse:
    """Chat completions would be sent a reasoning item's id, which the responses API gave, as the name of a field."""
    return replace(response, parts=[_without_item(part) for part in response.parts])


def _without_item(part: ModelResponsePart) -> ModelResponsePart:
    return replace(part, id=None) if isinstance(part, ThinkingPart) and (part.id or "").startswith("rs_") else part
