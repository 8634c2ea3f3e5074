"""A cache of the list channels of graphs that the process has read or written. The cache has a private copy of each item.

The cache compares each item with its copy to find items that a caller has changed in place. If no other object refers to an
item, the cache gives this item to a reader. If another object refers to the item, the reader gets a new item. The cache does
not look for references to the parts of an item, such as a dict of a message.
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
"""The parts of a key: the scope of the store, the owner, the line, the namespace and the channel."""

_UNCHANGEABLE: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Types whose values cannot change. A message and its copy share values of these types."""
_REFERENCES: Final = 2
"""The number of references that Python counts for an item that is only in the list.

One reference is in the list. The other is the argument of the function that counts references.
"""


@dataclass(slots=True)
class KnownList:
    """The last version of a list that the process read or wrote.

    ``items``: the objects of the list. A caller may still have these objects. ``copies``: private copies of the items
    (:func:`copied`). ``parts``: the parts of the items that are compared with ``copies``. If ``parts`` equals ``copies``, no
    item has changed.
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
        """Return the known list of a channel for one reader, or None. The items are equal to the stored items.

        The reader may change the items, because no other object refers to them.
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
        """Put a list into the cache.

        While the cache has too many items, remove the list that was not used for the longest time.

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
    """Return the part of an item that is compared with the item's copy.

    The part of a message is its known and unknown fields.
    """
    return (item.__dict__, item.__pydantic_extra__) if isinstance(item, BaseMessage) else item


def copied(items: Iterable[Any]) -> list[Any] | None:
    """Copy the part of each item that is compared later. Return None if an item cannot be copied."""
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

    ``copied``: the private copy of the stored item. ``item``: the item in the known list, which a caller may have changed.
    """
    if not isinstance(item, BaseMessage):
        return copy.deepcopy(copied)
    made = copy.copy(item)
    for name, fields in zip(("__dict__", "__pydantic_extra__"), _copy(copied), strict=True):
        object.__setattr__(made, name, fields)  # a message has no setter for unknown fields
    return made
