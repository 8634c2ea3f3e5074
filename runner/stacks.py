"""Where every thread and every task of this process is, as text: for a worker that does not do what it should.

Only names of files and functions and lines of code are shown, never values. May be called from any thread, in particular from
one beside an event loop that is blocked.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Final

ALIKE: Final = 3
"""Names shown of tasks that wait at the same place."""


def stacks(loop: asyncio.AbstractEventLoop | None = None) -> str:
    """The stack of each thread, and of each task of ``loop``. Tasks at the same place are shown once."""
    return "\n".join([*_threads(), *(_tasks(loop) if loop is not None else ())])


def _threads() -> Iterator[str]:
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.ident in frames and thread is not threading.current_thread():
            yield f"thread {thread.name}"
            yield _lines(traceback.extract_stack(frames[thread.ident]))


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for task in asyncio.all_tasks(loop):
        names.setdefault(_lines(_awaits(task)), []).append(task.get_name())
    for where, alike in sorted(names.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(sorted(alike)[:ALIKE]) + (", …" if len(alike) > ALIKE else "")
        yield f"{len(alike)} tasks: {shown}" if len(alike) > 1 else f"task {shown}"
        yield where


def _awaits(task: asyncio.Task[Any]) -> Iterator[traceback.FrameSummary]:
    """The coroutines of a task from the outermost to the one that waits."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame: FrameType | None = next(filter(None, (getattr(awaited, f"{kind}_frame", None) for kind in _KINDS)), None)
        if frame is not None:
            yield traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        awaited = next(filter(None, (getattr(awaited, name, None) for name in _INNER)), None)


_KINDS: Final = ("cr", "ag", "gi")
_INNER: Final = ("cr_await", "ag_await", "gi_yieldfrom")


def _lines(frames: Iterable[traceback.FrameSummary]) -> str:
    return "".join(traceback.format_list(list(frames))) or "  (no Python code)\n"
