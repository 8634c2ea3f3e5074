"""Functions that find, lock, make and change rows of threads. A verb locks the row of its thread before it reads the thread's
state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from runyard.domain.etags import MICROSECOND
from runyard.domain.size_limits import MAX_EXTRA, check_value
from runyard.domain.validation import check_name
from runyard.errors import InvalidInputError, PreconditionFailedError, ThreadAlreadyExistsError, ThreadNotFoundError
from runyard.models import JsonObject, Thread, check_id, check_tags
from runyard.ports.commands import ThreadChanges, ThreadRequest
from runyard.ports.results import Created

from ..codec import thread_rows
from ..codec.values import from_json, to_json
from .database import DuplicateKeyError, Row, Transaction


def decoded(row: Row) -> Thread:
    """Return the thread that a row describes. Its usage is zero, because external runs have no usage."""
    return thread_rows.thread({**row, "usage": "{}"})


def not_found(thread_id: str) -> ThreadNotFoundError:
    return ThreadNotFoundError(f"there is no thread {thread_id!r}", thread_id=thread_id)


async def whole(tx: Transaction, tenant: str, thread_id: str) -> Thread:
    """Return a thread with all its values. Raises ThreadNotFoundError."""
    row = await tx.row("thread", tenant, thread_id)
    if row is None:
        raise not_found(thread_id)
    return decoded(row)


async def found(tx: Transaction, tenant: str, thread_id: str) -> Row:
    """Return the row of a thread without a lock and without its large values. Raises ThreadNotFoundError."""
    row = await tx.row("find_thread", tenant, thread_id)
    if row is None:
        raise not_found(thread_id)
    return row


async def locked(tx: Transaction, tenant: str, thread_id: str) -> Row:
    """Lock a thread and return its row, without its large values. Raises ThreadNotFoundError."""
    row = await tx.row("lock_thread", tenant, thread_id)
    if row is None:
        raise not_found(thread_id)
    return row


async def ensured(tx: Transaction, tenant: str, thread_id: str) -> Row:
    """Lock a thread and return its row. Make the thread if it does not exist."""
    check_id(thread_id, "thread_id")
    while True:
        row = await tx.row("lock_thread", tenant, thread_id)
        if row is not None:
            return row
        # End the transaction before the insert. On some servers, the search for a missing row blocks other transactions from
        # adding this row.
        await tx.restart()
        if await added(tx, tenant, thread_id):
            return await locked(tx, tenant, thread_id)


async def added(tx: Transaction, tenant: str, thread_id: str, **fields: Any) -> bool:
    """Make a thread with an empty first branch. Return False if the thread exists.

    ``fields``: the values of other columns of the thread. ``leaf_id``, ``leaf_seq``: the last visible message of the first
    branch.
    """
    now = await tx.now()
    extra = fields.get("extra", "{}")
    values = (
        *(tenant, thread_id, fields.get("parent_thread_id"), fields.get("forked_after_run_id"), fields.get("forked_at_seq")),
        *(fields.get("fork_hash"), fields.get("next_seq", 1), fields.get("next_completion_seq", 1)),
        *(fields.get("agent"), fields.get("title"), to_json(fields.get("tags", {})), extra, extra, fields.get("config", "{}")),
        *(now, now),
    )
    try:
        key = (await tx.send("add_thread", *values)).key
    except DuplicateKeyError:
        return False
    leaf = (fields.get("leaf_id"), fields.get("leaf_id"), fields.get("leaf_seq", 0))
    branch = (await tx.send("add_branch", key, *leaf)).key
    await tx.send("set_branches", branch, branch, key)
    await _save_tags(tx, tenant, key, fields.get("tags", {}))
    return True


def term_of(name: str, value: str) -> str:
    """Return the digest of a tag, which the index of tags stores."""
    return hashlib.sha256(json.dumps([name, value]).encode()).hexdigest()


async def _save_tags(tx: Transaction, tenant: str, key: int, tags: Mapping[str, str]) -> None:
    await tx.send_many("add_tag", [(tenant, term_of(name, value), key) for name, value in tags.items()])


async def created(tx: Transaction, tenant: str, request: ThreadRequest) -> Created:
    """Make an empty thread. If an earlier equal request made the thread, return this thread. Raises
    ThreadAlreadyExistsError."""
    values = {"extra": to_json(request.extra), "config": to_json(request.config)}
    tags = check_tags(request.tags, request.title)
    to_json(tags)  # raises an error for a text that every store refuses
    fields: dict[str, Any] = {"fork_hash": request.hash, "agent": request.agent, "title": request.title, "tags": tags, **values}
    made = await added(tx, tenant, request.thread_id, **fields)
    row = await locked(tx, tenant, request.thread_id)
    if not made and row["fork_hash"] != request.hash:
        message = f"thread {request.thread_id!r} exists and was not made by this request; choose another id"
        raise ThreadAlreadyExistsError(message, thread_id=request.thread_id)
    return Created(await whole(tx, tenant, request.thread_id), made)


def check_unchanged(row: Row, expected: datetime | None) -> None:
    """Raise PreconditionFailedError if the thread has changed since the caller read it."""
    if expected is not None and row["updated_at"] != expected:
        message = f"thread {row['thread_id']!r} has changed since {expected}; read it again"
        raise PreconditionFailedError(message, thread_id=row["thread_id"])


def merged(before: JsonObject, more: JsonObject, name: str = "extra") -> JsonObject:
    """Return ``before`` with the keys of ``more``. Raises InvalidInputError if the result has more than MAX_EXTRA bytes.
    ``name``: the field of a thread, ``extra`` or ``config``."""
    both = {**before, **more}
    if (size := len(to_json(both).encode())) > MAX_EXTRA:
        words = f"{name} would have {size} bytes, and a thread's {name} may have {MAX_EXTRA}; keep large data elsewhere"
        raise InvalidInputError(f"{words} and store a reference", field=name, most=MAX_EXTRA, got=size)
    return both


def _patched(before: str, patch: JsonObject | None, name: str) -> str:
    """Return ``before`` merged with ``patch``, as JSON. A key with the value None in ``patch`` is removed. Without a patch,
    return an empty object."""
    more = patch or {}
    check_value(more, name)
    both = merged(from_json(before) if patch is not None else {}, more, name)
    return to_json({key: value for key, value in both.items() if key not in more or value is not None})


async def save_extra(tx: Transaction, tenant: str, thread_id: str, more: JsonObject) -> None:
    """Merge ``more`` into the extra of a thread. Make the thread if it does not exist."""
    row = await ensured(tx, tenant, thread_id)
    values = await values_of(tx, row["thread_key"])
    both = merged(from_json(values["extra"]), more)
    await tx.send("save_extra", to_json(both), True, await tx.now(), row["thread_key"])


async def parent(tx: Transaction, tenant: str, key: int) -> tuple[int, Thread] | None:
    """Return the key and the data of a thread's parent. If the parent is deleted, return the nearest ancestor with a message
    that the thread still shows. This ancestor may be a tombstone of a deleted thread."""
    named = (await values_of(tx, key))["parent_thread_id"]
    row = await tx.row("thread", tenant, named) if named is not None else None
    if row is not None and row["thread_key"] < key:
        return row["thread_key"], decoded(row)
    kin = [int(found) for (found,) in await tx.tuples("kin", key, key)]
    if not kin:
        return None
    row = await tx.row("thread_by_key", kin[-1])
    assert row is not None
    thread = decoded(row)
    return kin[-1], thread.tombstone(row["updated_at"]) if row["is_live"] is None else thread


async def values_of(tx: Transaction, key: int) -> Row:
    """Return the large values of a thread that exists."""
    row = await tx.row("thread_values", key)
    assert row is not None
    return row


async def updated(
    tx: Transaction,
    tenant: str,
    thread_id: str,
    changes: ThreadChanges,
    expected: datetime | None,
) -> Thread:
    """Set the given fields, and clear the fields that are None. Merge a given ``extra`` or ``config`` into the value of the
    thread. Each change gives the thread a new ``updated_at``."""
    row = await locked(tx, tenant, thread_id)
    check_unchanged(row, expected)
    values = await values_of(tx, row["thread_key"])
    before, named = from_json(values["tags"]), changes.get("title", values["title"])
    check_value(named, "title")
    agent = check_name(changes["agent"], "agent") if "agent" in changes else row["agent"]
    kept = {key: value for key, value in before.items() if key != "title" or values["title"] is None}
    after = check_tags(dict(changes["tags"] or {}) if "tags" in changes else kept, named)
    extra = _patched(values["extra"], changes["extra"], "extra") if "extra" in changes else values["extra"]
    config = _patched(values["config"], changes["config"], "config") if "config" in changes else values["config"]
    changed = bool(row["extra_changed"]) or "extra" in changes
    moment = max(await tx.now(), row["updated_at"] + MICROSECOND)
    await tx.send("save_values", agent, named, to_json(after), extra, changed, config, moment, row["thread_key"])
    if after != before:
        await tx.send("clear_tags", row["thread_key"])
        await _save_tags(tx, tenant, row["thread_key"], after)
    return await whole(tx, tenant, thread_id)
