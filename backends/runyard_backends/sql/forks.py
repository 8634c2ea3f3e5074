"""Make branches and forks without copying messages. A branch or fork gets levels, which show the source up to the cut."""

from __future__ import annotations

from typing import Any

from runyard.domain.tool_cycles import FORKED, closing
from runyard.errors import LeafMovedError, ThreadAlreadyExistsError
from runyard.models import ROOT_ID, JsonObject, Message, check_tags, open_tool_calls
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.results import Forked

from ..codec.message_rows import NewMessage, many
from ..codec.message_rows import messages as decoded_messages
from ..codec.values import to_json
from . import cuts, threads, views, writes
from .database import Row, Transaction
from .views import View


async def _add_levels(tx: Transaction, branch_id: int, view: View) -> None:
    rows = [(branch_id, level.branch_id, level.high_water_seq, level.cutoff, level.open_run_id) for level in view]
    await tx.send_many("add_level", rows)


async def _open_branch(tx: Transaction, thread: Row, base: str | None, view: View) -> Row:
    """Make a branch that begins after the message ``base``. ``view``: the levels that the branch inherits."""
    leaf_id, leaf_seq = await views.last_visible(tx, view)
    branch_id = (await tx.send("add_branch", thread["thread_key"], base, leaf_id, leaf_seq)).key
    await _add_levels(tx, branch_id, view)
    return await writes.branch_of(tx, branch_id)


async def _branch_at(tx: Transaction, thread: Row, parent_id: str) -> Row:
    """Return the branch that ends at a message, and make it the head. If no branch ends there, make a new branch after the
    message. A new branch at ROOT_ID begins another tree."""
    branch = await _ending_at(tx, thread, parent_id)
    if branch is None:
        view = [] if parent_id == ROOT_ID else (await cuts.at_message(tx, thread, parent_id)).view
        branch = await _open_branch(tx, thread, None if parent_id == ROOT_ID else parent_id, view)
    if branch["branch_id"] != thread["head_branch"]:
        await tx.send("set_head", branch["branch_id"], thread["thread_key"])
    return branch


async def set_head(tx: Transaction, tenant: str, thread_id: str, message_id: str) -> None:
    """Make the branch that ends at a message the head. If no branch ends there, open one. Raises ThreadNotFoundError,
    MessageNotFoundError."""
    await _branch_at(tx, await threads.locked(tx, tenant, thread_id), message_id)


async def _ending_at(tx: Transaction, thread: Row, message_id: str) -> Row | None:
    """Return a branch whose last visible message is ``message_id``, or None. For ROOT_ID, return a branch without a visible
    message. If several branches match, return the head, or else the oldest."""
    key = thread["thread_key"]
    if message_id == ROOT_ID:
        rows = await tx.rows("empty_branches", key)
    else:
        rows = await tx.rows("branch_ending_at", key, message_id)
    return next((row for row in rows if row["branch_id"] == thread["head_branch"]), rows[0] if rows else None)


async def store(
    tx: Transaction, tenant: str, thread_id: str, new: NewMessage, message: Message, parent_id: str | None, expected: str | None
) -> Message:
    """Store a message without a run (B1). If a message with the same id, content and parent is stored already, return it.

    ``expected``: the last message that the caller has seen, or None. Raises MessageNotFoundError, LeafMovedError. Raises
    InvalidInputError if another message has the id.
    """
    thread = await threads.ensured(tx, tenant, thread_id)
    place = await views.place_of(tx, thread, new.message_id)
    if place is not None:
        stored = await _stored(tx, thread, place.branch_id, place.seq)
        elsewhere = parent_id not in (None, place.parent_id or ROOT_ID)
        if place.run_id is not None or elsewhere or not stored.says(message):
            raise writes.id_taken(thread, new.message_id)
        return stored
    if expected is not None:
        ending = await _ending_at(tx, thread, parent_id) if parent_id is not None else None
        leaf = (ending or await writes.branch_of(tx, thread["head_branch"]))["leaf_id"]
        if leaf != expected:
            raise LeafMovedError(f"the last message is {leaf}, not {expected}", expected=expected, leaf=leaf)
    if parent_id is not None:
        branch = await _branch_at(tx, thread, parent_id)
    else:
        branch = await writes.branch_of(tx, thread["head_branch"])
    out = await writes.writer(tx, thread)
    seq = out.add(branch["branch_id"], new, branch["leaf_id"], None)
    await out.flush()
    await tx.send("move_leaf", new.message_id, seq, branch["branch_id"])
    return await _stored(tx, thread, branch["branch_id"], seq)


