"""Follow all runs of a thread as one stream, for a page that shows a conversation (E3).

Each running run has a task, up to MAX_FOLLOWED_RUNS tasks. The task follows its run (:mod:`runyard.events.run_stream`) and
passes on each event of the run immediately. One more task reads the other runs, one after the other. The other runs are running
runs without a task, runs that wait, and ended runs whose end this reader has not seen. The number of tasks and reads is
therefore bounded for any cursor (:mod:`runyard.events.thread_cursor`).

A transaction that changes a thread locks the thread's row until it commits. Therefore a commit never has a lower fence than an
earlier commit on the same thread. If an event has a higher fence than all earlier events, the reader lists the thread's runs
before it passes this event on. The reader therefore misses no run that began before this event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ..domain.events import Event, ThreadEvent
from ..domain.runs import Run
from ..domain.states import ENDED, RunStatus
from ..errors import BackendUnavailableError, RunNotFoundError, ThreadNotFoundError
from ..ports.queries import PageRequest, RunFilter
from .run_stream import RETRY_SECONDS, START, events_so_far, follow_run, position, with_silence
from .thread_cursor import FINAL_ENDS, MAX_CURSOR_BYTES, KnownRun, ThreadCursor
from .unread import Unread

if TYPE_CHECKING:
    from ..ports.stores import Backend

PAGE_SIZE: Final = 50
RUN_POLL_SECONDS: Final = 30.0
"""Seconds without an event, after which the reader lists the thread's runs. The list has runs that no event announced."""
MAX_FOLLOWED_RUNS: Final = 100
"""Maximum number of runs that one reader follows at the same time. The reader reads further running runs one after the
other."""
TURN_SECONDS: Final = 1.0
"""Seconds between two rounds. In a round, the runs without a task are read one after the other."""
MAX_RUNS_TAKEN_UP: Final = 500
"""Maximum number of runs of one kind in one listing.

The kinds are running runs, waiting runs, and ended runs whose end was not seen. If there are more runs of a kind, the reader
sends a gap.
"""


async def follow_thread(
    backend: Backend, thread_id: str, after: str | None = None, *, look: float = RUN_POLL_SECONDS
) -> AsyncGenerator[ThreadEvent]:
    """Yield the events of a thread's runs after the cursor ``after``, live, until the thread is deleted.

    Without a cursor, yield all events of queued and running runs, and of all runs that are accepted later.

    The events of one run come in order, each once. ``run.suspended`` and the terminal events do not end the stream. A ``gap``
    with a run id announces that events of this run were lost. If ``after`` is not a cursor of this stream, the stream begins
    with a ``gap`` without a run id. If more than MAX_RUNS_TAKEN_UP runs are open or have ended since the cursor, the stream
    also has such a gap. The events of the oldest of these runs are then missing. ``look``: seconds without an event after which
    the reader lists the runs.

    Raises ThreadNotFoundError.
    """
    key = await _key(backend, thread_id)
    place = ThreadCursor.parse(after) if after is not None else None
    reader = _Reader(backend, thread_id, key, place or ThreadCursor(), look)
    try:
        if place is None:
            await reader.begin()
        if after is not None and place is None:
            yield reader.gap()
        async with aclosing(reader.read()) as events:
            async for event in events:
                yield event
    finally:
        await reader.close()


async def thread_cursor(backend: Backend, thread_id: str) -> str:
    """Return the cursor of a new reader that has seen no event. Raises ThreadNotFoundError.

    Without a cursor, :func:`follow_thread` begins at this cursor. A reader can store the cursor before it connects. The reader
    then misses no event, even if the connection breaks before the first event.
    """
    reader = _Reader(backend, thread_id, await _key(backend, thread_id), ThreadCursor(), RUN_POLL_SECONDS)
    await reader.begin()
    return reader.cursor()


async def _key(backend: Backend, thread_id: str) -> int:
    key = await backend.threads.thread_key(thread_id)
    if key is None:
        raise ThreadNotFoundError(f"there is no thread {thread_id!r}", thread_id=thread_id)
    return key


