"""Steps: an attempt records the result of a function with a side effect. A later attempt does not call the function again.

:class:`Steps` decides whether a step is replayed or executed, makes the default keys, and handles steps in doubt.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeAlias, TypeVar, get_args, overload

from pydantic_core import to_jsonable_python

from ..domain.derived_ids import step_idempotency_key
from ..domain.quoting import brief
from ..domain.requests import HitlRequest
from ..domain.runs import Run
from ..domain.size_limits import JsonObject, JsonValue
from ..errors import InvalidInputError, StepUnknownError
from ..ports.results import Step
from ..support import tracing
from ..support.tracebacks import TracebackFilter
from . import log_fields
from .step_inputs import step_input

if TYPE_CHECKING:
    from .context import RunContext

P = ParamSpec("P")
R = TypeVar("R")

OnUnknown: TypeAlias = Literal["retry", "fail", "ask"]
"""Policy for a step that an earlier attempt started and did not finish."""

TOOL_STEP: Final = "tool:"
"""The prefix of the key of a tool call's step."""
CHILD_STEP: Final = "child:"
"""The prefix of the key under which the result of a child is recorded. :meth:`RunContext.step` refuses such keys."""
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
"""Schema of answers to a request of kind ``step``: ``{"action": "retry" | "fail"}`` or ``{"action": "done", "result": …}``."""

