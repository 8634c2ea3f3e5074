"""The histories of branches that a process keeps in memory (decision 49).

Rows of messages never change, except by an erasure. An attempt therefore reads only the messages after the history that its
process keeps. The same statement checks whether the kept history is still valid (``functions/history.sql``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from sys import getsizeof
from typing import Any, Final

from runyard.models import by_run

from ..codec.lazy_messages import KeptRow
from . import codec, history

MIN_MESSAGES: Final = 64
"""Minimum number of messages of a history that is kept. A shorter history is read as fast as it is compared."""
MAX_BRANCHES: Final = 16
"""Maximum number of kept histories of one thread. A statement compares all kept histories of the thread."""
ROW_BYTES: Final = 560
"""Bytes of a row of a message in memory, without its payload and the id of its run."""

_RUN_ID, _PAYLOAD = itemgetter(3), itemgetter(5)


@dataclass(frozen=True, slots=True)
class History:
    """The visible messages of a branch in one state.

    ``rows``: rows of the statement ``context``, grouped by run. The rows are never changed. ``seq`` and ``message_id``: the
    number and the id of the last message. ``cutoff``: the history has the messages of the branch's runs whose completion
    numbers are at most ``cutoff``. ``generation``: the value of ``runyard.held_until``. ``size``: the bytes that the rows
    take.
    """

    thread_key: int
    branch_id: int
    rows: Sequence[KeptRow]
    seq: int
    message_id: str
    cutoff: int
    generation: str
    size: int

    @property
    def described(self) -> Mapping[str, Any]:
        """The object that ``runyard.held_until`` compares."""
        names = ("branch_id", "seq", "message_id", "cutoff", "generation")
        return {name: getattr(self, name) for name in names}


def kept_with(base: History | None, rows: Sequence[codec.Row], *, thread_key: int, **state: Any) -> History | None:
    """Return the history ``base`` with the later ``rows`` added, or None if there are no rows. ``state``: ``branch_id``,
    ``cutoff`` and ``generation``.

    A completed run gets no further messages. No run therefore has messages both in ``base`` and after it.
    """
    if not rows:
        return base and replace(base, **state)
    grouped = history.kept(by_run(rows, _RUN_ID), thread_key=thread_key)
    return History(
        thread_key=thread_key,
        rows=[*base.rows, *grouped] if base is not None else grouped,
        seq=rows[-1]["seq"],
        message_id=rows[-1]["id"],
        size=size_of(rows) + (base.size if base is not None else 0),
        **state,
    )


class HistoryCache:
    """The histories that were used last. ``max_bytes``: the maximum size of all kept histories together, 0 to keep none.

    Two tenants never share a thread, and two threads never share a key or a branch.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._kept: OrderedDict[int, History] = OrderedDict()
        self._branches: dict[int, OrderedDict[int, None]] = {}

    @property
    def size(self) -> int:
        """The bytes of the kept histories."""
        return self._size

    def of_thread(self, thread_key: int) -> dict[int, History]:
        """Return the kept histories of a thread, by branch."""
        return {branch_id: self._kept[branch_id] for branch_id in self._branches.get(thread_key, ())}

    def keep(self, history: History) -> None:
        """Keep a history in place of the branch's earlier one. Drop the histories that were not used for the longest time."""
        self._drop(history.branch_id)
        if history.size > self._max_bytes or len(history.rows) < MIN_MESSAGES:
            return
        self._kept[history.branch_id] = history
        of_thread = self._branches.setdefault(history.thread_key, OrderedDict())
        of_thread[history.branch_id] = None
        self._size += history.size
        if len(of_thread) > MAX_BRANCHES:
            self._drop(next(iter(of_thread)))
        while self._size > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, branch_id: int) -> None:
        if (history := self._kept.pop(branch_id, None)) is None:
            return
        self._size -= history.size
        of_thread = self._branches[history.thread_key]
        del of_thread[branch_id]
        if not of_thread:
            del self._branches[history.thread_key]


def size_of(rows: Sequence[codec.Row]) -> int:
    """Return the bytes that rows of the statement ``context`` take in memory."""
    size = ROW_BYTES * len(rows) + sum(map(getsizeof, map(_RUN_ID, rows))) + sum(map(getsizeof, map(_PAYLOAD, rows)))
    for row in rows:
        if row["payload"] is None:
            lists = [ids for ids in (row["calls"], row["results"]) if ids is not None]
            size += sum(map(getsizeof, (row["note"], *lists, *chain.from_iterable(lists))))
    return size
