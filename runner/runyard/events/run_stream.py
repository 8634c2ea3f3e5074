"""Follow one run's events. Recent events are read from Redis. Events that Redis lost are made from Postgres (E1, E2, E4).

The ids ``<fence>-<n>`` order a run's events. A later attempt has a higher fence. ``n`` counts the events of one attempt. By
these ids, a reader merges the events from Redis and Postgres, and delivers each event once. If a number is missing, an event
was lost. If no event comes for RECHECK_SECONDS, the reader reads the state of the run from Postgres.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from ..domain.events import STREAM_ENDS, Event, SealedEvent
from ..domain.runs import Run
from ..errors import BackendUnavailableError, RunNotFoundError
from ..ports.refs import RunRef
from .inherited_runs import check_source

if TYPE_CHECKING:
    from ..ports.stores import Backend

T = TypeVar("T")
Position: TypeAlias = tuple[int, int]

START: Final[Position] = (-1, 0)
RETRY_SECONDS: Final = 0.5
"""Seconds between two tries to reach Redis, and between two tries to find the thread of a scheduled run."""
END_ARRIVAL_SECONDS: Final = 1.0
"""Maximum number of seconds that a reader waits until Redis has the last event of a run that has stopped."""
RECHECK_SECONDS: Final = 5.0
"""Seconds without an event, after which a reader asks Postgres whether the run has stopped."""


def position(event_id: str | None) -> Position | None:
    """Return the two numbers of an event id ``<fence>-<n>``. Return None if ``event_id`` is None or has another form."""
    fence, _, n = (event_id or "").partition("-")
    try:
        return int(fence), int(n)
    except ValueError:
        return None


@dataclass
class Cursor:
    """The position of one reader. ``at``: the position of the last event that the reader admitted."""

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
        """Return whether events between the last admitted event and ``event`` are missing."""
        place = position(event.id)
        if place is None:
            return False
        fence, n = place
        return n > (self.at[1] if fence == self.at[0] else 0) + 1

    def turns(self, event: Event) -> bool:
        """Return whether ``event`` is the first event of an attempt, and this attempt is not the run's first.

        The previous attempt may have crashed between a commit and the write of the commit's events.
        """
        place = position(event.id)
        return place is not None and place[0] > self.at[0] and _attempt(event) != 1

    def begins_late(self, event: Event) -> bool:
        """Return whether no event was admitted before ``event``, and ``event`` does not belong to the run's first attempt."""
        attempt = _attempt(event)
        return self.at == START and isinstance(attempt, int) and attempt > 1


def _attempt(event: Event) -> object:
    data = event.peek() if isinstance(event, SealedEvent) else event.data
    return data.get("attempt")


def follow_run(
    backend: Backend,
    thread_id: str,
    run_id: str,
    last_event_id: str | None = None,
    *,
    recheck: float = RECHECK_SECONDS,
    found: Run | None = None,
) -> AsyncGenerator[Event]:
    """Yield the events of one run after ``last_event_id``, live, until the run ends or is suspended.

    If ``last_event_id`` is None, yield all events.

    The type of the last event is one of STREAM_ENDS. The last event is sent after its transaction has committed. If
    ``last_event_id`` is the id of the last event, no event follows. A ``gap``, which has no id, announces that events were
    lost. The events that can be read from Postgres follow the gap. If the run has continued after a ``run.suspended`` or
    ``run.failed``, the stream continues too.

    ``recheck``: seconds without an event after which the run is read from Postgres. ``found``: the run, if the caller has just
    read it. The run can be inherited.

    Raises RunNotFoundError, also for an inherited run whose thread was deleted.
    """
    return _Reader(backend, thread_id, run_id, recheck).read(last_event_id, found)


def events_so_far(backend: Backend, thread_id: str, run_id: str, last_event_id: str | None = None) -> AsyncGenerator[Event]:
    """Yield the events that :func:`follow_run` can yield without waiting. Raises RunNotFoundError.

    As long as the run has not stopped, the iteration ends after the last event in Redis. A later call yields the later events.
    """
    return _Reader(backend, thread_id, run_id, RECHECK_SECONDS).read(last_event_id, None, live=False)


