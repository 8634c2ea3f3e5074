"""RunContext: what an agent sees of its run, and the only way it writes."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from pydantic_core import to_jsonable_python

from ..bounds import check_value
from ..errors import HitlNotAllowedError, InvalidInputError, RunyardError, StepUnknownError
from ..eventwriter import EventStream
from ..exchange import Ledger, Step
from ..extras import load
from ..legible import brief
from ..models import HitlRequest, JsonObject, JsonValue, Message, Run, ToolCallPart, Usage, check_requests
from .hitl import APPROVAL_SCHEMA, Approval, approval_key, digest, read_approval, request_id
from .journal import Journal
from .requests import ModelAnswer, ModelRequest, Output
from .requests import model as ask_model
from .requests import tool as use_tool
from .signals import AttemptLost, ControlSignal, Deferred, Suspend
from .steps import (
    ANSWER_SCHEMA,
    CurrentStep,
    OnUnknown,
    Scope,
    checked,
    executing,
    name_of,
    takes,
    tool_scope,
    tool_step,
)
from .transcript import Transcript, whole

if TYPE_CHECKING:
    from pydantic_ai import Tool
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

LONGEST_WAIT: Final = 10 * 365 * 86400
"""Seconds that a question may wait, where it has a timeout at all."""
FAIL: Final[JsonObject] = {"fail": True}


@dataclass(frozen=True, slots=True)
class Remainder:
    """What a context holds that no commit has: the executor writes it with the attempt's end."""

    messages: list[Message]
    extra: JsonObject | None
    usage: Usage | None
    requests: list[HitlRequest]
    signal: ControlSignal | None
    result: JsonValue = None

    @classmethod
    def nothing(cls) -> Self:
        return cls([], None, None, [], None)


