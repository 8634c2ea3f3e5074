"""App, the registry of the agents that a worker serves, with the version of their code."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, get_args, overload

from pydantic import ValidationError

from .domain.agent_names import check_part, is_agent, namespace_of, qualified
from .domain.quoting import brief
from .domain.runs import DEFAULT_AGENT, RetryPolicy, RunOptions, VersionPolicy
from .domain.validation import check_id, first_problem
from .errors import AgentNotFoundError, AppImportError, InvalidInputError
from .support.agent_adapters import AgentFunction, adapted, frameworks
from .support.location import namespace_of_program
from .support.returned_values import warn_of_returned
from .support.tracebacks import TracebackFilter, place_of, traceback_text

if TYPE_CHECKING:
    from .execution.context import RunContext

AgentT = TypeVar("AgentT")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of an agent. An option that is None is not set.

    ``queue``: the queue of the agent's runs. ``timeout``: seconds for one attempt. ``max_attempts``: the number of errors
    after which a run fails. ``retry``: the backoff between attempts. An option of a run replaces the same option of its agent.
    Raises InvalidInputError for a value that a run cannot have."""

    queue: str | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            check_id(self.queue, "queue")
        try:
            RunOptions(timeout=self.timeout, max_attempts=self.max_attempts, retry=self.retry or RetryPolicy())
        except ValidationError as error:
            name, problem, value = first_problem(error)
            raise InvalidInputError(f"{name}: {problem.lower()}, got {brief(value)}", field=name) from None

    def over(self, other: AgentOptions) -> AgentOptions:
        """Return these options. An option that is None gets its value from ``other``."""
        mine = {name: value for name in AgentOptions.__slots__ if (value := getattr(self, name)) is not None}
        return replace(other, **mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """One agent as registered.

    ``name``: the name with the namespace of its App (:mod:`runyard.domain.agent_names`). ``timeout``, ``max_attempts`` and
    ``retry``: see :class:`AgentOptions`. ``hitl``: whether the agent may ask a human."""

    name: str
    function: AgentFunction
    queue: str = "default"
    timeout: float | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    hitl: bool = False

    async def execute(self, ctx: RunContext) -> None:
        """Call the agent's function, and wait for its end.

        Raises RuntimeError if the agent calls ``sys.exit``. Raises InvalidInputError if the function returns a value that
        cannot be awaited. This can happen, because :func:`as_function` also accepts a sync wrapper of an async function."""
        try:
            result: object = self.function(ctx)
            if not inspect.isawaitable(result):
                raise _not_async(self.name)
            warn_of_returned(self.name, await result)
        except SystemExit as error:
            # A task passes SystemExit to the event loop. Some loops that run attempts have no task guard.
            raise RuntimeError(f"the agent called sys.exit({error.code!r})") from error


class App:
    """The registry of the agents of one program.

    ``agents``: a map from names to agents. An agent is an async function with a :class:`~runyard.RunContext` as its parameter,
    or an object that can be called like such a function. It may also be an agent of a framework that has an adapter
    (:mod:`runyard.support.agent_adapters`), for example of pydantic-ai. A single agent may be given without a map. This agent
    is registered under its own name, or as ``default`` if it has no name. :func:`~runyard.agents.engine.serve` gives a
    pydantic-ai agent dependencies and budgets. The default agent executes the runs that name no agent. The default agent is
    the agent with the name ``default``, or the first agent if no agent has this name.

    ``namespace``: separates the agents of this program from the agents of other programs on the deployment. The agents get the
    names ``namespace/agent``. The default is RUNYARD_NAMESPACE. ``version``: the name of this version of the agents' code. A
    run records the version of the process that accepted it. When an attempt begins, the run records the version of the
    attempt's worker instead. ``on_version_mismatch``: what a worker does with a run that was begun by another version and
    continues after a suspension or a crash. ``run`` executes the run with the worker's version. ``wait`` leaves the run to a
    worker of the other version. ``fail`` fails the run with VersionMismatchError. A redriven run starts on any version.
    ``default_queue``: the queue of agents without a queue. The default is the namespace, or ``default`` without a namespace.
    ``options``: the options of all agents, or a map from the names of some agents to their options. The options of ``serve``
    have precedence over the options of all agents. The options of a map have precedence over the options of ``serve``.
    ``traceback_filter``: a function that is called with each traceback of the program's code before a worker stores or logs
    the traceback. The function is also called with the stack of a blocked main loop, and with the text of the arguments of
    each step. The function returns the text to keep, or None to keep no text. Without a filter, at most 8 KiB of a traceback
    and 300 characters of arguments are kept.

    Raises InvalidInputError for an invalid version, namespace, queue, agent name, agent, option or ``on_version_mismatch``.
    """

    def __init__(
        self,
        agents: Mapping[str, object] | object | None = None,
        *,
        namespace: str | None = None,
        version: str = "0",
        on_version_mismatch: VersionPolicy = "run",
        default_queue: str | None = None,
        options: AgentOptions | Mapping[str, AgentOptions] | None = None,
        traceback_filter: TracebackFilter | None = None,
    ) -> None:
        self.version = check_id(version, "version")
        if on_version_mismatch not in get_args(VersionPolicy):
            raise InvalidInputError(
                f"on_version_mismatch is one of {', '.join(get_args(VersionPolicy))}, got {brief(on_version_mismatch)}",
                field="on_version_mismatch",
            )
        self.on_version_mismatch = on_version_mismatch
        self.namespace = namespace_of_program(namespace)
        self.default_queue = check_id(default_queue or self.namespace or "default", "default_queue")
        self.traceback_filter = traceback_filter
        self.agents: dict[str, AgentSpec] = {}
        self._options = options if isinstance(options, AgentOptions) else AgentOptions()
        if isinstance(agents, list | tuple | set | frozenset):
            raise InvalidInputError('give several agents as a map: App({"name": agent, "other name": other})', field="agents")
        given = {} if agents is None else agents if isinstance(agents, Mapping) else {_name_of(agents, DEFAULT_AGENT): agents}
        named = _by_name(options, given)
        for name, agent in given.items():
            self._add(name, as_function(agent), named.get(name, AgentOptions()), hitl=False)

    def register(self, spec: AgentSpec) -> None:
        """Add an agent. ``spec.name``: the name without the namespace. This call adds the namespace.

        Raises InvalidInputError if the name is taken, or if the name or the queue is not a valid id."""
        try:
            spec = replace(spec, name=check_id(qualified(self.namespace, check_part(spec.name, "agent")), "agent"))
        except InvalidInputError as error:
            what = f'{error.message}; register it under another name: App({{"name": agent}}) or app.agent("name")(agent)'
            raise InvalidInputError(what, field="agent") from None
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
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        hitl: bool = False,
    ) -> Callable[[AgentT], AgentT]: ...

    def agent(
        self,
        name: str | AgentFunction | None = None,
        *,
        queue: str | None = None,
        timeout: float | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        hitl: bool = False,
    ) -> AgentFunction | Callable[[AgentT], AgentT]:
        """Register the decorated function as an agent, by default under the function's name.

        ``queue``, ``timeout``, ``max_attempts``, ``retry``: see :class:`AgentOptions`. These arguments have precedence over
        the options of ``serve`` and of the App. Crashes, releases and questions do not count as errors. ``hitl``: whether the
        agent may ask a human. A probe of such an agent is refused at once (F9). Register a pydantic-ai agent by
        ``app.agent("support", timeout=60)(agent)``.

        Raises InvalidInputError if the name is taken or invalid."""
        if callable(name):
            return self.agent()(name)
        options = AgentOptions(queue=queue, timeout=timeout, max_attempts=max_attempts, retry=retry)

        def decorate(agent: AgentT) -> AgentT:
            function = as_function(agent)
            self._add(name if name is not None else _name_of(function), function, options, hitl=hitl)
            return agent

        return decorate

    def _add(self, name: str, function: AgentFunction, options: AgentOptions, *, hitl: bool) -> None:
        """Register an agent.

        The options of ``serve`` have precedence over the options of the App. ``options`` have precedence over both."""
        served = getattr(function, "options", None)
        if isinstance(served, AgentOptions):
            options = options.over(served)
        options = options.over(self._options)
        self.register(
            AgentSpec(
                name=name,
                function=function,
                queue=options.queue or self.default_queue,
                timeout=options.timeout,
                max_attempts=options.max_attempts,
                retry=options.retry,
                hitl=hitl or may_ask(function),
            )
        )

    @property
    def default(self) -> AgentSpec | None:
        """The agent of runs that name no agent.

        This is the agent named ``default``, or the first agent if none has this name. Without agents, the value is None."""
        return self.agents.get(qualified(self.namespace, DEFAULT_AGENT)) or next(iter(self.agents.values()), None)

    def find(self, name: str | None) -> AgentSpec | None:
        """Return the agent ``name``, or None if this app has no such agent. ``name`` may be given without the namespace.

        If ``name`` is None, or consists of the app's namespace and a ``/``, return the app's default agent."""
        if is_agent(name):
            return self.agents.get(qualified(self.namespace, name))
        return self.default if name is None or namespace_of(name) == self.namespace else None

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
        """The queues of the agents in the order of registration, the default queue, and the queue of the namespace.

        Jobs without an agent wait in the default queue. A run may be accepted before any worker of the namespace is registered.
        Such a run waits in the queue of the namespace."""
        own = [self.namespace] if self.namespace else []
        return list(dict.fromkeys([*(spec.queue for spec in self.agents.values()), self.default_queue, *own]))

    @property
    def queue_of(self) -> dict[str, str]:
        """A map from agent name to queue."""
        return {name: spec.queue for name, spec in self.agents.items()}