async def _stored(tx: Transaction, thread: Row, branch_id: int, seq: int) -> Message:
    [row] = await tx.tuples("stored_message", branch_id, seq)
    [message] = decoded_messages([views.message_row(row)], thread_id=thread["thread_id"])
    return message


async def cut_messages(tx: Transaction, tenant: str, thread_id: str, cut: Cut) -> tuple[list[views.MessageRow], JsonObject]:
    """Return the rows of the messages that a fork at ``cut`` would see, and the extra that it would have."""
    thread = await threads.found(tx, tenant, thread_id)
    view, _ = await cuts.resolved(tx, thread, cut)
    return await views.rows_of(tx, view), await views.extra_at(tx, view)


def closed(messages: list[Message]) -> list[Message]:
    """Return the messages that a repaired fork has after ``messages``: a single tool message, which contains an error result
    for each open tool call. Return an empty list if no call is open."""
    return closing(open_tool_calls(messages), FORKED)


async def fork(tx: Transaction, tenant: str, request: ForkRequest) -> Forked:
    """Fork a thread, in a time that does not depend on its length (F1 to F8). If an earlier equal request made the fork,
    return this fork. Raises ThreadNotFoundError, RunNotCompletedError, MessageNotFoundError, ForkBoundaryError,
    ThreadAlreadyExistsError.
    """
    tags = check_tags(request.tags, request.title)
    to_json([request.metadata, tags])  # raises an error for a text that every store refuses
    known = await tx.row("lock_thread", tenant, request.new)
    if known is not None and known["fork_hash"] == request.fork_hash:
        return Forked(await threads.whole(tx, tenant, request.new), False)
    await tx.restart()  # every verb must lock the source before its forks
    src = await threads.locked(tx, tenant, request.src)
    view, run_id = await cuts.resolved(tx, src, request.cut)
    extra = {key: value for key, value in (await views.extra_at(tx, view)).items() if key != "fork"}
    if request.metadata is not None:
        extra["fork"] = request.metadata
    leaf_id, leaf_seq = await views.last_visible(tx, view)
    fields: dict[str, Any] = {
        "parent_thread_id": src["thread_id"],
        "forked_after_run_id": run_id,
        "forked_at_seq": leaf_seq if leaf_id is not None else None,
        "fork_hash": request.fork_hash,
        "next_seq": src["next_seq"],
        "next_completion_seq": src["next_completion_seq"],
        "agent": request.agent or src["agent"],
        "title": request.title,
        "tags": tags,
        "extra": to_json(extra),
        "config": (await threads.values_of(tx, src["thread_key"]))["config"],
        "leaf_id": leaf_id,
        "leaf_seq": leaf_seq,
    }
    made = await threads.added(tx, tenant, request.new, **fields)
    child = await threads.locked(tx, tenant, request.new)
    if not made:
        if child["fork_hash"] == request.fork_hash:
            return Forked(await threads.whole(tx, tenant, request.new), False)
        raise ThreadAlreadyExistsError(f"thread {request.new!r} exists; choose another id", thread_id=request.new)
    await _add_levels(tx, child["root_branch"], view)
    if request.cut.repair and (calls := await views.open_calls(tx, view)):
        out = await writes.writer(tx, child)
        for message in many(closing(calls, FORKED)):
            seq = out.add(child["root_branch"], message, leaf_id, None)
            await tx.send("move_leaf", message.message_id, seq, child["root_branch"])
        await out.flush()
    return Forked(await threads.whole(tx, tenant, request.new), True)
