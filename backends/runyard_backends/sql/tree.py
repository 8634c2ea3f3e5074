"""The leaves of a thread's message tree, their depths, and the labels of branches (B3, B9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from runyard.domain.states import RunStatus
from runyard.domain.threads import PathSegment, segments
from runyard.domain.validation import MAX_LABELS
from runyard.errors import InvalidInputError, RunNotCompletedError
from runyard.models import Branch

from . import cuts, threads, views
from .database import LAST, Row, Transaction
from .views import Level


@dataclass(frozen=True, slots=True)
class Leaf:
    """The end of a path. ``level``: the last level of the path. The path also has the levels that the branch of this level
    inherits."""

    message_id: str
    created_at: datetime
    run_id: str | None
    status: str | None
    level: Level
    labels: list[str] = field(default_factory=list)


async def leaves(
    tx: Transaction, tenant: str, thread_id: str, after: tuple[datetime, str] | None, limit: int, *, labelled: bool
) -> tuple[list[Branch], bool]:
    """Return up to ``limit`` leaves after the place ``after``, in the order of their creation. Also return True if more leaves
    follow."""
    thread = await threads.found(tx, tenant, thread_id)
    ends = await tx.rows("branch_ends", thread["thread_key"])
    named = await _labels(tx, thread)
    found = await _leaves(tx, thread, ends, named)
    if labelled:
        found = [leaf for leaf in found if leaf.labels]
    found.sort(key=lambda leaf: (leaf.created_at, leaf.message_id))
    if after is not None:
        found = [leaf for leaf in found if (leaf.created_at, leaf.message_id) > after]
    shown = found[:limit]
    depths = await _depths(tx, [leaf.level for leaf in shown])
    leaf_of = {row["branch_id"]: row["leaf_id"] for row in ends}
    head, trunk = leaf_of[thread["head_branch"]], leaf_of[thread["root_branch"]]
    made = [
        Branch(
            message_id=leaf.message_id,
            depth=depth,
            created_at=leaf.created_at,
            run_id=leaf.run_id,
            run_status=RunStatus(leaf.status) if leaf.status is not None else None,
            head=leaf.message_id == head,
            trunk=leaf.message_id == trunk,
            labels=leaf.labels,
            path=await _path(tx, leaf.level),
        )
        for leaf, depth in zip(shown, depths, strict=True)
    ]
    return made, len(found) > limit


async def _path(tx: Transaction, level: Level) -> list[PathSegment]:
    """Return the segments of the path that ends on ``level``."""
    until = level.high_water_seq if level.high_water_seq != LAST else None
    inherited = [(above.branch_id, above.high_water_seq) for above in await views.inherited(tx, level.branch_id)]
    return segments([*inherited, (level.branch_id, until)])


async def _leaves(tx: Transaction, thread: Row, ends: Sequence[Row], named: dict[int, list[str]]) -> list[Leaf]:
    """Return all leaves. A leaf is the last visible message of a branch, or the last message of a run that is not completed. A
    branch without visible messages of its own has no leaf, except the thread's first branch. A message at which another branch
    begins is a leaf only if this message is the end of a labelled branch."""
    key, root = thread["thread_key"], thread["root_branch"]
    continued = {row["base_id"] for row in ends if row["branch_id"] != root and row["message_id"] is not None}
    found: dict[str, Leaf] = {}
    kept: dict[str, Leaf] = {}
    for row in ends:
        end: Row | None = row
        if row["leaf_id"] is None:
            continue
        if row["message_id"] is None:
            if row["branch_id"] != root and row["branch_id"] not in named:
                continue
            end = await tx.row("inherited_end", row["leaf_seq"], row["leaf_id"], row["branch_id"])
        if end is None:
            continue
        level = Level(row["branch_id"], key, LAST, LAST)
        leaf = Leaf(row["leaf_id"], end["created_at"], end["run_id"], end["status"], level)
        if row["message_id"] is not None or row["branch_id"] == root:
            found.setdefault(leaf.message_id, leaf)
        if row["branch_id"] in named:
            before = kept.get(leaf.message_id, leaf)
            kept[leaf.message_id] = replace(before, labels=sorted([*before.labels, *named[row["branch_id"]]]))
    for row in await tx.rows("side_leaves", key):
        level = Level(row["branch_id"], key, row["seq"], row["snapshot_cutoff"], row["run_id"])
        leaf = Leaf(row["message_id"], row["created_at"], row["run_id"], row["status"], level)
        found.setdefault(leaf.message_id, leaf)
    shown = {message_id: leaf for message_id, leaf in found.items() if message_id not in continued}
    return list((shown | kept).values())


async def _labels(tx: Transaction, thread: Row) -> dict[int, list[str]]:
    """Return the labels of each labelled branch."""
    named: dict[int, list[str]] = defaultdict(list)
    for row in await tx.rows("labels", thread["thread_key"]):
        named[row["branch_id"]].append(row["label"])
    return dict(named)


async def _depths(tx: Transaction, ends: Sequence[Level]) -> list[int]:
    """Return the number of messages on the path to each of ``ends``.

    Paths share levels. For each branch, one statement counts the messages between two successive high waters. The sums give the
    length of each level. A run with messages below the high water may have completed after the level's cutoff. The level then
    does not show the messages of this run. Such a level is counted separately.
    """
    paths = [[*await views.inherited(tx, end.branch_id), end] for end in ends]
    by_branch: dict[int, set[Level]] = defaultdict(set)
    for level in (level for path in paths for level in path):
        by_branch[level.branch_id].add(level)
    counts: dict[Level, int] = {}
    for branch_id, levels in by_branch.items():
        total = last = start = 0
        for level in sorted(levels, key=lambda level: level.high_water_seq):
            if level.high_water_seq > start:
                place = (level.thread_key, branch_id, start, level.high_water_seq)
                [(messages, highest)] = await tx.tuples("count_between", *place)
                total, last, start = total + messages, max(last, highest), level.high_water_seq
            counts[level] = await _count(tx, level, total, last)
    return [sum(counts[level] for level in path) for path in paths]


async def _count(tx: Transaction, level: Level, total: int, last: int) -> int:
    """Return the number of messages of a level. ``total``: the number of messages up to the level's high water that have no run
    or a completed run. ``last``: the highest completion number of these runs."""
    if last > level.cutoff:
        [(messages,)] = await tx.tuples("count_visible", *level.values)
        return int(messages)
    if level.open_run_id is None:
        return total
    run = await tx.row("run", level.thread_key, level.open_run_id)
    if run is None or run["completion_seq"] is not None:  # the messages of a completed run are in the total
        return total
    place = (level.branch_id, level.open_run_id, run["first_seq"] or 0, level.high_water_seq)
    [(messages,)] = await tx.tuples("count_of_run", *place)
    return total + int(messages)


async def set_label(tx: Transaction, tenant: str, thread_id: str, label: str, message_id: str | None) -> None:
    """Give a label to the branch of a message, or to the head. If another branch of the thread has the label, the label moves.
    Raises MessageNotFoundError, RunNotCompletedError. Raises InvalidInputError if the thread has too many labels."""
    thread = await threads.locked(tx, tenant, thread_id)
    branch_id = thread["head_branch"] if message_id is None else await _branch_of(tx, thread, message_id)
    labels = [row["label"] for row in await tx.rows("labels", thread["thread_key"])]
    if label not in labels and len(labels) >= MAX_LABELS:
        message = f"thread {thread_id} has {MAX_LABELS} labels, which is the maximum; remove one"
        raise InvalidInputError(message, thread_id=thread_id, field="label")
    await tx.send("drop_label", thread["thread_key"], label)
    await tx.send("add_label", thread["thread_key"], label, branch_id)


async def remove_label(tx: Transaction, tenant: str, thread_id: str, label: str) -> None:
    """Remove a label. Nothing changes if the thread does not have the label."""
    thread = await threads.locked(tx, tenant, thread_id)
    await tx.send("drop_label", thread["thread_key"], label)


async def _branch_of(tx: Transaction, thread: Row, message_id: str) -> int:
    """Return the branch that contains a message. For an inherited message, return the thread's first branch."""
    place = (await cuts.at_message(tx, thread, message_id)).place
    if place.owner != thread["thread_key"]:
        root: int = thread["root_branch"]
        return root
    if place.run_id is not None and place.completion_seq is None:
        message = f"message {message_id} belongs to the {place.status} run {place.run_id}, which is on no branch"
        raise RunNotCompletedError(
            f"{message}; label another message of the branch", thread_id=thread["thread_id"], run_id=place.run_id
        )
    return place.branch_id
