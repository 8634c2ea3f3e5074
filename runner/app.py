"""App: the agents that a worker serves, by name, with the version of the code that serves them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, overload

from .errors import AgentNotFoundError, InvalidInputError
from .legible import brief
from .models import RetryPolicy, VersionPolicy, check_id

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

    from .agents.context import RunContext

AgentFunction: TypeAlias = "Callable[[RunContext], Awaitable[None]]"

DEFAULT_AGENT = "default"
"""What a run without an agent asks for: the agent of this name, else the first one registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """One agent as registered. ``timeout`` (seconds), ``max_attempts`` and ``retry`` apply where a run leaves its own at the
    default."""

    name: str
    function: AgentFunction
    queue: str = "default"
    timeout: float | None = None
    max_attempts: int = 1
    retry: RetryPolicy | None = None
    hitl: bool = False


class App:
    """The registry of agents of one program.

    ``agents`` maps names to async functions of a :class:`~runner.RunContext` (or objects that are called like one), or to
    agents of pydantic-ai as they are; :func:`~runner.agents.driver.serve` gives those dependencies and budgets.
    ``version`` names the code; a run records the one that accepted it, then the one that ran it. ``on_version_mismatch`` says
    what becomes of a run that another version began, when it goes on after a suspension or a crash: ``run`` it here, ``wait``
    for a worker of that version, or ``fail`` it with VersionMismatchError. A redriven run starts on any version.
    ``default_queue`` is the queue of agents that name none.
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
        """Add an agent; a name that is taken raises :class:`InvalidInputError`."""
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
        """Register the decorated function as an agent, by default under its own name.

        ``queue``: where its runs wait. ``timeout``: seconds for one attempt. ``max_attempts``: attempts that may end in an
        error. ``retry``: the backoff between them. ``hitl``: it may ask a human, so a probe of it is refused at once
        (semantics: F9). An agent of pydantic-ai is registered by a call: ``app.agent("support", timeout=60)(agent)``.
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
        """The agent that serves runs for ``name`` (None: the default agent), or None."""
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
        """The queues of the agents, in order of registration, and the default queue: fork jobs wait there."""
        return list(dict.fromkeys([*(spec.queue for spec in self.agents.values()), self.default_queue]))

    @property
    def queue_of(self) -> dict[str, str]:
        """Agent name → queue."""
        return {name: spec.queue for name, spec in self.agents.items()}


def as_function(agent: AgentFunction | AbstractAgent[Any, Any]) -> AgentFunction:
    """``agent`` as a function of a context; one of pydantic-ai becomes one. Raises InvalidInputError for anything else."""
    if "pydantic_ai" in sys.modules:  # or it cannot be one, and need not be imported
        from pydantic_ai.agent import AbstractAgent

        if isinstance(agent, AbstractAgent):
            from .agents.driver import serve

            return serve(agent)
    if not callable(agent):
        raise InvalidInputError(
            f"an agent is an async function of a RunContext or an agent of pydantic-ai, got {brief(agent)}", field="agent"
        )
    return agent


def may_ask(function: AgentFunction) -> bool:
    """Whether an agent says that it asks humans: a probe of it is refused at once (semantics: F9)."""
    return bool(getattr(function, "asks_humans", False))


def name_of(app: App) -> str | None:
    """The ``module:attribute`` by which :func:`load_app` finds ``app`` elsewhere; None if only the main module has it."""
    for module_name, module in list(sys.modules.items()):
        if module_name not in ("__main__", "__mp_main__"):
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is app:
                    return f"{module_name}:{attribute}"
    return None


def load_app(path: str) -> App:
    """Import the :class:`App` named ``module:attribute``; modules are also looked for in the current directory.

    Raises :class:`InvalidInputError` when there is no such module, attribute, or when it is not an App.
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
        raise InvalidInputError(f"{path} is {type(app).__name__}, not a runner.App", field="app")
    return app
