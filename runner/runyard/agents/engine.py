"""The engine executes a pydantic-ai agent as an attempt of a run. The attempt begins after the last stored message.

**The messages record the progress of the run.** The engine appends a model's answer before the tools start. The engine appends
each tool's result as soon as the tool has returned. For example, a later attempt finds an assistant message with the calls A,
B and C, and the result of B. The later attempt takes the result of B from the messages, and executes A and C. After a crash,
at most one model request is repeated. A finished tool call is never repeated (R9).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic_ai.agent import AbstractAgent, AgentRun, CallToolsNode, ModelRequestNode
from pydantic_ai.messages import (
    FunctionToolResultEvent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    RetryFeedbackPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..app import AgentOptions
from ..domain.messages import Message, Usage, model_name
from ..domain.validation import new_id
from ..errors import InvalidInputError, MessageTooLargeError
from ..execution.context import RunContext
from ..execution.usage import less
from . import message_codec
from .attempt_spans import spans_of
from .budgets import Budget, BudgetGuard, as_budgets
from .durable_tools import Humans, Recorded, Result, asks_humans, results_in
from .model_errors import judged
from .models import model_of
from .provider_quirks import Fitted, unwrapped
from .streaming import begin, relay

Budgets: TypeAlias = "Budget | Sequence[Budget] | None"


@dataclass(frozen=True, slots=True)
class Served:
    """A pydantic-ai agent as the agent of an App (:func:`serve`)."""

    agent: AbstractAgent[Any, Any]
    deps: object = None
    budget: Budgets = None
    usage_limits: UsageLimits | None = None
    options: AgentOptions | None = None

    @property
    def asks_humans(self) -> bool:
        """Whether the definition of the agent shows that it can ask a human (:func:`.durable_tools.asks_humans`)."""
        return asks_humans(self.agent)

    async def __call__(self, ctx: RunContext) -> None:
        deps = self.deps(ctx) if callable(self.deps) else self.deps
        deps = await deps if inspect.isawaitable(deps) else deps
        await drive(ctx, self.agent, deps=deps, budget=self.budget, usage_limits=self.usage_limits)


def serve(
    agent: AbstractAgent[Any, Any],
    *,
    deps: object = None,
    budget: Budgets = None,
    usage_limits: UsageLimits | None = None,
    options: AgentOptions | None = None,
) -> Served:
    """Return ``agent`` as an agent for an :class:`~runyard.App`.

    ``deps``: the agent's dependencies, or a sync or async function that makes the dependencies from a
    :class:`~runyard.RunContext`. ``budget``: limits on the usage of a run or a thread. ``usage_limits``: pydantic-ai's limits
    for one attempt. ``options``: queue, timeout and retries of the agent's runs.
    """
    return Served(agent, deps, budget, usage_limits, options)


def adapt(agent: object) -> Served | None:
    """Return an agent of pydantic-ai as an agent for an App. Return None for any other object."""
    return serve(agent) if isinstance(agent, AbstractAgent) else None


async def drive(
    ctx: RunContext,
    agent: AbstractAgent[Any, Any],
    *,
    deps: object = None,
    budget: Budgets = None,
    usage_limits: UsageLimits | None = None,
) -> None:
    """Execute ``agent`` as this attempt of the run, from the last stored message to the end of the agent.

    ``deps``: the agent's dependencies. ``budget``: limits on the usage of the run or its thread. ``usage_limits``:
    pydantic-ai's limits for this attempt. If the agent's output is a text, the text is the run's last message. Any other
    output is also stored as the run's result, as JSON.

    Raises BudgetExceededError, and the agent's errors. If another attempt would raise the same error, ``retryable`` of the
    error is False.
    """
    with judged():
        await _Drive(ctx, agent, deps, BudgetGuard(ctx, as_budgets(budget))).run(usage_limits)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of a stored history.

    ``answered``: whether the model's last answer in this run still has to be processed. ``messages``: the history. If
    ``answered`` is True, the history ends with this answer, before the results of its tool calls. ``results``: the stored
    results of the answer's tool calls, by call id. ``used``: the run's usage so far.
    """

    messages: list[ModelMessage]
    results: dict[str, Result]
    used: Usage
    answered: bool

    @classmethod
    async def of(cls, history: Sequence[Message], run_id: str) -> _Tail:
        used = sum((m.usage for m in history if m.run_id == run_id and m.usage is not None), start=Usage())
        end = len(history)
        while end and history[end - 1].role == "tool":
            end -= 1
        last, after = (history[end - 1] if end else None), history[end:]
        if last is None or last.role != "assistant" or last.run_id != run_id:
            return cls(await message_codec.to_model(history), {}, used, answered=False)
        closed = {part.call_id for message in after for part in message.tool_results}
        over = all(call.id in closed for call in last.tool_calls) and not any(map(message_codec.is_final, after))
        if over and last.tool_calls:
            return cls(await message_codec.to_model(history), {}, used, answered=False)
        converted = (await message_codec.to_model([last, *after]))[1:]
        results = results_in(request for request in converted if isinstance(request, ModelRequest))
        return cls(await message_codec.to_model(history[:end]), results, used, answered=True)


