"""An Agent of cubeloop or cubepi as an agent of an App. Workers execute the agent's runs.

::

    app = App(agents={"support": cubeloop_agent})

The run's :class:`~runyard.RunContext` takes the place of the agent's checkpointer and stores the messages. A model's answer is
stored before its tool calls start. A tool's result is stored as soon as the tool has returned. A later attempt continues after
the last stored message, and executes only the tool calls that have no result (R9). The agent's own ``checkpointer`` and
``thread_id`` are not used. The agent's channel asks its questions through the run (:mod:`.cubeloop_channel`).
"""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..app import AgentOptions
from ..domain.messages import Message
from ..domain.size_limits import JsonObject
from ..errors import AgentCancelledError, InvalidInputError
from ..execution.context import RunContext
from ..execution.provider_outages import SPENT, passes
from .cubeloop_channel import bind, channels, detached, may_ask
from .cubeloop_framework import NAMES, Framework, dumped, stored
from .cubeloop_messages import KEPT
from .cubeloop_requests import STATE

if TYPE_CHECKING:
    from cubeloop import Agent

    Factory: TypeAlias = Callable[[RunContext], Agent[Any] | Awaitable[Agent[Any]]]

HOOKS: Final = (
    "convert_to_llm",
    "transform_context",
    "transform_system_prompt",
    "after_model_response",
    "before_tool_call",
    "resolve_tool_call",
    "after_tool_call",
    "should_stop_after_turn",
    "on_run_end",
    "on_payload",
    "on_response",
    "tool_execution",
)
"""Names that are both arguments and attributes of an Agent.

The attribute for a hook includes the hooks of the middleware.
"""
NOT_STORED: Final = ("error", "aborted")
"""Stop reasons of incomplete answers. An answer with one of these reasons is not stored, so that no attempt reads it (R7)."""

PASSING_TYPES: Final = ("ProviderUnavailable", "RateLimited")
"""Class names of cubeloop's temporary errors. An error without an HTTP status is temporary if its class is in this list."""