class _Reader:
    def __init__(self, backend: Backend, thread_id: str, key: int, place: ThreadCursor, look: float) -> None:
        self.backend, self.thread_id, self.key, self.place, self.look = backend, thread_id, key, place, look
        self.known: dict[str, KnownRun] = {}  # the open runs
        self.read_up_to: dict[str, str] = {}  # run id → id of the last event that was read
        self.following: dict[str, asyncio.Task[bool]] = {}
        self.behind: dict[str, _Listed] = {}  # the runs to read in turn
        self.passing: str | None = None  # the run that is being read in turn
        self.passed: dict[str, _Listed] = {}  # the runs that were read in turn, with their state in the listing
        self.turns: asyncio.Task[None] | None = None
        self.short = False  # whether the last listing was incomplete
        self.arrived = Unread()
        self.listening: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Skip the runs that have ended. Put the ids of the other runs into ``place.open``.

        A run that has not ended may be missing in ``place.open``. Such a run began after all ended runs had ended. Its end will
        therefore have a higher fence than their ends.
        """
        ends = [0]
        for status in (None, *ENDED):  # the newest runs may all be waiting
            where = RunFilter(thread_id=self.thread_id, status=status)
            page = await self.backend.runs.runs(where, PageRequest(limit=PAGE_SIZE))
            ends += [end[0] for run in page.items if run.ended and (end := position(run.event_id))]
            if status is None and (len(ends) > 1 or page.next is None):
                break
        self.place.top = max(ends) if len(ends) > 1 else self.place.top
        # a run that moves on between two listings is in the later one, or has a higher fence than ``top`` from then on
        for status in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.SUSPENDED, RunStatus.QUEUED):
            found: dict[str, Run] = {}
            await self._list(found, status)
            for run in found.values():
                seen = run.event_id or "" if status is RunStatus.SUSPENDED else ""
                self.place.open.setdefault(run.run_id, seen)
                self.known[run.run_id] = KnownRun.of(run)

    def cursor(self) -> str:
        """Return the cursor that continues the stream after the last event that was passed on."""
        return str(self.place.within(MAX_CURSOR_BYTES, self.known))

    def gap(self) -> ThreadEvent:
        """Return a gap without a run id."""
        return ThreadEvent(self.cursor(), Event(id=None, type="gap", thread_id=self.thread_id, run_id=""))

    async def read(self) -> AsyncGenerator[ThreadEvent]:
        self.listening = asyncio.create_task(self._listen(), name="runyard-thread")
        while True:
            event = await self.arrived.get()
            at = position(event.id) if event is not None else None
            if event is None or (at is not None and at[0] > self.place.top):
                if await self.backend.threads.thread_key(self.thread_id) != self.key:
                    return
                if await self._discover():
                    yield self.gap()
            if event is not None:
                self.place.pass_by(event)
                if event.type in FINAL_ENDS:
                    self.read_up_to.pop(event.run_id, None)
                yield ThreadEvent(self.cursor(), event)

    async def close(self) -> None:
        others = [task for task in (self.listening, self.turns) if task is not None]
        for task in (*self.following.values(), *others):
            task.cancel()
        await asyncio.gather(*self.following.values(), *others, return_exceptions=True)

    async def _listen(self) -> None:
        """Request a listing of the runs when a run begins, and whenever no run has begun for ``look`` seconds."""
        while True:
            try:
                async with aclosing(with_silence(self.backend.events.begins(self.key), self.look)) as begins:
                    async for _ in begins:
                        await self.arrived.put(None)
            except BackendUnavailableError:
                pass
            await self.arrived.put(None)
            await asyncio.sleep(RETRY_SECONDS)

    async def _discover(self) -> bool:
        """List the runs whose end this reader has not seen, and read them.

        Return whether this listing is incomplete and the previous listing was complete.
        """
        before = replace(self.place)
        found, whole = await self._unseen()
        for run in sorted(found, key=_urgency):
            last = self._last(run.run_id)
            if run.ended and self.place.open.get(run.run_id) == last == run.event_id:  # it failed, and was not redriven
                del self.place.open[run.run_id]
                self.read_up_to.pop(run.run_id, None)
                continue
            self.place.open.setdefault(run.run_id, before.beginning(run))
            self.known[run.run_id] = KnownRun.of(run)
            listed = _Listed.of(run)
            if not (run.stopped and last == run.event_id) and not self._follow(listed) and not self._was_read(listed):
                self.behind[run.run_id] = listed
        if self.behind and (self.turns is None or self.turns.done()):
            self.turns = asyncio.create_task(self._take_turns(), name="runyard-thread-turns")
        for gone in (self.known.keys() | self.passed.keys()) - self.place.open.keys():
            self.known.pop(gone, None)
            self.passed.pop(gone, None)
        told, self.short = self.short, not whole
        return self.short and not told

    def _last(self, run_id: str) -> str | None:
        return self.read_up_to.get(run_id) or self.place.open.get(run_id) or None

    def _was_read(self, run: _Listed) -> bool:
        """Return whether the run was read after its last change."""
        return run.status is not RunStatus.RUNNING and self.passed.get(run.run_id) == run

    def _follow(self, run: _Listed) -> bool:
        """Follow the run if it is running and fewer than MAX_FOLLOWED_RUNS runs are followed.

        Return whether the run is followed.
        """
        for run_id in [id for id, task in self.following.items() if task.done()]:
            del self.following[run_id]
        if run.run_id in self.following:
            return True
        if run.status is not RunStatus.RUNNING or run.run_id == self.passing or len(self.following) >= MAX_FOLLOWED_RUNS:
            return False
        self.behind.pop(run.run_id, None)
        last = self._last(run.run_id)  # read here, because the run's end may be passed on before the task begins
        reading = self._read(run.run_id, last, live=True)
        self.following[run.run_id] = asyncio.create_task(reading, name="runyard-thread-run")
        return True

    async def _take_turns(self) -> None:
        """Read the runs that are not followed. If one of these runs is running, or if a read failed, request a listing after
        TURN_SECONDS."""
        again = False
        while self.behind:
            run = self.behind.pop(next(iter(self.behind)))
            if run.run_id not in self.place.open or self._follow(run):  # its end was seen, or it is followed
                continue
            self.passing = run.run_id
            last = self._last(run.run_id)
            whole = await self._read(run.run_id, last, live=False)
            again |= not whole or run.status is RunStatus.RUNNING
            if whole and (position(self._last(run.run_id)) or START)[1]:  # else its first event may still come
                self.passed[run.run_id] = run
            self.passing = None
        if again:
            await asyncio.sleep(TURN_SECONDS)
            await self.arrived.put(None)

    async def _unseen(self) -> tuple[list[Run], bool]:
        """Return the runs whose end this reader has not seen, and whether the list is complete."""
        found: dict[str, Run] = {}
        whole = await self._list(found, RunStatus.RUNNING)
        if not await self._list(found, None, unseen=True):  # waiting runs may fill the list before ended runs
            for status in ENDED:
                whole &= await self._list(found, status, unseen=True)
        whole &= await self._list(found, RunStatus.QUEUED)
        self.place.since = None  # ``open`` has the runs since that time
        if not whole:  # later listings also leave these runs out
            self.place.top = max([self.place.top, *(KnownRun.of(run).fence for run in found.values() if run.ended)])
        if self.place.open.keys() - found.keys():
            waiting: dict[str, Run] = {}
            await self._list(waiting, RunStatus.SUSPENDED)
            found |= {run_id: run for run_id, run in waiting.items() if run_id in self.place.open and run_id not in found}
        for run_id in self.place.open.keys() - found.keys():
            if (run := await self.backend.runs.run(self.thread_id, run_id)) is not None:
                found[run_id] = run
            else:
                del self.place.open[run_id]
        return list(found.values()), whole

    async def _list(self, found: dict[str, Run], status: RunStatus | None, *, unseen: bool = False) -> bool:
        """Add the thread's runs of ``status`` to ``found``, the newest first. If ``status`` is None, add runs of every status.

        ``unseen``: leave out runs whose end was seen, and stop at such runs. Return False if there are more than
        MAX_RUNS_TAKEN_UP runs.
        """
        since, cursor, count = self.place.since, None, 0
        while count < MAX_RUNS_TAKEN_UP:
            where = RunFilter(thread_id=self.thread_id, status=status)
            page = await self.backend.runs.runs(where, PageRequest(limit=PAGE_SIZE, cursor=cursor))
            fresh = [run for run in page.items if not (unseen and self.place.left_behind(run))]
            found |= {run.run_id: run for run in fresh}
            over = len(fresh) < len(page.items) and (since is None or all(run.accepted_at < since for run in page.items))
            if over or page.next is None:
                return True
            count, cursor = count + len(page.items), page.next
        return False

    async def _read(self, run_id: str, last: str | None, *, live: bool) -> bool:
        """Pass on the run's events after the event ``last`` until the run stops.

        Without ``live``, pass on only the events that exist already. Return False if a read fails.

        With ``live``, request a listing after the last event. The run may have continued since its state was read, and the
        listings left it out meanwhile.
        """
        reading = follow_run if live else events_so_far
        gap: Event | None = None
        whole, over = True, False
        fence, n = position(last) or START
        skips = n == 0 and last is not None  # whether the next event may have been seen, because its fence is at most ``fence``
        try:
            async with aclosing(reading(self.backend, self.thread_id, run_id, None if skips else last)) as events:
                async for event in events:
                    if event.id is None and (skips or not live):  # a gap is sent only before an event, maybe in the next turn
                        gap = event
                        continue
                    if skips and (position(event.id) or START)[0] <= fence:
                        gap = None
                        continue
                    skips = False
                    if gap is not None:
                        await self.arrived.put(gap)
                        gap = None
                    if event.id is not None:
                        self.read_up_to[run_id] = event.id
                    over = event.type in FINAL_ENDS
                    await self.arrived.put(event)
        except (BackendUnavailableError, RunNotFoundError):
            whole = False  # the next listing has the run again, or shows that the thread was deleted
            if live:
                await asyncio.sleep(RETRY_SECONDS)
        if live and not over:
            await self.arrived.put(None)  # after this line, the task has ended when the listing begins
        return whole


class _Listed(NamedTuple):
    """The fields by which the reader notices new events of a listed run.

    With new events, at least one of these fields changes.
    """

    run_id: str
    status: RunStatus
    fence: int | None
    event_id: str | None

    @classmethod
    def of(cls, run: Run) -> _Listed:
        return cls(run.run_id, run.status, run.fence, run.event_id)


def _urgency(run: Run) -> tuple[bool, int]:
    """Return the sort key: running runs first, then the other runs by the fences of their ends.

    In this order, the cursor of each passed event is valid for the runs that the reader has not read yet.
    """
    return run.status is not RunStatus.RUNNING, KnownRun.of(run).fence
