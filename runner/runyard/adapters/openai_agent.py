"""An agent of the OpenAI Agents SDK as an agent of an App. The SDK is imported only for such an agent.

The SDK is imported as ``agents``, and a program may have its own package with this name. :func:`adapt` therefore imports no
package. The function examines the package ``agents`` that the program has imported.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..app import AgentOptions
from ..errors import InvalidInputError

if TYPE_CHECKING:
    from agents import Agent, RunConfig, RunHooks

    from ..execution.context import RunContext

MAX_TURNS = 10
"""The SDK's default for the maximum number of model requests of a run."""


@dataclass(frozen=True, slots=True)
class ServedAgent:
    """An agent of the OpenAI Agents SDK as the agent of an App (:func:`serve`)."""

    agent: Agent[Any]
    context: object = None
    run_config: RunConfig | None = None
    hooks: RunHooks[Any] | None = None
    max_turns: int = MAX_TURNS
    stream: bool = True
    options: AgentOptions | None = None

    @property
    def asks_humans(self) -> bool:
        """Whether a tool of the agent may need an approval (F9). Tools of the agents to which the agent hands off are
        included."""
        from .openai_recording import asks_humans

        return asks_humans(self.agent)

    async def __call__(self, ctx: RunContext) -> None:
        from .openai_drive import drive

        context = self.context(ctx) if callable(self.context) else self.context
        context = await context if inspect.isawaitable(context) else context
        options: dict[str, Any] = {"run_config": self.run_config, "hooks": self.hooks, "max_turns": self.max_turns}
        await drive(ctx, self.agent, context=context, stream=self.stream, **options)


def serve(
    agent: Agent[Any],
    *,
    context: object = None,
    run_config: RunConfig | None = None,
    hooks: RunHooks[Any] | None = None,
    max_turns: int = MAX_TURNS,
    stream: bool = True,
    options: AgentOptions | None = None,
) -> ServedAgent:
    """Return an agent of the OpenAI Agents SDK as an agent for an :class:`~runyard.App`.

    ``context``: the object that the SDK gives to tools and hooks. Instead of the object, give a sync or async function that
    makes the object of each attempt from a :class:`~runyard.RunContext`. ``run_config``, ``hooks`` and ``max_turns``: the
    arguments of the SDK's ``Runner.run`` with these names. ``max_turns`` counts the model requests of all attempts of a run.
    ``stream``: whether the models stream their tokens. If True, the run's events contain each token when it arrives. A streamed
    request for chat completions has the option ``include_usage``. Set ``stream=False`` for a server that refuses this option.
    ``options``: queue, timeout and retries of the agent's runs.

    Raises InvalidInputError if ``agent`` is not an agent of the SDK.
    """
    if not _is_agent(agent):
        raise InvalidInputError("serve takes an agent of the OpenAI Agents SDK (agents.Agent)", field="agent")
    return ServedAgent(agent, context, run_config, hooks, max_turns, stream, options)


def adapt(agent: object) -> ServedAgent | None:
    """Return an agent of the OpenAI Agents SDK as an agent for an App. Return None for any other object."""
    return ServedAgent(agent) if _is_agent(agent) else None  # type: ignore[arg-type]


def _is_agent(agent: object) -> bool:
    sdk = _sdk()
    return sdk is not None and isinstance(agent, sdk.Agent)


def _sdk() -> ModuleType | None:
    """Return the SDK, or None if the program has not imported the SDK.

    A package ``agents`` that is not the SDK does not count.
    """
    package = sys.modules.get("agents")
    known = all(isinstance(getattr(package, name, None), type) for name in ("Agent", "Runner", "RunConfig", "FunctionTool"))
    return package if known else None