class RunContext(Transcript):
    """One attempt of one run, as its agent sees it.

    ``thread_id``, ``run_id``; ``attempt`` (1 for the first execution); ``input`` (the prompt, or None to continue from the
    leaf); ``deadline`` (when the attempt times out, or None); :attr:`extra`; ``result`` (a JSON value for whoever enqueued the
    run; None unless set).

    ``extra`` and ``result`` hold no more than :mod:`runner.bounds` allows, else the run fails with ``invalid_input``.

    A later attempt continues from the last committed message: an agent reads :meth:`history` and goes on from there.
    """

    def __init__(
        self,
        run: Run,
        journal: Journal,
        stream: EventStream,
        *,
        extra: JsonObject | None = None,
        ledger: Ledger | None = None,
        deadline: datetime | None = None,
        on_lost: Callable[[RunyardError], None] | None = None,
    ) -> None:
        super().__init__(run, journal, stream, on_lost)
        self.thread_id = run.thread_id
        self.attempt = run.attempt
        self.input = run.input
        self.deadline = deadline
        self.result: JsonValue = None
        self._extra: JsonObject = copy.deepcopy(extra or {})
        self._given_extra = copy.deepcopy(self._extra)
        self._ledger = ledger or Ledger()
        self._requests: dict[str, HitlRequest] = {}
        self._scope = Scope(self)
        self._cancelled = False

    @property
    def extra(self) -> JsonObject:
        """The thread's dict, to be changed in place; saved at a suspension and at the completion (semantics: H11).

        A dict can be set in its stead: what the other one had besides stays in the thread. Raises InvalidInputError for what
        is no dict.
        """
        return self._extra

    @extra.setter
    def extra(self, extra: JsonObject) -> None:
        if not isinstance(extra, dict):
            raise InvalidInputError(f"extra is a dict, got {brief(extra)}", field="extra")
        self._extra = extra

    @property
    def cancelled(self) -> bool:
        """True once the run is to stop: it was cancelled, or its worker shuts down. The agent's task is cancelled as well."""
        return self._cancelled

    def stop(self) -> None:
        """Say that the run is to stop; the executor then cancels the agent's task."""
        self._cancelled = True

    async def step(self, fn: Callable[..., Any], *args: Any, key: str | None = None, on_unknown: OnUnknown = "retry") -> Any:
        """Call ``fn(*args)`` once for the run: its result (a JSON value) is recorded, and a later attempt gets the record.

        ``key`` names the step in its run; by default the function's name and how often it was called before in this attempt. An
        agent that skips what its history shows as done gives keys of its own, such as a tool call's id.

        The function learns its idempotency key, the same in every attempt, from :func:`runner.current_step` or from a parameter
        ``idempotency_key``. ``on_unknown`` decides about a step that an earlier attempt started and never finished, be it that
        the attempt died in it or that the function raised: ``retry`` calls it again; ``fail`` raises StepUnknownError, which no
        other attempt would get past; ``ask`` suspends the run until a human says whether it was done
        (:data:`~runner.agents.steps.ANSWER_SCHEMA`).

        Raises what the function raises; InvalidInputError if its result is no JSON value, or holds too much
        (:mod:`runner.bounds`), which is found out after the effect.
        """
        self._check()
        checked(on_unknown)
        if key is None:
            key = self._default_key(name_of(fn))
        known = self._ledger.steps.get(key)
        if known is not None and not known.done:
            known = await self._doubt(known, on_unknown)
        if known is None:
            await self._flush()
            known = await self._write(self._journal.start_step(key))
        if known is not None and known.done:
            return known.result
        value = await self._execute(fn, args, key)
        await self._finish(key, value)
        return value

    async def _doubt(self, step: Step, on_unknown: OnUnknown) -> Step | None:
        """Decide about a step that was started and whose end is unknown: None to call it again, else the step as done."""
        answer: JsonValue = {"action": on_unknown}
        if on_unknown == "ask":
            question = f"Step {step.key!r} was started and never finished: was it done?"
            payload: JsonObject = {"question": question, "step": step.key, "idempotency_key": self._id(f"step:{step.key}")}
            request = HitlRequest(kind="step", payload=payload, answer_schema=ANSWER_SCHEMA)
            # By the start that is in doubt: one that is called again and gets lost again is another question.
            answer = await self._ask(f"doubt:{step.fence}:{step.key}", request, None, None)
        match answer:
            case {"action": "retry"}:
                return None
            case {"action": "done", "result": result}:
                await self._finish(step.key, result)
                return replace(step, done=True, result=result)
        raise StepUnknownError(
            f"step {step.key!r} was started by an earlier attempt; whether it took effect is unknown", step=step.key
        )

    async def _execute(self, fn: Callable[..., Any], args: Sequence[Any], key: str) -> JsonValue:
        step = self._current_step(key)
        named = {"idempotency_key": step.idempotency_key} if takes(fn, "idempotency_key") else {}
        token = executing.set(step)
        try:
            result = fn(*args, **named)
            result = await result if inspect.isawaitable(result) else result
        finally:
            executing.reset(token)
        try:
            value: JsonValue = to_jsonable_python(result)
        except ValueError as error:
            raise InvalidInputError(f"step {key!r} returned what is no JSON value: {error}", step=key) from None
        return value

    async def _finish(self, key: str, value: JsonValue) -> None:
        await whole(self._write(self._journal.finish_step(key, value)))

    def _current_step(self, key: str) -> CurrentStep:
        return CurrentStep(self.thread_id, self.run_id, key, self.attempt, self._id(f"step:{key}"))

    @contextmanager
    def in_tool(self, call_id: str) -> Iterator[None]:
        """While the tool call ``call_id`` is executed by the current task: it is a step with an idempotency key of its own, and
        its questions do not end the attempt at once (they raise :class:`~runner.agents.signals.Deferred`)."""
        step = executing.set(self._current_step(tool_step(call_id)))
        scope = tool_scope.set(Scope(self, f"{call_id}/"))
        try:
            yield
        finally:
            tool_scope.reset(scope)
            executing.reset(step)

    def _default_key(self, name: str) -> str:
        scope = self._names()
        scope.calls[name] += 1
        return f"{scope.prefix}{name}#{scope.calls[name] - 1}"

    def _names(self) -> Scope:
        scope = tool_scope.get()
        return scope if scope is not None and scope.owner is self else self._scope

    async def model(
        self,
        model: Model[Any] | str,
        prompt: str | Sequence[Message] | None = None,
        *,
        tools: Sequence[Callable[..., Any] | Tool[Any]] = (),
        output_type: type[Output] = str,  # type: ignore[assignment]
        instructions: str | None = None,
        settings: ModelSettings | None = None,
        stream: bool = False,
        key: str | None = None,
    ) -> ModelAnswer[Output]:
        """Ask a model once; a later attempt gets the recorded answer instead. Nothing is appended to the run: append
        ``answer.message`` if it is to stay in the conversation.

        ``model``: ``provider:name`` or one of pydantic-ai's. ``prompt``: a text, messages, or by default :meth:`history`.
        ``tools``: functions that the model may call; it is asked once, so its calls are executed by :meth:`tool` and their
        results appended before it is asked again. ``output_type``: what the answer is to be; pydantic-ai asks again for one
        that does not fit. ``instructions`` and ``settings``: pydantic-ai's. ``stream``: send the answer while it is made.
        ``key``: as for :meth:`step`.

        Raises ExtraMissingError without the extra ``agents``, and what pydantic-ai raises.
        """
        load("pydantic_ai")
        messages = [Message.user(prompt)] if isinstance(prompt, str) else prompt if prompt is not None else await self.history()
        request = ModelRequest(
            model=model,
            messages=messages,
            tools=tools,
            output_type=output_type,
            instructions=instructions,
            settings=settings,
            stream=stream,
        )
        return await ask_model(self, request, key)

    async def tool(
        self,
        fn: Callable[..., Any],
        call: ToolCallPart | None = None,
        *,
        key: str | None = None,
        on_unknown: OnUnknown = "retry",
        **arguments: Any,
    ) -> Any:
        """Call ``fn`` with ``arguments``, or as the ``call`` of a model asks for it, once for the run (:meth:`step`). Whoever
        streams the run is told when it starts and when it is through.

        Raises what ``fn`` raises.
        """
        if key is None:
            key = tool_step(call.id) if call is not None else self._default_key(name_of(fn))
        told = ToolCallPart(id=key, name=name_of(fn), arguments=to_jsonable_python(arguments)) if call is None else call
        return await use_tool(self, fn, told, key, on_unknown)

    async def ask(
        self,
        question: str | JsonObject,
        schema: JsonObject | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
        on_timeout: JsonObject | None = None,
    ) -> JsonValue:
        """Return the human's answer, or suspend the run until there is one.

        ``schema``: JSON schema of valid answers. ``key`` names the question in its run; by default its number in this attempt
        and its text, so that an answer never goes to another question. ``timeout``: seconds to wait; then ``on_timeout``
        applies, ``{"fail": true}`` by default or ``{"answer": …}``. Questions of parallel tasks (a TaskGroup) are asked
        together.

        Raises HitlNotAllowedError in a probe, InvalidInputError for JSON that holds too much
        (:mod:`runner.bounds`).
        """
        payload: JsonObject = {"question": question} if isinstance(question, str) else question
        check_value(payload, "payload")
        check_value(schema, "answer_schema")
        if key is None:
            scope = self._names()
            key = f"{scope.prefix}{scope.asked}:{digest([payload, schema])}"
            scope.asked += 1
        return await self._ask(f"ask:{key}", HitlRequest(payload=payload, answer_schema=schema), timeout, on_timeout)

    async def approve(
        self,
        call: ToolCallPart,
        question: str | None = None,
        *,
        details: JsonObject | None = None,
        timeout: float | None = None,
        on_timeout: JsonObject | None = None,
    ) -> Approval:
        """Return the human's decision on ``call``, or suspend the run until there is one.

        The approval belongs to this call with these arguments; an answer is ``true``, ``false`` or an object with ``approved``
        and optionally ``reason`` and edited ``arguments``. ``details``: JSON shown beside the call. See :meth:`ask` for the
        rest.
        """
        check_value(details, "details")
        payload: JsonObject = {"question": question or f"Allow {call.name}?", "tool_call": call.model_dump(mode="json")}
        if details is not None:
            payload["details"] = details
        request = HitlRequest(kind="approval", payload=payload, answer_schema=APPROVAL_SCHEMA)
        return read_approval(await self._ask(approval_key(call), request, timeout, on_timeout), call)

    async def remainder(self) -> Remainder:
        """What is left to write when the agent is through; nothing can be added after it."""
        async with self._lock:
            # Only what this attempt changed: the rest may have been changed by others since.
            given = self._given_extra
            extra = {key: value for key, value in self.extra.items() if key not in given or given[key] != value} or None
            signal, self._signal = self._signal, self._signal or Suspend()
            self._committed = None  # a driver's timers hold the contexts of tasks, and so this one, for minutes
            return Remainder(self._held, extra, self.accounts.uncounted, list(self._requests.values()), signal, self.result)

    async def _ask(self, key: str, request: HitlRequest, timeout: float | None, on_timeout: JsonObject | None) -> JsonValue:
        if not self._journal.durable:
            raise HitlNotAllowedError("nobody can answer a probe; give it an agent that does not ask", thread_id=self.thread_id)
        if isinstance(self._signal, AttemptLost):
            raise self._signal
        request = request.model_copy(update={"request_id": self._id(key), "thread_id": self.thread_id, "run_id": self.run_id})
        known = self._ledger.requests.get(request.request_id)
        if known is not None and known.answered_at is not None:
            return known.answer
        if timeout is not None:
            if not 0 <= timeout <= LONGEST_WAIT:
                raise InvalidInputError(f"a question waits 0 to {LONGEST_WAIT} seconds, got {timeout}", field="timeout")
            request = request.model_copy(update={"timeout": timeout, "on_deadline": on_timeout or FAIL})
        check_requests(request)
        self._requests[request.request_id] = known or request
        if self._names() is not self._scope:
            await asyncio.sleep(0)
            raise Deferred("a tool asked")
        return await self.suspend()

    async def suspend(self) -> NoReturn:
        """End the attempt: the run waits for the answers to what was asked."""
        self._signal = Suspend()
        await asyncio.sleep(0)  # sibling tasks ask now; the first signal to unwind cancels them
        raise self._signal

    def _id(self, key: str) -> str:
        return request_id(self._stream.ref.thread_key, self.run_id, key)
