"""Cancels of the attempts that this worker executes (R10).

A cancel hint stops an attempt immediately. A hint can get lost. Every cancel is also in the store. ``worker.py`` therefore
reads the cancels from the store every INSPECT_SECONDS. The executor gives a cancelled agent CLEANUP_SECONDS for its cleanup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..execution.executor import Execution, Stop
from ..ports.refs import RunRef
from ..ports.scheduling import Scheduler
from ..ports.stores import WorkerStore

FindExecution: TypeAlias = Callable[[RunRef], Execution | None]
"""A function that returns the execution of a run in this worker, or None."""


async def follow_cancel_hints(scheduler: Scheduler, find: FindExecution) -> None:
    """Stop the execution of each run for which a hint arrives. This function does not return."""
    async for ref in scheduler.cancel_hints():
        _cancel(find(ref))


async def stop_cancelled(workers: WorkerStore, worker_id: str, find: FindExecution) -> None:
    """Stop the executions of all runs of the worker that have a pending cancel in the store."""
    for ref in await workers.cancelling(worker_id):
        _cancel(find(ref))


def _cancel(execution: Execution | None) -> None:
    if execution is not None:
        execution.stop(Stop.CANCEL)
