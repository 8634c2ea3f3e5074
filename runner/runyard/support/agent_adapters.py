"""The adapters of agents of other frameworks, from the entry points of the group ``runyard.adapters``.

The name of an entry point is the top import package of a framework, for example ``pydantic_ai``. Its value is a function
``serve(agent)``. This function returns an async function of a :class:`~runyard.RunContext` that executes the agent. It returns
None if ``agent`` does not belong to the framework. The async function has the attribute ``asks_humans`` = True if the agent may
ask a human. An adapter is loaded only in a process that has imported the framework. Other processes cannot have agents of the
framework.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias

from ..errors import InvalidInputError
from .class_origins import is_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

    from ..execution.context import RunContext

AgentFunction: TypeAlias = "Callable[[RunContext], Awaitable[None]]"
Serve: TypeAlias = "Callable[[object], AgentFunction | None]"

GROUP: Final = "runyard.adapters"

_registered: dict[str, Serve] = {}


def register(framework: str, serve: Serve) -> None:
    """Use ``serve`` for the agents of ``framework`` in this process. ``serve`` replaces an installed adapter."""
    _registered[framework] = serve


@cache
def _installed() -> EntryPoints:
    from importlib.metadata import entry_points  # slow to import, because it imports email and zipfile

    return entry_points(group=GROUP)


def frameworks() -> list[str]:
    """Return the import packages of the frameworks that have an adapter."""
    return sorted({*_registered, *(point.name for point in _installed())})


def adapted(agent: object) -> AgentFunction | None:
    """Return ``agent`` as an async function of a RunContext, or None if no adapter accepts ``agent``.

    An adapter that raises an error is left out for agents whose classes do not come from its framework. For an agent of the
    framework, raises the error of the adapter, and InvalidInputError for an adapter that cannot be loaded.
    """
    for framework in frameworks():
        if framework not in sys.modules:
            continue
        for serve in _adapters(framework):
            try:
                function = serve(agent)
            except Exception:
                if is_of(agent, framework):
                    raise
                continue
            if function is not None:
                return function
    return None


def _adapters(framework: str) -> list[Serve]:
    if serve := _registered.get(framework):
        return [serve]
    return [partial(_load_and_serve, point) for point in _installed().select(name=framework)]


def _load_and_serve(point: EntryPoint, agent: object) -> AgentFunction | None:
    try:
        serve: Serve = point.load()
    except Exception as error:
        package = f"the package {point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
        raise InvalidInputError(
            f"the adapter {point.value} for {point.name}, of {package}, cannot be loaded: {type(error).__name__}: {error}; "
            "repair or uninstall this package",
            field="agent",
        ) from error
    return serve(agent)
