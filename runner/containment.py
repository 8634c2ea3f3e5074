"""What ends a process, raised in a task of an agent, ends that task only.

asyncio lets a SystemExit or KeyboardInterrupt of any task out of the event loop: it would take down the worker and all its
other runs. So it does from callbacks, and from coroutines that a thread outside the agent's context submits: those are nobody's
tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from .agents.context import RunContext
from .agents.steps import current_context

T = TypeVar("T")


def contain(loop: asyncio.AbstractEventLoop) -> None:
    """From here on contain the tasks of agents in ``loop``, and those that they start.

    For a loop that handles the signals of its process: a KeyboardInterrupt in a task is then never a Ctrl-C.
    """

    def task_of(
        loop: asyncio.AbstractEventLoop, work: Any, *, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        agent = current_context.get() or (context.get(current_context) if context is not None else None)
        if agent is None or not isinstance(work, Coroutine):
            return asyncio.Task(work, loop=loop, context=context, **options)
        task = asyncio.Task(_contained(work, agent), loop=loop, context=context, **options)
        task.add_done_callback(lambda _: work.close())  # it was never begun if the task was cancelled before it started
        return task

    loop.set_task_factory(task_of)


async def _contained(work: Coroutine[Any, Any, T], agent: RunContext) -> T:
    current_context.set(agent)  # an empty context would hide from the tasks that it starts whose they are
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the agent raised {error!r}") from error
