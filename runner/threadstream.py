"""All runs of a thread as one stream, for a page that shows a conversation (semantics: E3).

The runs that are running are followed each by itself (:mod:`runner.streams`) and their events handed on as they come. One task
reads the others, one after the other: what ended unseen, and what waits and has little to say. So a reader costs a bounded
number of tasks and of reads, however many runs a thread has and whatever its cursor claims (:mod:`runner.threadcursor`). Every
verb of a thread is decided under its lock, so fences grow in the order of the thread's commits: before an event with a higher
fence than any so far is handed on, the thread's runs are listed, and none that began before it can be missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from .errors import BackendUnavailableError, RunNotFoundError, ThreadNotFoundError
from .models import Event, JsonObject, JsonValue, Run
from .ports import remote_of
from .states import ENDED, RunStatus
from .streams import NOT_HELD, events_so_far, follow_run, position, stopped, with_silence
from .threadcursor import ROOM, Known, Place

if TYPE_CHECKING:
    from .ports import Backend

PAGE: Final = 50
LOOK: Final = 30.0
"""Seconds of silence after which the store is asked for runs that nobody told of."""
FOLLOWED: Final = 100
"""Runs that one reader follows at once. Those that run beside them are read in turn."""
TURN: Final = 1.0
"""Seconds between two such turns."""
MOST: Final = 500
"""Runs of one kind (running, waiting, not seen to their end) that a look at the thread takes up; of the rest a gap tells."""
UNREAD: Final = 100
"""Events of all runs together that wait for a slow reader; beyond that its runs are not read on."""
UNREAD_TEXT: Final = 2**18
"""Characters of text in them, as well; one event may have more. Each counts twice: an event may hold its JSON beside."""


class ThreadEvent(NamedTuple):
    """An event of one of a thread's runs. ``cursor`` continues the thread's stream after it."""

    cursor: str
    event: Event


async def follow_thread(
    backend: Backend, thread_id: str, after: str | None = None, *, look: float = LOOK
) -> AsyncGenerator[ThreadEvent]:
    """The events of a thread's runs, live, until it is deleted: those after the cursor ``after``; without one, those of the
    runs that are queued or running, from their beginning, and of all that come.

    Events of one run come in order and once. ``run.suspended`` and the terminal events end a run and not the stream. A ``gap``
    announces that events of its run were lost. One that names no run says that ``after`` is no cursor of this stream, or that
    more than MOST runs are open or ended since, and events of the oldest of them are left out. ``look``: seconds of silence
    before the store is asked for runs that nobody told of.

    Raises ThreadNotFoundError.
    """
    if (remote := remote_of(backend)) is not None:
        async with aclosing(remote.follow_thread(thread_id, after)) as told:
            async for entry in told:
                yield ThreadEvent(*entry)
        return
    key = await _key(backend, thread_id)
    place = Place.parse(after) if after is not None else None
    reader = _Reader(backend, thread_id, key, place or Place(), look)
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


async def beginning(backend: Backend, thread_id: str) -> str:
    """The cursor of a reader that begins now and has seen nothing: :func:`follow_thread` goes on from it as it begins without
    one, and whoever has to come back before the first event misses none. Raises ThreadNotFoundError."""
    reader = _Reader(backend, thread_id, await _key(backend, thread_id), Place(), LOOK)
    await reader.begin()
    return reader.cursor()


async def _key(backend: Backend, thread_id: str) -> int:
    key = await backend.threads.thread_key(thread_id)
    if key is None:
        raise ThreadNotFoundError(f"there is no thread {thread_id!r}", thread_id=thread_id)
    return key


class Unread:
    """Events, and looks that are asked for (None), that wait for their reader. ``put`` waits for room."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Event | None, int]] = asyncio.Queue(UNREAD)
        self._text = 0
        self._room = asyncio.Event()

    async def put(self, event: Event | None) -> None:
        text = 2 * _text(event.data) if event is not None else 0
        while self._text and self._text + text > UNREAD_TEXT:
            self._room.clear()
            await self._room.wait()
        self._text += text
        await self._queue.put((event, text))

    @property
    def waiting(self) -> int:
        """How many there are."""
        return self._queue.qsize()

    async def get(self) -> Event | None:
        event, text = await self._queue.get()
        self._text -= text
        self._room.set()
        return event


