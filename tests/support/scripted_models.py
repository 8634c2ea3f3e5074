"""Models that answer by rule, for tests of agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

Answer = str | list[tuple[str, dict[str, Any]]] | Exception


def answering(answer: Callable[[str, list[ToolReturnPart]], Answer]) -> FunctionModel:
    """Return a model that answers ``answer(prompt, results)``. ``prompt``: the last prompt of the user. ``results``: the tool
    results after it. An answer is a text, a list of calls (name, arguments), or an exception to raise. The ids of calls are
    ``<name>-<n>``, counted over the conversation."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt, results = _since_prompt(messages)
        said = answer(prompt, results)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        n = sum(isinstance(part, ToolCallPart) for message in messages for part in message.parts)
        calls = [ToolCallPart(name, arguments, tool_call_id=f"{name}-{n + i}") for i, (name, arguments) in enumerate(said)]
        return ModelResponse(parts=calls)

    return FunctionModel(respond)


def calling(*calls: tuple[str, dict[str, Any]], then: str = "done") -> FunctionModel:
    """Return a model that makes ``calls`` for each prompt, in one answer, and then answers ``then``."""
    return answering(lambda prompt, results: then if results else list(calls))


def echo() -> FunctionModel:
    """Return a model that repeats the prompt with an exclamation mark."""
    return answering(lambda prompt, results: f"{prompt}!")


def _since_prompt(messages: Sequence[ModelMessage]) -> tuple[str, list[ToolReturnPart]]:
    parts = [part for message in messages for part in message.parts]
    last = max((n for n, part in enumerate(parts) if isinstance(part, UserPromptPart)), default=-1)
    prompt = parts[last].content if last >= 0 else ""
    return str(prompt), [part for part in parts[last + 1 :] if isinstance(part, ToolReturnPart)]
