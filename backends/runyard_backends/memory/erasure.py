"""Erase a thread: make the tombstones of its messages, and remove its extra from all threads that have it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from runyard.domain.size_limits import JsonObject
from runyard.models import Message, Part, TextPart, ToolCallPart, ToolResultPart

from .state import Branch, Entry, ThreadState

ERASED: Final = "[erased]"
"""Text of the tombstone of an erased message."""
Values = dict[str, set[str]]
"""The values of each key of an extra, as JSON."""


def erase_extra(thread: ThreadState, threads: Iterable[ThreadState]) -> None:
    """Erase every value that ``thread`` ever had in its extra, except inherited values. Remove these values from ``thread``.
    Also remove these values from each thread of ``threads`` that inherited messages from ``thread``. A fork keeps its own
    metadata under the key ``fork``."""
    own = _own_extra(thread)
    _remove(thread, own)
    in_forks = {key: values for key, values in own.items() if key != "fork"}
    for other in threads:
        if any(entry.owner == thread.key for branch in other.branches for entry in branch.prefix) and other is not thread:
            _remove(other, in_forks)


def _own_extra(thread: ThreadState) -> Values:
    inherited = {} if thread.thread.parent_thread_id is None else thread.base_extra
    own: Values = {}
    for extra in (thread.base_extra, thread.thread.extra, *(run.thread_extra for run in thread.runs.values())):
        for key, value in extra.items():
            if key == "fork" or key not in inherited or _json(inherited[key]) != _json(value):
                own.setdefault(key, set()).add(_json(value))
    return own


def _remove(thread: ThreadState, removed: Values) -> None:
    thread.base_extra = _without(thread.base_extra, removed)
    thread.thread.extra = _without(thread.thread.extra, removed)
    for run in thread.runs.values():
        run.thread_extra = _without(run.thread_extra, removed)
        run.snapshot = _cleared(run.snapshot, removed)
    for branch in thread.branches:
        _remove_inherited(branch, removed)


def _remove_inherited(branch: Branch, removed: Values) -> None:
    branch.prefix = _cleared(branch.prefix, removed)
    for run_id, old in branch.ancestral.items():
        branch.ancestral[run_id] = replace(old, extra=_without(old.extra, removed), snapshot=_cleared(old.snapshot, removed))


def _cleared(entries: tuple[Entry, ...], removed: Values) -> tuple[Entry, ...]:
    return tuple(e if e.extra is None else replace(e, extra=_without(e.extra, removed)) for e in entries)


def _without(extra: JsonObject, removed: Values) -> JsonObject:
    return {key: value for key, value in extra.items() if _json(value) not in removed.get(key, ())}


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def erased(entry: Entry) -> Entry:
    """Return the tombstone that replaces an erased message. The tombstone keeps the ids of tool calls and results, because
    providers refuse a call without a result."""
    calls, results = entry.message.tool_calls, entry.message.tool_results
    parts: list[Part] = [ToolResultPart(call_id=part.call_id, content=ERASED, is_error=True) for part in results]
    parts += [ToolCallPart(id=part.id, name="erased") for part in calls]
    blank = Message(id=entry.id, role=entry.message.role, content=parts or [TextPart(text=ERASED)])
    keep = {name: getattr(entry.message, name) for name in ("run_id", "parent_id", "seq", "created_at")}
    return replace(entry, message=blank.model_copy(update=keep))
