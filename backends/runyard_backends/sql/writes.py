"""Functions that store messages on a branch, under a run, or under the id of a run that was never claimed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from runyard.domain.size_limits import MESSAGE_BYTES, message_size
from runyard.errors import InvalidInputError, MessageTooLargeError, RunAlreadyClaimedError, RunAlreadyCompletedError
from runyard.models import Message

from ..codec.message_rows import NewMessage
from . import threads, views
from .database import Row, Transaction

IDS_PER_SEARCH: Final = 50
"""Number of message ids for which one execution of the statement `known_ids` searches."""


def check_sizes(messages: Iterable[Message]) -> None:
    """Raise MessageTooLargeError if a message is larger than MESSAGE_BYTES."""
    size = max((message_size(message) for message in messages), default=0)
    if size > MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"a message of {size} bytes is over the limit of {MESSAGE_BYTES}",
            limit="message_bytes",
            most=MESSAGE_BYTES,
            size=size,
        )


def id_taken(thread: Row, message_id: str) -> InvalidInputError:
    thread_id = thread["thread_id"]
    message = f"message id {message_id} is taken on thread {thread_id} by another message; use another id"
    return InvalidInputError(message, thread_id=thread_id, message_id=message_id)


async def open_run(tx: Transaction, thread: Row, run_id: str) -> Row | None:
    """Return the live run with this id, or None if no run has this id. Raises RunAlreadyCompletedError if the run has ended or
    is inherited. Raises RunAlreadyClaimedError if the thread was forked inside the run."""
    run = await tx.row("run", thread["thread_key"], run_id)
    if run is not None:
        if run["status"] != "running":
            message = f"run {run_id!r} is {run['status']} and cannot be changed"
            raise RunAlreadyCompletedError(message, thread_id=thread["thread_id"], run_id=run_id, status=run["status"])
        return run
    if (found := await views.inherited_run(tx, thread, run_id)) is not None:
        error = RunAlreadyClaimedError if found.open else RunAlreadyCompletedError
        message = f"run id {run_id!r} is inherited by thread {thread['thread_id']!r} from its ancestor; use another"
        raise error(message, thread_id=thread["thread_id"], run_id=run_id)
    return None


@dataclass(slots=True)
class Writer:
    """Collects the messages of one call, and stores them together. ``thread``: the row of the locked thread. Each message
    increases the row's ``next_seq``."""

    tx: Transaction
    thread: Row
    now: datetime
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, branch_id: int, message: NewMessage, parent_id: str | None, run_id: str | None) -> int:
        """Add a message, and return its number."""
        seq: int = self.thread["next_seq"]
        self.thread["next_seq"] = seq + 1
        calls, results = (json.dumps(ids) if ids else None for ids in (message.calls, message.results))
        tools = bool(calls or results)
        self.rows.append(
            (
                branch_id,
                seq,
                message.message_id,
                parent_id,
                run_id,
                message.role,
                message.payload,
                tools,
                calls,
                results,
                self.now,
            )
        )
        return seq

    async def flush(self) -> None:
        """Store the collected messages, and the next numbers of messages and completions of the thread."""
        await self.tx.send_many("add_message", self.rows)
        self.rows.clear()
        numbers = (self.thread["next_seq"], self.thread["next_completion_seq"], self.now)
        await self.tx.send("save_numbers", *numbers, self.thread["thread_key"])

    def add_to_run(self, run: Row, messages: Iterable[NewMessage]) -> None:
        """Add messages at the end of a run. The caller saves the row of the run."""
        for message in messages:
            parent = run["last_message_id"] or run["base_id"]
            run["last_seq"] = self.add(run["branch_id"], message, parent, run["run_id"])
            run["last_message_id"] = message.message_id
            run["first_seq"] = run["first_seq"] or run["last_seq"]


async def writer(tx: Transaction, thread: Row) -> Writer:
    return Writer(tx, thread, await tx.now())