current_context: ContextVar[RunContext | None] = ContextVar("runyard_context", default=None)
"""The context of the run to which the current task belongs."""


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step that is being executed. ``key``: the name of the step in its run. ``attempt``: the attempt's number, from 1.

    ``idempotency_key``: a text derived from the thread, the run and the step's key. The text is the same in every attempt of
    the run, and different in every run. Send this key to a service that recognizes repeated requests by their key.
    """

    thread_id: str
    run_id: str
    key: str
    attempt: int
    idempotency_key: str


executing: ContextVar[CurrentStep | None] = ContextVar("runyard_step", default=None)


@dataclass(slots=True)
class Scope:
    """The counters for default names of steps and questions, in an attempt or in one of its tool calls.

    Each tool call has separate counters, because a later attempt may execute parallel tool calls in another order.
    """

    owner: Steps
    prefix: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    asked: int = 0


tool_scope: ContextVar[Scope | None] = ContextVar("runyard_tool", default=None)


class Steps:
    """The steps of one attempt of ``run`` (R20).

    A step with a recorded result is replayed: the result is returned, and the function is not called. A step that no attempt
    has started is executed and recorded. A step in doubt was started by an earlier attempt and has no recorded result. The
    policy ``on_unknown`` says what happens to a step in doubt. ``known``: the steps of earlier attempts, by key. ``start``: a
    function that records the start and the input of a step. The function returns the step's earlier record, or None.
    ``finish``: a function that records the result of a step. ``ask``: a function that returns the human's answer to a request.
    ``keep``: the filter of the inputs, or None.
    """

    def __init__(
        self,
        run: Run,
        thread_key: int,
        known: Mapping[str, Step],
        *,
        start: Callable[[str, str | None], Awaitable[Step | None]],
        finish: Callable[[str, JsonValue], Awaitable[None]],
        ask: Callable[[str, HitlRequest], Awaitable[JsonValue]],
        keep: TracebackFilter | None = None,
    ) -> None:
        self._run = run
        self._thread_key = thread_key
        self._known = known
        self._start = start
        self._finish = finish
        self._ask = ask
        self._keep = keep
        self._scope = Scope(self)
        self._parts: dict[str, Scope] = {}
        self.part: Callable[[], str | None] = lambda: None

    async def replay_or_call(self, fn: Callable[..., Any], args: Sequence[Any], key: str | None, on_unknown: OnUnknown) -> Any:
        """Return the recorded result of the step ``key``, or call ``fn(*args)`` and record its result.

        The arguments and the errors are as in :meth:`RunContext.step`.
        """
        checked(on_unknown)
        if not callable(fn):
            raise InvalidInputError(
                f"step takes a function and then its arguments, such as `ctx.step(fetch, url)`; got {brief(fn)}", field="fn"
            )
        check_key(key)
        if key is None:
            key = self.default_key(name_of(fn))
        if key.startswith(CHILD_STEP):
            raise InvalidInputError(f"a step's key must not begin with {CHILD_STEP}, which children use; got {brief(key)}")
        known = self._known.get(key)
        if known is not None and not known.done:
            known = await self._doubt(known, on_unknown)
        if known is None:
            known = await self._start(key, step_input(fn, args, self._keep))
        if known is not None and known.done:
            return known.result
        value = await self._execute(fn, args, key)
        await self._finish(key, value)
        return value

    async def _doubt(self, step: Step, on_unknown: OnUnknown) -> Step | None:
        """Apply the policy to a step in doubt.

        Return None to call the function again. Otherwise return the step with its result.
        """
        answer: JsonValue = {"action": on_unknown}
        if on_unknown == "ask":
            question = f"Step {step.key!r} was started, but its end is not recorded. Was the step done?"
            payload: JsonObject = {"question": question, "step": step.key, "idempotency_key": self._idempotency_key(step.key)}
            request = HitlRequest(kind="step", payload=payload, answer_schema=ANSWER_SCHEMA)
            # The key contains the fence of the attempt that started the step. If the repeated call does not finish either, the
            # next question has another fence and therefore another key.
            answer = await self._ask(f"doubt:{step.fence}:{step.key}", request)
        match answer:
            case {"action": "retry"}:
                return None
            case {"action": "done", "result": result}:
                await self._finish(step.key, result)
                return replace(step, done=True, result=result)
        raise StepUnknownError(
            f"an earlier attempt started step {step.key!r}, and its outcome is unknown; find out if the step had an effect",
            step=step.key,
        )

    async def _execute(self, fn: Callable[..., Any], args: Sequence[Any], key: str) -> JsonValue:
        step = self._current_step(key)
        named = {"idempotency_key": step.idempotency_key} if takes(fn, "idempotency_key") else {}
        with within(step), self._span(fn, key):
            result = fn(*args, **named)
            result = await result if inspect.isawaitable(result) else result
        try:
            value: JsonValue = to_jsonable_python(result)
        except ValueError as error:
            raise InvalidInputError(f"the result of step {key!r} is not a JSON value: {error}", step=key) from None
        return value

    def _span(self, fn: Callable[..., Any], key: str) -> AbstractContextManager[object]:
        """Make the span of a step. The step of a tool call needs no span, because the tool call has a span already."""
        if key.startswith(TOOL_STEP):
            return nullcontext()
        return tracing.span(f"step {name_of(fn)}", attributes={"runyard.step.key": key})

    def _current_step(self, key: str) -> CurrentStep:
        return CurrentStep(self._run.thread_id, self._run.run_id, key, self._run.attempt, self._idempotency_key(key))

    def _idempotency_key(self, key: str) -> str:
        return step_idempotency_key(self._thread_key, self._run.run_id, key)

    @contextmanager
    def in_tool(self, call_id: str) -> Iterator[None]:
        """Execute the tool call ``call_id`` in the current task, as a step with its own idempotency key."""
        scope = tool_scope.set(Scope(self, f"{call_id}/"))
        try:
            with within(self._current_step(tool_step(call_id))):
                yield
        finally:
            tool_scope.reset(scope)

    @property
    def inside_tool(self) -> bool:
        """Whether the calling code belongs to a tool call of this attempt."""
        scope = tool_scope.get()
        return scope is not None and scope.owner is self

    @property
    def scope(self) -> Scope:
        """The counters for default names in the calling code.

        A tool call and a part of an agent have separate counters. All other code of an attempt uses the counters of the
        attempt.
        """
        scope = tool_scope.get()
        if scope is not None and scope.owner is self:
            return scope
        part = self.part()
        return self._scope if part is None else self._parts.setdefault(part, Scope(self, f"{part}/"))

    def default_key(self, name: str) -> str:
        """Return the default key of the next step with the function name ``name``."""
        scope = self.scope
        scope.calls[name] += 1
        return f"{scope.prefix}{name}#{scope.calls[name] - 1}"


@contextmanager
def within(step: CurrentStep) -> Iterator[None]:
    """Make the block a part of ``step``."""
    token = executing.set(step)
    try:
        with log_fields.of_step(step.key):
            yield
    finally:
        executing.reset(token)


def current_step() -> CurrentStep:
    """Return the step to which the calling code belongs. Raise InvalidInputError outside of a step."""
    found = executing.get()
    if found is None:
        raise InvalidInputError("no step is being executed here; call the function with ctx.step or decorate it with @step")
    return found


def current_run() -> RunContext:
    """Return the context of the run to which the calling code belongs. A tool can use the context to ask a human or to change
    ``extra``.

    Raises InvalidInputError outside of a run.
    """
    found = current_context.get()
    if found is None:
        raise InvalidInputError("no run is being executed here; call this function from an agent, a tool or a step")
    return found


def check_key(key: object) -> None:
    """Raise InvalidInputError if the name ``key`` of a step is neither text nor None."""
    if not isinstance(key, str | None):
        raise InvalidInputError(f"key is text, got {brief(key)}", field="key")


def checked(policy: str) -> OnUnknown:
    """Return ``policy``. Raise InvalidInputError for an unknown policy, before the policy is needed."""
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
    """Make ``async def fn`` a step of the run that calls it (:meth:`RunContext.step`). Outside of a run, call ``fn`` and
    record nothing.

    ``key``: the name of the step in its run. The default consists of the function's name and the number of the function's
    earlier calls in the attempt. ``on_unknown``: the policy for a call that an earlier attempt started and did not finish:
    ``retry``, ``fail`` or ``ask``. Raises InvalidInputError if ``on_unknown`` is none of these three policies.
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
    return f"{TOOL_STEP}{call_id}"


def child_step(key: str) -> str:
    """Return the key under which the result of the child ``key`` is recorded."""
    return f"{CHILD_STEP}{key}"


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a function. If ``functools.partial`` wraps the function, return the name of the wrapped function."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def takes(fn: Callable[..., Any], parameter: str) -> bool:
    """Return whether ``fn`` has an unbound parameter with the name ``parameter``."""
    if isinstance(fn, functools.partial) and parameter in fn.keywords:
        return False
    try:
        return parameter in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False
