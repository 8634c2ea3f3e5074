"""Capabilities that make a run of pydantic-ai durable. These capabilities are added to the agent's own capabilities.

:class:`Recorded` is the outermost layer around each tool. If an earlier attempt stored the result of a call, this layer returns
the stored result. The layer turns an exception of a tool into a result that the model sees (R7). If a tool asks a human, the
layer defers the call, so that parallel tools can finish. :class:`Humans` is the innermost layer. When all tools have finished,
this layer asks the open questions. By default, a call that an earlier attempt started and did not finish is repeated.
``on_unknown`` in the metadata of the tool can name another policy. ``execution/steps.py`` applies this policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai import RunContext as ModelContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import RunCancelled, SkipToolExecution, ToolFailedError, ToolRetryError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelRequest,
    ToolAvailabilityDeltaPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ToolCallPart as ModelToolCall
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, Tool, ToolApproved, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import ApprovalRequiredToolset, CombinedToolset, ExternalToolset, FunctionToolset, WrapperToolset

from ..domain.approvals import Approval
from ..domain.size_limits import JsonObject, JsonValue
from ..errors import BudgetExceededError, StepUnknownError
from ..execution.attempt_store import StoreUnansweredError
from ..execution.context import RunContext
from ..execution.control_signals import Deferred, signals_in
from ..execution.steps import OnUnknown, checked, tool_step
from ..support.tracebacks import kept_traceback
from . import message_codec

OURS: Final = "runyard"
"""The key of runyard's entry in the metadata of a deferred call and of a tool."""
CONTROL: Final = (
    *(ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, SkipToolExecution, ToolRetryError, ToolFailedError),
    *(ValidationError, RunCancelled),
)
"""Exceptions that pydantic-ai itself handles."""
OF_THE_ATTEMPT: Final = (StoreUnansweredError, StepUnknownError, BudgetExceededError)
"""Errors that end the attempt or the run, even if a tool raises them."""

OF_THE_PROCESS: Final = (KeyboardInterrupt, GeneratorExit)
"""Exceptions that do not come from the tool. SystemExit and the cancellation of an inner task count as errors of the tool."""

log = logging.getLogger("runyard.agents")


@dataclass(frozen=True, slots=True)
class Result:
    """A tool's stored result."""

    part: ToolReturnPart
    shown: tuple[UserPromptPart, ...] = ()
    revealed: tuple[str, ...] = ()

    def again(self) -> Any:
        """Return the stored result, or raise the stored error."""
        match self.part.outcome:
            case "success":
                content = [item for part in self.shown for item in _items(part.content)]
                return ToolReturn(
                    return_value=self.part.content,
                    content=content or None,
                    metadata=self.part.metadata,
                    tools=list(self.revealed) or None,
                )
            case "denied":
                return ToolDenied(message=str(self.part.content))
            case "retried":
                raise ModelRetry(self.part.model_response_str(wrap_if_error=False))
            case _:
                raise ToolFailed(self.part.model_response_str(wrap_if_error=False))


def results_in(requests: Iterable[ModelRequest]) -> dict[str, Result]:
    """Return the tool results in stored ``requests``, by the ids of their calls."""
    found: dict[str, Result] = {}
    last = ""
    for part in (part for request in requests for part in request.parts):
        match part:
            case ToolReturnPart():
                last = part.tool_call_id
                found[last] = Result(part)
            case UserPromptPart() if last:
                found[last] = Result(found[last].part, (*found[last].shown, part), found[last].revealed)
            case ToolAvailabilityDeltaPart() if last:
                found[last] = Result(found[last].part, found[last].shown, tuple(part.tools_added))
    return found


