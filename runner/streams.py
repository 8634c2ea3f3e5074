"""One run's events as a reader sees them: Redis for what is fresh, Postgres for what Redis lost (semantics: E1, E2, E4).

The order of a run's events is the order of their ids ``<fence>-<n>``: fences grow from attempt to attempt and n counts the
events of one attempt. So two sources merge by id, nothing is delivered twice, and a hole in the count is a loss that can be
announced.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from .errors import BackendUnavailableError, RunNotFoundError
from .exchange import RunRef
from .models import STREAM_ENDS, Event, Run
from .ports import remote_of
from .states import RunStatus

if TYPE_CHECKING:
    from .ports import Backend, EventLog

T = TypeVar("T")
Position: TypeAlias = tuple[int, int]

START: Final[Position] = (-1, 0)
NOT_HELD: Final = 0.5
"""Seconds between two looks for a thread that a future run will create, or for a Redis that went away."""
UNDERWAY: Final = 1.0
"""Seconds that a reader gives the end of a run, which the store proves already, to arrive in Redis."""
RECHECK: Final = 5.0
"""Seconds of silence after which a reader asks Postgres whether the run stopped without saying so."""


def position(event_id: str | None) -> Position | None:
    """``"<fence>-<n>"`` as a pair that sorts; None for no id or one that runyard never issued."""
    fence, _, n = (event_id or "").partition("-")
    try:
        return int(fence), int(n)
    except ValueError:
        return None


def stopped(run: Run) -> bool:
    """True if no event follows until somebody acts: the run ended, or waits for a human."""
    return run.ended or run.status is RunStatus.SUSPENDED


@dataclass
class Cursor:
    """How far one reader got. ``admit`` lets each event pass once."""

    at: Position = START

    def admit(self, event: Event) -> bool:
        place = position(event.id)
        if place is None:
            return True
        if place <= self.at:
            return False
        self.at = place
        return True

    def skips(self, event: Event) -> bool:
        """True if events between the last one admitted and ``event`` are missing."""
        place = position(event.id)
        if place is None:
            return False
        fence, n = place
        return n > (self.at[1] if fence == self.at[0] else 0) + 1

    def turns(self, event: Event) -> bool:
        """True if ``event`` begins an attempt after the first: the one before may have died with commits that nobody told."""
        place = position(event.id)
        return place is not None and place[0] > self.at[0] and event.data.get("attempt") != 1


async def follow_run(
    backend: Backend,
    thread_id: str,
    run_id: str,
    last_event_id: str | None = None,
    *,
    recheck: float = RECHECK,
    found: Run | None = None,
) -> AsyncGenerator[Event]:
    """The events of one run after ``last_event_id`` (None: from its beginning), live until it ends or is suspended.

    The last event is exactly one of STREAM_ENDS, sent after its transaction committed; a reader that names that very event gets
    nothing more. ``gap`` (it has no id) announces that events were lost; what Postgres still proves follows it. A
    ``run.suspended`` or ``run.failed`` that the run has left behind since is delivered as history and does not end the stream.
    ``recheck``: seconds of silence before Postgres is asked. ``found``: the run if it was read a moment ago.

    Raises RunNotFoundError.
    """
    if (remote := remote_of(backend)) is not None:
        following = remote.follow_run(thread_id, run_id, last_event_id)
    else:
        following = _Reader(backend, thread_id, run_id, recheck).read(last_event_id, found)
    async with aclosing(following) as events:
        async for event in events:
            yield event


async def events_so_far(
    backend: Backend, thread_id: str, run_id: str, last_event_id: str | None = None
) -> AsyncGenerator[Event]:
    """What :func:`follow_run` yields without waiting for more. Raises RunNotFoundError.

    Of a run that goes on, Postgres may prove more than Redis was told by now. That is left for later.
    """
    async with aclosing(_Reader(backend, thread_id, run_id, RECHECK).read(last_event_id, None, live=False)) as events:
        async for event in events:
            yield event


class _Reader:
    def __init__(self, backend: Backend, thread_id: str, run_id: str, recheck: float) -> None:
        self.backend, self.thread_id, self.run_id, self.recheck = backend, thread_id, run_id, recheck
        self.cursor = Cursor()
        self.announced = False  # the next hole is part of a gap that was sent already
        self.over = False

    async def read(self, last_event_id: str | None, found: Run | None, *, live: bool = True) -> AsyncGenerator[Event]:
        run = found or await self._run()
        ref = await self._ref()
        if last_event_id is not None:
            if stopped(run) and last_event_id == run.event_id:
                return
            if not await self._resume(run, ref, last_event_id):
                self.announced = True
                yield self._gap()
        if stopped(run):
            await self._underway(ref, run)
            async for event in self._catch_up(ref, position(run.event_id)):
                yield event
            if not live or self.cursor.at >= _end(run):
                return  # else it was queued again while its reader took its time, and the store proves that end no more
        elif not live:
            async for event in self._catch_up(ref, None, to_the_end=False):
                yield event
            return
        while not self.over:
            async with aclosing(self._live(ref)) as events:
                async for event in events:
                    yield event

    async def _resume(self, run: Run, ref: RunRef, last_event_id: str) -> bool:
        """Place the cursor after ``last_event_id``. False if Redis does not hold that event: then something may be lost.

        An id that this run cannot have issued yet says nothing about what its reader saw, so all is sent again.
        """
        at = position(last_event_id)
        try:
            held = await self._log().holds(ref, last_event_id)
        except BackendUnavailableError:
            held = False
        if at is not None and (held or await self._issued(run, ref, at)):
            self.cursor.at = at
        return held

    async def _issued(self, run: Run, ref: RunRef, at: Position) -> bool:
        """True if the run may have had an event ``at``: of an attempt, or one that Postgres proves."""
        if at < (_end(run) if stopped(run) else (run.fence or 0, sys.maxsize)):
            return True
        fence, n = at
        found = await self.backend.runs.run_events(ref, f"{fence}-{n - 1}", limit=1) if n > 0 else []
        return any(position(event.id) == at for event in found)

    async def _underway(self, ref: RunRef, run: Run) -> None:
        """Wait a moment for the run's end: just committed, it follows what its attempt said last, and neither is lost."""
        with suppress(TimeoutError, BackendUnavailableError):
            if run.event_id is None or await self._log().holds(ref, run.event_id):
                return
            last = None
            while page := [event.id for event in await self._log().read(ref, last, page=True) if event.id is not None]:
                last = page[-1]
            if (position(last) or _end(run)) >= _end(run):
                return
            async with asyncio.timeout(UNDERWAY), aclosing(self._log().follow(ref, last)) as events:
                async for event in events:
                    if event is not None and (position(event.id) or START) >= _end(run):
                        return

    async def _live(self, ref: RunRef) -> AsyncGenerator[Event]:
        """Follow Redis until the run stopped, or until Redis went away."""
        arrived = False
        try:
            async with aclosing(self._log().follow(ref, self._after(), silence=self.recheck)) as arrivals:
                async for arrival in arrivals:
                    arrived = True
                    async for event in self._deliver(ref, arrival):
                        yield event
                    if self.over:
                        return
        except BackendUnavailableError:
            pass
        async for event in self._deliver(ref, None):
            yield event
        if not self.over and not arrived:
            await asyncio.sleep(NOT_HELD)

    async def _deliver(self, ref: RunRef, arrival: Event | None) -> AsyncIterator[Event]:
        """``arrival`` after what was lost before it. On silence (None) and at an end: ask Postgres whether the run stopped.

        A gap that the log announces is not passed on: Postgres may fill it, and the count of the next event tells.
        """
        if arrival is not None and arrival.id is None:
            return
        if arrival is not None and (self.cursor.skips(arrival) or self.cursor.turns(arrival)):
            async for event in self._catch_up(ref, position(arrival.id), arrival):
                yield event
        elif arrival is not None and self.cursor.admit(arrival):
            yield arrival
        if arrival is None or arrival.type in STREAM_ENDS:
            run = await self._run()
            if stopped(run) and self.cursor.at < _end(run):
                async for event in self._catch_up(ref, position(run.event_id)):
                    yield event
            self.over = stopped(run) and self.cursor.at >= _end(run)

    async def _catch_up(
        self, ref: RunRef, until: Position | None, arrived: Event | None = None, *, to_the_end: bool = True
    ) -> AsyncIterator[Event]:
        """All that Redis and Postgres hold between the cursor and ``until`` (inclusive; None: everything), holes announced.
        ``to_the_end``: also what Postgres proves after the last that Redis holds.

        Redis is read a page at a time, as the events are taken. Postgres is asked where the count has a hole or an attempt
        begins, and for the end if that is missing; of its answer only what belongs there is held.
        """
        async for event in self._kept(ref, arrived):
            place = position(event.id)
            if place is None or place <= self.cursor.at:
                continue
            if until is not None and place > until:
                break
            if self.cursor.skips(event) or self.cursor.turns(event):
                async for proved in self._proved(ref, place, inclusive=False):
                    for each in self._admit(proved):
                        yield each
            for each in self._admit(event):
                yield each
        if to_the_end and (until is None or self.cursor.at < until):
            async for proved in self._proved(ref, until):
                for each in self._admit(proved):
                    yield each

    def _admit(self, event: Event) -> Iterator[Event]:
        """``event`` unless it was seen, after a gap if others are missing before it and nobody was told."""
        hole = self.cursor.skips(event)
        if self.cursor.admit(event):
            if hole and not self.announced:
                yield self._gap()
            self.announced = False
            yield event

    async def _proved(self, ref: RunRef, until: Position | None, *, inclusive: bool = True) -> AsyncIterator[Event]:
        """What Postgres proves after the cursor, up to ``until``, read a page at a time."""
        after = self._after()
        while page := await self.backend.runs.run_events(ref, after):
            for event in page:
                place = position(event.id) or START
                if until is not None and (place > until or (place == until and not inclusive)):
                    return
                yield event
            after = page[-1].id

    async def _kept(self, ref: RunRef, arrived: Event | None) -> AsyncIterator[Event]:
        """What Redis holds after the cursor, as far as it can be read, and ``arrived``."""
        after = self._after()
        with suppress(BackendUnavailableError):
            while True:
                page = await self._log().read(ref, after, page=True)
                for event in page:
                    yield event
                if (last := next((event.id for event in reversed(page) if event.id is not None), None)) is None:
                    break
                after = last
        if arrived is not None:
            yield arrived

    def _after(self) -> str | None:
        """The id of the last event that was handed on."""
        return None if self.cursor.at == START else "{}-{}".format(*self.cursor.at)

    def _log(self) -> EventLog:
        log: EventLog | None = getattr(self.backend, "events", None)
        if log is None:
            raise BackendUnavailableError("connected without Redis")
        return log

    async def _run(self) -> Run:
        run = await self.backend.runs.run(self.thread_id, self.run_id)
        if run is None:
            raise RunNotFoundError(
                f"thread {self.thread_id!r} has no run {self.run_id!r}; if it was enqueued in a transaction, commit that first",
                thread_id=self.thread_id,
                run_id=self.run_id,
            )
        return run

    async def _ref(self) -> RunRef:
        """A run that is not due yet may be accepted before its thread exists."""
        while (key := await self.backend.threads.thread_key(self.thread_id)) is None:
            await asyncio.sleep(NOT_HELD)
            await self._run()
        return RunRef(key, self.run_id)

    def _gap(self) -> Event:
        return Event(id=None, type="gap", thread_id=self.thread_id, run_id=self.run_id)


def _end(run: Run) -> Position:
    return position(run.event_id) or START


async def with_silence(events: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None]:
    """``events``, and None each time ``seconds`` passed without one."""
    arrival: asyncio.Future[T] | None = None
    try:
        while True:
            arrival = asyncio.ensure_future(anext(events))
            while not (await asyncio.wait((arrival,), timeout=seconds))[0]:
                yield None
            try:
                yield arrival.result()
            except StopAsyncIteration:
                return
    finally:
        if arrival is not None and not arrival.done():
            arrival.cancel()
            await asyncio.wait((arrival,))
        if isinstance(events, AsyncGenerator):
            await events.aclose()
