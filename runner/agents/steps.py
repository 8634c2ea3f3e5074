"""Steps: an attempt records what a function with a side effect returned, so that a later one does not repeat the effect."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeAlias, TypeVar, get_args, overload

from ..errors import InvalidInputError
from ..legible import brief
from ..models import JsonObject

if TYPE_CHECKING:
    from .context import RunContext

P = ParamSpec("P")
R = TypeVar("R")

OnUnknown: TypeAlias = Literal["retry", "fail", "ask"]
"""What happens to a step that an earlier attempt started and never finished."""

ANSWER_SCHEMA: Final[JsonObject] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"action": {"enum": ["retry", "fail"]}},
            "required": ["action"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"action": {"const": "done"}, "result": {}},
            "required": ["action", "result"],
            "additionalProperties": False,
        },
    ]
}
"""Answers to a question of kind ``step``: ``{"action": "retry" | "fail"}`` or ``{"action": "done", "result": …}``."""

current_context: ContextVar[RunContext | None] = ContextVar("runyard_context", default=None)
"""The context of the run that the current task works for."""


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step that is being executed. ``key`` names it in its run; ``attempt`` is the run's.

    ``idempotency_key``: made of the thread, the run and the step's key, so the same in every attempt and in no other run; for a
    service that does nothing when it sees a key again.
    """

    thread_id: str
    run_id: str
    key: str
    attempt: int
    idempotency_key: str


executing: ContextVar[CurrentStep | None] = ContextVar("runyard_step", default=None)


@dataclass(slots=True)
class Scope:
    """Where steps and questions get their default names: in a run, or in one tool call of ``owner``'s run.

    Tools run beside each other, so each of them counts for itself: a name is the same in every attempt.
    """

    owner: RunContext
    prefix: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    asked: int = 0


tool_scope: ContextVar[Scope | None] = ContextVar("runyard_tool", default=None)


def current_step() -> CurrentStep:
    """The step that the calling code belongs to, however deep in it. Raises InvalidInputError outside of one."""
    found = executing.get()
    if found is None:
        raise InvalidInputError("no step is being executed here; call the function by ctx.step or make it one with @step")
    return found


def current_run() -> RunContext:
    """The context of the run that the calling code works for, such as a tool that asks or changes ``extra``. Raises
    InvalidInputError outside of a run."""
    found = current_context.get()
    if found is None:
        raise InvalidInputError("no run is being executed here")
    return found


def checked(policy: str) -> OnUnknown:
    """``policy`` if there is such a one; another would be found out only after a crash."""
    for known in get_args(OnUnknown):
        if policy == known:
            return known  # type: ignore[no-any-return]
    raise InvalidInputError(f"on_unknown is one of {', '.join(get_args(OnUnknown))}; got {brief(policy)}", field="on_unknown")


@overload
def step(fn: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]: ...


@overload
def step(
    *, key: str | None = None, on_unknown: OnUnknown = "retry"
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]: ...


def step(
    fn: Callable[P, Awaitable[R]] | None = None, *, key: str | None = None, on_unknown: OnUnknown = "retry"
) -> Callable[P, Awaitable[R]] | Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Make ``async def fn`` a step of whatever run calls it (:meth:`RunContext.step`); outside a run it is called as it is.

    ``key`` names the step in its run; by default its name and how often it was called before in the attempt. ``on_unknown``:
    what happens to a call that an earlier attempt started and never finished: ``retry``, ``fail`` or ``ask``.
    """
    checked(on_unknown)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            context = current_context.get()
            if context is None:
                return await function(*args, **kwargs)
            bound = functools.partial(function, *args, **kwargs)
            recorded: R = await context.step(bound, key=key, on_unknown=on_unknown)
            return recorded

        return call

    return decorate if fn is None else decorate(fn)


def tool_step(call_id: str) -> str:
    """The key of the step that a tool call is."""
    return f"tool:{call_id}"


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a function, also behind ``functools.partial``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def takes(fn: Callable[..., Any], parameter: str) -> bool:
    """True if ``fn`` has a parameter of that name that is not bound yet."""
    if isinstance(fn, functools.partial) and parameter in fn.keywords:
        return False
    try:
        return parameter in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False
