"""The task guard. A SystemExit or KeyboardInterrupt in a task of an agent ends that task only.

Without the guard, such an exception would leave the event loop, and end the worker with all its runs. The guard does not cover
callbacks. Nor does the guard cover coroutines that a thread submits from outside of the agent's context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from ..execution.context import RunContext
from ..execution.steps import current_context

T = TypeVar("T")


def contain(loop: asyncio.AbstractEventLoop) -> None:
    """Let a SystemExit or KeyboardInterrupt of an agent's task end only this task.

    The guarded tasks are the tasks of agents in ``loop``, and the tasks that these tasks start. The caller must install
    handlers for SIGINT and SIGTERM in ``loop``. Otherwise Ctrl-C could end a guarded task and not the worker.
    """

    def task_of(
        loop: asyncio.AbstractEventLoop, work: Any, *, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        agent = current_context.get() or (context.get(current_context) if context is not None else None)
        if agent is None or not isinstance(work, Coroutine):
            return asyncio.Task(work, loop=loop, context=context, **options)
        task = asyncio.Task(_contained(work, agent), loop=loop, context=context, **options)
        task.add_done_callback(lambda _: work.close())  # if the task is cancelled before its start, ``work`` never runs
        return task

    loop.set_task_factory(task_of)


async def _contained(work: Coroutine[Any, Any, T], agent: RunContext) -> T:
    current_context.set(agent)  # the tasks that this task starts must belong to the agent
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the agent raised {error!r}") from error
