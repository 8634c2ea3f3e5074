"""The implementation of the Streams port in a process that is connected to the store and the event log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from .run_outcome import read_outcome
from .run_stream import follow_run
from .thread_stream import follow_thread, thread_cursor

if TYPE_CHECKING:
    from ..domain.events import Event, ThreadEvent
    from ..domain.runs import Run
    from ..ports.stores import Backend
    from ..ports.streams import Outcome


class DirectStreams:
    """Implements :class:`runyard.ports.streams.Streams`.

    The streams are read from the stores and the event log of ``backend``.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def follow_run(
        self, thread_id: str, run_id: str, last_event_id: str | None = None, *, found: Run | None = None
    ) -> AsyncGenerator[Event]:
        """Follow one run: :func:`runyard.events.run_stream.follow_run`."""
        return follow_run(self._backend, thread_id, run_id, last_event_id, found=found)

    def follow_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[ThreadEvent]:
        """Follow all runs of a thread: :func:`runyard.events.thread_stream.follow_thread`."""
        return follow_thread(self._backend, thread_id, after)

    async def thread_cursor(self, thread_id: str) -> str:
        """Return the cursor at which a new reader of the thread begins. Raises ThreadNotFoundError."""
        return await thread_cursor(self._backend, thread_id)

    async def outcome(self, run: Run, max_bytes: int | None = None) -> Outcome:
        """Return the outcome of a run that stopped. Raises ResultExpiredError."""
        return await read_outcome(self._backend.threads, self._backend.runs, run, max_bytes)