def _text(data: JsonObject) -> int:
    """Characters of text in ``data``."""
    found, waiting = 0, list[JsonValue](data.values())
    while waiting:
        match waiting.pop():
            case str() as text:
                found += len(text)
            case dict() as inner:
                waiting += inner.values()
            case list() as inner:
                waiting += inner
    return found


class _Reader:
    def __init__(self, backend: Backend, thread_id: str, key: int, place: Place, look: float) -> None:
        self.backend, self.thread_id, self.key, self.place, self.look = backend, thread_id, key, place, look
        self.known: dict[str, Known] = {}  # of the runs that are open
        self.read_up_to: dict[str, str] = {}  # per run, what was read of it, handed on or not
        self.following: dict[str, asyncio.Task[bool]] = {}
        self.behind: dict[str, Run] = {}  # to be read in turn
        self.passing: str | None = None  # the one that is
        self.passed: dict[str, Run] = {}  # as they were found before they were read
        self.turns: asyncio.Task[None] | None = None
        self.short = False  # the last look left runs out
        self.arrived = Unread()
        self.listening: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Leave everything behind that stopped before this reader came. A run that goes on and is not named here began after
        the last that did, so its end has a higher fence."""
        ends = [0]
        for status in (None, *ENDED):  # those that wait may be the newest ones, and many
            page = await self.backend.runs.runs(thread_id=self.thread_id, status=status, limit=PAGE)
            ends += [end[0] for run in page.items if run.ended and (end := position(run.event_id))]
            if status is None and (len(ends) > 1 or page.next is None):
                break
        self.place.top = max(ends) if len(ends) > 1 else self.place.top
        for status in (RunStatus.SUSPENDED, RunStatus.QUEUED, RunStatus.RUNNING):
            found: dict[str, Run] = {}
            await self._list(found, status)
            for run in found.values():
                seen = run.event_id or "" if status is RunStatus.SUSPENDED else ""
                self.place.open[run.run_id], self.known[run.run_id] = seen, Known.of(run)

    def cursor(self) -> str:
        """Continues the stream after what was handed on."""
        return str(self.place.within(ROOM, self.known))

    def gap(self) -> ThreadEvent:
        """Says that events were left out, of runs that it does not name."""
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
                if event.type in ("run.completed", "run.cancelled"):  # the others can be redriven
                    self.read_up_to.pop(event.run_id, None)
                yield ThreadEvent(self.cursor(), event)

    async def close(self) -> None:
        others = [task for task in (self.listening, self.turns) if task is not None]
        for task in (*self.following.values(), *others):
            task.cancel()
        await asyncio.gather(*self.following.values(), *others, return_exceptions=True)

    async def _listen(self) -> None:
        """Ask for a look at the runs whenever one begins, and after silence."""
        while True:
            try:
                async with aclosing(with_silence(self._begins(), self.look)) as begins:
                    async for _ in begins:
                        await self.arrived.put(None)
            except BackendUnavailableError:
                pass
            await self.arrived.put(None)
            await asyncio.sleep(NOT_HELD)

    def _begins(self) -> AsyncIterator[bool]:
        events = getattr(self.backend, "events", None)
        if events is None:
            raise BackendUnavailableError("connected without Redis")
        found: AsyncIterator[bool] = events.begins(self.key)
        return found

    async def _discover(self) -> bool:
        """Take up the runs that this reader has not seen to their end. True if it leaves some out and did not say so yet."""
        found, whole = await self._unseen()
        for run in sorted(found, key=_urgency):
            last = self._last(run.run_id)
            self.place.open.setdefault(run.run_id, "")
            self.known[run.run_id] = Known.of(run)
            if not (stopped(run) and last == run.event_id) and not self._follow(run) and not self._was_read(run):
                self.behind[run.run_id] = run
        if self.behind and (self.turns is None or self.turns.done()):
            self.turns = asyncio.create_task(self._take_turns(), name="runyard-thread-turns")
        for gone in (self.known.keys() | self.passed.keys()) - self.place.open.keys():
            self.known.pop(gone, None)
            self.passed.pop(gone, None)
        told, self.short = self.short, not whole
        return self.short and not told

    def _last(self, run_id: str) -> str | None:
        return self.read_up_to.get(run_id) or self.place.open.get(run_id) or None

    def _was_read(self, run: Run) -> bool:
        """True if the run was read as it is, and says nothing until it changes."""
        before = self.passed.get(run.run_id)
        return run.status is not RunStatus.RUNNING and before is not None and _moment(before) == _moment(run)

    def _follow(self, run: Run) -> bool:
        """True if the run is followed, from here on if it is running and there is room."""
        for run_id in [id for id, task in self.following.items() if task.done()]:
            del self.following[run_id]
        if run.run_id in self.following:
            return True
        if run.status is not RunStatus.RUNNING or run.run_id == self.passing or len(self.following) >= FOLLOWED:
            return False
        self.behind.pop(run.run_id, None)
        self.following[run.run_id] = asyncio.create_task(self._read(run.run_id, live=True), name="runyard-thread-run")
        return True

    async def _take_turns(self) -> None:
        """Read the runs that are not followed. If some of them are running, ask for a look at them soon."""
        again = False
        while self.behind:
            run = self.behind.pop(next(iter(self.behind)))
            if run.run_id not in self.place.open or self._follow(run):  # seen to its end since, or begun
                continue
            again |= run.status is RunStatus.RUNNING
            self.passing = run.run_id
            if await self._read(run.run_id, live=False) and self._last(run.run_id):  # what is told first may be on its way
                self.passed[run.run_id] = run
            self.passing = None
        if again:
            await asyncio.sleep(TURN)
            await self.arrived.put(None)

    async def _unseen(self) -> tuple[list[Run], bool]:
        """The runs that were not seen to their end, and whether these are all."""
        found: dict[str, Run] = {}
        whole = await self._list(found, RunStatus.RUNNING)
        if not await self._list(found, None, unseen=True):  # those that wait may be in front of those that ended
            for status in ENDED:
                whole &= await self._list(found, status, unseen=True)
        whole &= await self._list(found, RunStatus.QUEUED)
        self.place.since = None  # what was to be found by it is open from here on
        if not whole:  # what is left out stays so
            self.place.top = max([self.place.top, *(Known.of(run).fence for run in found.values() if run.ended)])
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
        """Add the thread's runs to ``found``, the newest first. ``unseen``: down to those that were seen to their end. False
        if there are more than a reader takes up."""
        since, cursor, count = self.place.since, None, 0
        while count < MOST:
            page = await self.backend.runs.runs(thread_id=self.thread_id, status=status, limit=PAGE, cursor=cursor)
            fresh = [run for run in page.items if not (unseen and self.place.left_behind(run))]
            found |= {run.run_id: run for run in fresh}
            over = len(fresh) < len(page.items) and (since is None or all(run.accepted_at < since for run in page.items))
            if over or page.next is None:
                return True
            count, cursor = count + len(page.items), page.next
        return False

    async def _read(self, run_id: str, *, live: bool) -> bool:
        """Hand on what the run says; if not ``live``, what it said so far. False if that cannot be read at the moment."""
        reading = follow_run if live else events_so_far
        gap: Event | None = None
        try:
            async with aclosing(reading(self.backend, self.thread_id, run_id, self._last(run_id))) as events:
                async for event in events:
                    if event.id is None and not live:  # the next turn says it again if nothing follows
                        gap = event
                        continue
                    if gap is not None:
                        await self.arrived.put(gap)
                        gap = None
                    if event.id is not None:
                        self.read_up_to[run_id] = event.id
                    await self.arrived.put(event)
        except (BackendUnavailableError, RunNotFoundError):
            return False  # the next look at the runs takes it up again, or finds the thread gone
        return True


def _moment(run: Run) -> tuple[RunStatus, int | None, str | None]:
    """A run that says more differs in it."""
    return run.status, run.fence, run.event_id


def _urgency(run: Run) -> tuple[bool, int]:
    """Runs that are running first, then in the order of their ends: a cursor on the way names those that are left."""
    return run.status is not RunStatus.RUNNING, Known.of(run).fence
