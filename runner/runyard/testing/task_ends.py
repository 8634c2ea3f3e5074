"""Wait for the end of a task. A cancel of the caller does not end the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def ended(task: asyncio.Task[None], on_cancel: Callable[[], object] = lambda: None) -> None:
    """Wait until ``task`` has ended. A cancel of the caller does not end the wait.

    ``on_cancel``: a function that is called at each cancel of the caller. If the caller was cancelled, raises CancelledError
    when the task has ended. If the caller was not cancelled, raises the error of a failed task.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))  # ``await task`` would also cancel the task
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        raise cancelled
    task.result()
