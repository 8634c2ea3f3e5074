"""A cache of the lists of graphs that a process has read or written.

The cache has a private copy of each item. The copies show which items a caller has changed in place. The cache gives an item
to a reader only if no other object refers to the item. Otherwise the cache makes a new item. The cache does not look for
references to the parts of an item, such as a dict of a message.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Final, TypeAlias

from langchain_core.messages import BaseMessage

from ..ports.graph_checkpoints import StoredList

CACHED_ITEMS: Final = 200_000
"""Maximum number of items in all lists of a cache together."""

Key: TypeAlias = tuple[Hashable, int, str, str, str]
"""Scope of the store, owner, line, namespace and channel."""

_UNCHANGEABLE: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of the values that a copy of a message shares with the message."""
_REFERENCES: Final = 2
"""Number of references to an item that only the list uses.

They are the list, and the argument of the call that counts references.
"""


@dataclass(slots=True)
class KnownList:
    """The last version of a list that the process read or wrote.

    ``items``: the objects of the list. Other objects may refer to the items. ``copies``: private copies of the items
    (:func:`copied`). ``parts``: the parts of the items that are compared with ``copies``. The lists ``parts`` and ``copies``
    can be compared without a Python statement for each item.
    """

    items: list[Any]
    parts: list[Any]
    copies: list[Any]
    stored: StoredList

    def begins(self, items: Sequence[Any]) -> bool:
        """Return whether ``items`` begin with the unchanged items of this list."""
        if len(items) < len(self.items):
            return False
        parts = self.parts if all(map(is_, self.items, items)) else [*map(part_of, items[: len(self.items)])]
        try:
            return parts == self.copies
        except Exception:  # a method __eq__ may raise any error, for example of an array
            return not any(map(differs, items, self.copies))


class ListCache:
    """The lists that a process has read or written, up to ``max_items`` items. Threads may share a cache."""

    def __init__(self, max_items: int = CACHED_ITEMS) -> None:
        self._max = max_items
        self._lists: OrderedDict[Key, KnownList] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def get(self, key: Key) -> KnownList | None:
        """Return the known list of a channel, or None."""
        with self._lock:
            known = self._lists.get(key)
            if known is not None:
                self._lists.move_to_end(key)
            return known

    def take(self, key: Key) -> KnownList | None:
        """Return the known list of a channel for one reader, or None.

        The items are equal to the stored items. No other object refers to them.
        """
        with self._lock:
            known = self._lists.get(key)
            if known is None:
                return None
            self._lists.move_to_end(key)
            items = known.items
            if max(map(sys.getrefcount, items), default=0) > _REFERENCES or not known.begins(items):
                free = [count <= _REFERENCES for count in map(sys.getrefcount, items)]
                items = [
                    item if free[n] and not differs(item, known.copies[n]) else _made(item, known.copies[n])
                    for n, item in enumerate(items)
                ]
            # Callers get a new list, because they may change it.
            parts = known.parts if items is known.items else [*map(part_of, items)]
            known = self._lists[key] = KnownList(items, parts, known.copies, known.stored)
            return KnownList([*items], parts, known.copies, known.stored)

    def put(self, key: Key, known: KnownList | None) -> None:
        """Replace a list. Remove the least recently used lists while the cache has too many items.

        ``known``: None for a list whose items cannot be copied. The cache does not keep such a list.
        """
        with self._lock:
            self._drop(key)
            if known is None or len(known.items) > self._max:
                return
            self._lists[key] = known
            self._count += len(known.items)
            while self._count > self._max:
                self._drop(next(iter(self._lists)))

    def drop(self, match: Callable[[Key], bool]) -> None:
        """Remove the lists whose keys match."""
        with self._lock:
            for key in [key for key in self._lists if match(key)]:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        if (old := self._lists.pop(key, None)) is not None:
            self._count -= len(old.items)


def part_of(item: Any) -> Any:
    """Return the part of an item that is compared with its copy: of a message, the known and the unknown fields."""
    return (item.__dict__, item.__pydantic_extra__) if isinstance(item, BaseMessage) else item


def copied(items: Iterable[Any]) -> list[Any] | None:
    """Return the private copies of the parts of items. Return None if an item cannot be copied."""
    try:
        return [_copy(part_of(item)) if isinstance(item, BaseMessage) else copy.deepcopy(item) for item in items]
    except Exception:  # a method __deepcopy__ may raise any error, for example of a lock
        return None


def differs(item: Any, copied: Any) -> bool:
    """Return whether an item differs from its copy. Objects that cannot be compared count as different."""
    try:
        return bool(part_of(item) != copied)
    except Exception:  # a method __eq__ may raise any error, for example of an array
        return True


def _copy(parts: tuple[dict[str, Any] | None, ...]) -> tuple[dict[str, Any] | None, ...]:
    return tuple(
        {name: value if type(value) in _UNCHANGEABLE else copy.deepcopy(value) for name, value in part.items()}
        if part is not None
        else None
        for part in parts
    )


def _made(item: Any, copied: Any) -> Any:
    """Return a new object that is equal to the stored item.

    ``copied``: the copy of the stored item. ``item``: the present item, which a caller may have changed.
    """
    if not isinstance(item, BaseMessage):
        return copy.deepcopy(copied)
    made = copy.copy(item)
    for name, fields in zip(("__dict__", "__pydantic_extra__"), _copy(copied), strict=True):
        object.__setattr__(made, name, fields)  # a message has no setter for unknown fields
    return made
