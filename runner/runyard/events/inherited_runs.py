"""Check that the source thread of an inherited run still exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..domain.runs import Run
from ..errors import RunNotFoundError

if TYPE_CHECKING:
    from ..ports.runs import RunStore


async def check_source(runs: RunStore, thread_id: str, run: Run) -> None:
    """Check that the thread ``run.thread_id`` has ``run``. ``thread_id``: the thread on which the caller read the run.

    Events and messages of a run are read by the id of the run's thread. After this thread was deleted, a new thread may have
    the same id, but the new thread does not have the run. Call this function after a read. If this function raises no error,
    the caller has read the right thread.

    Raises RunNotFoundError if the thread was deleted. A run that is not inherited is not checked.
    """
    if run.thread_id == thread_id:
        return
    held = await runs.run(run.thread_id, run.run_id)
    if held is None or held.accepted_at != run.accepted_at:
        raise RunNotFoundError(
            f"thread {thread_id!r} inherited run {run.run_id!r} from thread {run.thread_id!r}, which was deleted; "
            "the run, its timeline, and the messages of the fork can still be read",
            thread_id=thread_id,
            run_id=run.run_id,
        )
