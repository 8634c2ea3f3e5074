"""All runs of a thread as one stream, for a page that shows a conversation (semantics: E3).

The runs that are unfinished are followed each by itself (:mod:`runner.streams`) and their events handed on as they come. Every
verb of a thread is decided under its lock, so fences grow in the order of the thread's commits: before an event with a higher
fence than any so far is handed on, the thread's runs are listed, and none that began before it can be missed.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import JsonValue

from .errors import BackendUnavailableError, RunNotFoundError, ThreadNotFoundError
from .models import STREAM_ENDS, Event, JsonObject, Run, check_id
from .ports import remote_of
from .states import RunStatus
from .streams import NOT_HELD, START, follow_run, position, stopped, with_silence

if TYPE_CHECKING:
    from .ports import Backend

PAGE: Final = 50
LOOK: Final = 30.0
"""Seconds of silence after which the store is asked for runs that nobody told of."""
ROOM: Final = 6000
"""Bytes for the runs that a cursor names: a header carries it. Of those that find no room, events may be repeated after it."""
UNREAD: Final = 100
"""Events of all runs together that wait for a slow reader; beyond that its runs are not read on."""
UNREAD_TEXT: Final = 2**18
"""Characters of text in them, as well; one event may have more."""


class ThreadEvent(NamedTuple):
    """An event of one of a thread's runs. ``cursor`` continues the thread's stream after it."""

    cursor: str
    event: Event


class Known(NamedTuple):
    """What the last look at a run told. ``waits``: it was queued or suspended, so that its end will have a higher fence than
    anything that was handed on until then; otherwise the end has ``fence`` or a higher one."""

    accepted_at: datetime
    fence: int
    waits: bool

    @classmethod
    def of(cls, run: Run) -> Known:
        """What ``run`` tells."""
        end = position(run.event_id) if run.ended else None
        return cls(run.accepted_at, end[0] if end else run.fence or 0, run.status in (RunStatus.QUEUED, RunStatus.SUSPENDED))


@dataclass
class Place:
    """How far a reader got: ``top`` is the highest fence that it saw, ``open`` the last event of each run that is not over for
    it, empty if it saw none. ``since``: when the oldest run was accepted that may be missing in ``open``."""

    top: int = -1
    open: dict[str, str] = field(default_factory=dict)
    since: datetime | None = None

    @classmethod
    def parse(cls, cursor: str) -> Place | None:
        """The place that ``cursor`` names; None if it is none."""
        try:
            top, going, since = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            place = cls(int(top), {check_id(run, "run_id"): str(last) for run, last in dict(going).items()})
            place.since = datetime.fromisoformat(since) if since is not None else None
            return place if place.since is None or place.since.tzinfo is not None else None
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None

    def __str__(self) -> str:
        since = self.since.isoformat() if self.since is not None else None
        text = json.dumps([self.top, self.open, since], separators=(",", ":"), ensure_ascii=False)
        return base64.urlsafe_b64encode(text.encode()).decode()

    def within(self, room: int, known: Mapping[str, Known]) -> Place:
        """The same place, or an earlier one if it takes more than ``room`` bytes to name the open runs.

        Left out first are those that wait: to find them again it is enough to know how far to look back. The other ones would
        count as seen once they ended, unless ``top`` is below that.
        """
        place = Place(self.top)
        for run_id in sorted(self.open, key=lambda id: (id in known and known[id].waits, _descending(self.open[id]))):
            room -= len(run_id.encode()) + len(self.open[run_id]) + len('"":"",')
            if room >= 0 or run_id not in known:
                place.open[run_id] = self.open[run_id]
                continue
            run = known[run_id]
            place.since = min(place.since or run.accepted_at, run.accepted_at)
            if not run.waits:
                place.top = min(place.top, run.fence - 1)
        return place

    def pass_by(self, event: Event) -> None:
        """The reader has seen ``event``."""
        place = position(event.id)
        if place is None or event.id is None:
            return
        self.top = max(self.top, place[0])
        if event.type in STREAM_ENDS and event.type != "run.suspended":
            self.open.pop(event.run_id, None)
        else:
            self.open[event.run_id] = event.id

    def left_behind(self, run: Run) -> bool:
        """True if a run that ended was seen to its end."""
        end = position(run.event_id)
        return run.ended and run.run_id not in self.open and end is not None and end[0] <= self.top


def _descending(event_id: str) -> tuple[int, int]:
    fence, n = position(event_id) or START
    return -fence, -n


async def follow_thread(
    backend: Backend, thread_id: str, after: str | None = None, *, look: float = LOOK
) -> AsyncGenerator[ThreadEvent]:
    """The events of a thread's runs, live, until it is deleted: those after the cursor ``after``; without one, those of the
    runs that are queued or running, from their beginning, and of all that come.

    Events of one run come in order and once. ``run.suspended`` and the terminal events end a run and not the stream. A ``gap``
    announces that events of its run were lost; one that names no run says that ``after`` is no cursor of this stream. ``look``:
    seconds of silence before the store is asked for runs that nobody told of.

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
            yield ThreadEvent(reader.cursor(), Event(id=None, type="gap", thread_id=thread_id, run_id=""))
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
        text = _text(event.data) if event is not None else 0
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
        self.read_up_to: dict[str, str] = {}  # per run, what its follower has read, handed on or not
        self.following: dict[str, asyncio.Task[None]] = {}
        self.arrived = Unread()
        self.listening: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Leave everything behind that stopped before this reader came. A run that goes on and is not named here began after
        the last that did, so its end has a higher fence."""
        async for page in self._pages():
            if ends := [end[0] for run in page if run.ended and (end := position(run.event_id))]:
                self.place.top = max(ends)
                break
        for status in (RunStatus.SUSPENDED, RunStatus.QUEUED, RunStatus.RUNNING):
            async for page in self._pages(status):
                for run in page:
                    seen = run.event_id or "" if status is RunStatus.SUSPENDED else ""
                    self.place.open[run.run_id], self.known[run.run_id] = seen, Known.of(run)

    def cursor(self) -> str:
        """Continues the stream after what was handed on."""
        return str(self.place.within(ROOM, self.known))

    async def read(self) -> AsyncGenerator[ThreadEvent]:
        self.listening = asyncio.create_task(self._listen(), name="runyard-thread")
        while True:
            event = await self.arrived.get()
            at = position(event.id) if event is not None else None
            if event is None or (at is not None and at[0] > self.place.top):
                if await self.backend.threads.thread_key(self.thread_id) != self.key:
                    return
                await self._discover()
            if event is not None:
                self.place.pass_by(event)
                if event.type in ("run.completed", "run.cancelled"):  # the others can be redriven
                    self.read_up_to.pop(event.run_id, None)
                yield ThreadEvent(self.cursor(), event)

    async def close(self) -> None:
        tasks = [*self.following.values(), *([self.listening] if self.listening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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

    async def _discover(self) -> None:
        """Follow the runs that this reader has not seen to their end."""
        for run in await self._unseen():
            known = self.following.get(run.run_id)
            last = self.read_up_to.get(run.run_id) or self.place.open.get(run.run_id) or None
            self.place.open.setdefault(run.run_id, "")
            self.known[run.run_id] = Known.of(run)
            if (known is None or known.done()) and not (stopped(run) and last == run.event_id):
                self.following[run.run_id] = asyncio.create_task(self._follow(run.run_id, last), name="runyard-thread-run")
        for run_id in [id for id, task in self.following.items() if task.done()]:
            del self.following[run_id]
        for run_id in self.known.keys() - self.place.open.keys():
            del self.known[run_id]

    async def _unseen(self) -> list[Run]:
        found: dict[str, Run] = {}
        for status in (RunStatus.RUNNING, RunStatus.QUEUED):
            async for runs in self._pages(status):
                found |= {run.run_id: run for run in runs}
        since = self.place.since
        async for runs in self._pages():
            fresh = [run for run in runs if not self.place.left_behind(run)]
            found |= {run.run_id: run for run in fresh}
            if len(fresh) < len(runs) and (since is None or all(run.accepted_at < since for run in runs)):
                break
        self.place.since = None  # what was to be found by it is open from here on
        for run_id in self.place.open.keys() - found.keys():
            if (run := await self.backend.runs.run(self.thread_id, run_id)) is not None:
                found[run_id] = run
            else:
                del self.place.open[run_id]
        return list(found.values())

    async def _pages(self, status: RunStatus | None = None) -> AsyncGenerator[list[Run]]:
        """The thread's runs, the newest first."""
        cursor: str | None = None
        while True:
            page = await self.backend.runs.runs(thread_id=self.thread_id, status=status, limit=PAGE, cursor=cursor)
            yield page.items
            if page.next is None:
                return
            cursor = page.next

    async def _follow(self, run_id: str, last: str | None) -> None:
        try:
            async with aclosing(follow_run(self.backend, self.thread_id, run_id, last)) as events:
                async for event in events:
                    if event.id is not None:
                        self.read_up_to[run_id] = event.id
                    await self.arrived.put(event)
        except (BackendUnavailableError, RunNotFoundError):
            pass  # the next look at the runs takes it up again, or finds the thread gone
