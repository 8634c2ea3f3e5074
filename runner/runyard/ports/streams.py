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
    """The result of a run that has ended or is suspended.

    ``messages``: the messages that the run wrote, in order. ``requests``: the pending requests of the run, the oldest first.
    ``omitted``: the names of incomplete lists. An incomplete list ``messages`` has the last messages. An incomplete list
    ``requests`` has the oldest requests.
    """

    run: Run
    messages: list[Message] = field(default_factory=list)
    requests: list[HitlRequest] = field(default_factory=list)
    omitted: list[str] = field(default_factory=list)


class Streams(Protocol):
    """Follows runs and threads of one tenant.

    :class:`runyard.events.streams.DirectStreams` reads the store and the event log. The streams of the HTTP backend call a
    server, and the server reads the store and the event log.

    ``follow_run``: yield the events of one run after ``last_event_id`` (None: from its first event), live, until the run ends
    or is suspended. ``found``: the run, if the caller has just read it. Raises RunNotFoundError.

    ``follow_thread``: yield the events of all runs of a thread after the cursor ``after``, live, until the thread is deleted.
    Without a cursor, yield all events of queued and running runs, and of later runs. Raises ThreadNotFoundError.

    ``thread_cursor``: return the cursor at which ``follow_thread`` without a cursor begins. Raises ThreadNotFoundError.

    ``outcome``: return the messages and the requests of a run that stopped. ``max_bytes``: the approximate maximum number of
    bytes of the messages. The same maximum applies to the requests. If ``max_bytes`` is None, all messages and requests are
    returned. Raises ResultExpiredError if the run, or the result of the fork job, was deleted.
    """

    def follow_run(
        self, thread_id: str, run_id: str, last_event_id: str | None = None, *, found: Run | None = None
    ) -> AsyncGenerator[Event]: ...
    def follow_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[ThreadEvent]: ...
    async def thread_cursor(self, thread_id: str) -> str: ...
    async def outcome(self, run: Run, max_bytes: int | None = None) -> Outcome: ...
