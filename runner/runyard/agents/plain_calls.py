"""Durable model requests and tool calls for plain functions (:meth:`RunContext.model`, :meth:`RunContext.tool`)."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from pydantic import TypeAdapter
from pydantic_core import to_json, to_jsonable_python

from ..domain.messages import Message, ToolCallPart
from ..domain.size_limits import JsonObject
from ..execution.context import Output
from ..execution.steps import OnUnknown, current_step, takes
from ..support.genai_spans import tool_span

if TYPE_CHECKING:
    from pydantic_ai import Tool
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

    from ..execution.context import RunContext


@dataclass(frozen=True, slots=True)
class ModelAnswer(Generic[Output]):
    """A model's answer. ``message`` can be appended to the run. ``output`` is None if the model called tools."""

    message: Message
    output: Output | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        return self.message.text

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """The tool calls of the model, to be executed by :meth:`RunContext.tool`."""
        return self.message.tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(Generic[Output]):
    """The arguments of one model request. :meth:`RunContext.model` describes them."""

    model: Model[Any] | str
    messages: Sequence[Message]
    tools: Sequence[Callable[..., Any] | Tool[Any]] = ()
    output_type: type[Output]
    instructions: str | None = None
    settings: ModelSettings | None = None
    stream: bool = False

    async def make(self, ctx: RunContext) -> JsonObject:
        """Send the request. Return the answer as JSON to record."""
        from pydantic_ai import Agent, DeferredToolRequests
        from pydantic_ai import Tool as FunctionTool
        from pydantic_ai.messages import ModelResponse
        from pydantic_ai.toolsets import ExternalToolset

        from . import message_codec
        from .attempt_spans import spans_of
        from .model_errors import judged
        from .models import model_named
        from .provider_quirks import Fitted
        from .streaming import relay

        tools = [tool if isinstance(tool, FunctionTool) else FunctionTool(tool) for tool in self.tools]
        agent: Agent[None, Any] = Agent(
            model_named(self.model) if isinstance(self.model, str) else self.model,
            output_type=[self.output_type, DeferredToolRequests] if tools else self.output_type,
            instructions=self.instructions,
            model_settings=self.settings,
            toolsets=[ExternalToolset([tool.tool_def for tool in tools])],
            capabilities=[Fitted()],
        )

        async def handler(_: object, events: AsyncIterable[Any]) -> None:
            await relay(ctx, events)

        ctx.discard_stream()
        with judged():
            result = await agent.run(
                message_history=await message_codec.to_model(self.messages),
                event_stream_handler=handler if self.stream else None,
                capabilities=spans_of(agent, ctx.agent),
            )
        response = next(m for m in reversed(result.new_messages()) if isinstance(m, ModelResponse))
        message = message_codec.from_response(response)
        message.usage = message_codec.usage_of_run(result.usage)
        output = None if isinstance(result.output, DeferredToolRequests) else to_jsonable_python(result.output)
        if output is not None and message.tool_calls:  # pydantic-ai received the output as the call of an output tool
            message = Message.assistant(to_json(output).decode(), usage=message.usage)
        return {"message": ctx.named(message).model_dump(mode="json"), "output": output}


async def model(ctx: RunContext, request: ModelRequest[Output], key: str | None) -> ModelAnswer[Output]:
    """Send ``request`` as a step of the run. The step records the answer. The usage of the request is counted once."""

    async def model() -> JsonObject:
        made = await request.make(ctx)
        ctx.usage_meter.add_message(Message.model_validate(made["message"]))
        return made

    recorded = await ctx.step(model, key=key)
    message = Message.model_validate(recorded["message"], extra="ignore")
    ctx.usage_meter.found(message.usage, message.id)
    if message.tool_calls:
        return ModelAnswer(message)
    return ModelAnswer(message, TypeAdapter(request.output_type).validate_python(recorded["output"]))


async def tool(ctx: RunContext, fn: Callable[..., Any], call: ToolCallPart, key: str, on_unknown: OnUnknown) -> Any:
    """Execute the tool call ``call`` by the function ``fn``, as the step ``key``.

    Emit events at the start and the end of the call.
    """

    async def execute(arguments: JsonObject) -> Any:
        await ctx.emit({"call_id": call.id, "name": call.name, "arguments": call.arguments}, type="tool.started")
        failed = True
        try:
            named = {"idempotency_key": current_step().idempotency_key} if takes(fn, "idempotency_key") else {}
            with tool_span(call.name, call.id):
                result = fn(**{**named, **arguments})
                result = await result if inspect.isawaitable(result) else result
            failed = False
        finally:
            await ctx.emit({"call_id": call.id, "name": call.name, "is_error": failed}, type="tool.completed")
        return result

    execute.__name__ = call.name  # the name of the step's span
    return await ctx.step(execute, call.arguments, key=key, on_unknown=on_unknown)
