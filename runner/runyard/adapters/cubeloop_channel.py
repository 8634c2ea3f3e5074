"""Questions of a cubeloop agent in a worker become questions of the agent's run. The run waits without a worker (H1).

In cubeloop, a tool or a middleware object asks through a channel object. The channel object waits for the answer in memory.
:func:`bind` changes the classes of the channel objects. Inside a run, a question to a channel then becomes a HITL request of
the run. Outside of a run, a channel works as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from ..domain.approvals import TIMED_OUT
from ..domain.derived_ids import digest
from ..domain.messages import ToolCallPart
from ..domain.size_limits import JsonObject, JsonValue
from ..execution.context import RunContext
from ..execution.control_signals import Deferred
from ..execution.steps import current_context
from .cubeloop_framework import Framework

MAX_REACHED: Final = 10_000
"""Maximum number of objects in a search for the channels of a tool."""
_AT_DEADLINE: Final[JsonObject] = {"answer": TIMED_OUT}


def channels(agent: Any) -> list[Any]:
    """Return the channels in the attributes of an agent and of its middleware, and in the closures of its tools."""
    found = [getattr(agent, "channel", None)]
    found += [getattr(part, "_channel", None) for part in getattr(agent, "_middleware", ())]
    for tool in agent.state.tools:
        found += _reached(tool.execute)
    known = [one for one in found if _is_channel(one)]
    return [one for n, one in enumerate(known) if all(one is not other for other in known[:n])]


def may_ask(agent: Any) -> bool:
    """Return whether an agent has a channel, or a tool or middleware object whose ``hitl`` is not None."""
    parts = (*agent.state.tools, *getattr(agent, "_middleware", ()))
    return bool(channels(agent)) or any(getattr(part, "hitl", None) is not None for part in parts)


def bind(framework: Framework, *found: Any) -> None:
    """Change channel classes, so that a question inside a run becomes a question of the run.

    The changed classes are the package's channel class and the classes of ``found``. Each channel of a changed class has the
    new behavior, even a channel that the program makes later. A second call changes nothing.
    """
    for kind in (framework.module("hitl.channel")._BaseChannel, *(one for each in found for one in type(each).__mro__)):
        if (outside := vars(kind).get("_await_answer")) is not None and not hasattr(outside, "_runyard_outside"):
            kind._await_answer = _through_the_run(outside, framework)


def _through_the_run(outside: Callable[..., Any], framework: Framework) -> Callable[..., Any]:
    async def ask(channel: Any, payload: Any, timeout: Any, signal: Any, question_id: str) -> Any:
        ctx = current_context.get()
        if ctx is None:
            return await outside(channel, payload, timeout=timeout, signal=signal, question_id=question_id)
        seconds = timeout if timeout is None or isinstance(timeout, int | float) else channel._default_timeout
        with detached(framework):
            return await _ask(ctx, framework, payload, seconds, question_id)

    ask._runyard_outside = outside  # type: ignore[attr-defined]
    return ask


def _is_channel(value: object) -> bool:
    return hasattr(value, "_await_answer") and not isinstance(value, type)


def _reached(function: Any) -> list[Any]:
    """Return the objects that the code of a tool can use.

    These objects are in the closure of the tool, in its module, in its default arguments, or in attributes of its object.
    """
    found: list[Any] = []
    left, seen = [function], set[int]()
    while left and len(found) < MAX_REACHED:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        found.append(each)
        if isinstance(each, MethodType):
            found += getattr(each.__self__, "__dict__", {}).values()
            left.append(each.__func__)
        elif isinstance(each, partial):
            left += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, FunctionType):
            left += [each.__globals__[name] for name in _names(each.__code__) if name in each.__globals__]
            left += [*(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values()]
            for cell in each.__closure__ or ():
                with suppress(ValueError):  # the cell is empty
                    left.append(cell.cell_contents)
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function and its inner functions use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


@contextmanager
def detached(framework: Framework) -> Iterator[None]:
    """Raise cubeloop's HitlDetached if the ``with`` block asks a human. cubeloop then stops its current batch of tool calls."""
    try:
        yield
    except Deferred:
        raise framework.module("hitl.exceptions").HitlDetached() from None


async def _ask(ctx: RunContext, framework: Framework, payload: Any, seconds: float | None, question_id: str) -> Any:
    errors, types = framework.module("hitl.exceptions"), framework.module("hitl.types")
    fields: JsonObject = payload.model_dump(mode="json")
    details = payload.details if fields["kind"] != "ask" and isinstance(payload.details, dict) else None
    if fields["kind"] == "approve":
        call = ToolCallPart(id=payload.tool_call_id, name=payload.tool_name, arguments=payload.args)
        approval = await ctx.approve(call, details=details, timeout=seconds, on_timeout=_AT_DEADLINE)
        if approval.timed_out:
            raise errors.HitlTimedOut(seconds or 0.0)
        edited = approval.arguments if approval and approval.arguments != call.arguments else None
        decision = "deny" if not approval else "edit" if edited is not None else "approve"
        return types.ApproveAnswer(decision=decision, edited_args=edited, reason=approval.reason)
    question, schema, key = _question(fields, question_id)
    answer = await ctx.ask(question, schema, key=key, timeout=seconds, on_timeout=_AT_DEADLINE)
    if answer == TIMED_OUT:
        raise errors.HitlTimedOut(seconds or 0.0)
    return answer


def _question(fields: JsonObject, question_id: str) -> tuple[JsonObject, JsonObject, str | None]:
    """Return the question, the schema of its answers, and the key of the question in the run.

    If the caller named no tool call, the key is None, and the run makes a key. cubeloop numbers the equal questions of a
    channel. The key does not contain this number. The number of a question may differ between two attempts of one run, if other
    runs use the same channel.
    """
    if fields["kind"] == "confirm":
        named = None if "." in question_id else f"confirm:{question_id}:{digest(fields)}"
        shown: JsonObject = {"question": fields["prompt"]}
        return (shown | {"details": fields["details"]} if fields.get("details") else shown), {"type": "boolean"}, named
    questions = fields["questions"]
    assert isinstance(questions, list)
    words = "\n".join(str(each.get("prompt")) for each in questions if isinstance(each, dict))
    properties: dict[str, JsonValue] = {
        str(each["key"]): {"type": ["string", "array"], "items": {"type": "string"}}
        for each in questions
        if isinstance(each, dict)
    }
    required: list[JsonValue] = [each["key"] for each in questions if isinstance(each, dict) and each.get("required")]
    schema: JsonObject = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"question": words, "questions": questions}, schema, None
