"""Streaming of a model's answer from pydantic-ai to the run's events.

This module passes each piece of the answer to the run at once. ``events/writer.py`` joins pieces to events, and chooses when
events are written.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

if TYPE_CHECKING:
    from ..execution.context import RunContext

Calls = dict[int, tuple[str, str]]
"""Ids and names of the tool calls of an answer, by the index of the part in the answer."""


async def relay(ctx: RunContext, events: AsyncIterable[Any]) -> None:
    """Send an answer to the run's stream.

    For speed, the loop makes no object for a token except the object that is sent.
    """
    speak = ctx.stream_part
    calls: Calls = {}
    async for event in events:
        if isinstance(event, PartDeltaEvent):
            delta = event.delta
            if isinstance(delta, TextPartDelta):
                speak(delta.content_delta)
            elif isinstance(delta, ThinkingPartDelta):
                if delta.content_delta:
                    speak(delta.content_delta, "thinking")
            elif isinstance(delta, ToolCallPartDelta) and isinstance(delta.args_delta, str):
                speak(delta.args_delta, "arguments", calls.get(event.index, ("", "")))
        elif isinstance(event, PartStartEvent):
            begin(ctx, event.index, event.part, calls)


def begin(ctx: RunContext, index: int, part: object, calls: Calls) -> None:
    """Stream the first piece of a part. This piece may be the whole part."""
    match part:
        case TextPart(content=text) if text:
            ctx.stream_part(text)
        case ThinkingPart(content=text) if text:
            ctx.stream_part(text, "thinking")
        case ToolCallPart():
            calls[index] = (part.tool_call_id, part.tool_name)
            ctx.stream_part(part.args_as_json_str() if part.args else "", "arguments", calls[index])
