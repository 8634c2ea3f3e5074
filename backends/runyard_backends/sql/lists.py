"""Pages of threads, runs and HITL requests.

A page also ends after EXAMINED rows that do not match the filters. Such a page has fewer entries than the limit, and a
``next``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from runyard.domain.list_entries import entry, entry_bytes
from runyard.domain.runs import AttemptInfo
from runyard.models import HitlRequest, Run, Thread
from runyard.ports.queries import PageRequest, RunFilter, ThreadFilter
from runyard.ports.results import Page

from .. import cursors
from ..codec.damaged_rows import entry as readable
from ..codec.request_rows import request_entry
from ..codec.thread_rows import thread_entry
from . import external_runs
from .database import LAST, Row, Transaction
from .threads import term_of
from .views import fitting

E = TypeVar("E", Run, Thread, HitlRequest, AttemptInfo)

EXAMINED: Final = 1000
"""A page ends after this number of rows that do not match the filters."""
_PART: Final = 50
"""Maximum number of rows that one statement reads. This number is small, because rows can be large."""
_run_entry = readable(external_runs.decoded, error=None)


async def _page(
    read: Callable[[int, int], Awaitable[Sequence[Row]]],
    start: int,
    key: str,
    asked: PageRequest,
    budget: int,
    made: Callable[[Row], E | None],
    size: Callable[[E], int],
    cursor: Callable[[int], str] = cursors.encode,
) -> Page[E]:
    """Return a page of the rows after the place ``start``. ``read``: a function that takes a place and a number, and returns at
    most this number of rows after the place. ``key``: the column whose value is the place of a row. ``made``: a function that
    returns the entry for a row, or None if the row does not match the filters. ``cursor``: a function that returns the cursor
    of a place."""
    items: list[E] = []
    place, examined, count = start, 0, min(_PART, asked.limit + 1)
    while True:
        part = await read(place, count)
        for row in part:
            found = made(row)
            if found is not None:
                budget -= size(found)
                if len(items) >= asked.limit or (items and budget < 0):
                    return Page(items, cursor(place))
                items.append(found)
            place = row[key]
        examined += len(part)
        if len(part) < count:
            return Page(items)
        if examined >= EXAMINED + asked.limit:
            return Page(items, cursor(place))
        count = min(_PART, 2 * count)  # no row has matched so far


async def threads(tx: Transaction, tenant: str, where: ThreadFilter, asked: PageRequest, budget: int) -> Page[Thread]:
    """Return threads, in the order of their keys, or the newest first. Forks of a deleted thread are not listed as forks of a
    later thread with the same id. Such forks are recognized by their keys, which are lower than the key of the later
    thread."""
    lowest = 0
    if where.parent_thread_id is not None:
        parent = await tx.row("find_thread", tenant, where.parent_thread_id)
        lowest = parent["thread_key"] if parent is not None else 0
    start = LAST if where.newest_first else lowest
    if asked.cursor is not None:
        start = max(cursors.thread(asked.cursor, newest_first=where.newest_first), lowest)
    terms = [term_of(name, value) for name, value in where.tags.items()]
    values: tuple[object, ...] = ()
    if terms:
        statements, values = ("threads_of_tag", "threads_of_tag_newest_first"), (terms[0],)
    elif where.parent_thread_id is not None:
        statements, values = ("threads_of_parent", "threads_of_parent_newest_first"), (where.parent_thread_id,)
    elif where.agent is not None:
        statements, values = ("threads_of_agent", "threads_of_agent_newest_first"), (where.agent,)
    else:
        statements = ("threads", "threads_newest_first")

    async def read(after: int, part: int) -> Sequence[Row]:
        rows = await tx.rows(statements[where.newest_first], tenant, *values, after, part)
        return [row for row in rows if row["thread_key"] > lowest]

    def made(row: Row) -> Thread | None:
        if where.parent_thread_id not in (None, row["parent_thread_id"]) or where.agent not in (None, row["agent"]):
            return None
        thread = thread_entry({**row, "usage": "{}"})
        return entry(thread) if where.tags.items() <= thread.tags.items() else None

    cursor = partial(cursors.of_thread, newest_first=where.newest_first)
    return await _page(read, start, "thread_key", asked, budget, made, entry_bytes, cursor)


async def runs(tx: Transaction, tenant: str, where: RunFilter, asked: PageRequest, budget: int) -> Page[Run]:
    """Return runs, the newest first."""
    start = cursors.number(asked.cursor) if asked.cursor is not None else LAST
    thread = await tx.row("find_thread", tenant, where.thread_id) if where.thread_id is not None else None
    if where.agent is not None or (where.thread_id is not None and thread is None):  # external runs have no agent
        return Page([])

    async def read(before: int, part: int) -> Sequence[Row]:
        if thread is not None:
            return await tx.rows("runs_of_thread", thread["thread_key"], before, part)
        return await tx.rows("runs", tenant, before, part)

    def made(row: Row) -> Run | None:
        began: datetime = row["accepted_at"]
        early = where.since is not None and began < where.since
        late = where.before is not None and began >= where.before
        return None if early or late or where.status not in (None, row["status"]) else _run_entry(row)

    return await _page(read, start, "accept_no", asked, budget, made, entry_bytes)


async def requests(
    tx: Transaction, tenant: str, thread_id: str | None, pending: bool, asked: PageRequest, budget: int
) -> Page[HitlRequest]:
    """Return HITL requests, the oldest first."""
    thread = await tx.row("find_thread", tenant, thread_id) if thread_id is not None else None
    first = datetime(1970, 1, 1, tzinfo=UTC), ""
    since, last = cursors.moment(asked.cursor) if asked.cursor is not None else first
    if thread_id is not None and thread is None:
        return Page([])
    names = ("request_sizes_of_thread", "requests_page_of_thread") if thread is not None else ("request_sizes", "requests")
    whose = thread["thread_key"] if thread is not None else tenant
    place = (whose, since, since, last, pending)
    sizes = [512 + (body or 0) + (answer or 0) for body, answer in await tx.tuples(names[0], *place, asked.limit + 1)]
    count = fitting(sizes[: asked.limit], budget, first=True)
    rows = await tx.rows(names[1], *place, count) if count else []
    more = cursors.encode([rows[-1]["created_at"].isoformat(), rows[-1]["request_id"]]) if count < len(sizes) else None
    return Page([request_entry(row) for row in rows], more)
