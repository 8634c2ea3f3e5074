"""A graph of LangGraph as the agent of an App: ``App(agents={"g": graph})``.

Each run continues the state that is bound to the last message before the run (F13). The checkpoints of one run are called the
line of the run. Only attempts of the run may write to the line (I2). At the end of a superstep, LangGraph writes a checkpoint.
Then the messages of the superstep are appended to the thread, and the state is bound to the last of these messages. A later
attempt continues at the last checkpoint and does not repeat nodes that finished. ``interrupt()`` becomes a HITL request. The
answer becomes ``Command(resume=…)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from ..app import AgentOptions
from ..domain.messages import Message
from ..errors import CheckpointMissingError, InvalidInputError
from ..execution.context import RunContext
from ..ports.graph_checkpoints import GraphStart, GraphState
from ..support.fetch_hosts import check_files
from .json_values import result_of
from .langgraph_answers import UNANSWERED, Answers
from .langgraph_cache import ListCache
from .langgraph_messages import ORIGIN, from_langchain, state_ids, text_of, to_langchain
from .langgraph_questions import check_breakpoints, waits
from .langgraph_run_savers import RunSaver, probe_saver


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A graph as the agent of an App (:func:`serve`)."""

    graph: Pregel[Any, Any, Any, Any]
    messages: str = "messages"
    context: object = None
    asks_humans: bool = False
    cache: ListCache = field(default_factory=ListCache)
    options: AgentOptions | None = None

    async def __call__(self, ctx: RunContext) -> None:
        context = self.context(ctx) if callable(self.context) else self.context
        context = await context if inspect.isawaitable(context) else context
        await _GraphRun(self, ctx, context).run()


def serve(
    graph: Pregel[Any, Any, Any, Any],
    *,
    messages: str = "messages",
    context: object = None,
    asks_humans: bool | None = None,
    options: AgentOptions | None = None,
) -> ServedGraph:
    """Return a compiled graph as an agent for an :class:`~runyard.App`. The graph's own checkpointer is not used.

    ``messages``: the name of the graph's channel that contains the conversation. ``context``: the graph's runtime context, or
    a sync or async function that makes the context from a :class:`~runyard.RunContext`. ``asks_humans``: whether the graph may
    interrupt. The default is True if the graph or a subgraph has ``interrupt_before``. If ``asks_humans`` is True, a probe of
    the agent fails with HitlNotAllowedError, and the graph is not executed (F9). ``options``: queue, timeout and retries of
    the agent's runs.

    Raises InvalidInputError if the graph has no channel ``messages``, or if the graph or a subgraph has ``interrupt_after``.
    """
    if messages not in graph.channels:
        known = ", ".join(sorted(name for name in graph.channels if not name.startswith(("__", "branch:"))))
        raise InvalidInputError(
            f"the graph has no channel {messages!r} for its messages; use one of {known} in serve(graph, messages=…)",
            field="messages",
        )
    stops = check_breakpoints(graph)
    return ServedGraph(graph, messages, context, stops if asks_humans is None else asks_humans, options=options)


def adapt(agent: object) -> ServedGraph | None:
    """Return a compiled graph as an agent for an App. Return None for any other object."""
    return serve(agent) if isinstance(agent, Pregel) else None


