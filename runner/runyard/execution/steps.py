"""Steps: an attempt records the result of a function with a side effect. A later attempt does not repeat the effect."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeAlias, TypeVar, get_args, overload

from ..domain.json_bounds import JsonObject
from ..domain.quoting import brief
from ..errors import InvalidInputError

if TYPE_CHECKING:
    from .context import RunContext

P = ParamSpec("P")
R = TypeVar("R")

OnUnknown: TypeAlias = Literal["retry", "fail", "ask"]
"""Policy for a step that an earlier attempt started and did not finish."""

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
"""Schema of answers to a request of kind ``step``: ``{"action": "retry" | "fail"}``, ``{"action": "done", "result": …}``."""

current_context: ContextVar[RunContext | None] = ContextVar("runyard_context", default=None)
"""The context of the run for which the current task works."""


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step that is being executed. ``key``: the name of the step in its run. ``attempt``: the attempt's number, from 1.

    ``idempotency_key``: a text derived from the thread, the run and the step's key. It is the same in every attempt of the run,
    and other runs have other keys. Send it to a service that ignores a repeated key.
    """

    thread_id: str
    run_id: str
    key: str
    attempt: int
    idempotency_key: str


executing: ContextVar[CurrentStep | None] = ContextVar("runyard_step", default=None)


@dataclass(slots=True)
class Scope:
    """The counters for default names of steps and questions, in a run or in one tool call of ``owner``'s run.

    Parallel tool calls have counters of their own, so that a name is the same in every attempt.
    """

    owner: RunContext
    prefix: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    asked: int = 0


tool_scope: ContextVar[Scope | None] = ContextVar("runyard_tool", default=None)


def current_step() -> CurrentStep:
    """Return the step in which the calling code is executed, at any depth. Raise InvalidInputError outside of a step."""
    found = executing.get()
    if found is None:
        raise InvalidInputError("no step is being executed here; call the function with ctx.step or decorate it with @step")
    return found


def current_run() -> RunContext:
    """Return the context of the run for which the calling code works. A tool uses it to ask a human or to change ``extra``.

    Raises InvalidInputError outside of a run.
    """
    found = current_context.get()
    if found is None:
        raise InvalidInputError("no run is being executed here; call this from an agent, a tool or a step")
    return found


def checked(policy: str) -> OnUnknown:
    """Return ``policy``. Raise InvalidInputError if it is unknown. Without this check, the error would follow a crash."""
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
    """Make ``async def fn`` a step of the run that calls it (:meth:`RunContext.step`). Outside a run, ``fn`` is just called.

    ``key``: the name of the step in its run, by default the function's name and the number of its earlier calls in the attempt.
    ``on_unknown``: the policy for a call that an earlier attempt started and did not finish: ``retry``, ``fail`` or ``ask``.
    Raises InvalidInputError for another policy.
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
    """Return the key of a tool call's step."""
    return f"tool:{call_id}"


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a function, also behind ``functools.partial``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def takes(fn: Callable[..., Any], parameter: str) -> bool:
    """Return whether ``fn`` has an unbound parameter of that name."""
    if isinstance(fn, functools.partial) and parameter in fn.keywords:
        return False
    try:
        return parameter in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False
