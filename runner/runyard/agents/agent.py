"""Agent: a model with its tools, for runs in this process or in a worker.

In this process, an Agent works with any checkpointer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..domain.messages import Message, Part
from ..domain.requests import HitlRequest
from ..domain.runs import ForkOnceResult
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.validation import check_id, new_id
from ..errors import (
    HitlBindingError,
    HitlNoPendingRequestError,
    InvalidInputError,
    NothingToRunError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    ThreadBusyError,
)
from ..execution.context import RunContext
from ..support.optional_imports import load
from .active_prompt import ActivePrompt, AgentState
from .channels import Channel, CheckpointedChannel, InMemoryChannel
from .local_attempt import Listener, Listeners, LocalAttempt, external_run
from .local_probe import probe
from .local_store import LocalStore
from .local_thread import LocalThread, capability, fork_options

if TYPE_CHECKING:
    from pydantic_ai import Agent as Engine
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.toolsets import AbstractToolset
    from pydantic_ai.usage import UsageLimits

    from ..ports.stores import Checkpointer
    from .budgets import Budget


class Agent:
    """A model with tools.

    Outside of a worker, the agent stores its conversation in the thread ``thread_id`` of ``checkpointer``. If the thread id or
    the checkpointer is missing, the agent takes the missing value from its CheckpointedChannel. A ``thread_id`` without a
    checkpointer names a thread in the SQLite file ``runyard.db`` of the working directory. The file is made at the first call
    that needs it, and is open only during calls. Several agents and processes may use it. Without a thread id, the
    conversation exists only in memory, and no file is made.

    The same Agent can also execute the runs of a worker: ``App(agents={"support": agent})``. The worker then supplies the
    store, the thread and the channel.

    ``model``: ``"provider:model"`` or a pydantic-ai model. ``tools``: functions or pydantic-ai tools. ``system_prompt``: one
    text or several. ``middleware``: pydantic-ai capabilities, such as :class:`~runyard.hitl.ApprovalPolicyMiddleware`.
    ``channel``: the store of questions. By default, questions are stored with the conversation. ``output_type``, ``toolsets``,
    ``model_settings``, ``retries``: the arguments of :class:`pydantic_ai.Agent` with these names. ``deps``: the value of
    ``ctx.deps`` in tools, or a sync or async function that makes this value from a :class:`RunContext`. ``budget``: one budget
    or several for a run or the thread. ``usage_limits``: pydantic-ai's limits for one attempt. ``engine``: a complete
    :class:`pydantic_ai.Agent`, in place of the arguments that describe an agent.

    Each model response and each tool result is stored before the next step starts. :meth:`resume` continues after the last
    stored message.

    Raises InvalidInputError for ``engine`` with an argument that describes an agent, for different channels of the agent and
    its tools, and for a channel that is bound to another thread. Raises ExtraMissingError without the extra ``agents``."""

    def __init__(
        self,
        model: Model | str | None = None,
        *,
        tools: Sequence[Any] = (),
        system_prompt: str | Sequence[str] = (),
        middleware: Sequence[AbstractCapability[Any]] = (),
        channel: Channel | None = None,
        checkpointer: Checkpointer | None = None,
        thread_id: str | None = None,
        output_type: Any = str,
        toolsets: Sequence[AbstractToolset[Any]] = (),
        model_settings: ModelSettings | None = None,
        retries: int | None = None,
        deps: Any = None,
        budget: Budget | Sequence[Budget] | None = None,
        usage_limits: UsageLimits | None = None,
        name: str | None = None,
        engine: Engine[Any, Any] | None = None,
    ) -> None:
        described = any((model, tools, system_prompt, middleware, toolsets, model_settings)) or output_type is not str
        if engine is not None and described:
            raise InvalidInputError(
                "the agent has an engine; give the tools and the middleware to the engine instead", field="engine"
            )
        described_as: dict[str, Any] = {
            "tools": tools,
            "instructions": [system_prompt] if isinstance(system_prompt, str) else list(system_prompt),
            "capabilities": list(middleware),
            "output_type": output_type,
            "toolsets": list(toolsets),
            "model_settings": model_settings,
            "retries": retries,
            "name": name,
            "defer_model_check": True,
        }
        self.engine: Engine[Any, Any] = engine or load("pydantic_ai").Agent(model, **described_as)
        self.name = name or self.engine.name
        self.deps, self.budget, self.usage_limits = deps, budget, usage_limits
        self.state = AgentState()
        self._active = ActivePrompt(self.state)
        channels = (channel, *load("runyard.hitl").bound_channels(self.engine))
        self._channels: list[Channel] = [each for each in channels if each is not None]
        self.thread_id = thread_id
        self._listeners = Listeners()
        self._claiming: str | None = None
        if thread_id is not None:
            check_id(thread_id, "thread_id")
        for bound in self._bound:
            if thread_id not in (None, bound.thread_id):
                raise InvalidInputError(
                    f"the channel is bound to thread {bound.thread_id!r} and the agent to {thread_id!r}; name the same thread",
                    field="channel",
                )
        self.channel = self._one_channel()
        for bound in self._bound:
            checkpointer, thread_id = checkpointer or bound.checkpointer, bound.thread_id
        self._store = LocalStore(checkpointer, thread_id)

    async def __call__(self, ctx: RunContext) -> None:
        """Execute a run of a worker."""
        from .engine import serve

        await serve(self.engine, deps=self.deps, budget=self.budget, usage_limits=self.usage_limits)(ctx)

    async def prompt(self, message: str | Message | list[Part] | None, run_id: str | None = None) -> str:
        """Execute one prompt. Return the run id (R1) after the final assistant message, or when the run waits for a human.

        ``run_id``: the run's id, or None for a new id. With a :class:`~runyard.hitl.CheckpointedChannel`, give the run id of
        the channel (H2). ``message``: the prompt, or None. With None, a new run continues from the last message. But if the
        thread already has messages of the run ``run_id``, a call with None resumes this run (R9).

        While a run waits for a human, ``state.active_run_id`` stays set, and ``state.pending`` has the questions.
        :meth:`respond` continues the run.

        Raises:
        - HitlBindingError (a ValueError) for a run id other than the channel's;
        - ThreadBusyError while a run of the thread is being executed or waits for a human (R4);
        - RunAlreadyCompletedError;
        - RunAlreadyClaimedError if the run was claimed before. :meth:`resume` continues a run that has messages in the thread.
          If the run has no message, call :meth:`prompt` with another run id;
        - NothingToRunError;
        - IncompleteToolCycleError;
        - BackendUnavailableError if ``runyard.db`` cannot be made or written, DataCorruptedError if this file is not a SQLite
          file;
        - the error of the model's provider. After this error, the run is not completed and can be resumed (R7, R8).
        """
        self._check_binding(run_id)
        with self._active.begin():
            async with self._store.own_thread() as local_thread:
                return await self._prompt(local_thread, message, run_id)

    async def _prompt(self, local_thread: LocalThread, message: str | Message | list[Part] | None, run_id: str | None) -> str:
        if message is None and run_id is not None and any(m.run_id == run_id for m in (await local_thread.load()).messages):
            return await self._resume(local_thread, run_id)
        if pending := await local_thread.pending():
            ids = [request.request_id for request in pending]
            raise ThreadBusyError(
                f"run {pending[0].run_id} waits for an answer to {', '.join(ids)}; respond, or abort_pending",
                run_id=pending[0].run_id,
                request_ids=ids,
            )
        run_id = check_id(run_id, "run_id") if run_id is not None else new_id()
        given = None if message is None else _as_message(message, run_id)
        if given is None:
            _check_something_to_run(await local_thread.counts(await local_thread.load(), run_id), local_thread.thread_id)
        await self._claim(local_thread, run_id)
        self.state.active_run_id = run_id
        await local_thread.append([given] if given is not None else [])
        self._claiming = None
        await self._execute(local_thread, run_id, given, fresh=True)
        return run_id

    async def _claim(self, local_thread: LocalThread, run_id: str) -> None:
        """Claim the run. An earlier claim by this object is no error if the thread has no message of the run (R9).

        Such a claim is no error, because the store's reply to the earlier claim may have been lost."""
        again, self._claiming = self._claiming == run_id, run_id
        try:
            await local_thread.claim(run_id)
        except (RunAlreadyClaimedError, RunAlreadyCompletedError) as refused:
            stored = any(message.run_id == run_id for message in (await local_thread.load()).messages)
            if not again or stored or isinstance(refused, RunAlreadyCompletedError):
                self._claiming = None
                raise

    async def resume(self, run_id: str | None = None) -> str:
        """Continue a run from its last stored message, after an error, a crash, or an answer from another process (R8, R9).

        ``run_id``: by default the active run. Returns the run id. Raises NothingToRunError if neither an active run nor a
        ``run_id`` exists. Raises RunNotClaimedError if the thread has no message of the run. Raises RunAlreadyCompletedError
        and the errors of :meth:`prompt`."""
        run_id = run_id or self.state.active_run_id
        if run_id is None:
            raise NothingToRunError("this agent has no interrupted run; give the run_id of the run to resume", field="run_id")
        with self._active.begin():
            async with self._store.own_thread() as local_thread:
                return await self._resume(local_thread, run_id)

    async def _resume(self, local_thread: LocalThread, run_id: str) -> str:
        data = await local_thread.load()
        own = [message for message in data.messages if message.run_id == run_id]
        if not own:
            raise RunNotClaimedError(
                f"thread {local_thread.thread_id!r} has no message of run {run_id!r}; start the run with prompt", run_id=run_id
            )
        if hasattr(local_thread.checkpointer, "snapshot") and await local_thread.completed(run_id):
            raise RunAlreadyCompletedError(f"run {run_id!r} is completed", run_id=run_id)
        self.state.active_run_id = run_id
        await self._execute(local_thread, run_id, own[0] if own[0].role == "user" else None, fresh=False)
        return run_id

    async def respond(self, answer: JsonValue, request_id: str | None = None, response_id: str | None = None) -> str:
        """Answer a question of the thread's run. Continue the run until the run ends or waits again. Return the run id.

        A run that asked several questions together continues after the last answer.

        ``request_id``: the question's id, or None for the only pending question. ``response_id``: an id of this response. Give
        the same ``response_id`` when you repeat the call. The run keeps its id and its claim (H5). A repetition of the same
        answer changes nothing, even if another caller gave the first answer (H4).

        With an :class:`~runyard.hitl.InMemoryChannel`, this call returns at once. The call of :meth:`prompt` that asked the
        question continues the run.

        Raises HitlAmbiguousError, HitlNoPendingRequestError, HitlStaleAnswerError, HitlAlreadyAnsweredError,
        HitlInvalidAnswerError, and the errors of :meth:`prompt`. After an invalid answer the question stays pending (H3)."""
        if isinstance(self.channel, InMemoryChannel):
            return self.channel.answer(request_id, answer).run_id or ""
        with self._active.begin():
            async with self._store.own_thread() as local_thread:
                return await self._respond(local_thread, answer, request_id, response_id)

    async def _respond(
        self, local_thread: LocalThread, answer: JsonValue, request_id: str | None, response_id: str | None
    ) -> str:
        responded = await local_thread.requests.answer_request(
            local_thread.thread_id, answer, request_id=request_id, response_id=response_id
        )
        request, run_id = responded.request, responded.request.run_id
        if run_id is None:
            raise HitlNoPendingRequestError(f"request {request.request_id} belongs to no run", request_id=request_id)
        ours = any(message.run_id == run_id for message in (await local_thread.load()).messages)
        if ours and responded.last:
            return await self._resume(local_thread, run_id)
        if ours and responded.created:
            self.state.active_run_id = run_id
            self.state.pending = [each for each in await local_thread.pending() if each.run_id == run_id]
        # This call only stores an answer to a question of a worker's run. A worker continues that run.
        return run_id

    async def pending(self) -> list[HitlRequest]:
        """Return the pending questions of the agent's thread, the oldest first.

        Questions that other processes asked are included."""
        if isinstance(self.channel, InMemoryChannel):
            return self.channel.pending
        async with self._store.own_thread() as local_thread:
            return await local_thread.pending()

    async def abort_pending(self, reason: str = "aborted") -> None:
        """Cancel the run that waits for a human (H8). The human gives no answer, and no model is called.

        Each open tool call gets the error result "aborted: …". An assistant message then says that the run stopped. The
        conversation can continue. A second call does nothing.

        Raises ThreadBusyError while another call of this object executes or aborts a run."""
        if isinstance(self.channel, InMemoryChannel):
            for request in self.channel.pending:
                self.channel.cancel(request.request_id, f"aborted: {reason}")
            return
        with self._active.begin():
            async with self._store.own_thread() as local_thread:
                for run_id in dict.fromkeys(request.run_id for request in await local_thread.pending()):
                    await local_thread.requests.abort_pending(local_thread.thread_id, reason, run_id=run_id)
                    self.state.pending = []
                    if self.state.active_run_id == run_id:
                        self.state.active_run_id = None

    async def abort(self) -> None:
        """Stop the prompt that is being executed, and wait for its end. Do nothing if no prompt is being executed.

        The prompt raises AgentCancelledError. The run of the prompt is not completed."""
        await self._active.abort()

    async def fork(
        self,
        *,
        after_run_id: str,
        src_thread_id: str | None = None,
        new_thread_id: str | None = None,
        metadata: JsonObject | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        agent: str | None = None,
        reset_usage: bool = True,
    ) -> str:
        """Make a new thread that shares the history of ``src_thread_id`` up to a completed run (F1 to F4, F7).

        ``src_thread_id``: by default the agent's thread. ``new_thread_id``: the id of the new thread, or None for a generated
        id. ``metadata`` becomes ``extra["fork"]`` of the new thread. ``title``, ``tags``, ``agent`` (the name of an agent of an
        App) and ``reset_usage``: as in :meth:`runyard.Client.fork`. Returns the id of the new thread.

        Raises ThreadNotFoundError, RunNotCompletedError, ThreadAlreadyExistsError, InvalidInputError. Raises
        CapabilityMissingError if the checkpointer cannot fork, or lacks one of the given options (R14)."""
        new = new_id() if new_thread_id is None else check_id(new_thread_id, "new_thread_id")
        options = fork_options(title=title, tags=tags, agent=agent, reset_usage=reset_usage)
        async with self._store.source(src_thread_id) as (checkpointer, source):
            fork = capability(checkpointer, "fork", *options)
            await fork(source, new, after_run_id=after_run_id, metadata=metadata, **options)
        return new

    async def fork_once(self, *, message: str | Message, after_run_id: str, src_thread_id: str | None = None) -> ForkOnceResult:
        """Execute one prompt on a snapshot, and write to no thread (F9). Side effects of tools are real.

        After an error of the model's provider, the result has the stop reason ``error``.

        Raises HitlNotAllowedError (a RuntimeError) if any part of the agent can ask a human. This check happens before the
        snapshot is read. Raises ThreadNotFoundError, RunNotCompletedError, CapabilityMissingError."""
        async with self._store.source(src_thread_id) as (checkpointer, source):
            return await probe(self, checkpointer, source, after_run_id, _as_message(message, new_id()))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every event of the runs that this object executes, as soon as the event occurs.

        The events have the types of :meth:`RunHandle.stream`. Returns a function that ends the subscription."""
        return self._listeners.subscribe(listener)

    @property
    def asks_humans(self) -> bool:
        """Whether any part of the agent can ask a human: a tool, a toolset, the middleware, a channel, a budget."""
        from .budgets import as_budgets
        from .durable_tools import asks_humans

        asking = any(budget.on_exceeded == "ask" for budget in as_budgets(self.budget))
        return bool(self._channels) or asking or asks_humans(self.engine)

    @property
    def _bound(self) -> Iterator[CheckpointedChannel]:
        return (channel for channel in self._channels if isinstance(channel, CheckpointedChannel))

    def _one_channel(self) -> Channel | None:
        """Return the channel for questions.

        Raise InvalidInputError if the agent and its tools have different channels. A listener of one channel would miss the
        questions of the others."""
        first = next(iter(self._channels), None)
        for other in self._channels:
            if type(other) is not type(first) or (isinstance(first, InMemoryChannel) and other is not first):
                raise InvalidInputError(
                    "the agent and its tools have different channels; give them the same channel", field="channel"
                )
        if first is None and self.thread_id is None:
            return InMemoryChannel()
        return first

    def _check_binding(self, run_id: str | None) -> None:
        """Raise HitlBindingError if ``run_id`` differs from the run id to which the channel is bound (H2)."""
        for bound in self._bound:
            if run_id != bound.run_id:
                given = "no run_id was given" if run_id is None else f"run_id {run_id!r} was given"
                raise HitlBindingError(
                    f"the channel is bound to run {bound.run_id!r}, but {given}; prompt with run_id={bound.run_id!r}",
                    bound=bound.run_id,
                    run_id=run_id,
                )

    async def _execute(self, local_thread: LocalThread, run_id: str, given: Message | None, *, fresh: bool) -> None:
        """Execute one attempt of a claimed run and set ``state`` to its outcome."""
        run = external_run(local_thread.thread_id, run_id, given, attempt=1 if fresh else 2)
        local_attempt = await LocalAttempt.begin(local_thread, run, self._listeners, self.channel, fresh=fresh)
        self.state.messages = local_attempt.attempt_store.messages
        await self._active.execute(run_id, lambda: local_attempt.execute(self))


def _as_message(message: str | Message | list[Part], run_id: str) -> Message:
    given = message if isinstance(message, Message) else Message.user(message)
    return given.model_copy(update={"run_id": run_id})


def _check_something_to_run(messages: Sequence[Message], thread_id: str) -> None:
    last = messages[-1] if messages else None
    if last is None or (last.role == "assistant" and not last.tool_calls):
        raise NothingToRunError(f"thread {thread_id!r} has no message to answer; give a message", thread_id=thread_id)
