"""Spans of tools and model requests by the OpenTelemetry conventions for generative AI.

This module makes the spans for frameworks that make none. ``agents/attempt_spans.py`` has the spans of pydantic-ai.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from ..domain.messages import Usage
from . import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

MAX_TOKENS: Final = 2**63 - 1
"""The largest number of tokens that an attribute can have."""

_content = False


def record_content(content: bool) -> None:
    """Set whether the spans of models and tools in this process contain messages, arguments and results (T4)."""
    global _content
    _content = content


def records_content() -> bool:
    """Return the value that :func:`record_content` has set."""
    return _content


def tool_span(name: str, call_id: str) -> AbstractContextManager[Span]:
    """Make a span of the tool call ``call_id`` of the tool ``name``. The span has no arguments and no result (T4)."""
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id}
    return tracing.span(f"execute_tool {name}", attributes=attributes)


def model_span(model: str, thread_id: str) -> AbstractContextManager[Span]:
    """Make a span of a request to ``model`` in the conversation ``thread_id``. The span has no messages (T4)."""
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model, "gen_ai.conversation.id": thread_id}
    return tracing.span(f"chat {model}", "client", attributes)


def usage_attributes(input_tokens: int, output_tokens: int) -> dict[str, int]:
    """Return the attributes of the usage of one model request."""
    return {"gen_ai.usage.input_tokens": input_tokens, "gen_ai.usage.output_tokens": output_tokens}


def total_usage(used: Usage) -> dict[str, int]:
    """Return the attributes of the usage of a whole attempt.

    The names are pydantic-ai's names for totals, and differ from ``gen_ai.usage``. A sum of ``gen_ai.usage`` over the spans of
    a trace therefore counts each token once.
    """
    return {
        "gen_ai.aggregated_usage.input_tokens": min(used.input_tokens, MAX_TOKENS),
        "gen_ai.aggregated_usage.output_tokens": min(used.output_tokens, MAX_TOKENS),
    }