class _GraphRun:
    """One attempt of a run of a graph."""

    def __init__(self, served: ServedGraph, ctx: RunContext, context: object) -> None:
        self._served, self._ctx, self._context = served, ctx, context
        self._config: RunnableConfig = {
            "configurable": {"thread_id": ctx.thread_id},
            "metadata": {"runyard_run_id": ctx.run_id},
        }
        self._answers = Answers(lambda key: ctx.answer_to(key, UNANSWERED))
        self._known: set[str] = set()
        self._last: str | None = None
        self._marked: tuple[str, str | None] | None = None
        self._streamed: tuple[str, str] | None = None
        self._dropped: set[str] = set()

    async def run(self) -> None:
        """Continue the graph until it ends. A question to a human ends the attempt."""
        history = await self._ctx.history()
        self._known = {state_id for message in history for state_id in state_ids(message)}
        self._last = self._last_own(history)
        work = await self._begin(history)
        state = await self._read() if work is None else None
        stopped = False
        while state is None or state.tasks:
            if state is not None:
                await self._wait(state, stopped)
            await self._stream(work)
            work, state, stopped = None, await self._read(), True
        values = state.values
        await self._append(values.get(self._served.messages, ()), state.config)
        if self._last is None and self._ctx.input is not None:
            self._last = self._ctx.input.id  # a run without own messages binds its state to its input
        await self._mark(state.config)
        rest = {name: value for name, value in values.items() if name != self._served.messages}
        self._ctx.result = result_of(rest) if rest else None

    def _last_own(self, history: Sequence[Message]) -> str | None:
        """Return the id of the last message that the graph added in this run."""
        prompt = self._ctx.input.id if self._ctx.input is not None else None
        own = [message for message in history if message.run_id == self._ctx.run_id and message.id != prompt]
        return next((message.id for message in reversed(own) if ORIGIN in (message.provider_details or {})), None)

    async def _begin(self, history: Sequence[Message]) -> object | None:
        """Open the run's state. Return the input of the graph, or None if the state already contains the input."""
        graphs, own = self._ctx.graphs, self._ctx.run_id
        candidates = _candidates(history, own)
        if graphs.attempt is None:
            stable = [name for name, sub in self._served.graph.get_subgraphs() if getattr(sub, "checkpointer", None) is True]
            saver: BaseCheckpointSaver[Any]
            reader: BaseCheckpointSaver[Any]
            start: GraphStart | GraphState
            saver, start = await probe_saver(graphs.store, self._ctx.thread_id, candidates, ["", *stable])
            reader = saver
            began = False
        else:
            input_id = next((m.id for m in history if m.run_id == own and m.role == "user"), None)
            attempt = graphs.attempt
            start = begun = await self._ctx.guarded(lambda: graphs.store.begin(attempt, candidates, input_id))
            self._line, began = begun.line, begun.began
            saver = RunSaver(graphs.store, begun.line, self._served.cache, self._answers)
            reader = RunSaver(graphs.store, begun.line, self._served.cache)
        self._graph = self._served.graph.copy({"checkpointer": saver})
        # LangGraph before 1.2.16 shows a task with answers as finished.
        self._states = self._served.graph.copy({"checkpointer": reader})
        self._ctx.name_steps_by(_task)
        if began:
            state = await self._read()
            await self._append(state.values.get(self._served.messages, ()), state.config)
            if state.created_at is not None:
                await self._mark(state.config)  # an earlier attempt may have ended before it bound the state
                return None
        return {self._served.messages: _input(history, start, own, self._ctx.thread_id)}

    async def _read(self) -> StateSnapshot:
        return await self._ctx.guarded(lambda: self._states.aget_state(self._config, subgraphs=True))

    async def _wait(self, state: StateSnapshot, stopped: bool) -> None:
        """Ask humans the questions of the graph. If an answer is missing, the attempt ends and the run waits for a human.

        ``stopped``: whether this attempt has executed the graph up to ``state``.
        """
        pending = waits(self._served.graph, state, self._answers, stopped)
        if stopped and not pending:
            raise InvalidInputError(
                f"the graph stopped before {', '.join(state.next)}, at a breakpoint of a graph that a node makes. LangGraph "
                "does not list a graph that a node makes; use interrupt() in this graph, or make the graph outside of the node",
                field="graph",
            )
        pending.check(await self._ctx.ask_all(pending.questions()))

    async def _stream(self, work: object) -> None:
        """Execute the graph and stream its tokens. Append the messages of each superstep after the superstep's checkpoint."""
        parts = self._graph.astream(
            work,
            self._config,
            context=self._context,
            stream_mode=["messages", "checkpoints"],
            subgraphs=True,
            durability="sync",
        )
        with self._ctx.guarding():
            async for part in parts:
                namespace, mode, data = cast(tuple[tuple[str, ...], str, Any], part)
                if mode == "messages":
                    self._relay(data[0], data[1].get("langgraph_checkpoint_ns", ""))
                elif not namespace:
                    await self._append(data["values"].get(self._served.messages, ()), data["config"])
                    self._drop_stream()

    def _relay(self, piece: object, task: str) -> None:
        """Stream a piece of a model's answer.

        If several tasks generate answers at the same time, stream only the first answer.

        If a task begins a second answer, discard its first answer. The first answer was not for the conversation, for example
        a classification.
        """
        if not isinstance(piece, AIMessageChunk) or not (text := text_of(piece.content)):
            return
        answer = piece.id or ""
        if self._streamed is not None and self._streamed != (answer, task) and self._streamed[1] == task:
            if answer in self._dropped:
                return
            self._drop_stream()
        if self._streamed is None and answer not in self._dropped:
            self._streamed = answer, task
        if self._streamed == (answer, task):
            self._ctx.stream_part(text)

    def _drop_stream(self) -> None:
        """Discard the streamed answer, because it is not in the graph's state."""
        if self._streamed is not None:
            self._dropped.add(self._streamed[0])
            self._streamed = None
            self._ctx.discard_stream()

    async def _append(self, messages: Sequence[BaseMessage], at: RunnableConfig) -> None:
        """Append the messages that the thread lacks. Bind the last message to the state at the checkpoint ``at``."""
        new = []
        for n, message in enumerate(messages):
            if (state_id := message.id or f"@{n}") not in self._known:
                self._known.add(state_id)
                new.append((state_id, message))
        if not new:
            return
        stored: list[Message] = []
        for state_id, message in new:
            if self._streamed is not None and self._streamed[0] != state_id and message.type == "ai":
                self._drop_stream()
            stored += await self._ctx.append(from_langchain(message, state_id))
            if message.type == "ai":
                self._streamed = None
            if isinstance(message, ToolMessage):
                done = {"call_id": message.tool_call_id, "name": message.name or "", "is_error": message.status == "error"}
                await self._ctx.emit(done, type="tool.completed")
        self._last = stored[-1].id
        await self._mark(at)

    async def _mark(self, at: RunnableConfig) -> None:
        """Bind the run's last message to the state at the checkpoint ``at`` (F13)."""
        graphs, checkpoint_id = self._ctx.graphs, at["configurable"].get("checkpoint_id")
        if graphs.attempt is None or (last := self._last) is None or self._marked == (last, checkpoint_id):
            return
        await self._ctx.guarded(lambda: graphs.store.mark(self._line, last))
        self._marked = last, checkpoint_id


