"""The error of an attempt that took too long. The error names the line of code at which the agent waited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from ..errors import RunTimeoutError
from ..support.tracebacks import innermost_place


def timeout_error(task: asyncio.Task[Any], timeout: float | None) -> RunTimeoutError:
    """Return the error for an agent whose attempt took longer than ``timeout`` seconds.

    Call this function before the cancel of ``task``. The traceback of the error has the frames of the task, from its coroutine
    to the innermost awaited coroutine.
    """
    frames = [(frame, frame.f_lineno) for frame in _awaited_frames(task.get_coro())]
    place = innermost_place(frames)
    where = f"; the agent was at {place} in {_function_at(place, frames)}" if place is not None else ""
    error = RunTimeoutError(f"the attempt took longer than {timeout} s{where}", timeout=timeout)
    trace: TracebackType | None = None
    for frame, line in reversed(frames):
        trace = TracebackType(trace, frame, frame.f_lasti, line)
    return error.with_traceback(trace)


def _function_at(place: str, frames: list[tuple[FrameType, int]]) -> str:
    return next(frame.f_code.co_name for frame, line in reversed(frames) if f"{frame.f_code.co_filename}:{line}" == place)


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frame of a suspended coroutine or generator, then the frames of the coroutines that it awaits."""
    while awaited is not None:
        kind = next((kind for kind in ("cr", "ag", "gi") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None or (frame := getattr(awaited, f"{kind}_frame")) is None:
            return
        yield frame
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
