"""The prompt that an in-process Agent executes. An Agent executes only one prompt at a time. The prompt can be aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from ..domain.messages import Message
from ..domain.requests import HitlRequest
from ..errors import AgentCancelledError, IncompleteToolCycleError, ThreadBusyError

Attempt: TypeAlias = Callable[[], Coroutine[Any, Any, list[HitlRequest]]]
"""A function that executes an attempt. The function returns the questions to which the run needs answers."""


@dataclass
class AgentState:
    """The state of an in-process Agent.

    ``active_run_id``: the id of the run that has begun and has not ended. The id stays set while the run streams, and while
    the run waits for a human. The id also stays set after an error, because the run can then be resumed. The id becomes None
    when the run completes, is aborted, or ends with an incomplete tool cycle (R8). ``is_streaming``: whether the agent
    executes a prompt, or aborts a run. ``pending``: the questions to which the active run needs answers. ``messages``: the
    context of the last run, then this run's own messages.
    """

    active_run_id: str | None = None
    is_streaming: bool = False
    pending: list[HitlRequest] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


class ActivePrompt:
    """Executes one prompt at a time, and updates ``state``."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._task: asyncio.Task[list[HitlRequest]] | None = None
        self._over: asyncio.Event | None = None
        self._aborting = False

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Mark the agent as streaming, before the agent calls the store.

        Raise ThreadBusyError if the agent is already streaming.
        """
        if self._state.is_streaming:
            raise ThreadBusyError(
                f"run {self._state.active_run_id} of this agent is being executed; await it first",
                run_id=self._state.active_run_id,
            )
        self._state.is_streaming, self._over, self._aborting = True, asyncio.Event(), False
        try:
            yield
        finally:
            self._over.set()
            self._state.is_streaming, self._over, self._task = False, None, None

    async def execute(self, run_id: str, attempt: Attempt) -> None:
        """Execute an attempt of the run, and record its outcome in the state. Call this method in a block of :meth:`begin`."""
        if self._aborting:
            self._raise_aborted(run_id)
        self._task = asyncio.create_task(attempt(), name=f"run {run_id}")
        try:
            self._state.pending = await _joined(self._task)
        except asyncio.CancelledError:
            if not self._aborting:
                raise
            self._raise_aborted(run_id)
        except IncompleteToolCycleError:
            self._state.active_run_id = None
            raise
        if not self._state.pending:
            self._state.active_run_id = None

    async def abort(self) -> None:
        """Cancel the prompt that is being executed, and wait for its end. Do nothing if no prompt is being executed."""
        if (over := self._over) is not None:
            self._aborting = True
            if self._task is not None:
                self._task.cancel()
            await over.wait()

    def _raise_aborted(self, run_id: str) -> NoReturn:
        self._state.active_run_id = None
        raise AgentCancelledError(f"run {run_id} was aborted", run_id=run_id) from None


async def _joined(task: asyncio.Task[list[HitlRequest]]) -> list[HitlRequest]:
    """Return the task's result. If the caller is cancelled, cancel the task, and wait for the end of the task."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        raise
