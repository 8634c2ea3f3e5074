"""Wait for the end of a task, even if the waiting task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def ended(task: asyncio.Task[None], on_cancel: Callable[[], object] = lambda: None) -> None:
    """Wait until ``task`` has ended by itself, even if the caller is cancelled meanwhile, once or several times.

    ``on_cancel``: called at each cancel of the caller. If there was such a cancel, raises CancelledError after the end of the
    task. Otherwise raises the error of the task.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))  # awaiting the task itself would pass the cancel on to it
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        raise cancelled
    task.result()