def _by_name(options: object, agents: Mapping[str, object]) -> Mapping[str, AgentOptions]:
    """Return ``options`` if it is a map, or an empty map if it is not.

    Raise InvalidInputError for invalid options and for unknown agents."""
    if options is None or isinstance(options, AgentOptions):
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(each, AgentOptions) for each in options.values()):
        raise InvalidInputError(
            f"options are AgentOptions(…), or a map from the names of agents to AgentOptions; got {brief(options)}",
            field="options",
        )
    if unknown := sorted(str(name) for name in options.keys() - agents.keys()):
        raise InvalidInputError(f"options name agents that are not in agents: {', '.join(unknown)}", field="options")
    return options


def as_function(agent: object) -> AgentFunction:
    """Return ``agent`` as an async function of a RunContext. An adapter wraps an agent of another framework.

    Raises InvalidInputError if ``agent`` is neither an async function nor an agent that an adapter accepts. A sync function is
    refused, because it cannot await the methods of the RunContext, and would block the other runs of the worker."""
    if (function := adapted(agent)) is not None:
        return function
    if callable(agent) and not _is_async(agent):
        raise _not_async(_name_of(agent))
    if not callable(agent):
        known = ", ".join(frameworks())
        raise InvalidInputError(
            f"an agent is an async function of a RunContext, or an agent of a framework with an adapter ({known}), "
            f"got {brief(agent)}",
            field="agent",
        )
    return agent