@dataclass
class Capability(AbstractCapability[Any]):
    """A capability made for one run. To keep the stream fast, the capability does not process the stream's tokens."""

    @classmethod
    def get_serialization_name(cls) -> str | None:
        return None

    def wrap_run_event_stream(
        self, ctx: ModelContext[Any], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        return stream

    @property
    def has_wrap_run_event_stream(self) -> bool:
        return False

    def listens_to(self, event: AgentStreamEvent) -> bool:
        return False


@dataclass
class Recorded(Capability):
    """Executes the tools of one attempt as steps of the run.

    ``results``: the results that earlier attempts stored, by call id. A call with a stored result is not executed.
    ``revealed``: by call id, the names of the tools that the result of the call made available to the model.
    """

    context: RunContext
    results: Mapping[str, Result]
    revealed: dict[str, list[str]] = field(default_factory=dict)

    def get_ordering(self) -> CapabilityOrdering | None:
        return CapabilityOrdering(position="outermost")

    async def handle_deferred_tool_calls(
        self, ctx: ModelContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Return the stored results of deferred calls. A call without a stored result is left out."""
        known: dict[str, Any] = {}
        for call in [*requests.calls, *requests.approvals]:
            if (result := self.results.get(call.tool_call_id)) is not None:
                try:
                    known[call.tool_call_id] = result.again()
                except (ModelRetry, ToolFailed) as settled:
                    known[call.tool_call_id] = settled
        return DeferredToolResults(calls=known) if known else None

    async def wrap_tool_execute(
        self, ctx: ModelContext[Any], *, call: ModelToolCall, tool_def: ToolDefinition, args: dict[str, Any], handler: Any
    ) -> Any:
        if (known := self.results.get(call.tool_call_id)) is not None:
            return known.again()
        try:
            with self.context.in_tool(call.tool_call_id):
                result = await self._execute(call, tool_def, args, handler)
        except CONTROL:
            raise
        except OF_THE_ATTEMPT:
            raise
        except Exception as error:
            if isinstance(error, UnexpectedModelBehavior) and ctx.retry >= ctx.max_retries and error.__cause__ is not None:
                raise  # the tool has used up its retries
            raise self._failed(call, error) from error
        except BaseException as error:
            signals = [*signals_in(error)]
            if signals and all(isinstance(signal, Deferred) for signal in signals):
                raise CallDeferred({OURS: {"kind": "wait"}}) from None
            if signals or isinstance(error, OF_THE_PROCESS) or _is_cancelled():
                raise
            raise self._failed(call, error) from error
        if isinstance(result, ToolReturn) and result.tools:
            self.revealed[call.tool_call_id] = list(result.tools)
        return result

    def _failed(self, call: ModelToolCall, error: BaseException) -> ToolFailed:
        """Log the exception of a tool. Return an exception that makes pydantic-ai send the error to the model."""
        ids = self.context.thread_id, self.context.run_id, call.tool_name, call.tool_call_id
        trace = kept_traceback(error, self.context.traceback_filter) or "(no traceback)"
        log.warning("tool_failed thread_id=%s run_id=%s tool_name=%s tool_call_id=%s\n%s", *ids, trace)
        return ToolFailed(f"{type(error).__name__}: {error}")

    async def _execute(self, call: ModelToolCall, tool_def: ToolDefinition, args: dict[str, Any], handler: Any) -> Any:
        policy: OnUnknown = checked((tool_def.metadata or {}).get("on_unknown", "retry"))
        if policy == "retry":
            return await handler(args)

        async def recorded(arguments: dict[str, Any]) -> Any:
            result = await handler(arguments)
            return result.return_value if isinstance(result, ToolReturn) else result

        return await self.context.step(recorded, args, key=tool_step(call.tool_call_id), on_unknown=policy)


@dataclass
class Humans(Capability):
    """Asks humans to approve calls, to answer questions, and to give the results of external calls.

    All questions are asked at once. The run is suspended until all questions are answered. Each answer becomes the result of
    its call.

    This layer also emits ``tool.started``. No layer can refuse a call after this event, because this layer is the innermost.
    """

    context: RunContext

    def get_ordering(self) -> CapabilityOrdering | None:
        return CapabilityOrdering(position="innermost")

    async def before_tool_execute(
        self, ctx: ModelContext[Any], *, call: ModelToolCall, tool_def: ToolDefinition, args: dict[str, Any]
    ) -> dict[str, Any]:
        started = message_codec.call_of(call)
        await self.context.emit(
            {"call_id": started.id, "name": started.name, "arguments": started.arguments}, type="tool.started"
        )
        return args

    async def handle_deferred_tool_calls(
        self, ctx: ModelContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        ours = {name: data.get(OURS) or {} for name, data in requests.metadata.items()}
        waiting = [call for call in requests.calls if ours.get(call.tool_call_id, {}).get("kind") == "wait"]
        asked = [call for call in requests.calls if call not in waiting]
        answers = await asyncio.gather(
            *(self._approve(call, ours.get(call.tool_call_id, {})) for call in requests.approvals),
            *(self._ask(call, ours.get(call.tool_call_id, {}), requests) for call in asked),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if waiting:
            await self.context.suspend()
        approvals = dict(zip((c.tool_call_id for c in requests.approvals), answers, strict=False))
        calls: dict[str, Any] = {}
        for call, answer in zip(asked, answers[len(approvals) :], strict=True):
            read = ours.get(call.tool_call_id, {}).get("read")
            calls[call.tool_call_id] = read(answer) if read is not None else answer
        verdicts: dict[str, bool | ToolApproved | ToolDenied] = {
            name: _verdict(answer) for name, answer in approvals.items() if isinstance(answer, Approval)
        }
        return DeferredToolResults(approvals=verdicts, calls=calls)

    async def _approve(self, call: ModelToolCall, ours: Mapping[str, Any]) -> Approval:
        question, timeout, on_timeout = ours.get("question"), ours.get("timeout"), ours.get("on_timeout")
        return await self.context.approve(
            message_codec.call_of(call), question, details=ours.get("details"), timeout=timeout, on_timeout=on_timeout
        )

    async def _ask(self, call: ModelToolCall, ours: Mapping[str, Any], requests: DeferredToolRequests) -> JsonValue:
        part = message_codec.call_of(call)
        payload: JsonObject = ours.get("payload") or {
            "question": f"What is the result of {part.name}?",
            "tool_call": part.model_dump(mode="json"),
        }
        return await self.context.ask(
            payload,
            ours.get("schema"),
            key=f"call:{part.id}",
            timeout=ours.get("timeout"),
            on_timeout=ours.get("on_timeout"),
        )


def _is_cancelled() -> bool:
    """Return whether the current task was cancelled.

    If only a task that the current task awaits was cancelled, return False.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def asks_humans(agent: AbstractAgent[Any, Any]) -> bool:
    """Return whether a part of ``agent`` can ask a human. If it can, a probe fails before the agent is called (F9).

    The search finds tools that need approval, and tools with ``{"runyard": {"asks_humans": true}}`` in their metadata. The
    search finds toolsets of approvals and of external calls. The search finds capabilities that handle deferred calls, and
    capabilities with a true attribute ``asks_humans``. The search does not find a tool that calls ``ctx.ask``. If such a tool
    asks a question in a probe, the probe fails.
    """
    capabilities: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(capabilities.append)
    return any(map(_capability_asks, capabilities)) or any(map(_toolset_asks, agent.toolsets))


def _capability_asks(capability: AbstractCapability[Any]) -> bool:
    handles = type(capability).handle_deferred_tool_calls is not AbstractCapability.handle_deferred_tool_calls
    return handles or bool(getattr(capability, "asks_humans", False))


def _toolset_asks(toolset: object) -> bool:
    if isinstance(toolset, ApprovalRequiredToolset | ExternalToolset):
        return True
    if isinstance(toolset, WrapperToolset):
        return _toolset_asks(toolset.wrapped)
    if isinstance(toolset, CombinedToolset):
        return any(map(_toolset_asks, toolset.toolsets))
    return isinstance(toolset, FunctionToolset) and any(map(_tool_asks, toolset.tools.values()))


def _tool_asks(tool: Tool[Any]) -> bool:
    return tool.requires_approval or bool(((tool.metadata or {}).get(OURS) or {}).get("asks_humans"))


def _verdict(approval: Approval) -> ToolApproved | ToolDenied:
    if approval:
        return ToolApproved(override_args=dict(approval.arguments))
    return ToolDenied(message=approval.reason or "The tool call was denied.")


def _items(content: Any) -> list[Any]:
    return [content] if isinstance(content, str) else list(content)
