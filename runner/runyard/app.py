"""App, the registry of the agents that a worker serves, with the version of their code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, overload

from .domain.quoting import brief
from .domain.runs import RetryPolicy, VersionPolicy
from .domain.validation import check_id
from .errors import AgentNotFoundError, InvalidInputError

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

    from .execution.context import RunContext

AgentFunction: TypeAlias = "Callable[[RunContext], Awaitable[None]]"

DEFAULT_AGENT = "default"
"""The agent that serves a run without an agent. If no agent has this name, the first registered one serves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """One agent as registered.

    ``timeout`` (seconds for one attempt), ``max_attempts`` and ``retry`` each apply to a run that leaves the same option at its
    default. ``hitl``: the agent may ask a human.
    """

    name: str
    function: AgentFunction
    queue: str = "default"
    timeout: float | None = None
    max_attempts: int = 1
    retry: RetryPolicy | None = None
    hitl: bool = False


class App:
    """The registry of the agents of one program.

    ``agents``: a map from names to async functions of a :class:`~runyard.RunContext`, to objects that can be called like such a
    function, or to pydantic-ai agents. :func:`~runyard.agents.engine.serve` gives a pydantic-ai agent dependencies and budgets.
    ``version``: the name of the code. A run records the version of the process that accepted it. When an attempt begins, the
    run records the version of the attempt's worker instead. ``on_version_mismatch``: the treatment of a run that another
    version began, after a suspension or a crash. ``run`` executes the run here. ``wait`` leaves the run to a worker of the
    other version. ``fail`` fails the run with VersionMismatchError. A redriven run starts on any version. ``default_queue``:
    the queue of agents without a queue of their own.

    Raises InvalidInputError for an invalid version, queue, agent name, agent or ``on_version_mismatch``.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentFunction | AbstractAgent[Any, Any]] | None = None,
        *,
        version: str = "0",
        on_version_mismatch: VersionPolicy = "run",
        default_queue: str = "default",
    ) -> None:
        self.version = check_id(version, "version")
        if on_version_mismatch not in get_args(VersionPolicy):
            raise InvalidInputError(
                f"on_version_mismatch is one of {', '.join(get_args(VersionPolicy))}, got {brief(on_version_mismatch)}",
                field="on_version_mismatch",
            )
        self.on_version_mismatch = on_version_mismatch
        self.default_queue = check_id(default_queue, "default_queue")
        self.agents: dict[str, AgentSpec] = {}
        for name, agent in (agents or {}).items():
            function = as_function(agent)
            self.register(AgentSpec(name=name, function=function, queue=default_queue, hitl=may_ask(function)))

    def register(self, spec: AgentSpec) -> None:
        """Add an agent. Raise :class:`InvalidInputError` if its name is taken, or if its name or its queue is no valid id."""
        check_id(spec.name, "agent")
        check_id(spec.queue, "queue")
        if spec.name in self.agents:
            raise InvalidInputError(f"agent {spec.name!r} is registered twice; give one of them another name", field="agent")
        self.agents[spec.name] = spec

    @overload
    def agent(self, name: AgentFunction) -> AgentFunction: ...

    @overload
    def agent(
        self,
        name: str | None = None,
        *,
        queue: str | None = None,
        timeout: float | None = None,
        max_attempts: int = 1,
        retry: RetryPolicy | None = None,
        hitl: bool = False,
    ) -> Callable[[AgentFunction], AgentFunction]: ...

    def agent(
        self,
        name: str | AgentFunction | None = None,
        *,
        queue: str | None = None,
        timeout: float | None = None,
        max_attempts: int = 1,
        retry: RetryPolicy | None = None,
        hitl: bool = False,
    ) -> AgentFunction | Callable[[AgentFunction], AgentFunction]:
        """Register the decorated function as an agent, by default under the function's name.

        ``queue``: the queue in which its runs wait. ``timeout``: seconds for one attempt. ``max_attempts``: the number of
        errors after which a run fails. Crashes, releases and questions are no errors. ``retry``: the backoff between attempts.
        ``hitl``: the agent may ask a human. A probe of such an agent is refused at once (F9). Register a pydantic-ai agent by
        ``app.agent("support", timeout=60)(agent)``.

        Raises InvalidInputError if the name is taken or invalid.
        """
        if callable(name):
            return self.agent()(name)

        def decorate(agent: AgentFunction) -> AgentFunction:
            function = as_function(agent)
            own_name = name if name is not None else getattr(function, "__name__", type(function).__name__)
            spec = AgentSpec(
                name=own_name,
                function=function,
                queue=queue or self.default_queue,
                timeout=timeout,
                max_attempts=max_attempts,
                retry=retry,
                hitl=hitl or may_ask(function),
            )
            self.register(spec)
            return agent

        return decorate

    def find(self, name: str | None) -> AgentSpec | None:
        """Return the agent that serves runs for ``name`` (None: the default agent), or None if there is no such agent."""
        spec = self.agents.get(name or DEFAULT_AGENT)
        if spec is None and name in (None, DEFAULT_AGENT):
            return next(iter(self.agents.values()), None)
        return spec

    def __getitem__(self, name: str | None) -> AgentSpec:
        spec = self.find(name)
        if spec is None:
            raise AgentNotFoundError(
                f"no agent {name!r} in this app; it has {', '.join(self.agents) or 'none'}",
                agent=name,
                agents=list(self.agents),
            )
        return spec

    @property
    def queues(self) -> list[str]:
        """The queues of the agents, in order of registration, then the default queue. Fork jobs wait in the default queue."""
        return list(dict.fromkeys([*(spec.queue for spec in self.agents.values()), self.default_queue]))

    @property
    def queue_of(self) -> dict[str, str]:
        """A map from agent name to queue."""
        return {name: spec.queue for name, spec in self.agents.items()}


def as_function(agent: AgentFunction | AbstractAgent[Any, Any]) -> AgentFunction:
    """Return ``agent`` as a function of a RunContext. Wrap a pydantic-ai agent. Raise InvalidInputError for anything else."""
    if "pydantic_ai" in sys.modules:  # an agent of pydantic-ai exists only after that import
        from pydantic_ai.agent import AbstractAgent

        if isinstance(agent, AbstractAgent):
            from .agents.engine import serve

            return serve(agent)
    if not callable(agent):
        raise InvalidInputError(
            f"an agent is an async function of a RunContext or an agent of pydantic-ai, got {brief(agent)}", field="agent"
        )
    return agent


def may_ask(function: AgentFunction) -> bool:
    """Return whether an agent declares that it asks humans. A probe of such an agent is refused at once (F9)."""
    return bool(getattr(function, "asks_humans", False))


def name_of(app: App) -> str | None:
    """Return the ``module:attribute`` by which :func:`load_app` finds ``app``, or None if only the main module has ``app``."""
    for module_name, module in list(sys.modules.items()):
        if module_name not in ("__main__", "__mp_main__"):
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is app:
                    return f"{module_name}:{attribute}"
    return None


def load_app(path: str) -> App:
    """Import the :class:`App` named ``module:attribute``, also from the current directory.

    Raises :class:`InvalidInputError` if the module or the attribute does not exist, or if the attribute is not an App.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise InvalidInputError(f"an app is named as module:attribute, for example main:app; got {path!r}", field="app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise InvalidInputError(f"there is no module {module_name!r} to load the app from", field="app") from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise InvalidInputError(f"{path} is {type(app).__name__}, not a runyard.App", field="app")
    return app