def _not_async(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"the agent {brief(name)} is not an async function; write `async def`, also for a `__call__` and for the wrapper of a "
        "decorator. runyard.adapters.functions.message_agent makes an agent of a sync function of a list of messages, and "
        "executes this function in a thread",
        field="agent",
    )


def _is_async(function: Callable[..., object]) -> bool:
    """Return whether a call of ``function``, or of the function that it wraps (functools.wraps), returns a coroutine."""
    return any(inspect.iscoroutinefunction(each) for each in (function, type(function).__call__, inspect.unwrap(function)))


def _name_of(agent: object, otherwise: str | None = None) -> str:
    """Return the name of a function or of an agent. If ``agent`` has no name, return ``otherwise``.

    If ``otherwise`` is None too, return the name of the agent's type."""
    names = (getattr(agent, "__name__", None), getattr(agent, "name", None), otherwise)
    return next((name for name in names if isinstance(name, str) and name), type(agent).__name__)


def may_ask(function: AgentFunction) -> bool:
    """Return whether an agent declares that it asks humans. A probe of such an agent is refused at once (F9)."""
    return bool(getattr(function, "asks_humans", False))


def name_of(app: App) -> str | None:
    """Return the ``module:attribute`` with which :func:`load_app` finds ``app``.

    Return None if no module other than the main module has ``app``."""
    for module_name, module in list(sys.modules.items()):
        if module_name not in ("__main__", "__mp_main__"):
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is app:
                    return f"{module_name}:{attribute}"
    return None


def load_app(path: str) -> App:
    """Import the :class:`App` named ``module:attribute``. The module may be in the current directory.

    Raises :class:`InvalidInputError` if the module or the attribute does not exist, or if the attribute is not an App. The
    error's message says what to do. Raises :class:`AppImportError` if the import raises an error."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise InvalidInputError(f"an app is named as module:attribute, for example main:app; got {path!r}", field="app")
    if "/" in module_name or module_name.startswith("."):
        raise InvalidInputError(
            f"{module_name!r} is a path; name the module as in an import, for example folder.main:app for folder/main.py",
            field="app",
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_error(path, error) from error
        suffix = "; name it without .py" if module_name.endswith(".py") else ""
        raise InvalidInputError(f"there is no module {module_name!r} to load the app from{suffix}", field="app") from error
    except (Exception, SystemExit) as error:
        raise _import_error(path, error) from error
    if not hasattr(module, attribute):
        what = f"the module {module_name!r} has no attribute {attribute!r}; {_remedy(module, attribute)}"
        raise InvalidInputError(what, field="app")
    return check_app(getattr(module, attribute), path)


def _remedy(module: ModuleType, attribute: str) -> str:
    """Return advice for a ``module`` that has no App with the name ``attribute``."""
    if apps := [name for name, value in vars(module).items() if isinstance(value, App)]:
        return f"its Apps: {', '.join(apps)}"
    if hasattr(module, "__path__"):
        return f"it is a package: name the module in it that has the App, for example {module.__name__}.main:{attribute}"
    return f"write `{attribute} = App(…)` in it"


def check_app(app: object, path: str = "the app") -> App:
    """Return ``app``. Raise InvalidInputError with advice if it is not an App. ``path``: the name of ``app``."""
    if isinstance(app, App):
        return app
    if isinstance(app, ModuleType):
        raise InvalidInputError(f"{path} is a module; name the App in it, for example {app.__name__}:app", field="app")
    raise InvalidInputError(
        f"{path} has the type {type(app).__name__} and is not an App; make one from your agents: app = App(agents)", field="app"
    )


def _import_error(path: str, error: BaseException) -> AppImportError:
    """Return the error for an app whose import raised ``error``."""
    place = place_of(error)
    words = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return AppImportError(
        f"the import of {path} failed{f' at {place}' if place else ''}: {words}",
        app=path,
        place=place,
        traceback=traceback_text(error),
    )
