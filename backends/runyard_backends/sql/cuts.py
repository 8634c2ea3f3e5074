"""Find the messages that a fork sees. A cut is at a message, at a message number or after a run (F6). :mod:`.views` defines a
view: the levels that show the messages up to the cut."""

from __future__ import annotations

from dataclasses import dataclass

from runyard.errors import CutRunNotFoundError, ForkBoundaryError, MessageNotFoundError, RunNotCompletedError
from runyard.models import ROOT_ID, check_uuid
from runyard.ports.commands import Cut

from . import views
from .database import Row, Transaction
from .views import Level, Place, View


@dataclass(frozen=True, slots=True)
class MessageCut:
    """A cut at a message. ``view``: shows the path to the message. ``whole``: shows all visible messages of the message's
    branch. ``place``: the message."""

    view: View
    whole: View
    place: Place


def no_message(thread: Row, message_id: str) -> MessageNotFoundError:
    thread_id = thread["thread_id"]
    return MessageNotFoundError(f"thread {thread_id!r} has no message {message_id}", thread_id=thread_id, message_id=message_id)


def not_completed(thread: Row, run_id: str | None) -> RunNotCompletedError:
    thread_id = thread["thread_id"]
    what = (
        f"run {run_id!r} of thread {thread_id!r} is not completed" if run_id else f"thread {thread_id!r} has no completed run"
    )
    message = f"{what}; complete a run, or fork after a completed run"
    return RunNotCompletedError(message, thread_id=thread_id, run_id=run_id)


async def at_message(tx: Transaction, thread: Row, message_id: str) -> MessageCut:
    """Return the cut at a message. The cut includes the message. Raises MessageNotFoundError for an unknown message, and for a
    message whose run was never claimed."""
    place = None if message_id == ROOT_ID else await views.place_of(tx, thread, message_id)
    if place is None or (place.run_id is not None and place.run_branch is None):
        raise no_message(thread, message_id)
    level, open_run, cutoff = place.level, None, place.level.cutoff
    if place.run_id is not None:
        number = place.completion_seq if place.completion_seq is not None else place.snapshot_cutoff
        cutoff = min(number or 0, level.cutoff)
        if place.completion_seq is None or place.run_id == level.open_run_id:
            open_run = place.run_id
    before = await views.inherited(tx, place.branch_id)
    end = Level(place.branch_id, place.owner, min(place.seq, level.high_water_seq), cutoff, open_run)
    last = level._replace(open_run_id=open_run or level.open_run_id)
    return MessageCut([*before, end], [*before, last], place)


async def after_run(tx: Transaction, thread: Row, run_id: str) -> View:
    """Return the cut after a completed run of the thread or of an ancestor. Raises RunNotCompletedError. Raises
    ForkBoundaryError if the thread shows only a part of the run."""
    run = await tx.row("run", thread["thread_key"], run_id)
    if run is not None:
        if run["completion_seq"] is None:
            raise not_completed(thread, run_id)
        end = Level(run["branch_id"], thread["thread_key"], run["high_water_seq"], run["completion_seq"])
        return [*await views.inherited(tx, run["branch_id"]), end]
    found = await views.inherited_run(tx, thread, run_id)
    if found is None:
        thread_id = thread["thread_id"]
        message = f"thread {thread_id!r} has no run {run_id!r}; fork after a completed run of the thread"
        raise CutRunNotFoundError(message, thread_id=thread_id, run_id=run_id)
    if found.open:
        raise not_completed(thread, run_id)
    row, level = found.row, found.level
    if row["last_seq"] is not None and row["last_seq"] > level.high_water_seq:
        message = f"run {run_id!r} is only partly visible in thread {thread['thread_id']!r}; fork at a message instead"
        raise ForkBoundaryError(message, run_id=run_id, before=None, after=None)
    high_water = min(row["high_water_seq"], level.high_water_seq)
    end = Level(level.branch_id, level.thread_key, high_water, row["completion_seq"])
    return [*await views.inherited(tx, level.branch_id), end]


async def resolved(tx: Transaction, thread: Row, cut: Cut) -> tuple[View, str | None]:
    """Return the view of ``cut``, and the id of its run. The id is None for a cut at a message. Raises RunNotCompletedError,
    MessageNotFoundError. Raises ForkBoundaryError if the cut is inside a tool cycle and ``cut.repair`` is False."""
    if cut.at_message_id is not None or cut.at_seq is not None:
        message_id = await _id_at(tx, thread, cut)
        made = await at_message(tx, thread, message_id)
        if not cut.repair:
            await _check_boundary(tx, made)
        return made.view, None
    run_id = cut.after_run_id
    if run_id is None:
        head = await views.of_branch(tx, thread["thread_key"], thread["head_branch"])
        run_id = await views.last_completed(tx, head)
        if run_id is None:
            raise not_completed(thread, None)
    return await after_run(tx, thread, run_id), run_id


async def _id_at(tx: Transaction, thread: Row, cut: Cut) -> str:
    if cut.at_message_id is not None:
        return check_uuid(cut.at_message_id, "at_message_id")
    for (message_id,) in await tx.tuples("own_at_seq", cut.at_seq, thread["thread_key"]):
        return str(message_id)
    for (message_id,) in await tx.tuples("inherited_at_seq", cut.at_seq, thread["root_branch"]):
        if await views.inherited_place(tx, thread, message_id) is not None:
            return str(message_id)
    thread_id = thread["thread_id"]
    message = f"thread {thread_id!r} has no message with number {cut.at_seq}"
    raise MessageNotFoundError(message, thread_id=thread_id, seq=cut.at_seq)


async def _check_boundary(tx: Transaction, cut: MessageCut) -> None:
    """Refuse a cut inside a tool cycle. The error names the nearest messages of the branch at which no tool call is open."""
    calls = await views.open_calls(tx, cut.view)
    if not calls:
        return
    before: str | None = None
    after: str | None = None
    pending: list[str] = []
    for level in cut.whole:
        for seq, message_id, called, answered in await tx.tuples("visible_ids", *level.values):
            pending = views.still_open(pending, called, answered)
            if pending:
                continue
            if seq < cut.place.seq:
                before = message_id
            elif after is None:
                after = message_id
    where = f"message {cut.place.message_id} is inside an unfinished tool cycle (open calls: {', '.join(calls)})"
    message = f"{where}; cut before it at {before} or after it at {after}, or repair the fork"
    raise ForkBoundaryError(message, message_id=cut.place.message_id, open_calls=calls, before=before, after=after)
