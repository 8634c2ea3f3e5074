"""The port for reading the events and the results of runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from ..domain.events import Event, ThreadEvent
from ..domain.messages import Message
from ..domain.requests import HitlRequest
from ..domain.runs import Run


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state in which a run stopped.

    ``messages``: the messages that the run wrote, in order. ``requests``: its pending requests, the oldest first. ``omitted``:
    the names of incomplete lists; ``messages`` then has the last ones, ``requests`` the oldest.
    """

    run: Run
    messages: list[Message] = field(default_factory=list)
    requests: list[HitlRequest] = field(default_factory=list)
    omitted: list[str] = field(default_factory=list)


class Streams(Protocol):
    """Follows runs and threads of one tenant.

    Implemented by :class:`runyard.events.streams.DirectStreams`, which reads the store and the event log, and by the HTTP
    backend, whose server reads them.

    ``follow_run``: the events of one run after ``last_event_id`` (None: from its beginning), live, until the run ends or is
    suspended. ``found``: the run, if it was read a moment ago. Raises RunNotFoundError.

    ``follow_thread``: the events of all runs of a thread after the cursor ``after``, live, until the thread is deleted. Without
    a cursor: the events of queued and running runs from their beginning, and of later runs. Raises ThreadNotFoundError.

    ``thread_cursor``: the cursor that ``follow_thread`` without a cursor begins at. Raises ThreadNotFoundError.

    ``outcome``: the messages and requests of a run that stopped. ``max_bytes``: about how many bytes of messages, and of
    requests, to return; None returns all. Raises ResultExpiredError for a fork job whose result is no longer stored, and for a
    run that was deleted.
    """

    def follow_run(
        self, thread_id: str, run_id: str, last_event_id: str | None = None, *, found: Run | None = None
    ) -> AsyncGenerator[Event]: ...
    def follow_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[ThreadEvent]: ...
    async def thread_cursor(self, thread_id: str) -> str: ...
    async def outcome(self, run: Run, max_bytes: int | None = None) -> Outcome: ...
