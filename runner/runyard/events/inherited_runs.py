"""The check that the thread from which a fork inherited a run still exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..domain.runs import Run
from ..errors import RunNotFoundError

if TYPE_CHECKING:
    from ..ports.stores import RunStore


async def check_source(runs: RunStore, thread_id: str, run: Run) -> None:
    """Check that the thread ``run.thread_id`` has ``run``. ``thread_id``: the thread on which the caller read the run.

    Events and messages of a run are read by the id of the run's thread. After the deletion of this thread, a new thread may
    have the same id, but not the run. A successful check after a read therefore proves that the right thread was read.

    Raises RunNotFoundError if the thread was deleted. A run that is not inherited is not checked.
    """
    if run.thread_id == thread_id:
        return
    held = await runs.run(run.thread_id, run.run_id)
    if held is None or held.accepted_at != run.accepted_at:
        raise RunNotFoundError(
            f"thread {thread_id!r} inherited run {run.run_id!r} from thread {run.thread_id!r}, which was deleted; "
            "read the run, its timeline, or the messages of the fork",
            thread_id=thread_id,
            run_id=run.run_id,
        )
