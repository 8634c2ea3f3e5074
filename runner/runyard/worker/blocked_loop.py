"""Find the line of user code that blocks the main loop. Report the line while the loop is blocked.

The heartbeat thread finds the line. While native code holds the interpreter, no thread of the worker runs, and the line is not
found.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from ..errors import BackendUnavailableError
from ..ports.stores import Backend
from ..ports.workers import BlockedLoop
from ..support.tracebacks import TracebackFilter, innermost_place, kept_text, stack_text

if TYPE_CHECKING:
    from .heartbeat import HeartbeatState

BLOCKED_SECONDS: Final = 1.0
"""If the main loop has not run for this number of seconds, the loop counts as blocked."""
LOOK_SECONDS: Final = 0.25
"""Seconds between two checks of the main loop."""
LAST_LOOK_SECONDS: Final = 1.0
"""The stack is logged and reported again this number of seconds before the watchdog ends the heartbeats."""

_LOOP_FILES: Final = (str(Path(asyncio.__file__).parent), selectors.__file__)

log = structlog.get_logger("runyard.heartbeat")


class BlockedLoopWatch:
    """Watches the main loop of ``heartbeat_state``. ``main_thread``: the identifier of that loop's thread.

    ``keep``: the filter of stacks (:attr:`runyard.App.traceback_filter`).
    """

    def __init__(self, heartbeat_state: HeartbeatState, main_thread: int, keep: TracebackFilter | None) -> None:
        self._state = heartbeat_state
        self._main_thread = main_thread
        self._keep = keep
        self._logged: tuple[str, bool] | None = None
        """The last log line: the id of the blocked worker, and whether the watchdog was about to end the heartbeats."""
        self._reported: tuple[str, bool] | None = None
        """The last report that the store accepted: the id of the blocked worker, and whether the watchdog was about to end the
        heartbeats."""
        self._block: tuple[str, float, str] | None = None
        """The logged block: the id of the worker, the time at which the loop last ran before the block, and the line of user
        code."""

    async def run(self, backend: Backend) -> None:
        """Log and report a blocked loop and the end of the block, until cancelled."""
        while True:
            try:
                await self.look(backend)
            except BackendUnavailableError as error:
                log.warning("blocked_loop_report_failed", worker_id=self._state.worker_id, error=str(error))
            except Exception as error:  # the thread's heartbeats must continue
                log.exception("blocked_loop_report_failed", worker_id=self._state.worker_id, error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, backend: Backend) -> None:
        """Log and report the block when it begins, when the watchdog is about to end the heartbeats, and when the block
        ends."""
        worker_id, silence = self._state.worker_id, self._state.silence
        self._log_end()
        if silence < BLOCKED_SECONDS:
            self._logged = None
            if self._reported is not None:
                await backend.workers.report_block(self._reported[0], None)
                self._reported = None
            return
        if worker_id is None:
            return
        due = (worker_id, silence > self._state.watchdog - LAST_LOOK_SECONDS)
        if due == self._reported or (found := blocked(self._main_thread, silence, self._keep)) is None:
            return
        if due != self._logged:
            self._logged = due
            self._block = worker_id, self._state.turned, found.place
            names = {"worker_id": worker_id, "blocked_seconds": round(silence, 1), "code_line": found.place}
            log.warning("main_loop_blocked", **names, stack=found.stack)
        await backend.workers.report_block(worker_id, found)
        self._reported = due

    def _log_end(self) -> None:
        """If the blocked loop runs again, log the duration of the block and the line of user code."""
        if self._block is None or self._state.turned <= self._block[1]:
            return
        (worker_id, began, place), self._block = self._block, None
        seconds = round(self._state.turned - began, 1)
        log.warning("main_loop_resumed", worker_id=worker_id, blocked_seconds=seconds, code_line=place)


def blocked(thread: int, seconds: float, keep: TracebackFilter | None) -> BlockedLoop | None:
    """Return the place and the stack of a thread whose loop is blocked, or None. ``keep``: the filter of the stack.

    If the innermost frame is code of the loop itself, the loop waits for work or for CPU time, and is not blocked.
    """
    frame = sys._current_frames().get(thread)
    frames = list(traceback.walk_stack(frame))[::-1] if frame is not None else []
    if not frames or frames[-1][0].f_code.co_filename.startswith(_LOOP_FILES):
        return None
    return BlockedLoop(seconds, innermost_place(frames) or "", kept_text(stack_text(frames), keep))
