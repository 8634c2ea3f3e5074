"""The checkpoint savers of runs. An attempt's saver writes with the attempt's fence. A probe's saver stores nothing (F9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from ..errors import BackendUnavailableError, CheckpointMissingError
from ..execution.attempt_store import StoreUnansweredError
from ..ports.graph_checkpoints import GraphCheckpointStore, GraphState, LineRef
from ..support.store_retries import patiently
from .connections import Shared
from .langgraph_answers import Answers
from .langgraph_cache import ListCache
from .langgraph_saver import RunyardSaver

INTERRUPT: Final = "__interrupt__"
"""The name of LangGraph's channel for the last question of a task."""
RESUME: Final = "__resume__"
"""The name of LangGraph's channel for the answers that a task has received."""


class _Patient:
    """Repeats each call of a store until the store answers.

    The repetition of a call has no further effect. If all tries of a call get no answer, StoreUnansweredError is raised. This
    error does not count as an error of the agent.
    """

    def __init__(self, store: GraphCheckpointStore) -> None:
        self._store, self.scope = store, store.scope

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, name)

        async def call(*args: Any, **options: Any) -> Any:
            try:
                return await patiently(lambda: method(*args, **options))
            except BackendUnavailableError as error:
                raise StoreUnansweredError(error.message, **error.details) from error

        return call


class RunSaver(RunyardSaver):
    """The saver of one attempt. It reads and writes the line of its run, and ignores thread ids in its arguments.

    ``answers``: the answers of humans, which the checkpoints do not contain. ``answers`` is None for a saver that only reads
    checkpoints.
    """

    def __init__(self, store: GraphCheckpointStore, line: LineRef, cache: ListCache, answers: Answers | None = None) -> None:
        super().__init__(Shared(None, asyncio.get_running_loop()), cache=cache)
        self._of_run, self._patient = line, cast(GraphCheckpointStore, _Patient(store))
        self._answers = answers

    async def _store(self) -> GraphCheckpointStore:
        return self._patient

    def _line(self, thread_id: object) -> LineRef:
        return self._of_run

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = await super()._get_tuple(config)
        if found is None or self._answers is None:
            return found
        writes = found.pending_writes or []
        asked = {task_id for task_id, channel, _ in writes if channel == INTERRUPT}
        resumed = [(task_id, RESUME, self._answers.of_task(self.serde)) for task_id in asked]
        return found._replace(pending_writes=[*writes, *resumed])

    async def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        await super()._put_writes(config, [write for write in writes if write[0] != RESUME], task_id, task_path)


class ProbeSaver(InMemorySaver):
    """The saver of a probe. The saver makes version numbers in the same form as :class:`RunyardSaver`."""

    def get_next_version(self, current: Any, channel: None) -> str:
        return RunyardSaver.get_next_version(self, current, channel)  # type: ignore[arg-type]


async def probe_saver(
    store: GraphCheckpointStore, thread_id: str, candidates: Sequence[str], namespaces: Sequence[str]
) -> tuple[ProbeSaver, GraphState]:
    """Return a saver in memory, and the state with which it begins.

    ``candidates``: message ids. The saver begins with the state of the first candidate that has a state. Without candidates,
    the saver begins with an empty state. Raises CheckpointMissingError if no candidate has a state (F13).
    """
    saver = ProbeSaver()
    if not candidates:
        return saver, GraphState(None)
    reader = RunSaver(store, LineRef(thread_id), ListCache(0))
    state = await (await reader._store()).state(thread_id, candidates, namespaces)
    for stored in state.checkpoints:
        found = await reader.decoded(stored, thread_id)
        if found is None:
            raise CheckpointMissingError(
                f"the state of thread {thread_id} was deleted during the read; probe after a message whose run still exists",
                thread_id=thread_id,
            )
        config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": stored.namespace}}
        saver.put(config, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])
    return saver, state
