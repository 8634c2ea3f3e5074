"""ScriptedModel: a model that follows a script, for tests and demos of pydantic-ai agents."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from pydantic_ai import messages as ai
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from ..domain.messages import ToolCallPart
from ..domain.quoting import brief
from ..domain.size_limits import JsonValue
from .harness import HarnessScope, stage

WORD: Final = re.compile(r"\S+\s*|^\s+")

Delta: TypeAlias = "str | dict[int, DeltaToolCall] | dict[int, DeltaThinkingPart]"


class ScriptEndedError(AssertionError):
    """The script has fewer replies than the agent requested.

    The method of :class:`~runyard.testing.Harness` that waits for the run raises this error.
    """

    retryable = False


@dataclass(frozen=True)
class ModelRequested:
    """One model request of the agent. ``tools``: the names of the tools that the agent offered."""

    messages: list[ai.ModelMessage]
    tools: list[str]

    @property
    def prompt(self) -> str:
        """The text of the last user message, or an empty text if there is none."""
        prompts = [part.content for part in self._parts if isinstance(part, ai.UserPromptPart)]
        last = prompts[-1] if prompts else ""
        return last if isinstance(last, str) else " ".join(str(item) for item in last if isinstance(item, str))

    @property
    def results(self) -> dict[str, Any]:
        """The results of tools since the last user message, by tool name."""
        results: dict[str, Any] = {}
        for part in self._parts:
            if isinstance(part, ai.UserPromptPart):
                results.clear()
            elif isinstance(part, ai.ToolReturnPart):
                results[part.tool_name] = part.content
        return results

    @property
    def _parts(self) -> list[ai.ModelRequestPart | ai.ModelResponsePart]:
        return [part for message in self.messages for part in message.parts]


Said: TypeAlias = "str | ToolCallPart | Exception | ai.ModelResponse | Sequence[str | ToolCallPart]"
Reply: TypeAlias = "Said | Callable[[ModelRequested], Said | Awaitable[Said]]"


def call(tool: str, /, **arguments: JsonValue) -> ToolCallPart:
    """Return a call of ``tool``, for use as a reply or in a reply. The model gives the call an id when it replies."""
    return ToolCallPart(id="", name=tool, arguments=arguments)


class ScriptedModel(FunctionModel):
    """A model that replies with the entries of ``script`` in order.

    A reply is one of these:

    - a text, a :func:`call` of a tool, or a list of texts and calls for one message
    - an exception to raise
    - a ``ModelResponse``
    - a function that takes a :class:`ModelRequested` and returns one of these

    A function in place of ``script`` answers every request.

    **Each conversation has its own position in the script.** The position is the number of answers of the model in the history.
    If a request is repeated after a crash, it therefore gets the same reply. Each new thread begins at the first reply. A fork
    continues at the position of its cut. An exception in the script is raised once in each harness or deployment, and then
    skipped.

    Calls get the ids ``<tool>-<n>``. ``n`` counts the calls of the conversation. ``delay``: seconds between two streamed
    tokens. ``requests``: all requests, in order. A request beyond the end of the script raises :class:`ScriptEndedError`.
    """

    def __init__(
        self, script: Sequence[Reply] | Callable[[ModelRequested], Any], *, delay: float = 0.0, name: str = "scripted"
    ) -> None:
        super().__init__(self._answer, stream_function=self._stream, model_name=name)
        self._script = script if callable(script) else list(script)
        self._delay = delay
        self._raised: WeakKeyDictionary[HarnessScope, set[int]] = WeakKeyDictionary()
        self.requests: list[ModelRequested] = []

    async def _answer(self, messages: list[ai.ModelMessage], info: AgentInfo) -> ai.ModelResponse:
        tools = [tool.name for tool in (*info.function_tools, *info.output_tools)]
        request = ModelRequested(list(messages), tools)
        self.requests.append(request)
        reply = self._next(request)
        said = reply(request) if callable(reply) else reply
        return self._response(await said if inspect.isawaitable(said) else said, request)

    async def _stream(self, messages: list[ai.ModelMessage], info: AgentInfo) -> AsyncIterator[Delta]:
        response = await self._answer(messages, info)
        for n, part in enumerate(response.parts):
            for delta in _deltas(n, part):
                await asyncio.sleep(self._delay)
                yield delta

    def _next(self, request: ModelRequested) -> Any:
        if callable(self._script):
            return self._script
        said = sum(isinstance(m, ai.ModelResponse) and m.model_name == self.model_name for m in request.messages)
        left = said
        raised = self._raised.setdefault(stage.get(), set())
        for n, reply in enumerate(self._script):
            if isinstance(reply, Exception):
                if not left and n not in raised:
                    raised.add(n)
                    return reply
            elif not left:
                return reply
            else:
                left -= 1
        most = len(self._script)
        raise ScriptEndedError(f"the script has {most} replies; the request {brief(request.prompt)} needs one more")

    def _response(self, said: Any, request: ModelRequested) -> ai.ModelResponse:
        if isinstance(said, Exception):
            raise said
        if isinstance(said, ai.ModelResponse):
            return said
        made = sum(isinstance(part, ai.ToolCallPart) for message in request.messages for part in message.parts)
        parts: list[ai.ModelResponsePart] = []
        for item in [said] if isinstance(said, str | ToolCallPart) else said:
            if isinstance(item, str):
                parts.append(ai.TextPart(item))
            elif isinstance(item, ToolCallPart):
                calls = made + sum(isinstance(part, ai.ToolCallPart) for part in parts)
                parts.append(ai.ToolCallPart(item.name, item.arguments, tool_call_id=item.id or f"{item.name}-{calls}"))
            else:
                raise TypeError(f"a reply of a scripted model is made of texts and tool calls, not {brief(item)}")
        return ai.ModelResponse(parts=parts)


def tokens(text: str) -> list[str]:
    """Return ``text`` split into pieces of about one word."""
    return WORD.findall(text) or [text]


def _deltas(n: int, part: ai.ModelResponsePart) -> list[Delta]:
    match part:
        case ai.TextPart():
            return [*tokens(part.content)]
        case ai.ThinkingPart():
            return [{n: DeltaThinkingPart(content=token)} for token in tokens(part.content)]
        case ai.ToolCallPart():
            arguments = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
            opening = DeltaToolCall(name=part.tool_name, json_args="", tool_call_id=part.tool_call_id)
            pieces = [DeltaToolCall(json_args=token, tool_call_id=part.tool_call_id) for token in tokens(arguments)]
            return [{n: delta} for delta in (opening, *pieces)]
    raise TypeError(f"a scripted model can stream texts, thinking and tool calls, not {brief(part)}")
