"""The adapters for agents of other frameworks. The adapters are the entry points of the group ``runyard.adapters``.

The name of an entry point is the top import package of a framework, for example ``pydantic_ai``. The value of an entry point
is a function ``serve(agent)``. This function returns an async function that executes the agent. The async function has a
:class:`~runyard.RunContext` as its parameter. If ``agent`` does not belong to the framework, ``serve`` returns None. If the
agent may ask a human, the async function has the attribute ``asks_humans`` = True. An adapter is loaded only in a process that
has imported the framework. Other processes cannot have agents of the framework.
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
    from importlib.metadata import entry_points  # slow, because it also imports email and zipfile

    return entry_points(group=GROUP)


def frameworks() -> list[str]:
    """Return the import packages of the frameworks that have an adapter."""
    return sorted({*_registered, *(point.name for point in _installed())})


def adapted(agent: object) -> AgentFunction | None:
    """Return an async function that executes ``agent``, or None if no adapter accepts ``agent``.

    Raises the error of an adapter if the class of ``agent`` comes from the framework of this adapter. If the adapter cannot be
    loaded, the error is InvalidInputError. Errors of other adapters are ignored.
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
            f"the adapter {point.value} for {point.name}, from {package}, cannot be loaded: {type(error).__name__}: {error}; "
            "repair or uninstall this package",
            field="agent",
        ) from error
    return serve(agent)
