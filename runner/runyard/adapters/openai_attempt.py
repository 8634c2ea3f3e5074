"""The record of an attempt whose agent comes from the OpenAI Agents SDK. The record has answers of models, results of tools,
and approvals."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from agents import Agent, FunctionTool, Model, Runner
from agents.items import ItemHelpers, ModelResponse, ToolApprovalItem
from agents.tool_context import ToolContext
from agents.usage import Usage as ModelUsage
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from ..domain.messages import Message, Usage
from ..domain.size_limits import JsonObject
from ..domain.validation import new_id
from ..errors import InvalidInputError, RunyardError
from ..execution.context import RunContext
from ..execution.control_signals import ControlSignal, Deferred, signals_in
from ..execution.usage import less
from ..formats.wire import to_text
from ..support.genai_spans import model_span, tool_span, usage_attributes
from . import openai_items
from .openai_recording import inside
from .openai_stored_messages import (
    KEPT,
    answer_message,
    beside,
    call_id,
    call_of,
    dumped,
    is_call,
    kept,
    parsed,
    result_key,
    returned,
    said,
    shown,
)
from .openai_stream import Answer, requested

OUTPUT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseOutputItem)


class Attempt:
    """The record of one attempt.

    The record has the stored answers and results of this attempt and of the run's earlier attempts.

    ``past``: the items before the run's prompt. ``prompt``: the items of the prompt. ``said``: the text of the last answer.
    """

    def __init__(self, ctx: RunContext, history: Sequence[Message], *, stream: bool = True) -> None:
        self._ctx, self._stream = ctx, stream
        own = [message for message in history if message.run_id == ctx.run_id]
        mine = [message for message in own if KEPT in (message.provider_details or {})]
        self.past = [item for message in history if message.run_id != ctx.run_id for item in shown(message)]
        self.prompt = [item for message in own if message not in mine for item in shown(message)]
        self._answers = deque(message for message in mine if "response_id" in (message.provider_details or {})[KEPT])
        items = [item for message in mine for item in kept(message)]
        self._results = {key: item for item in items if (key := result_key(item)) is not None}
        self._calls = {str(call_id(item)) for item in items if is_call(item)}
        self._earlier_calls = {str(call_id(item)) for item in self.past if is_call(item)}
        self._approved: dict[str, JsonObject] = {}
        self._waiting: set[str] = set()
        self._failure: BaseException | None = None
        self._counted = Usage()
        self._since = time.monotonic()
        self.said: str | None = None

    async def run(self, agent: Agent[Any], given: Any, options: dict[str, Any]) -> Any:
        """Execute the agent until it ends or asks for approvals. Return the SDK's result.

        The SDK's loop is not streamed, because ``Runner.run`` raises an error or a cancel where it occurs. The requests to the
        model are streamed (:func:`.openai_stream.requested`).
        """
        try:
            result = await Runner.run(agent, given, **options)
        except BaseException as error:
            if (data := getattr(error, "run_data", None)) is not None:
                self._count(data.context_wrapper.usage)
            if self._failure is not None and not isinstance(error, asyncio.CancelledError):
                raise self._failure from None
            raise
        self._count(result.context_wrapper.usage)
        if self._waiting and not result.interruptions:
            await self._ctx.suspend()
        return result

    async def decide(self, state: Any, interruptions: Sequence[ToolApprovalItem]) -> None:
        """Ask humans about all calls that need an approval. Record the decisions in ``state``."""
        calls = [call_of(item) for item in interruptions]
        if nested := [call.name for call in calls if call.id not in self._calls]:
            raise InvalidInputError(
                f"an agent that is used as a tool asks for an approval of {', '.join(nested)}, but this question is lost "
                "when the run is suspended; set needs_approval of the tool that calls this agent instead",
                field="needs_approval",
            )
        answers = await asyncio.gather(*(self._ctx.approve(call) for call in calls), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if self._waiting:
            await self._ctx.suspend()
        for item, call, answer in zip(interruptions, calls, answers, strict=True):
            assert not isinstance(answer, BaseException)
            if answer:
                self._approved[call.id] = dict(answer.arguments)
                state.approve(item)
            else:
                state.reject(item, rejection_message=answer.reason or "The tool call was denied.")

    async def respond(self, model: Model, args: tuple[Any, ...], options: dict[str, Any]) -> ModelResponse:
        """Return the next stored answer. If no stored answer is left, request an answer and store it."""
        with self._attempt_errors():
            if self._waiting:
                await self._ctx.suspend()
            if self._answers:
                return self._replayed(self._answers.popleft())
            self._ctx.discard_stream()
        with model_span(str(getattr(model, "model", type(model).__name__)), self._ctx.thread_id) as span:
            answer = await requested(self._ctx, model, args, options, stream=self._stream)
            span.set_attributes(usage_attributes(answer.response.usage.input_tokens, answer.response.usage.output_tokens))
        for item in answer.response.output:
            self._distinguish(item)
        with self._attempt_errors():
            await self._store_answer(answer)
        return answer.response

    async def invoke(self, tool: FunctionTool, invoker: Any, context: ToolContext[Any], arguments: str) -> Any:
        """Return the stored result of a call. Without a stored result, call the tool and store its result."""
        id_ = context.tool_call_id
        if (known := self._results.get(("function_call_output", id_))) is not None:
            return returned(known["output"])
        if (edited := self._approved.get(id_)) is not None and edited != parsed(arguments):
            arguments = to_text(edited)
        started = {"call_id": id_, "name": context.tool_name, "arguments": parsed(arguments)}
        with self._attempt_errors():
            await self._ctx.emit(started, type="tool.started")
        token = inside.set(self)
        try:
            with self._ctx.in_tool(id_), tool_span(context.tool_name, id_):
                output = await invoker(context, arguments)
        except BaseException as error:
            signals = [*signals_in(error)]
            if signals and all(isinstance(signal, Deferred) for signal in signals):
                self._waiting.add(id_)  # other tools of this answer finish before the run is parked
                return "The tool waits for a human."
            if signals:
                self._failure = error
            raise
        finally:
            inside.reset(token)
        with self._attempt_errors():
            if not tool.tool_output_guardrails:  # a guardrail may replace the output; the session then stores it
                await self._store_output(tool, context, output)
            await self._ctx.emit({"call_id": id_, "name": context.tool_name, "is_error": False}, type="tool.completed")
        return output

    async def add(self, items: Sequence[Any]) -> None:
        """Store the results in ``items`` that are not stored yet. Such results come from handoffs, from denied calls, and from
        the SDK's own tools.
        """
        fresh: list[JsonObject] = []
        for item in openai_items.checked(items):
            key = result_key(item)
            if key is not None and key not in self._results and key[1] not in self._waiting and key[1] in self._calls:
                self._results[key] = item
                fresh.append(item)
        if fresh:
            with self._attempt_errors():
                await self._store(fresh)

    async def _store_output(self, tool: FunctionTool, context: ToolContext[Any], output: Any) -> None:
        named = ("output_json_schema", "output_type_adapter")
        described = {
            name: value for name in named if (value := getattr(tool, f"_{name}", getattr(tool, name, None))) is not None
        }
        if context.tool_call is not None:
            await self.add([ItemHelpers.tool_call_output_item(context.tool_call, output, **described)])

    async def _store(self, results: Sequence[JsonObject]) -> None:
        messages = openai_items.to_messages(results)
        await self._ctx.append(*(m.model_copy(update={"provider_details": {KEPT: {"results": True}}}) for m in messages))

    async def _store_answer(self, answer: Answer) -> None:
        items = [dumped(item) for item in answer.response.output]
        message = answer_message(items)
        used = answer.usage()
        self._counted += used
        now = time.monotonic()
        message.usage = used.model_copy(update={"seconds": now - self._since})
        self._since = now
        named = {"model": answer.model} if answer.model is not None else {}
        message.provider_details = {KEPT: {"response_id": answer.response.response_id, **named, **beside(message, items)}}
        self._calls |= {str(call_id(item)) for item in items if is_call(item)}
        self._results |= {key: item for item in items if (key := result_key(item)) is not None}
        self.said = said(items)
        await self._ctx.append(message)

    def _replayed(self, message: Message) -> ModelResponse:
        items = kept(message)
        used = message.usage or Usage()
        self._counted += used.model_copy(update={"seconds": 0.0, "cost": 0.0})
        self.said = said(items)
        usage = ModelUsage(
            requests=used.requests,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.input_tokens + used.output_tokens,
        )
        details = (message.provider_details or {})[KEPT]
        output = [OUTPUT.validate_python(item) for item in items]
        return ModelResponse(output=output, usage=usage, response_id=details.get("response_id"))

    def _distinguish(self, item: Any) -> None:
        """Give a call another id if an earlier call has the same id. Each result and approval then belongs to one call (H5)."""
        if getattr(item, "type", None) == "function_call" and item.call_id in self._calls | self._earlier_calls:
            item.call_id = new_id()

    def _count(self, total: ModelUsage) -> None:
        """Add to the run the usage that no stored answer contains.

        Such usage comes from agents that are used as tools, and from repeated requests.
        """
        used = Usage(requests=total.requests, input_tokens=total.input_tokens, output_tokens=total.output_tokens)
        if (hidden := less(used, self._counted)) != Usage():
            self._counted += hidden
            self._ctx.add_usage(hidden)

    @contextmanager
    def _attempt_errors(self) -> Iterator[None]:
        """Keep an error of the store, or a control signal, until :meth:`run` raises it.

        The SDK itself would wrap such an error, or show it to the model.
        """
        try:
            yield
        except (ControlSignal, RunyardError) as error:
            self._failure = error
            raise
