"""Models and tools in plain functions: one durable model request, one durable tool call (:meth:`RunContext.model`)."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_json, to_jsonable_python

from ..models import JsonObject, Message, ToolCallPart
from .steps import OnUnknown, current_step, takes

if TYPE_CHECKING:
    from pydantic_ai import Tool
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

    from .context import RunContext

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class ModelAnswer(Generic[Output]):
    """What a model answered. ``message`` is ready to be appended to the run; ``output`` is None if it called tools."""

    message: Message
    output: Output | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        return self.message.text

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """The tools that the model calls, to be executed by :meth:`RunContext.tool`."""
        return self.message.tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(Generic[Output]):
    """One request to a model, as :meth:`RunContext.model` takes it."""

    model: Model[Any] | str
    messages: Sequence[Message]
    tools: Sequence[Callable[..., Any] | Tool[Any]] = ()
    output_type: type[Output]
    instructions: str | None = None
    settings: ModelSettings | None = None
    stream: bool = False

    async def make(self, ctx: RunContext) -> JsonObject:
        """Ask the model; the answer as it is recorded."""
        from pydantic_ai import Agent, DeferredToolRequests
        from pydantic_ai import Tool as FunctionTool
        from pydantic_ai.messages import ModelResponse
        from pydantic_ai.toolsets import ExternalToolset

        from . import dialect
        from .failures import judged
        from .fitting import Fitted
        from .named import model_named
        from .relay import relay

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
                message_history=await dialect.to_model_in_slices(self.messages),
                event_stream_handler=handler if self.stream else None,
            )
        response = next(m for m in reversed(result.new_messages()) if isinstance(m, ModelResponse))
        message = dialect.from_response(response)
        message.usage = dialect.usage_of_run(result.usage)
        output = None if isinstance(result.output, DeferredToolRequests) else to_jsonable_python(result.output)
        if output is not None and message.tool_calls:  # a tool of pydantic-ai's own carried the output
            message = Message.assistant(to_json(output).decode(), usage=message.usage)
        return {"message": ctx.named(message).model_dump(mode="json"), "output": output}


async def model(ctx: RunContext, request: ModelRequest[Output], key: str | None) -> ModelAnswer[Output]:
    """Make ``request`` as a step of the run: its answer is recorded and counted once."""
    made: JsonObject | None = None

    async def model() -> JsonObject:
        nonlocal made
        made = await request.make(ctx)
        return made

    recorded = await ctx.step(model, key=key)
    message = Message.model_validate(recorded["message"])
    if made is not None:
        ctx.accounts.add(message.usage, message.id)
    else:
        ctx.accounts.found(message.usage, message.id)
    if message.tool_calls:
        return ModelAnswer(message)
    return ModelAnswer(message, TypeAdapter(request.output_type).validate_python(recorded["output"]))


async def tool(ctx: RunContext, fn: Callable[..., Any], call: ToolCallPart, key: str, on_unknown: OnUnknown) -> Any:
    """Execute ``call`` by ``fn`` as the step ``key``, telling whoever streams the run."""

    async def execute() -> Any:
        await ctx.emit({"call_id": call.id, "name": call.name, "arguments": call.arguments}, type="tool.started")
        failed = True
        try:
            named = {"idempotency_key": current_step().idempotency_key} if takes(fn, "idempotency_key") else {}
            result = fn(**{**named, **call.arguments})
            result = await result if inspect.isawaitable(result) else result
            failed = False
        finally:
            await ctx.emit({"call_id": call.id, "name": call.name, "is_error": failed}, type="tool.completed")
        return result

    return await ctx.step(execute, key=key, on_unknown=on_unknown)
