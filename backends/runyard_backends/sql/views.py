"""The messages that a branch or a cut shows, and the runs that a fork inherits.

A view is a list of levels, the oldest first (docs/decisions/0002-levels-instead-of-copies.md). A level shows a message of its
branch under two conditions. First, the number of the message is at most the high water. Second, the message has no run, or
belongs to the level's open run, or the completion number of its run is at most the cutoff. Message numbers grow along every
path. The messages of a view are therefore ordered by level, and inside a level by number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from runyard.models import JsonObject, Message

from ..codec import history
from ..codec.values import from_json
from .database import LAST, Row, Transaction, moment

MessageRow: TypeAlias = tuple[Any, ...]
"""The ten columns of a message in the order of :mod:`..codec.message_rows`, and the status of its run."""


class Level(NamedTuple):
    """The part of one branch that is visible. ``thread_key``: the key of the branch's thread."""

    branch_id: int
    thread_key: int
    high_water_seq: int
    cutoff: int
    open_run_id: str | None = None

    @property
    def values(self) -> tuple[int, int, int, str | None, int]:
        """The parameters of a statement that reads the visible messages of this level."""
        return self.thread_key, self.branch_id, self.high_water_seq, self.open_run_id, self.cutoff


View: TypeAlias = list[Level]


@dataclass(frozen=True, slots=True)
class Place:
    """A message that a thread shows, with its run.

    ``owner``: the key of the thread that stored the message. ``level``: the level that shows the message. For a thread's own
    message, this level is the whole branch. ``run_branch``: the branch of the message's run, or None if the run was never
    claimed.
    """

    owner: int
    branch_id: int
    seq: int
    message_id: str
    parent_id: str | None
    run_id: str | None
    level: Level
    run_branch: int | None
    status: str | None
    completion_seq: int | None
    snapshot_cutoff: int | None


async def inherited(tx: Transaction, branch_id: int) -> View:
    """Return the levels that a branch inherits."""
    rows = await tx.tuples("levels", branch_id)
    return [Level(*row) for row in rows]


async def of_branch(tx: Transaction, thread_key: int, branch_id: int) -> View:
    """Return the view of all visible messages of a branch."""
    return [*await inherited(tx, branch_id), Level(branch_id, thread_key, LAST, LAST)]


async def rows_of(tx: Transaction, view: View) -> list[MessageRow]:
    """Return all messages of a view."""
    return [row for level in view for row in await tx.tuples("visible", *level.values)]


async def page_of(
    tx: Transaction, view: View, *, after: int | None, limit: int, budget: int, newest_first: bool
) -> tuple[list[MessageRow], bool]:
    """Return up to ``limit`` messages of a view after the number ``after``, the oldest first. Also return True if more
    messages follow. ``newest_first``: True to begin with the newest message. The messages have about ``budget`` bytes
    together. A larger message is a page of its own. The call reads only the returned messages, and the sizes of some further
    messages."""
    made: list[MessageRow] = []
    place = after if after is not None else LAST if newest_first else 0
    sizes_of, rows_of_page = ("sizes_before", "visible_before") if newest_first else ("sizes_after", "visible_after")
    for level in reversed(view) if newest_first else view:
        while newest_first or level.high_water_seq > place:
            sizes = await _sizes(tx, sizes_of, *level.values, place, min(limit + 1 - len(made), SIZES_PER_READ))
            count = fitting(sizes[: limit - len(made)], budget, first=not made)
            if count:
                made += await tx.tuples(rows_of_page, *level.values, place, count)
                place, budget = made[-1][0], budget - sum(sizes[:count])
            if count < len(sizes):
                return made, True
            if len(sizes) < SIZES_PER_READ:
                break
    return made, False


SIZES_PER_READ: Final = 1000
"""Number of messages whose sizes one statement reads."""


async def stored_after(tx: Transaction, branch_id: int, after: int, limit: int, budget: int) -> list[MessageRow]:
    """Return up to ``limit`` of the branch's own messages after the number ``after``. Messages of uncompleted runs are
    included. The messages have about ``budget`` bytes together."""
    sizes = await _sizes(tx, "stored_sizes", branch_id, after, limit)
    count = fitting(sizes, budget, first=True)
    return await tx.tuples("stored_after", branch_id, after, count) if count else []


async def _sizes(tx: Transaction, name: str, *values: object) -> list[int]:
    return [512 + (size or 0) for (size,) in await tx.tuples(name, *values)]


def fitting(sizes: Sequence[int], budget: int, *, first: bool) -> int:
    """Return the number of rows, counted from the first one, that together fit into ``budget`` bytes. ``first``: True to count
    the first row even if it is larger than ``budget``."""
    for n, size in enumerate(sizes):
        budget -= size
        if budget < 0 and (n or not first):
            return n
    return len(sizes)