class _Reader:
    def __init__(self, backend: Backend, thread_id: str, run_id: str, recheck: float) -> None:
        self.backend, self.thread_id, self.run_id, self.recheck = backend, thread_id, run_id, recheck
        self.cursor = Cursor()
        self.announced = False  # whether the gap for the next missing events was already sent
        self.doubt = False  # whether the event log has reported a gap since its last event
        self.over = False

    async def read(self, last_event_id: str | None, found: Run | None, *, live: bool = True) -> AsyncGenerator[Event]:
        run = found or await self._run()
        ref = await self._ref(run)
        if last_event_id is not None:
            if run.stopped and last_event_id == run.event_id:
                return
            if not await self._resume(run, ref, last_event_id):
                self.announced = True
                yield self._gap()
        if run.stopped:
            await self._underway(ref, run)
            async for event in self._catch_up(ref, position(run.event_id)):
                yield event
            if not live or self.cursor.at >= _end(run):
                return  # otherwise the run has continued while its reader was slow
        elif not live:
            async for event in self._catch_up(ref, None, to_the_end=False):
                yield event
            return
        while not self.over:
            async with aclosing(self._live(ref)) as events:
                async for event in events:
                    yield event

    async def _resume(self, run: Run, ref: RunRef, last_event_id: str) -> bool:
        """Place the cursor after ``last_event_id``. Return False if Redis lacks this event.

        In this case, Redis may lack later events too.

        If the run never had an event with this id, the cursor stays at the beginning.
        """
        at = position(last_event_id)
        try:
            held = await self.backend.events.holds(ref, last_event_id)
        except BackendUnavailableError:
            held = False
        if at is not None and (held or await self._issued(run, ref, at)):
            self.cursor.at = at
        return held

    async def _issued(self, run: Run, ref: RunRef, at: Position) -> bool:
        """Return whether the run may have had an event with the position ``at``.

        If ``at`` is not before the last event of the run, ask Postgres. Postgres has ``run.queued`` only until the next attempt
        begins. If this attempt began after ``run`` was read, ``at`` is before its events.
        """
        if at < _latest(run):
            return True
        fence, n = at
        found = await self.backend.runs.run_events(ref, f"{fence}-{n - 1}", limit=1) if n > 0 else []
        return any(position(event.id) == at for event in found) or at < _latest(await self._run())

    async def _underway(self, ref: RunRef, run: Run) -> None:
        """If the run has just stopped, wait a moment until Redis has the last event of the run. Redis then has all earlier
        events too."""
        with suppress(TimeoutError, BackendUnavailableError):
            if run.event_id is None or await self.backend.events.holds(ref, run.event_id):
                return
            last = None
            while page := [event.id for event in await self.backend.events.read(ref, last, page=True) if event.id is not None]:
                last = page[-1]
            if (position(last) or _end(run)) >= _end(run):
                return
            async with asyncio.timeout(END_ARRIVAL_SECONDS), aclosing(self.backend.events.follow(ref, last)) as events:
                async for event in events:
                    if event is not None and (position(event.id) or START) >= _end(run):
                        return

    async def _live(self, ref: RunRef) -> AsyncGenerator[Event]:
        """Follow Redis until the run stops or Redis does not answer."""
        arrived = False
        try:
            async with aclosing(self.backend.events.follow(ref, self._after(), silence=self.recheck)) as arrivals:
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
            await asyncio.sleep(RETRY_SECONDS)

    async def _deliver(self, ref: RunRef, arrival: Event | None) -> AsyncIterator[Event]:
        """Yield the events that were lost before ``arrival``, then ``arrival``.

        ``arrival``: an event, or None after a time without an event. If ``arrival`` is None or an event of STREAM_ENDS, ask
        Postgres whether the run has stopped.

        A gap from the event log is not passed on, because Postgres may have the missing events. If Postgres does not have
        these events either, the number of the attempt's next event shows the loss.
        """
        if arrival is not None and arrival.id is None:
            self.doubt = True
            return
        if arrival is not None and (self.cursor.skips(arrival) or self.cursor.turns(arrival)):
            async for event in self._catch_up(ref, position(arrival.id), arrival):
                yield event
        elif arrival is not None and self.cursor.admit(arrival):
            yield arrival
        if arrival is None or arrival.type in STREAM_ENDS:
            run = await self._run()
            if run.stopped and self.cursor.at < _end(run):
                async for event in self._catch_up(ref, position(run.event_id)):
                    yield event
            self.over = run.stopped and self.cursor.at >= _end(run)

    async def _catch_up(
        self, ref: RunRef, until: Position | None, arrived: Event | None = None, *, to_the_end: bool = True
    ) -> AsyncIterator[Event]:
        """Yield the events after the cursor up to and including ``until``, and a gap for each loss.

        If ``until`` is None, yield all later events.

        Redis is read one page at a time. Postgres is read where a number is missing, and at the start of each attempt.
        ``to_the_end``: also read Postgres after the last event in Redis. ``arrived``: the event that follows the events in
        Redis, or None.
        """
        async for event in self._kept(ref, arrived):
            place = position(event.id)
            if place is None or place <= self.cursor.at:
                self.doubt |= event.id is None
                continue
            if until is not None and place > until:
                break
            if self.cursor.skips(event) or self.cursor.turns(event):
                async for proved in self._proved(ref, place, inclusive=False):
                    for each in self._admit(proved):
                        yield each
            for each in self._admit(event):
                yield each
            self.doubt = False
        if to_the_end and (until is None or self.cursor.at < until):
            async for proved in self._proved(ref, until):
                for each in self._admit(proved):
                    yield each

    def _admit(self, event: Event) -> Iterator[Event]:
        """Yield ``event``, unless the reader has seen it.

        If events before ``event`` may be missing, and no gap was sent for them, yield a gap first.
        """
        doubtful = self.doubt and self.cursor.turns(event)
        hole = self.cursor.skips(event) or doubtful or self.cursor.begins_late(event)
        if self.cursor.admit(event):
            if hole and not self.announced:
                yield self._gap()
            self.announced = False
            yield event

    async def _proved(self, ref: RunRef, until: Position | None, *, inclusive: bool = True) -> AsyncIterator[Event]:
        """Yield the events after the cursor, up to ``until``, from Postgres. Read page by page."""
        after = self._after()
        while page := await self.backend.runs.run_events(ref, after):
            for event in page:
                place = position(event.id) or START
                if until is not None and (place > until or (place == until and not inclusive)):
                    return
                yield event
            after = page[-1].id

    async def _kept(self, ref: RunRef, arrived: Event | None) -> AsyncIterator[Event]:
        """Yield the events after the cursor from Redis, until a read fails. Then yield ``arrived``."""
        after = self._after()
        with suppress(BackendUnavailableError):
            while True:
                page = await self.backend.events.read(ref, after, page=True)
                for event in page:
                    yield event
                if (last := next((event.id for event in reversed(page) if event.id is not None), None)) is None:
                    break
                after = last
        if arrived is not None:
            yield arrived

    def _after(self) -> str | None:
        """Return the id of the last event that was yielded."""
        return None if self.cursor.at == START else "{}-{}".format(*self.cursor.at)

    async def _run(self) -> Run:
        run = await self.backend.runs.run(self.thread_id, self.run_id)
        if run is None:
            raise RunNotFoundError(
                f"thread {self.thread_id!r} has no run {self.run_id!r}; if a transaction enqueued the run, commit it first",
                thread_id=self.thread_id,
                run_id=self.run_id,
            )
        return run

    async def _ref(self, run: Run) -> RunRef:
        """Return the run's reference. Wait for the run's thread, because a scheduled run creates its thread later.

        Raises RunNotFoundError for an inherited run whose thread was deleted.
        """
        while (key := await self.backend.threads.thread_key(run.thread_id)) is None:
            await check_source(self.backend.runs, self.thread_id, run)
            await asyncio.sleep(RETRY_SECONDS)
            await self._run()
        await check_source(self.backend.runs, self.thread_id, run)
        return RunRef(key, self.run_id)

    def _gap(self) -> Event:
        return Event(id=None, type="gap", thread_id=self.thread_id, run_id=self.run_id)


def _end(run: Run) -> Position:
    return position(run.event_id) or START


def _latest(run: Run) -> Position:
    """Return the position of the last event of a stopped run, or a position after all events of the present attempt."""
    return _end(run) if run.stopped else (run.fence or 0, sys.maxsize)


async def with_silence(events: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None]:
    """Yield ``events``. Each time ``seconds`` pass without an event, yield None."""
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
