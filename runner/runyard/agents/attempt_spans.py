"""pydantic-ai's spans of model requests and tools, below the span of their attempt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from opentelemetry.baggage import set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.trace import TracerProvider, get_tracer_provider
from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, Instrumentation
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext

from ..support import genai_spans, tracing


@dataclass
class AttemptSpans(Instrumentation):
    """pydantic-ai's instrumentation without the span for the agent.

    The span of the attempt takes the place of the agent's span.

    A worker that dies loses its open spans. The next attempt of the run then makes the lost span of the attempt again
    (:mod:`runyard.execution.attempt_trace`). The spans of models and tools are therefore children of the attempt's span. As
    children of an agent's span, they would lose their parent in a crash, because no process can make that span again.

    ``served_as``: the name of the agent in its App.
    """

    served_as: str = ""

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Give the names of the agent and the conversation to the spans of models and tools, as pydantic-ai does."""
        named = set_baggage("gen_ai.agent.name", self.served_as)
        token = attach(set_baggage("gen_ai.conversation.id", ctx.conversation_id or "", context=named))
        try:
            return await handler()
        finally:
            detach(token)


def spans_of(agent: AbstractAgent[Any, Any], served_as: str | None) -> list[AbstractCapability[Any]]:
    """Return a list with the capability that traces a run of ``agent``, or an empty list.

    The list is empty if there is no tracer provider, or if the agent runs in-process (``served_as`` is None). The list is also
    empty if the program itself has set the instrumentation of the agent.
    """
    if served_as is None or tracing.tracer() is None or _is_set(agent):
        return []
    return [AttemptSpans(settings=_settings(get_tracer_provider(), genai_spans.records_content()), served_as=served_as)]


def _is_set(agent: AbstractAgent[Any, Any]) -> bool:
    """Return whether the program has set the instrumentation of ``agent`` or of all agents."""
    capabilities: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(capabilities.append)
    return (
        getattr(agent, "instrument", None) is not None
        or bool(getattr(Agent, "_instrument_default", False))
        or any(isinstance(each, Instrumentation) for each in capabilities)
        or isinstance(agent.model, InstrumentedModel)
    )


@lru_cache(maxsize=2)
def _settings(provider: TracerProvider, content: bool) -> InstrumentationSettings:
    return InstrumentationSettings(
        tracer_provider=provider,
        include_content=content,
        include_binary_content=False,
        include_model_request_parameters=content,
    )