def _candidates(history: Sequence[Message], run_id: str) -> list[str]:
    """Return the ids of the previous run's messages, the newest first.

    Some of these messages have a state of the graph bound to them. The run continues one of these states.
    """
    before = [message for message in history if message.run_id not in (None, run_id)]
    return [message.id for message in reversed(before) if message.run_id == before[-1].run_id]


def _input(history: Sequence[Message], start: GraphStart | GraphState, run_id: str, thread_id: str) -> list[BaseMessage]:
    """Return the messages that the state does not contain. Raises CheckpointMissingError.

    Raises FetchNotAllowedError for a file on a host that is not allowed (M5).
    """
    place = next((n for n, message in enumerate(history, 1) if message.id == start.base_id), 0)
    if start.base_id is not None and not place:
        raise CheckpointMissingError(
            f"the state of thread {thread_id} contains message {start.base_id}, but the run does not see this message; "
            "enqueue the run after this message, or in a new thread",
            thread_id=thread_id,
        )
    rest = [message for n, message in enumerate(history) if n >= place or message.id in start.unseen]
    given = [message for message in rest if message.run_id != run_id or message.role == "user"]
    for message in given:
        check_files(message)
    return [one for message in given for one in to_langchain(message)]


def _task() -> str | None:
    """Return the name of the graph's task to which the calling code belongs. The name is the same in every attempt."""
    config = var_child_runnable_config.get()
    namespace = (config or {}).get("configurable", {}).get("checkpoint_ns")
    return namespace if isinstance(namespace, str) and namespace else None
