"""Agent: a model with its tools, which prompts, asks and forks over any checkpointer, or serves the runs of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from .agents.context import RunContext
from .agents.keeper import Keeper, capability
from .agents.probe import probe
from .agents.solo import Listener, Listeners, Solo, external_run
from .channels import Channel, CheckpointedChannel, InMemoryChannel
from .errors import (
    AgentCancelledError,
    CapabilityMissingError,
    HitlBindingError,
    HitlNoPendingRequestError,
    IncompleteToolCycleError,
    InvalidInputError,
    NothingToRunError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    ThreadBusyError,
)
from .extras import load
from .models import (
    ForkOnceResult,
    HitlRequest,
    JsonObject,
    JsonValue,
    Message,
    Part,
    check_id,
    new_id,
)

if TYPE_CHECKING:
    from pydantic_ai import Agent as Engine
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.toolsets import AbstractToolset
    from pydantic_ai.usage import UsageLimits

    from .agents.budgets import Budget
    from .ports import Checkpointer


@dataclass
class AgentState:
    """What an in-process Agent is doing.

    ``active_run_id``: the run that was begun and has not ended: set while it streams and while it waits for a human, and after
    something raised, so that it can be resumed; None after its completion or a definite failure (semantics: R8).
    ``is_streaming``: a prompt is being worked on. ``pending``: the questions that its run waits for. ``messages``: the
    conversation as the run last saw it.
    """

    active_run_id: str | None = None
    is_streaming: bool = False
    pending: list[HitlRequest] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


class Agent:
    """A model with tools.

    Alone in a process it keeps its conversation through ``checkpointer`` under ``thread_id``; without both, in memory only. The
    same object is the agent of a worker: ``App(agents={"support": agent})``; then checkpointer, thread and channel are the
    run's own.

    ``model``: ``"provider:model"`` or a pydantic-ai model. ``tools``: functions or pydantic-ai tools. ``system_prompt``: one
    text or several. ``middleware``: pydantic-ai capabilities, such as :class:`~runner.hitl.ApprovalPolicyMiddleware`.
    ``channel``: where questions wait; by default the checkpointer, or this process if there is none. ``output_type``,
    ``toolsets``, ``model_settings``, ``retries``: as of :class:`pydantic_ai.Agent`. ``deps``: what tools find as ``ctx.deps``,
    or a function that makes it for a :class:`RunContext`, also an async one. ``budget``: what a run or the thread may use, one
    or several. ``usage_limits``: pydantic-ai's own, for one attempt. ``engine``: a :class:`pydantic_ai.Agent` to take as it
    is, instead of everything that describes one.

    Each model response and each tool result is stored before the next step starts; :meth:`resume` goes on after the last one.
    """

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
            raise InvalidInputError("an engine is taken as it is; give its tools and middleware to it", field="engine")
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
        channels = (channel, *load("runner.hitl").bound_channels(self.engine))
        self._channels: list[Channel] = [each for each in channels if each is not None]
        self._checkpointer, self.thread_id = checkpointer, thread_id
        self._listeners = Listeners()
        self._keeper: Keeper | None = None
        self._task: asyncio.Task[list[HitlRequest]] | None = None
        self._over: asyncio.Event | None = None
        self._claiming: str | None = None
        self._aborting = False
        if thread_id is not None:
            check_id(thread_id, "thread_id")
        for bound in self._bound:
            if thread_id not in (None, bound.thread_id):
                raise InvalidInputError(
                    f"the channel is bound to thread {bound.thread_id!r} and the agent to {thread_id!r}", field="channel"
                )
        self.channel = self._one_channel()

    async def __call__(self, ctx: RunContext) -> None:
        """Serve a run of a worker."""
        from .agents.driver import serve

        await serve(self.engine, deps=self.deps, budget=self.budget, usage_limits=self.usage_limits)(ctx)

    async def prompt(self, message: str | Message | list[Part] | None, run_id: str | None = None) -> str:
        """Run one prompt until the final assistant message, or until it waits for a human, and return its run id (R1).

        ``run_id``: yours, or None for a new one; bound by a :class:`~runner.hitl.CheckpointedChannel` it has to be given (H2).
        ``message`` None continues from the last message; with the id of a run that was interrupted, it resumes that run (R9).
        A run that waits keeps ``state.active_run_id``, and ``state.pending`` has its questions; :meth:`respond` goes on.

        Raises HitlBindingError (a ValueError); ThreadBusyError while the thread's run is under way or waits for a human (R4);
        RunAlreadyCompletedError; RunAlreadyClaimedError: :meth:`resume` the run, or if its process died before it stored the
        prompt, which nothing tells from one that is about to, prompt under another id; NothingToRunError;
        IncompleteToolCycleError; and what the model's provider raises: then the run is not completed and can be resumed (R7,
        R8).
        """
        self._check_binding(run_id)
        with self._streaming():
            return await self._prompt(self._thread(), message, run_id)

    async def _prompt(self, keeper: Keeper, message: str | Message | list[Part] | None, run_id: str | None) -> str:
        if message is None and run_id is not None and any(m.run_id == run_id for m in (await keeper.load()).messages):
            return await self._resume(keeper, run_id)
        if pending := await keeper.pending():
            ids = [request.request_id for request in pending]
            raise ThreadBusyError(
                f"run {pending[0].run_id} waits for an answer to {', '.join(ids)}; respond, or abort_pending",
                run_id=pending[0].run_id,
                request_ids=ids,
            )
        run_id = check_id(run_id, "run_id") if run_id is not None else new_id()
        given = None if message is None else _as_message(message, run_id)
        if given is None:
            _check_something_to_run(await keeper.counts(await keeper.load(), run_id), keeper.thread_id)
        await self._claim(keeper, run_id)
        self.state.active_run_id = run_id
        await keeper.append([given] if given is not None else [])
        self._claiming = None
        await self._execute(keeper, run_id, given, fresh=True)
        return run_id

    async def _claim(self, keeper: Keeper, run_id: str) -> None:
        """Claim the run. One that this object tried to claim before, and of which nothing is stored, it may begin (R9)."""
        again, self._claiming = self._claiming == run_id, run_id
        try:
            await keeper.claim(run_id)
        except (RunAlreadyClaimedError, RunAlreadyCompletedError) as refused:
            stored = any(message.run_id == run_id for message in (await keeper.load()).messages)
            if not again or stored or isinstance(refused, RunAlreadyCompletedError):
                self._claiming = None
                raise

    async def resume(self, run_id: str | None = None) -> str:
        """Go on with a run after its last stored message: after an error, a crash, or an answer given elsewhere (R8, R9).

        ``run_id``: by default the active one. Raises RunNotClaimedError if the thread has no message of it,
        RunAlreadyCompletedError, and as :meth:`prompt`.
        """
        run_id = run_id or self.state.active_run_id
        if run_id is None:
            raise NothingToRunError("no run was interrupted; name one", field="run_id")
        with self._streaming():
            return await self._resume(self._thread(), run_id)

    async def _resume(self, keeper: Keeper, run_id: str) -> str:
        data = await keeper.load()
        own = [message for message in data.messages if message.run_id == run_id]
        if not own:
            raise RunNotClaimedError(f"thread {keeper.thread_id!r} has no message of an open run {run_id!r}", run_id=run_id)
        if hasattr(keeper.checkpointer, "snapshot") and await keeper.completed(run_id):
            raise RunAlreadyCompletedError(f"run {run_id!r} is completed", run_id=run_id)
        self.state.active_run_id = run_id
        await self._execute(keeper, run_id, own[0] if own[0].role == "user" else None, fresh=False)
        return run_id

    async def respond(self, answer: JsonValue, request_id: str | None = None, response_id: str | None = None) -> str:
        """Answer a question of the thread's run, and go on with that run until it ends or waits again. Returns its id. While
        others of the questions that the run asked together wait, it waits with them.

        ``request_id``: None stands for the only question that waits. ``response_id``: names this response, so that its
        repetition is recognised. The run keeps its id and nothing is claimed anew (semantics: H5); an answer that was given
        before, by anyone, is not applied again (H4). Where questions wait in memory the prompt that asked goes on, and this
        returns at once.

        Raises HitlAmbiguousError, HitlNoPendingRequestError, HitlStaleAnswerError, HitlAlreadyAnsweredError;
        HitlInvalidAnswerError, and the question stays (H3); and as :meth:`prompt`.
        """
        if isinstance(self.channel, InMemoryChannel):
            return self.channel.answer(request_id, answer).run_id or ""
        with self._streaming():
            keeper = self._thread()
            responded = await keeper.requests.answer_request(
                keeper.thread_id, answer, request_id=request_id, response_id=response_id
            )
            request, run_id = responded.request, responded.request.run_id
            if run_id is None:
                raise HitlNoPendingRequestError(f"request {request.request_id} belongs to no run", request_id=request_id)
            ours = any(message.run_id == run_id for message in (await keeper.load()).messages)
            if ours and responded.last:
                return await self._resume(keeper, run_id)
            if ours and responded.created:
                self.state.active_run_id = run_id
                self.state.pending = [each for each in await keeper.pending() if each.run_id == run_id]
            # A question of a worker's run is answered like any other; that run goes on in its worker.
            return run_id

    async def pending(self) -> list[HitlRequest]:
        """The questions that wait on the agent's thread, the oldest first, whoever asked them."""
        if isinstance(self.channel, InMemoryChannel):
            return self.channel.pending
        return await self._thread().pending()

    async def abort_pending(self, reason: str = "aborted") -> None:
        """End the run that waits for a human without an answer: each open call gets the error result "aborted: …", then the
        assistant says that it stopped, and the conversation can go on. No model is called; again it is a no-op (semantics: H8).
        """
        if isinstance(self.channel, InMemoryChannel):
            for request in self.channel.pending:
                self.channel.cancel(request.request_id, f"aborted: {reason}")
            return
        self._check_idle()
        keeper = self._thread()
        for run_id in dict.fromkeys(request.run_id for request in await keeper.pending()):
            await keeper.requests.abort_pending(keeper.thread_id, reason, run_id=run_id)
            self.state.pending = []
            if self.state.active_run_id == run_id:
                self.state.active_run_id = None

    async def abort(self) -> None:
        """Stop the prompt that is being worked on: it raises AgentCancelledError, and its run is not completed. Returns when it
        stopped; without one it is a no-op."""
        if (over := self._over) is not None:
            self._aborting = True
            if self._task is not None:
                self._task.cancel()
            await over.wait()

    async def fork(
        self,
        *,
        after_run_id: str,
        src_thread_id: str | None = None,
        new_thread_id: str | None = None,
        metadata: JsonObject | None = None,
    ) -> str:
        """Make a new thread that shares the history of ``src_thread_id`` up to a completed run (semantics: F1 to F4).

        ``src_thread_id``: by default the agent's. ``new_thread_id``: None for a new id, which is returned. ``metadata`` becomes
        ``extra["fork"]`` of the new thread.

        Raises ThreadNotFoundError, RunNotCompletedError, ThreadAlreadyExistsError; CapabilityMissingError if the checkpointer
        cannot fork (semantics: R14).
        """
        new = new_id() if new_thread_id is None else check_id(new_thread_id, "new_thread_id")
        fork = capability(self._shared(), "fork")
        await fork(self._source(src_thread_id), new, after_run_id=after_run_id, metadata=metadata)
        return new

    async def fork_once(self, *, message: str | Message, after_run_id: str, src_thread_id: str | None = None) -> ForkOnceResult:
        """Ask a snapshot one question; nothing is written to any thread (semantics: F9). Side effects of tools are real.

        An error of the provider is the stop reason ``error``. Raises HitlNotAllowedError (a RuntimeError) if anything of the
        agent can ask a human, before the snapshot is read; ThreadNotFoundError, RunNotCompletedError, CapabilityMissingError.
        """
        return await probe(self, self._shared(), self._source(src_thread_id), after_run_id, _as_message(message, new_id()))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every event of the runs in this process, as they happen; the types are those of
        :meth:`RunHandle.stream`. Returns what ends the subscription."""
        return self._listeners.subscribe(listener)

    @property
    def asks_humans(self) -> bool:
        """True if anything of the agent can ask a human: a tool, a toolset, its middleware, its channel, its budget."""
        from .agents.budgets import Budget
        from .agents.durable import asks_humans

        budgets = [self.budget] if isinstance(self.budget, Budget) else self.budget or []
        return bool(self._channels) or any(budget.on_exceeded == "ask" for budget in budgets) or asks_humans(self.engine)

    @property
    def _bound(self) -> Iterator[CheckpointedChannel]:
        return (channel for channel in self._channels if isinstance(channel, CheckpointedChannel))

    def _one_channel(self) -> Channel | None:
        """Where questions go. Channels that do not agree are a mistake that would show as a question nobody gets."""
        first = next(iter(self._channels), None)
        for other in self._channels:
            if type(other) is not type(first) or (isinstance(first, InMemoryChannel) and other is not first):
                raise InvalidInputError("the agent and its tools have different channels; give them one", field="channel")
        if first is None and (self._checkpointer is None or self.thread_id is None):
            return InMemoryChannel()
        return first

    def _check_binding(self, run_id: str | None) -> None:
        """H2: a question outlives the process, and the run that it belongs to has to be known beforehand."""
        for bound in self._bound:
            if run_id != bound.run_id:
                given = "no run_id was given" if run_id is None else f"run_id {run_id!r} was given"
                raise HitlBindingError(
                    f"the channel is bound to run {bound.run_id!r}, but {given}; prompt with run_id={bound.run_id!r}",
                    bound=bound.run_id,
                    run_id=run_id,
                )

    def _check_idle(self) -> None:
        if self.state.is_streaming:
            raise ThreadBusyError(
                f"run {self.state.active_run_id} of this agent is under way; await it first", run_id=self.state.active_run_id
            )

    def _shared(self) -> Checkpointer:
        if self._checkpointer is None:
            raise CapabilityMissingError("an agent without a checkpointer has no threads to fork", backend=None, method="fork")
        return self._checkpointer

    def _source(self, thread_id: str | None) -> str:
        source = thread_id if thread_id is not None else self.thread_id
        return check_id(source, "src_thread_id")

    def _thread(self) -> Keeper:
        """The agent's thread, or one of its own in memory if it was given none."""
        if self._keeper is None:
            bound = next(self._bound, None)
            checkpointer = self._checkpointer or (bound.checkpointer if bound else None)
            thread_id = self.thread_id or (bound.thread_id if bound else None)
            if checkpointer is None or thread_id is None:
                from .checkpointer import MemoryCheckpointer

                checkpointer, thread_id = MemoryCheckpointer(), thread_id or new_id()
            self._keeper = Keeper(checkpointer, thread_id)
        return self._keeper

    @contextmanager
    def _streaming(self) -> Iterator[None]:
        """One at a time, from before the first word with the store."""
        self._check_idle()
        self.state.is_streaming, self._over, self._aborting = True, asyncio.Event(), False
        try:
            yield
        finally:
            self._over.set()
            self.state.is_streaming, self._over, self._task = False, None, None

    async def _execute(self, keeper: Keeper, run_id: str, given: Message | None, *, fresh: bool) -> None:
        """One attempt of a run that is claimed. ``state`` tells how it ended."""
        run = external_run(keeper.thread_id, run_id, given, attempt=1 if fresh else 2)
        solo = await Solo.begin(keeper, run, self._listeners, self.channel, fresh=fresh)
        self.state.messages = solo.journal.messages
        if self._aborting:
            self._raise_aborted(run_id)
        self._task = asyncio.create_task(solo.execute(self), name=f"run {run_id}")
        try:
            self.state.pending = await _whole(self._task)
        except asyncio.CancelledError:
            if not self._aborting:
                raise
            self._raise_aborted(run_id)
        except IncompleteToolCycleError:
            self.state.active_run_id = None
            raise
        if not self.state.pending:
            self.state.active_run_id = None

    def _raise_aborted(self, run_id: str) -> NoReturn:
        self.state.active_run_id = None
        raise AgentCancelledError(f"run {run_id} was aborted", run_id=run_id) from None


async def _whole(task: asyncio.Task[list[HitlRequest]]) -> list[HitlRequest]:
    """The task's result; a cancelled caller takes the task with it, and leaves when it has unwound."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        raise


def _as_message(message: str | Message | list[Part], run_id: str) -> Message:
    given = message if isinstance(message, Message) else Message.user(message)
    return given.model_copy(update={"run_id": run_id})


def _check_something_to_run(messages: Sequence[Message], thread_id: str) -> None:
    last = messages[-1] if messages else None
    if last is None or (last.role == "assistant" and not last.tool_calls):
        raise NothingToRunError(f"thread {thread_id!r} ends with nothing to answer; give a message", thread_id=thread_id)
