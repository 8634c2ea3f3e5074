"""Timelines of runs on Postgres. A timeline is read from the rows of messages, steps, attempts and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeAlias

from runyard.domain import timeline
from runyard.domain.threads import ChildRun, ChildRuns
from runyard.domain.timeline import Timeline, TimelineEntry
from runyard.domain.waits import MAX_CHILD_DEPTH, Wait
from runyard.errors import DataCorruptedError, RunNotFoundError
from runyard.models import Message, Run, ToolCallPart
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.timelines import FOUND_RUNS

from .. import cursors
from ..codec.damaged_rows import UNDECODABLE
from ..codec.history import SLICE_BYTES
from . import codec
from .database import Database

Place: TypeAlias = tuple[datetime, int, str]
"""The place of an entry: its time, its kind and its key."""

WAIT_KIND: Final = 4
"""The kind of a wait in a place."""


class PostgresTimelineStore:
    """Timelines of one tenant's runs."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def find(self, prefix: str) -> Sequence[tuple[str, str]]:
        """Return the thread ids and run ids of the runs whose ids are ``prefix`` or begin with it."""
        rows = await self.db.rows("find_runs", self.tenant, prefix, FOUND_RUNS)
        return [(row["thread_id"], row["run_id"]) for row in rows]

    async def children(self, thread_id: str, limit: int) -> ChildRuns:
        """Return at most ``limit`` descendants of the thread's runs, level by level: first the children, then their children.
        Raises ThreadNotFoundError."""
        rows = await self.db.rows("children", self.tenant, thread_id, MAX_CHILD_DEPTH, limit + 1)
        return ChildRuns(items=[ChildRun(**row) for row in rows[:limit]], truncated=len(rows) > limit)

    async def timeline(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Timeline:
        """Return a page of the run's timeline. Raises RunNotFoundError, ThreadNotFoundError, InvalidCursorError."""
        ids = (self.tenant, thread_id, run_id)
        after = cursors.place(page.cursor) if page.cursor is not None else cursors.START
        most_bytes = min(self.db.page_bytes, timeline.TIMELINE_BYTES)
        bounds = (page.limit, most_bytes, timeline.LARGE_RESULT_BYTES)
        found_rows = await self.db.rows("run_timeline", *ids, *after, *bounds)
        found_waits = await self.db.rows("run_waits", *ids, *after, *bounds)
        rows, waits, next_place = _first(found_rows, found_waits, page.limit)
        known = await self.db.one("run_durations", *ids)
        found = await self.db.row("run", *ids) or await self.db.row("inherited_run", *ids)
        if found is None:
            raise RunNotFoundError(f"thread {thread_id!r} has no run {run_id!r}", thread_id=thread_id, run_id=run_id)
        run = codec.run_entry(found)
        calls = await self._earlier_calls(ids, rows)
        last = _message(known)
        return Timeline(
            run=timeline.listed(run),
            error=timeline.error_of(run),
            answer=timeline.answer_of(last if isinstance(last, Message) else None),
            **{f"{name}_seconds": known[name] for name in ("queued", "running", "parked", "waiting")},
            entries=_in_order(run, rows, await _entries(rows, calls), waits),
            next=cursors.encode([next_place[0].isoformat(), *next_place[1:]]) if next_place is not None else None,
        )

    async def _earlier_calls(self, ids: tuple[str, str, str], rows: Sequence[codec.Row]) -> dict[str, ToolCallPart]:
        """Return, by id, the tool calls on earlier pages whose results are on this page."""
        there = {row["seq"] for row in rows}
        wanted = {row["call_seq"] for row in rows if row["role"] == "tool"} - there - {None}
        stored = await self.db.rows("messages_of_run", *ids, list(wanted)) if wanted else []
        read = (_message(row) for row in stored)
        return {call.id: call for message in read if isinstance(message, Message) for call in message.tool_calls}


def _message(row: codec.Row) -> Message | DataCorruptedError | None:
    """Decode the message of a row. Return the error if this fails, or None for a row without a message."""
    if row["seq"] is None:
        return None
    try:
        return codec.messages([row])[0]
    except DataCorruptedError as error:
        return error


def _place(row: codec.Row) -> Place:
    return row["at"], row["entry_kind"], row["key"]


def _place_of_wait(row: codec.Row) -> Place:
    return row["at"], WAIT_KIND, row["key"]


def _first(
    rows: Sequence[codec.Row], waits: Sequence[codec.Row], limit: int
) -> tuple[list[codec.Row], list[codec.Row], Place | None]:
    """Return the rows and the waits of one page. Also return the last place of the page if entries follow the page.

    ``rows`` and ``waits`` begin at the first place of the page. Each of the two lists may leave out entries at later places.
    """
    there = [*map(_place, rows)], [*map(_place_of_wait, waits)]
    ends = [found[-1] for part, found in zip((rows, waits), there, strict=True) if part and part[0]["total"] > len(part)]
    places = sorted((*there[0], *there[1]))
    page = [place for place in places if not ends or place <= min(ends)][:limit]
    if not page:
        return [], [], None
    last = page[-1]
    kept = [row for row in rows if _place(row) <= last], [row for row in waits if _place_of_wait(row) <= last]
    return *kept, last if ends or len(page) < len(places) else None


def _in_order(
    run: Run, rows: Sequence[codec.Row], entries: Sequence[list[TimelineEntry]], waits: Sequence[codec.Row]
) -> list[TimelineEntry]:
    """Return the entries of ``rows`` and of ``waits`` in the order of their places."""
    placed = [*zip(map(_place, rows), entries, strict=True), *((_place_of_wait(row), [_wait(row, run)]) for row in waits)]
    return [entry for _, found in sorted(placed, key=lambda item: item[0]) for entry in found]


async def _entries(rows: Sequence[codec.Row], calls: dict[str, ToolCallPart]) -> list[list[TimelineEntry]]:
    """Decode rows. After each slice of rows, other tasks can run."""
    entries: list[list[TimelineEntry]] = []
    size = 0
    for row in rows:
        entries.append(_entries_of(row, calls))
        size += len(row["payload"] or b"") + len(row["result"] or b"")
        if size > SLICE_BYTES:
            await asyncio.sleep(0)
            size = 0
    return entries


def _entries_of(row: codec.Row, calls: dict[str, ToolCallPart]) -> list[TimelineEntry]:
    at: datetime = row["at"]
    match row["entry_kind"]:
        case 0:
            return [timeline.of_attempt(codec.attempt_entry(row), at)]
        case 1:
            message = _message(row)
            if not isinstance(message, Message):
                return [TimelineEntry(type="message", id=row["id"], at=at, fence=row["of_fence"], status="damaged")]
            calls.update((call.id, call) for call in message.tool_calls)
            return timeline.of_message(message, at, row["since"], row["of_fence"], calls)
        case 2:
            return [_step(row, at)]
        case _:
            return [timeline.of_request(codec.request_entry(row), at, closed=row["closed_at"] is not None)]


def _step(row: codec.Row, at: datetime) -> TimelineEntry:
    times = (row["step_started_at"], row["step_ended_at"])
    omitted = row["size"] if row["result"] is None else None
    try:
        result = codec.unpack(row["result"]) if row["result"] is not None else None
    except UNDECODABLE:
        return TimelineEntry(type="step", id=row["step_key"], at=at, fence=row["of_fence"], status="damaged")
    attempt = codec.attempt_entry(row) if row["outcome"] is not None else None
    fields = {"done": row["done"], "input": row["input"], "attempt": attempt, "omitted": omitted}
    return timeline.of_step(row["step_key"], at, times, row["of_fence"], result, **fields)


def _wait(row: codec.Row, run: Run) -> TimelineEntry:
    value, omitted = None, row["size"] if row["value"] is None else None
    try:
        value = codec.unpack(row["value"]) if row["value"] is not None else None
    except UNDECODABLE:
        return TimelineEntry(type=row["kind"], id=row["wait_id"], at=row["at"], name=row["name"], status="damaged")
    fields = {name: row[name] for name in ("wait_id", "kind", "name", "due_at", "ended_at", "signal_id")}
    return timeline.of_wait(Wait(**fields, value=value), row["at"], run, child=row["child_status"], omitted=omitted)