class CubeloopAgentError(RuntimeError):
    """A cubeloop agent ended with an error, for example of its provider.

    ``retryable``: whether another attempt may succeed. ``temporary``: whether the provider's error is temporary.
    ``retry_after``: the pause in seconds that the provider requested, or None.
    """

    def __init__(
        self, message: str, *, retryable: bool = True, temporary: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.retryable, self.temporary, self.retry_after = retryable, temporary, retry_after


@dataclass(frozen=True, slots=True)
class Served:
    """A cubeloop agent as the agent of an App (:func:`serve`). ``make``: a function that makes the agent of one attempt."""

    make: Callable[[RunContext], Any]
    asks_humans: bool = False
    options: AgentOptions | None = None

    async def __call__(self, ctx: RunContext) -> None:
        agent = self.make(ctx)
        agent = await agent if inspect.isawaitable(agent) else agent
        if (own := _framework_of(agent)) is None:
            raise InvalidInputError(f"the function makes a {type(agent).__name__}, not an Agent of cubeloop", field="agent")
        await _Attempt(ctx, own, agent).run()


def adapt(agent: object) -> Served | None:
    """Return an Agent of cubeloop or cubepi as an agent for an App. Return None for any other object."""
    return serve(agent) if _framework_of(agent) is not None else None  # type: ignore[arg-type]


def serve(agent: Agent[Any] | Factory, *, asks_humans: bool | None = None, options: AgentOptions | None = None) -> Served:
    """Return ``agent`` as an agent for an :class:`~runyard.App`.

    ``agent``: an Agent, or a function that makes the Agent of an attempt from its :class:`~runyard.RunContext`. If an Agent is
    given, each attempt uses a copy of the Agent with the same model, tools and hooks. Give a function if a middleware object
    stores state in its own attributes. ``asks_humans``: whether the agent may ask a human. If True, a probe of the agent fails
    with HitlNotAllowedError, and the agent is not called (F9). The default is True for a function. For an Agent, the default
    is True if the Agent has a channel. The default is also True if the attribute ``hitl`` of a tool or a middleware object is
    set. ``options``: queue, timeout and retries of the agent's runs.

    Raises InvalidInputError for an Agent whose middleware writes to the state of this Agent object.
    """
    own = _framework_of(agent)
    if own is None:
        if not callable(agent):
            raise InvalidInputError("serve takes an Agent of cubeloop, or a function that makes an Agent", field="agent")
        return Served(agent, asks_humans=True if asks_humans is None else asks_humans, options=options)
    writers = [type(part).__name__ for part in getattr(agent, "_middleware", ()) if hasattr(part, "_extra_ref")]
    if writers:
        raise InvalidInputError(
            f"{', '.join(writers)} writes to the state of one Agent object; serve a function that makes the Agent of each "
            "attempt: serve(lambda ctx: make_agent())",
            field="agent",
        )
    bind(own, *channels(agent))  # a copy has no channel, but a tool may use the channel of the original
    return Served(lambda ctx: _copy(agent, own), may_ask(agent) if asks_humans is None else asks_humans, options)


def _framework_of(agent: object) -> Framework | None:
    """Return the package of the Agent ``agent``, or None. Only packages that the program has imported can have agents."""
    known = (Framework(name) for name in NAMES if name in sys.modules)
    return next((one for one in known if isinstance(agent, one.agent)), None)


def _copy(agent: Any, framework: Framework) -> Any:
    """Return an agent with the same model, tools and hooks, and with a separate state."""
    hooks = {name: getattr(agent, name) for name in HOOKS if hasattr(agent, name)}
    state = agent.state
    tools = [replace(tool, hitl=None) for tool in state.tools]  # a tool's ``hitl`` belongs to one run
    return framework.agent(
        model=agent._model, system_prompt=state.system_prompt, tools=tools, reasoning=state.reasoning, middleware=[], **hooks
    )


class _Attempt:
    """One attempt of a run, executed by ``agent``. The agent uses this object as its checkpointer."""

    def __init__(self, ctx: RunContext, framework: Framework, agent: Any) -> None:
        self._ctx, self._framework, self._agent = ctx, framework, agent
        self._error: Exception | None = None
        self._results: dict[str, str] = {}
        self._asked: set[str] = set()

    async def run(self) -> None:
        """Execute the agent from the last stored message until it ends. Raise the agent's error."""
        ctx, agent = self._ctx, self._agent
        bind(self._framework, *channels(agent))
        history = await ctx.history()
        agent.state.messages = self._framework.messages(history)
        agent.state.extra.update({key: value for key, value in ctx.extra.items() if key != STATE})
        agent.state.tools = [replace(tool, execute=self._durable(tool.execute)) for tool in agent.state.tools]
        if agent.before_tool_call is not None:
            agent.before_tool_call = self._scoped(agent.before_tool_call)
        agent.checkpointer, agent.thread_id, agent._run_aware = self, ctx.thread_id, False
        agent._checkpoint_loaded = True
        unsubscribe = agent.subscribe(self._relay)
        try:
            await self._execute(history)
        finally:
            unsubscribe()
        await self._end()

    async def _execute(self, history: Sequence[Message]) -> None:
        """Continue the conversation. First execute the tool calls of this run that have no result."""
        own = [message for message in history if message.run_id == self._ctx.run_id]
        closed = {part.call_id for message in own for part in message.tool_results}
        asked = next((message for message in reversed(own) if message.role == "assistant"), None)
        if asked is not None and any(call.id not in closed for call in asked.tool_calls):
            self._agent.state.active_run_id = self._ctx.run_id
            await self._agent._run_hitl_resume()
        elif not (own and own[-1] is asked):  # otherwise the last answer is stored, and the run only has to be completed
            await self._agent.resume(run_id=self._ctx.run_id)
        else:
            self._agent.state.last_outcome = "complete"

    async def _end(self) -> None:
        """Raise the error of the attempt, if any.

        After most errors cubeloop returns normally, and stores the text of the error.
        """
        state = self._agent.state
        self._ctx.extra.update(_json_object(state.extra))
        if self._error is not None:
            raise self._error
        if state.last_outcome == "suspended":
            await self._ctx.suspend()
        last = next((message for message in reversed(state.messages) if message.role == "assistant"), None)
        reason = getattr(last, "stop_reason", None)
        if state.error_message is not None or reason == "error":
            raise _error(state.error_message or "the agent ended with an error", last)
        if reason == "aborted" or state.last_outcome != "complete":
            raise AgentCancelledError("the agent aborted its own run", run_id=self._ctx.run_id)

    async def append(self, thread_id: str, messages: Sequence[Any]) -> None:
        """Store the agent's messages.

        After a cancel, cubeloop makes results for unfinished calls. These results are not stored.
        """
        new: list[Message] = []
        for message in messages:
            if message.role == "tool_result" and (known := self._results.pop(message.tool_call_id, None)) is not None:
                if "id" in type(message).model_fields:
                    message.id = known
            elif getattr(message, "stop_reason", None) in NOT_STORED:
                self._ctx.discard_stream()
            elif not self._ctx.cancelled:
                new.append(stored(message))
        if new:
            await self._append(*new)

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Copy the agent's extra into the run's extra. The run's extra is saved when the run is suspended or completes."""
        self._ctx.extra.update(_json_object(extra))

    async def load(self, thread_id: str) -> None:
        """Return None, because the agent already has its messages."""

    async def _append(self, *messages: Message) -> None:
        try:
            await self._ctx.append(*messages)
        except Exception as error:
            self._error = self._error or error  # cubeloop's state has only the text of the error
            raise

    def _durable(self, execute: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a function that executes a tool as a step. The step has the idempotency key of the call."""

        async def call(call_id: str, *args: Any, **named: Any) -> Any:
            with detached(self._framework), self._ctx.in_tool(call_id):
                return await execute(call_id, *args, **named)

        return call

    def _scoped(self, hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a function that calls ``hook`` before a tool call.

        A question that ``hook`` asks belongs to this tool call.
        """

        async def before(context: Any, **named: Any) -> Any:
            with detached(self._framework), self._ctx.in_tool(context.tool_call.id):
                result = await hook(context, **named)
            if result is not None and result.hitl_trace is not None:
                self._asked.add(context.tool_call.id)  # cubeloop later adds the trace to the result
            return result

        return before

    async def _relay(self, event: Any, signal: object) -> None:
        """Send an event of the agent to the run's stream. If the event is the end of a tool call, store the result first."""
        match event.type:
            case "message_update":
                self._speak(event.stream_event, event.message)
            case "tool_execution_start":
                started: JsonObject = {"call_id": event.tool_call_id, "name": event.tool_name, "arguments": event.args}
                await self._ctx.emit(started, type="tool.started")
            case "tool_execution_end":
                await self._store_result(event)
                ended: JsonObject = {"call_id": event.tool_call_id, "name": event.tool_name, "is_error": event.is_error}
                await self._ctx.emit(ended, type="tool.completed")

    def _speak(self, piece: Any, message: Any) -> None:
        match piece.type:
            case "text_delta" if piece.delta:
                self._ctx.stream_part(piece.delta)
            case "thinking_delta" if piece.delta:
                self._ctx.stream_part(piece.delta, "thinking")
            case "toolcall_delta" if piece.delta:
                index = piece.content_index
                part = message.content[index] if index is not None and index < len(message.content) else None
                call = (part.id, part.name) if part is not None and part.type == "tool_call" else ("", "")
                self._ctx.stream_part(piece.delta, "arguments", call)

    async def _store_result(self, event: Any) -> None:
        """Store a tool's result immediately.

        cubeloop itself stores no result before the last tool call of the model's answer has ended.
        """
        call_id, result = event.tool_call_id, event.result
        if call_id in self._asked or self._ctx.cancelled or not hasattr(result, "content"):
            return
        kind = self._framework.module("providers.base").ToolResultMessage
        message = kind(
            tool_call_id=call_id,
            tool_name=event.tool_name,
            content=result.content,
            details=result.details,
            is_error=event.is_error,
        )
        known = uuid.uuid4().hex
        made = stored(message)
        made.provider_details = {KEPT: {**_json_object((made.provider_details or {}).get(KEPT)), "id": known}}
        await self._append(made)
        self._results[call_id] = known


def _error(words: str, last: Any) -> CubeloopAgentError:
    """Return the error with which an attempt ends.

    ``last``: the last message of the agent. cubeloop 0.15 adds the fields of a provider's error to this message. If the fields
    are missing, the options of the run decide whether another attempt follows.
    """
    status, code, kind = (getattr(last, name, None) for name in ("status_code", "error_code", "error_type"))
    temporary = passes(status, code) or (status is None and kind in PASSING_TYPES and code != SPENT)
    unknown = status is None and code is None and kind is None
    retry_after = getattr(last, "retry_after", None)
    return CubeloopAgentError(words, retryable=temporary or unknown, temporary=temporary, retry_after=retry_after)


def _json_object(value: Any) -> JsonObject:
    made = dumped(value if value is not None else {})
    if not isinstance(made, dict):
        raise InvalidInputError("an agent's extra must be a JSON object", field="extra")
    return made
