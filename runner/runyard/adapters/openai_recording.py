"""Recording of an attempt of an OpenAI Agents SDK agent. The attempt executes copies of the agents. A copy has the same tools,
handoffs and models as its agent, each in a wrapper. The wrapper asks the attempt's :class:`Record` first. An agent that is used
as a tool is not copied. The record has the call and the result of such a tool, but not the model requests of the tool's agent.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from agents import Agent, FunctionTool, Handoff, Model, ModelProvider, RunConfig, Tool
from agents.items import ModelResponse
from agents.tool_context import ToolContext

if TYPE_CHECKING:
    from agents import RunContextWrapper


class Record(Protocol):
    """The record of one attempt.

    ``respond`` returns the recorded answer of a model. If the record has no answer, ``respond`` sends the request to
    ``model``. ``invoke`` returns the recorded result of a tool call. If the record has no result, ``invoke`` calls ``tool``.
    """

    async def respond(self, model: Model, args: tuple[Any, ...], options: dict[str, Any]) -> ModelResponse: ...
    async def invoke(self, tool: FunctionTool, invoker: Any, context: ToolContext[Any], arguments: str) -> Any: ...


inside: ContextVar[Record | None] = ContextVar("runyard_openai_tool", default=None)
"""The record of the attempt whose tool the current task executes, or None.

Model requests that a tool makes are not recorded.
"""


class RecordedModel(Model):
    """A model whose answers are recorded. Requests that a tool makes are not recorded."""

    def __init__(self, record: Record, model: Model) -> None:
        self._record, self._model = record, model

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        if inside.get() is self._record:
            return await self._model.get_response(*args, **options)
        return await self._record.respond(self._model, args, options)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        return self._model.stream_response(*args, **options)

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        await self._model.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class RecordedProvider(ModelProvider):
    """A provider of models whose answers are recorded."""

    def __init__(self, record: Record, provider: ModelProvider) -> None:
        self._record, self._provider = record, provider

    def get_model(self, model_name: str | None) -> Model:
        return RecordedModel(self._record, self._provider.get_model(model_name))

    async def aclose(self) -> None:
        await self._provider.aclose()


class RecordedInvoker:
    """The ``on_invoke_tool`` of a tool whose calls are recorded. Its attributes are those of the tool's own invoker."""

    def __init__(self, record: Record, tool: FunctionTool) -> None:
        self._record, self._tool, self._invoker = record, tool, tool.on_invoke_tool

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        return await self._record.invoke(self._tool, self._invoker, context, arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # otherwise a copy of the tool would call its invoker without this wrapper
            raise AttributeError(name)
        return getattr(self._invoker, name)


class Copies:
    """The copies of agents for one attempt. Each agent has one copy, even if agents hand off to each other."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._made: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def of(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the copy of ``agent``. The calls of the copy's model and tools are recorded."""
        if (known := self._made.get(id(agent))) is not None:
            return known[1]
        made = copy.copy(agent)
        self._made[id(agent)] = self._made[id(made)] = (agent, made)
        made.tools = [*agent.tools]
        made.handoffs = [self._handoff(each) for each in agent.handoffs]
        if isinstance(agent.model, Model):
            made.model = RecordedModel(self._record, agent.model)

        async def get_all_tools(context: RunContextWrapper[Any]) -> list[Tool]:
            return [self._tool(tool) for tool in await type(made).get_all_tools(made, context)]

        made.get_all_tools = get_all_tools  # type: ignore[assignment, method-assign]
        return made

    def _tool(self, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool) or isinstance(tool.on_invoke_tool, RecordedInvoker):
            return tool
        made = copy.copy(tool)
        made.on_invoke_tool = RecordedInvoker(self._record, made)
        return made

    def _handoff(self, handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(handoff, Agent):
            return self.of(handoff)
        made = copy.copy(handoff)

        async def invoke(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
            return self.of(await handoff.on_invoke_handoff(context, arguments))

        made.on_invoke_handoff = invoke
        return made


def recorded(record: Record, config: RunConfig | None, thread_id: str) -> RunConfig:
    """Return a copy of ``config`` whose models record their answers in ``record``.

    Without a ``group_id``, traces are grouped by thread.
    """
    made = copy.copy(config) if config is not None else RunConfig()
    made.model_provider = RecordedProvider(record, made.model_provider)
    if isinstance(made.model, Model):
        made.model = RecordedModel(record, made.model)
    if made.group_id is None:
        made.group_id = thread_id
    return made


def asks_humans(agent: Agent[Any]) -> bool:
    """Return whether a tool of ``agent`` may need an approval (F9).

    Agents to which ``agent`` hands off, and agents that are its tools, are examined as well.

    The function examines neither the tools of MCP servers nor agents that a handoff function chooses. If such a tool asks for
    an approval in a probe, the probe fails.
    """
    return any(map(_asks, _all_tools(agent, set())))


def _all_tools(agent: Agent[Any], seen: set[int]) -> Iterable[Tool]:
    if id(agent) in seen:
        return
    seen.add(id(agent))
    yield from agent.tools
    for tool in agent.tools:
        if isinstance(used := getattr(tool, "_agent_instance", None), Agent):
            yield from _all_tools(used, seen)
    for handoff in agent.handoffs:
        target = handoff if isinstance(handoff, Agent) else _target(handoff)
        if target is not None:
            yield from _all_tools(target, seen)


def _target(handoff: Handoff[Any, Any]) -> Agent[Any] | None:
    """Return the agent to which a handoff hands off.

    Return None if this agent no longer exists, because the SDK has only a weak reference to the agent.
    """
    reference = getattr(handoff, "_agent_ref", None)
    found = reference() if callable(reference) else None
    return found if isinstance(found, Agent) else None


def _asks(tool: Tool) -> bool:
    if getattr(tool, "needs_approval", False) is not False:
        return True
    config = getattr(tool, "tool_config", None)  # a hosted MCP server asks the client of the Responses API
    policy = config.get("require_approval", "never") if isinstance(config, dict) else "never"
    return policy != "never" and getattr(tool, "on_approval_request", None) is None
