"""RunContext: the object by which an agent reads and writes its run."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, overload

from pydantic_core import to_jsonable_python

from ..domain.approvals import APPROVAL_SCHEMA, Approval, approval_key, read_approval
from ..domain.derived_ids import digest, request_id
from ..domain.messages import Message, ToolCallPart, Usage
from ..domain.quoting import brief
from ..domain.requests import HitlRequest, check_requests
from ..domain.runs import Run
from ..domain.size_limits import JsonObject, JsonValue, check_value
from ..domain.waits import MAX_WAIT_SECONDS
from ..errors import BackendUnavailableError, CapabilityMissingError, InvalidInputError, RunyardError
from ..events.writer import EventEmitter
from ..ports.graph_checkpoints import AttemptGraphs
from ..ports.results import Ledger, Step
from ..support.optional_imports import load
from ..support.tracebacks import TracebackFilter
from .attempt_store import AttemptStore
from .control_signals import Suspend
from .parking import Parking
from .remainder import Remainder
from .steps import OnUnknown, Steps, name_of, tool_step
from .transcript import whole

if TYPE_CHECKING:
    from pydantic_ai import Tool
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

    from ..agents.plain_calls import ModelAnswer

Output = TypeVar("Output")
R = TypeVar("R")
T = TypeVar("T")
Args = TypeVarTuple("Args")

FAIL: Final[JsonObject] = {"fail": True}


class RunContext(Parking):
    """The context of one attempt of a run, for its agent.

    ``thread_id``, ``run_id``: the ids of the thread and the run. ``agent``: the name of the agent in its App, or None for an
    in-process Agent. ``attempt``: the number of the attempt, from 1. ``input``: the prompt, or None if the run continues from
    the leaf. ``deadline``: the time at which the attempt times out, or None for no timeout. ``extra``: the thread's extra.
    ``config``: a copy of the thread's config at the start of the attempt. Changes to the copy are not saved. ``result``: a
    JSON value for the caller that enqueued the run, None by default. ``traceback_filter``: the filter of the App, or None.

    A run fails with ``invalid_input`` if ``extra`` or ``result`` exceeds the :mod:`runyard.domain.size_limits`.

    A later attempt continues after the last committed message. Its agent reads the committed messages by :meth:`history`.
    """

    def __init__(
        self,
        run: Run,
        attempt_store: AttemptStore,
        stream: EventEmitter,
        *,
        extra: JsonObject | None = None,
        config: JsonObject | None = None,
        ledger: Ledger | None = None,
        deadline: datetime | None = None,
        on_lost: Callable[[RunyardError], None] | None = None,
        agent: str | None = None,
        on_used: Callable[[Usage, str], None] | None = None,
        traceback_filter: TracebackFilter | None = None,
    ) -> None:
        super().__init__(run, attempt_store, stream, ledger or Ledger(), on_lost, on_used)
        self.agent = agent or run.agent
        self.traceback_filter = traceback_filter
        self.attempt = run.attempt
        self.input = run.input
        self.deadline = deadline
        self.config: JsonObject = copy.deepcopy(config) if config else {}
        self.result: JsonValue = None
        self._extra: JsonObject = copy.deepcopy(extra) if extra else {}
        self._given_extra = copy.deepcopy(extra) if extra else {}
        self._requests: dict[str, HitlRequest] = {}
        self._steps = Steps(
            run,
            stream.ref.thread_key,
            self._ledger.steps,
            start=self._start_step,
            finish=self._finish_step,
            ask=lambda key, request: self._ask(key, request, None, None),
            keep=traceback_filter,
        )
        self._cancelled = False

    @property
    def extra(self) -> JsonObject:
        """The thread's extra, a dict that the agent changes in place.

        The dict is saved when the run is suspended or completes (H11).

        The agent can also assign another dict. Keys of the thread's extra that are missing in the dict stay in the thread.
        Raises InvalidInputError for a value that is not a dict.
        """
        return self._extra

    @extra.setter
    def extra(self, extra: JsonObject) -> None:
        if not isinstance(extra, dict):
            raise InvalidInputError(f"extra is a dict, got {brief(extra)}", field="extra")
        self._extra = extra

    @property
    def cancelled(self) -> bool:
        """Whether a cancel, a timeout, a shutdown of the worker, or the loss of the run stopped the attempt.

        A stop also cancels the agent's task.
        """
        return self._cancelled

    @property
    def graphs(self) -> AttemptGraphs:
        """The checkpoints of graphs, for an adapter. Raises CapabilityMissingError if the store has none (R14)."""
        if self._attempt_store.graphs is None:
            raise CapabilityMissingError("only workers keep checkpoints of graphs; run this agent in a worker")
        return self._attempt_store.graphs

    def name_steps_by(self, part: Callable[[], str | None]) -> None:
        """Use separate default names for the steps and questions of each part of an agent, for example of each graph node.
        Adapters call this method.

        A later attempt may execute one part without the others. The default names in a part must therefore not depend on other
        parts. ``part``: a function that returns the name of the part to which the calling code belongs, or None. This name
        must be the same in every attempt.
        """
        self._steps.part = part

    def stop(self) -> None:
        """Mark the attempt as stopped. After this call, the executor cancels the agent's task."""
        self._cancelled = True

    # The last parameter of a function may be `idempotency_key`, a str. The caller does not give this argument.
    @overload
    async def step(
        self, fn: Callable[[*Args], Awaitable[R]], *args: *Args, key: str | None = None, on_unknown: OnUnknown = "retry"
    ) -> R: ...
    @overload
    async def step(
        self, fn: Callable[[*Args, str], Awaitable[R]], *args: *Args, key: str | None = None, on_unknown: OnUnknown = "retry"
    ) -> R: ...
    @overload
    async def step(
        self, fn: Callable[[*Args], R], *args: *Args, key: str | None = None, on_unknown: OnUnknown = "retry"
    ) -> R: ...
    @overload
    async def step(
        self, fn: Callable[[*Args, str], R], *args: *Args, key: str | None = None, on_unknown: OnUnknown = "retry"
    ) -> R: ...
    async def step(self, fn: Callable[..., Any], *args: object, key: str | None = None, on_unknown: OnUnknown = "retry") -> Any:
        """Call ``fn(*args)`` and record its result, a JSON value.

        A later attempt gets the recorded result and does not call ``fn``.

        ``key``: the name of the step in its run. The default consists of the function's name and the number of the function's
        earlier calls in this attempt. An agent may skip a step because its history has the result. Such an agent must give
        keys, for example the ids of tool calls.

        The timeline of the run shows the first 300 characters of the arguments. An argument that is not JSON is shown by the
        name of its type.

        The function gets its idempotency key from :func:`runyard.current_step` or in a parameter ``idempotency_key``. This key
        is the same in every attempt.

        ``on_unknown``: the policy for a step that an earlier attempt started and did not finish, because the attempt crashed
        or the function raised an error. ``retry`` calls the function again. ``fail`` raises StepUnknownError, and the run
        fails without another attempt. ``ask`` suspends the run, and asks a human whether the step was done
        (:data:`~runyard.execution.steps.ANSWER_SCHEMA`).

        Raises the function's error. Raises InvalidInputError after the call if the result is not a JSON value or exceeds the
        :mod:`runyard.domain.size_limits`.
        """
        self._check()
        return await self._whole_call(self._steps.replay_or_call(fn, args, key, on_unknown))

    async def _start_step(self, key: str, input: str | None) -> Step | None:
        await self._flush()
        return await self._write(self._attempt_store.start_step(key, input=input))

    async def _finish_step(self, key: str, value: JsonValue) -> None:
        await whole(self._record_step(key, value))

    async def _record_step(self, key: str, value: JsonValue) -> None:
        async with self._lock:
            self._check()  # the end of the attempt counts the usage
            with self.usage_meter.recording() as usage:
                await self._write(self._attempt_store.finish_step(key, value, usage=usage))

    def in_tool(self, call_id: str) -> AbstractContextManager[None]:
        """Execute the tool call ``call_id`` in the current task, as a step with its own idempotency key.

        A question inside the call raises :class:`~runyard.execution.control_signals.Deferred`. After this signal, other tool
        calls of the attempt can finish.
        """
        return self._steps.in_tool(call_id)

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
        """Send one model request and record its answer. A later attempt gets the recorded answer and sends no request.

        The answer is not appended to the run. Append ``answer.message`` to store the answer in the conversation.

        ``model``: ``provider:name`` or a pydantic-ai model. ``prompt``: a text, messages, or by default :meth:`history`.
        ``tools``: functions that the model may call. This method does not call the functions. Execute the model's calls with
        :meth:`tool`, and append the results before the next request. ``output_type``: the type of the answer. If an answer does
        not fit this type, pydantic-ai repeats the request. ``instructions``: the instructions for the model. ``settings``:
        pydantic-ai's settings of the model. ``stream``: whether to send the answer as events while the model generates it.
        ``key``: the name of the step in its run (:meth:`step`).

        Raises ExtraMissingError if the extra ``agents`` is not installed, and the errors of pydantic-ai.
        """
        load("pydantic_ai")
        from ..agents.plain_calls import ModelRequest
        from ..agents.plain_calls import model as ask

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
        return await ask(self, request, key)

    async def tool(
        self,
        fn: Callable[..., Any],
        call: ToolCallPart | None = None,
        *,
        key: str | None = None,
        on_unknown: OnUnknown = "retry",
        **arguments: Any,
    ) -> Any:
        """Call ``fn`` as a step (:meth:`step`), with ``arguments`` or with the arguments of a model's ``call``.

        The run's stream gets an event at the start of the call and another event at its end.

        Raises the error of ``fn``.
        """
        from ..agents.plain_calls import tool as use

        if key is None:
            key = tool_step(call.id) if call is not None else self._steps.default_key(name_of(fn))
        described = ToolCallPart(id=key, name=name_of(fn), arguments=to_jsonable_python(arguments)) if call is None else call
        return await use(self, fn, described, key, on_unknown)

    async def ask(
        self,
        question: str | JsonObject,
        schema: JsonObject | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
        on_timeout: JsonObject | None = None,
    ) -> JsonValue:
        """Return the human's answer. Suspend the run until there is an answer.

        ``schema``: JSON schema of valid answers. ``key``: the name of the question in its run. The default consists of the
        question's number in this attempt and a digest of its text. The digest distinguishes the question from another question
        with the same number in a later attempt. ``timeout``: seconds to wait, or None for no limit. ``on_timeout``: the
        outcome after the timeout, ``{"answer": …}`` or by default ``{"fail": true}``. Questions of parallel tasks (a
        TaskGroup) are asked together.

        If a probe asks a question, the probe ends, and its caller gets HitlNotAllowedError. Raises InvalidInputError for JSON
        that exceeds the :mod:`runyard.domain.size_limits`.
        """
        if not isinstance(question, str | dict):
            raise InvalidInputError(f"a question is text or a JSON object, got {brief(question)}", field="question")
        payload: JsonObject = {"question": question} if isinstance(question, str) else question
        check_value(payload, "payload")
        check_value(schema, "answer_schema")
        if key is None:
            scope = self._steps.scope
            key = f"{scope.prefix}{scope.asked}:{digest([payload, schema])}"
            scope.asked += 1
        return await self._ask(f"ask:{key}", HitlRequest(payload=payload, answer_schema=schema), timeout, on_timeout)

    async def ask_all(self, questions: Mapping[str, tuple[JsonObject, JsonObject | None]]) -> dict[str, JsonValue]:
        """Ask several questions together, and return the answers by key. ``questions``: a map from each key to the payload and
        the answer schema."""
        async with asyncio.TaskGroup() as group:
            asked = {key: group.create_task(self.ask(payload, schema, key=key)) for key, (payload, schema) in questions.items()}
        return {key: task.result() for key, task in asked.items()}

    def answer_to(self, key: str, default: T) -> JsonValue | T:
        """Return the answer to the question ``key`` of :meth:`ask`, or ``default`` if there is none. Do not ask the question.

        An adapter calls this method.
        """
        known = self._ledger.requests.get(self._request_id(f"ask:{key}"))
        return known.answer if known is not None and known.answered_at is not None else default

    async def approve(
        self,
        call: ToolCallPart,
        question: str | None = None,
        *,
        details: JsonObject | None = None,
        timeout: float | None = None,
        on_timeout: JsonObject | None = None,
    ) -> Approval:
        """Return the human's decision on ``call``. Suspend the run until there is a decision.

        The decision is valid for this call with these arguments only. An answer is ``true``, ``false``, or an object with
        ``approved`` and optionally ``reason`` and edited ``arguments``. ``details``: JSON to show beside the call. The other
        arguments and the errors are as in :meth:`ask`.
        """
        if not isinstance(call, ToolCallPart):
            raise InvalidInputError(
                f"approve takes the ToolCallPart of a tool call, and then a question; got {brief(call)}. For a question "
                "without a tool call, use ctx.ask",
                field="call",
            )
        check_value(details, "details")
        payload: JsonObject = {"question": question or f"Allow {call.name}?", "tool_call": call.model_dump(mode="json")}
        if details is not None:
            payload["details"] = details
        request = HitlRequest(kind="approval", payload=payload, answer_schema=APPROVAL_SCHEMA)
        return read_approval(await self._ask(approval_key(call), request, timeout, on_timeout), call)

    async def remainder(self) -> Remainder:
        """Return the uncommitted part of this context, and close the context. A closed context accepts no additions."""
        self._stop_timer()
        async with self._lock:
            # Save only the keys that this attempt changed. Another program has possibly changed the other keys.
            given = self._given_extra
            extra = {key: value for key, value in self.extra.items() if key not in given or given[key] != value} or None
            signal, self._signal = self._signal, self._signal or Suspend()
            self._calls.clear()
            self._committed = None  # for minutes, a driver's timer may hold this object by the context of a task
            self._own_read.clear()
            with suppress(BackendUnavailableError):  # the end of the attempt asks again
                await self._settle_usage()
            asked, meter = list(self._requests.values()), self.usage_meter
            waits = list(self._waits.open.values())
            held, self._held = self._held, []  # a task that outlives the agent must not commit them, too
            settled, last = self._settle_usage if meter.in_doubt else None, self._last_stored
            return Remainder(held, extra, meter.uncounted, asked, signal, self.result, waits, meter.used, settled, last)

    async def _ask(self, key: str, request: HitlRequest, timeout: float | None, on_timeout: JsonObject | None) -> JsonValue:
        self._check_parking("a probe cannot ask a human; use an agent that does not ask")
        where = {"request_id": self._request_id(key), "thread_id": self.thread_id, "run_id": self.run_id}
        request = request.model_copy(update=where)
        known = self._ledger.requests.get(request.request_id)
        if known is not None and known.answered_at is not None:
            return known.answer
        if timeout is not None:
            seconds: object = timeout
            if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_WAIT_SECONDS:
                raise InvalidInputError(
                    f"the timeout of a question must be 0 to {MAX_WAIT_SECONDS} seconds, got {brief(timeout)}", field="timeout"
                )
            request = request.model_copy(update={"timeout": timeout, "on_deadline": on_timeout or FAIL})
        check_requests(request)
        self._requests[request.request_id] = known or request
        return await self._park()

    def _request_id(self, key: str) -> str:
        return request_id(self._stream.ref.thread_key, self.run_id, key)