async def branch_of(tx: Transaction, branch_id: int) -> Row:
    """Return the row of a branch that exists."""
    row = await tx.row("branch", branch_id)
    assert row is not None
    return row


async def append(
    tx: Transaction, tenant: str, thread_id: str, messages: Sequence[NewMessage], run_ids: Sequence[str | None]
) -> None:
    """Store all messages of a checkpointer's call, or none. ``run_ids``: for each message, the id of its run, or None. Skip a
    message whose id is stored already.

    Raises RunAlreadyCompletedError, RunAlreadyClaimedError. Raises InvalidInputError if a message of another run has one of the
    ids.
    """
    thread = await threads.ensured(tx, tenant, thread_id)
    given: dict[str, tuple[NewMessage, str | None]] = {}
    for message, run_id in zip(messages, run_ids, strict=True):
        given.setdefault(message.message_id, (message, run_id))
    held = {place.message_id: place for place in await _held(tx, thread, list(given))}
    runs: dict[str, Row | None] = {}
    for message_id, (_, run_id) in given.items():  # stop here, because the call raises the error of the first invalid message
        if run_id is not None and run_id not in runs:
            runs[run_id] = await open_run(tx, thread, run_id)
        if message_id in held and held[message_id].run_id != run_id:
            raise id_taken(thread, message_id)
    missing = [each for message_id, each in given.items() if message_id not in held]
    head = await branch_of(tx, thread["head_branch"])
    unclaimed: dict[str, Row] = {}
    out = await writer(tx, thread)
    leaf = head["leaf_id"]
    for message, run_id in missing:
        if run_id is None:
            head["leaf_seq"] = out.add(head["branch_id"], message, head["leaf_id"], None)
            head["leaf_id"] = message.message_id
        elif (run := runs[run_id]) is not None:
            out.add_to_run(run, [message])
        else:
            if run_id not in unclaimed:
                unclaimed[run_id] = await _unclaimed(tx, thread, run_id, head)
            out.add_to_run(unclaimed[run_id], [message])
    if head["leaf_id"] != leaf:
        await tx.send("move_leaf", head["leaf_id"], head["leaf_seq"], head["branch_id"])
    for run_id in dict.fromkeys(run_id for _, run_id in missing if run_id is not None):
        if (row := runs[run_id]) is not None:
            await tx.send("grow_run", row["first_seq"], row["last_seq"], row["last_message_id"], row["accept_no"])
    for run_id, row in unclaimed.items():
        await tx.send("drop_unclaimed", thread["thread_key"], run_id)
        stored = (row["branch_id"], row["first_seq"], row["last_seq"], row["last_message_id"])
        await tx.send("add_unclaimed", thread["thread_key"], run_id, *stored)
    await out.flush()


async def _unclaimed(tx: Transaction, thread: Row, run_id: str, head: Row) -> Row:
    """Return the place of a run that was never claimed. If the run has no messages, its place is after the last message of the
    thread's head branch.
    """
    known = await tx.row("unclaimed", thread["thread_key"], run_id)
    if known is not None:
        return {**known, "base_id": None}
    place = {"first_seq": None, "last_seq": None, "last_message_id": None}
    return {"run_id": run_id, "branch_id": head["branch_id"], "base_id": head["leaf_id"], **place}


async def _held(tx: Transaction, thread: Row, ids: Sequence[str]) -> list[views.Place]:
    """Return the messages of the thread that have one of the ids. One statement first searches for many ids together. Most ids
    are new, and need no further statement."""
    held: list[views.Place] = []
    for n in range(0, len(ids), IDS_PER_SEARCH):
        part = ids[n : n + IDS_PER_SEARCH]
        for (message_id,) in await tx.tuples("known_ids", *part, *[part[-1]] * (IDS_PER_SEARCH - len(part))):
            place = await views.place_of(tx, thread, message_id)
            if place is not None:
                held.append(place)
    return held
