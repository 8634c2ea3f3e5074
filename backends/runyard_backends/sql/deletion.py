"""Deletion and erasure of threads (D1 to D3). Each of these verbs is one transaction.

A deleted thread is invisible. A message that a fork shows stays until the last such fork is deleted. An erasure replaces these
messages by tombstones. The erasure also removes the extra of the thread from the threads that inherited this extra.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TypeAlias

from runyard.models import JsonObject

from ..codec.values import from_json, to_json
from . import threads
from .database import Row, Transaction

Values: TypeAlias = dict[str, set[str]]
"""The values of each key of an extra, as JSON."""


async def delete(tx: Transaction, tenant: str, thread_id: str, expected: datetime | None, *, erase: bool) -> int:
    """Delete a thread, and return its key. Live external runs do not prevent the deletion. Raises ThreadNotFoundError,
    PreconditionFailedError."""
    row = await threads.found(tx, tenant, thread_id)
    key: int = row["thread_key"]
    kin = [int(found) for (found,) in await tx.tuples("kin", key, key)]
    await tx.restart()
    for each in kin:  # ancestors have lower keys and come first, because every verb locks threads in the order of their keys
        await tx.row("lock_key", each)
    thread = await threads.locked(tx, tenant, thread_id)
    threads.check_unchanged(thread, expected)
    if thread["thread_key"] != key:
        return await delete(tx, tenant, thread_id, expected, erase=erase)
    if erase:
        await _erase_extra(tx, thread)
    await tx.send("mark_deleted", await tx.now(), key)
    for statement in (
        "hide_runs",
        "clear_tags",
        "drop_labels_of_thread",
        "drop_requests_of_thread",
        "drop_unclaimed_of_thread",
    ):
        await tx.send(statement, key)
    await _remove(tx, key, erase=erase)
    for ancestor in reversed(kin):  # the deleted thread may have been the last thread that showed some messages of the ancestor
        lineage = await tx.row("lock_key", ancestor)
        if lineage is not None and lineage["is_live"] is None:
            await _remove(tx, ancestor, erase=False)
    return key


async def _remove(tx: Transaction, key: int, *, erase: bool) -> None:
    """Remove the rows of a deleted thread, except rows that live threads show."""
    shown = False
    last_cut = 0
    branches = [branch_id for (branch_id,) in await tx.tuples("branches_of_thread", key)]
    for branch_id in branches:
        levels = await tx.rows("shown_levels", branch_id)
        if levels:
            shown = True
            last_cut = max(last_cut, *(level["cutoff"] for level in levels))
            await tx.send("drop_hidden_messages", branch_id, key)
            if erase:
                await tx.send("erase_messages", branch_id)
            continue
        for statement in ("drop_messages_of_branch", "drop_levels", "drop_branch"):
            await tx.send(statement, branch_id)
    if shown:
        # A cut shows the latest extra of its thread. A run on another branch may have saved this extra. Therefore all runs up
        # to the last cut stay.
        await tx.send("drop_runs_after", key, last_cut)
        return
    await tx.send("drop_runs", key)
    await tx.send("drop_thread", key)


async def _erase_extra(tx: Transaction, thread: Row) -> None:
    """Remove every value that the thread ever had in its extra, except inherited values. Remove the values from the thread, and
    from the threads that inherit from it. A fork keeps its own metadata under the key ``fork``."""
    key = thread["thread_key"]
    values = await threads.values_of(tx, key)
    base = from_json(values["base_extra"])
    inherited: JsonObject = {} if values["parent_thread_id"] is None else base
    runs = await tx.tuples("extras_of_runs", key)
    own: Values = {}
    for extra in (base, from_json(values["extra"]), *(from_json(text) for _, text in runs)):
        for name, value in extra.items():
            if name == "fork" or name not in inherited or _json(inherited[name]) != _json(value):
                own.setdefault(name, set()).add(_json(value))
    await _remove_values(tx, key, own)
    in_forks = {name: found for name, found in own.items() if name != "fork"}
    for (heir,) in await tx.tuples("heirs", key, key):
        await tx.row("lock_key", heir)
        await _remove_values(tx, heir, in_forks)


async def _remove_values(tx: Transaction, key: int, removed: Values) -> None:
    values = await threads.values_of(tx, key)
    await tx.send("save_extras", _without(values["base_extra"], removed), _without(values["extra"], removed), key)
    for accept_no, text in await tx.tuples("extras_of_runs", key):
        if (kept := _without(text, removed)) != text:
            await tx.send("save_extra_of_run", kept, accept_no)


def _without(text: str, removed: Values) -> str:
    extra = from_json(text)
    kept = {name: value for name, value in extra.items() if _json(value) not in removed.get(name, ())}
    return text if len(kept) == len(extra) else to_json(kept)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