async def messages(rows: Sequence[MessageRow], thread_id: str) -> list[Message]:
    """Decode the rows of messages."""
    return await history.messages([message_row(row) for row in rows], thread_id=thread_id)


def message_row(row: MessageRow) -> Any:
    """Return a row in the form of :mod:`..codec.message_rows`. The time becomes a datetime. For a message without a payload,
    the tool calls and results become lists."""
    calls, results = (_ids(row[7]), _ids(row[8])) if row[5] is None else (None, None)
    return (*row[:7], calls, results, moment(row[9]))


def _ids(text: str | None) -> list[str]:
    ids: list[str] = json.loads(text) if text is not None else []
    return ids


async def last_visible(tx: Transaction, view: View) -> tuple[str | None, int]:
    """Return the id and the number of the last message of a view, or None and 0."""
    for level in reversed(view):
        for message_id, seq in await tx.tuples("last_visible", *level.values):
            return message_id, seq
    return None, 0


async def open_calls(tx: Transaction, view: View) -> list[str]:
    """Return the ids of the view's tool calls that have no result in the view, in order. Read only messages with calls or
    results."""
    pending: list[str] = []
    for level in view:
        for calls, results in await tx.tuples("visible_tools", *level.values):
            pending = still_open(pending, calls, results)
    return pending


def still_open(pending: list[str], calls: str | None, results: str | None) -> list[str]:
    """Return the ids of the tool calls that are open after a message. ``calls``, ``results``: the columns of the message."""
    answered = set(_ids(results))
    return [*(call for call in pending if call not in answered), *_ids(calls)] if calls or results else pending


async def own_place(tx: Transaction, thread: Row, message_id: str) -> Place | None:
    """Return the thread's own message with this id, or None."""
    row = await tx.row("own_message", message_id, thread["thread_key"])
    if row is None:
        return None
    level = Level(row["branch_id"], thread["thread_key"], LAST, thread["next_completion_seq"] - 1)
    return _place(row, level)


async def inherited_place(tx: Transaction, thread: Row, message_id: str) -> Place | None:
    """Return the inherited message with this id, or None. The thread's first branch inherits all messages that any branch of
    the thread inherits."""
    row = await tx.row("inherited_message", thread["root_branch"], message_id)
    if row is None:
        return None
    level = Level(row["branch_id"], row["thread_key"], row["high_water_seq"], row["cutoff"], row["open_run_id"])
    return _place(row, level)


async def place_of(tx: Transaction, thread: Row, message_id: str) -> Place | None:
    """Return the thread's own or inherited message with this id, or None."""
    return await own_place(tx, thread, message_id) or await inherited_place(tx, thread, message_id)


def _place(row: Row, level: Level) -> Place:
    return Place(
        owner=row["thread_key"],
        branch_id=row["branch_id"],
        seq=row["seq"],
        message_id=row["message_id"],
        parent_id=row["parent_id"],
        run_id=row["run_id"],
        level=level,
        run_branch=row["run_branch"],
        status=row["status"],
        completion_seq=row["completion_seq"],
        snapshot_cutoff=row["snapshot_cutoff"],
    )


@dataclass(frozen=True, slots=True)
class InheritedRun:
    """A run that a fork inherits, and the level that shows it. ``open``: False if the run completed before the cut."""

    row: Row
    level: Level
    open: bool


async def inherited_run(tx: Transaction, thread: Row, run_id: str) -> InheritedRun | None:
    """Return the inherited run with this id, or None."""
    row = await tx.row("inherited_run", run_id, thread["root_branch"])
    if row is None:
        return None
    level = Level(row["ancestor_id"], row["thread_key"], row["level_high_water"], row["level_cutoff"], row["level_open_run"])
    completed = row["completion_seq"] is not None and row["completion_seq"] <= level.cutoff
    return InheritedRun(row, level, not (completed and (row["first_seq"] or 0) <= level.high_water_seq))


async def last_completed(tx: Transaction, view: View) -> str | None:
    """Return the id of the last completed run of a view. Runs of a later level completed after the runs of all earlier levels.
    The search therefore begins at the last level."""
    for level in reversed(view):
        for (run_id,) in await tx.tuples("last_completed", level.branch_id, level.cutoff, level.high_water_seq):
            return str(run_id)
    return None


async def extra_at(tx: Transaction, view: View) -> JsonObject:
    """Return the extra of a cut: the latest extra that was saved with a completed run before the cut. If there is no such run,
    return the extra with which the thread began."""
    if not view:
        return {}
    level = view[-1]
    for (text,) in await tx.tuples("extra_at", level.thread_key, level.cutoff):
        return _extra(text)
    row = await tx.row("thread_values", level.thread_key)
    return _extra(row["base_extra"]) if row is not None else {}


def _extra(text: str) -> JsonObject:
    extra: JsonObject = from_json(text)
    return extra