class _Drive:
    """One attempt of a run, executed by pydantic-ai."""

    def __init__(self, ctx: RunContext, agent: AbstractAgent[Any, Any], deps: object, budget_guard: BudgetGuard) -> None:
        self._ctx = ctx
        self._agent = agent
        self._deps = deps
        self._budget_guard = budget_guard
        self._used = Usage()
        self._counted = Usage()
        self._stored: set[str] = set()
        self._known: list[object] = []
        self._since = time.monotonic()

    async def run(self, limits: UsageLimits | None) -> None:
        """Execute pydantic-ai's nodes, and store the messages of each node."""
        tail = await _Tail.of(await self._ctx.history(), self._ctx.run_id)
        self._used, self._stored = tail.used, set(tail.results)
        self._known += [part for message in tail.messages for part in message.parts]
        self._ids = {part.tool_call_id for part in self._known if isinstance(part, ToolCallPart)}
        self._recorded = Recorded(self._ctx, tail.results)
        model = model_of(self._agent)
        messages = await self._with_system_prompt(tail.messages, model)
        async with self._agent.iter(
            message_history=messages,
            model=model,
            deps=self._deps,
            usage_limits=limits,
            conversation_id=self._ctx.thread_id,
            capabilities=[*spans_of(self._agent, self._ctx.agent), self._recorded, Humans(self._ctx), Fitted()],
        ) as run:
            node = await run.next(run.next_node)  # type: ignore[arg-type]
            if tail.answered and isinstance(node, ModelRequestNode):
                node = CallToolsNode(_last_response(messages))
            while not self._agent.is_end_node(node):
                if isinstance(node, ModelRequestNode):
                    node = await self._request(run, node)
                else:
                    assert isinstance(node, CallToolsNode)
                    node = await self._call_tools(run, node)
            assert run.result is not None
            if not isinstance(run.result.output, str):
                self._ctx.result = to_jsonable_python(run.result.output)

    async def _with_system_prompt(self, messages: list[ModelMessage], model: Model[Any] | None) -> list[ModelMessage]:
        """Return the agent's system prompts, then ``messages``.

        Each attempt adds the system prompts, because threads do not store them.
        """
        parts = await self._agent.system_prompt_parts(deps=self._deps, model=model, message_history=messages)
        if not parts:
            return messages
        return [ModelRequest(parts=list(parts)), *messages]

    async def _request(self, run: AgentRun[Any, Any], node: ModelRequestNode[Any, Any]) -> Any:
        """Send a model request and stream its answer. Store the answer before any of its tool calls starts."""
        await self._budget_guard.check(self._used)
        if _streams(run.ctx.deps.model):
            async with node.stream(run.ctx) as events:
                await relay(self._ctx, events)
        following = await run.next(node)
        if not isinstance(following, CallToolsNode):
            self._ctx.discard_stream()  # a hook of pydantic-ai refused the answer
            return following
        response = following.model_response
        for part in response.parts:
            message_codec.make_storable(part)
            self._distinguish(part)
        if not _streams(run.ctx.deps.model):
            for part in response.parts:
                begin(self._ctx, 0, part, {})
        message = message_codec.from_response(response)
        message.usage = self._account(run, message)
        await self._ctx.append(*self._shown(node.request), message)
        return following

    async def _call_tools(self, run: AgentRun[Any, Any], node: CallToolsNode[Any, Any]) -> Any:
        """Execute the tool calls of an answer. Store each result when its tool returns."""
        async with node.stream(run.ctx) as events:
            async for event in events:
                if isinstance(event, FunctionToolResultEvent):
                    await self._store_result(event)
        following = await run.next(node)
        ended = self._agent.is_end_node(following)
        if ended:
            last = run.ctx.state.message_history[-1]
            parts = last.parts if isinstance(last, ModelRequest) else []
        else:
            assert isinstance(following, ModelRequestNode)
            parts = following.request.parts = self._as_stored(following.request.parts)
        rest = [part for part in parts if isinstance(part, ToolReturnPart) and part.tool_call_id not in self._stored]
        if rest:
            self._stored |= {part.tool_call_id for part in rest}
            [message] = message_codec.from_request(ModelRequest(parts=rest))
            if ended:
                await self._ctx.conclude(message_codec.mark_final(message))
            else:
                await self._ctx.append(message)
        return following

    def _as_stored(self, parts: Sequence[ModelRequestPart]) -> list[ModelRequestPart]:
        """If ``parts`` refuse a tool call that has a stored result, put the stored result in place of the refusal.

        pydantic-ai may refuse such a call if the agent's tools have changed after the result was stored.
        """
        merged: list[ModelRequestPart] = []
        for part in parts:
            known = self._recorded.results.get(part.tool_call_id) if isinstance(part, ToolReturnPart) else None
            if known is None or part.outcome != "retried":  # type: ignore[union-attr]
                merged.append(part)
                continue
            merged += [known.part, *known.shown]
            self._known += known.shown
        return merged

    async def _store_result(self, event: FunctionToolResultEvent) -> None:
        part = event.part
        if event.content:
            self._known.append(event.content)
        if part.tool_call_id in self._stored:
            return
        parts: list[ModelRequestPart] = [part]
        if revealed := self._recorded.revealed.get(part.tool_call_id):
            parts.append(ToolAvailabilityDeltaPart(tools_added=revealed, tool_call_id=part.tool_call_id))
        if event.content:
            parts.append(UserPromptPart(content=event.content))
        self._stored.add(part.tool_call_id)
        try:
            [message] = await self._ctx.append(message_codec.tool_message(ModelRequest(parts=parts)))
        except (InvalidInputError, MessageTooLargeError, PydanticSerializationError) as error:
            part.content, part.outcome, part.metadata = f"The result cannot be stored: {error}", "failed", None
            [message] = await self._ctx.append(message_codec.tool_message(ModelRequest(parts=[part])))
        [result] = message.tool_results
        await self._ctx.emit(
            {"call_id": result.call_id, "name": part.tool_name, "is_error": result.is_error}, type="tool.completed"
        )

    def _shown(self, request: ModelRequest) -> list[Message]:
        """Return the user messages in ``request`` that are not stored yet.

        Such a message is feedback on an answer, or comes from a hook or a tool.
        """
        known = {id(item) for item in self._known}
        parts = [
            part
            for part in request.parts
            if isinstance(part, UserPromptPart | RetryFeedbackPart) and id(part) not in known and id(part.content) not in known
        ]
        self._known += parts
        return message_codec.from_request(ModelRequest(parts=parts)) if parts else []

    def _distinguish(self, part: Any) -> None:
        """Give a call another id if an earlier call has the same id.

        Each result, approval and step then belongs to one call (H5).
        """
        if isinstance(part, ToolCallPart):
            if part.tool_call_id in self._ids:
                part.tool_call_id = new_id()
            self._ids.add(part.tool_call_id)

    def _account(self, run: AgentRun[Any, Any], message: Message) -> Usage:
        """Return the usage of ``message``, with the seconds since the previous message.

        Usage that belongs to no message is added to the usage of the run.
        """
        assert message.usage is not None
        now = time.monotonic()
        usage = message.usage.model_copy(update={"seconds": now - self._since})
        self._since = now
        total = run.usage
        self._counted += message.usage
        used = message_codec.usage_of_run(total)
        if (hidden := less(used, self._counted)) != Usage():
            self._counted += hidden
            self._ctx.add_usage(hidden, model_name(message))
        self._used += usage + hidden
        return usage


def _last_response(messages: Sequence[ModelMessage]) -> ModelResponse:
    return next(message for message in reversed(messages) if isinstance(message, ModelResponse))


def _streams(model: Model[Any]) -> bool:
    """Return whether ``model`` can stream its answers."""
    model = unwrapped(model)
    if isinstance(model, FunctionModel):
        return model.stream_function is not None
    return type(model).request_stream is not Model.request_stream
