"""Conversion of the values in a graph's channels to the form in which they are stored.

If a value is a list, only its new items are stored. Any other value is stored whole.

A state of LangGraph has few large channels. Most large channels are lists that grow at the end, such as ``messages``. Such a
list is stored as segments of streams (:mod:`runyard.ports.graph_checkpoints`). A cache has the last version of each list that
the process read or wrote (:mod:`.langgraph_cache`). The encoder compares a list with this version, and stores only items that
this version lacks. An item that moved inside the list is not stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_
from typing import Any, Final, TypeAlias

import msgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from ..ports.graph_checkpoints import NEW_ITEMS, NewValue, Segments, StoredList
from .langgraph_cache import KnownList, copied, differs, part_of

CHUNK_ITEMS: Final = 256
"""Maximum number of items in a chunk of a stream."""
CHUNK_BYTES: Final = 256 * 1024
"""Number of bytes at which a chunk of a stream ends."""
MAX_SEGMENTS: Final = 64
"""Maximum number of segments of a list. A list with more segments is stored again as one segment."""
MIN_ITEMS: Final = 32
"""Minimum length of a list that is stored as items, if it contains no messages."""
LIST_KIND: Final = "list"

Item: TypeAlias = tuple[str, bytes]
"""A serialized item: the kind of its serialization and the bytes."""
Stretch: TypeAlias = tuple[int | None, int, int]
"""Consecutive items of a list that is to be stored, as three numbers.

The first number is the index of the first item in the known list, or None for new items. The second number is the index of the
first item in the list to store. The third number is the index after the last item in the list to store.
"""


@dataclass(slots=True)
class Encoded:
    """A list to store (``value``), and the fields of its :class:`KnownList`.

    After the list is stored, the KnownList is put into the cache.

    ``copies``: None if an item cannot be copied.
    """

    value: NewValue
    items: list[Any]
    parts: list[Any]
    copies: list[Any] | None

    def known(self, stored: StoredList) -> KnownList | None:
        return KnownList(self.items, self.parts, self.copies, stored) if self.copies is not None else None


def is_itemised(value: object) -> bool:
    """Return whether a value is stored as items. A list of messages is stored as items.

    Another list is stored as items if it has at least MIN_ITEMS values, and not only numbers and None.
    """
    if type(value) is not list or not value:
        return False
    if isinstance(value[0], BaseMessage):
        return True
    return len(value) >= MIN_ITEMS and not all(isinstance(item, int | float | None) for item in value)


def encode_list(
    channel: str, version: str, value: Sequence[Any], known: KnownList | None, serde: SerializerProtocol
) -> Encoded:
    """Return the stored form of a list."""
    items = list(value)
    stretches: list[Stretch] = [(None, 0, len(items))]
    segments: Segments = (NEW_ITEMS, 0, len(items))
    if known is not None:
        found = _stretches(items, known)
        if len(kept_segments := _segments(found, known.stored.segments)) <= 3 * MAX_SEGMENTS:
            stretches, segments = found, kept_segments
    copied_stretches = [
        copied(items[first:last]) if start is None or known is None else known.copies[start : start + last - first]
        for start, first, last in stretches
    ]
    copies = None if None in copied_stretches else [item for part in copied_stretches for item in part or ()]
    serialised = [serde.dumps_typed(item) for start, first, last in stretches if start is None for item in items[first:last]]
    stream, length = (known.stored.stream, known.stored.length) if known is not None else (None, 0)
    made = NewValue(
        channel, version, LIST_KIND, segments=segments, stream=stream, length=length, chunks=tuple(_chunks(serialised))
    )
    same = min(len(known.items), len(items)) if known is not None and all(map(is_, known.items, items)) else 0
    parts = [*(known.parts[:same] if known is not None else ()), *map(part_of, items[same:])]
    return Encoded(made, items, parts, copies)


def decode_items(parts: Iterable[tuple[int, list[bytes]]], segments: Segments, serde: SerializerProtocol) -> list[Any]:
    """Return the objects of a list from the chunks of its segments."""
    items: list[Any] = []
    for (start, chunks), first, last in zip(parts, segments[1::3], segments[2::3], strict=True):
        packed = [item for chunk in chunks for item in msgpack.unpackb(chunk, raw=False, use_list=False)]
        items += [serde.loads_typed((kind, data)) for kind, data in packed[first - start : last - start]]
    return items


def shared_prefix(old: Segments, new: Segments) -> tuple[int, Segments]:
    """Compare two lists, given by their segments ``old`` and ``new``.

    Return the number of equal items at the beginning of both lists, and the segments of the remaining items of the second list.
    """
    shared = 0
    triples = list(zip(new[::3], new[1::3], new[2::3], strict=True))
    for place, (stream, first, last) in enumerate(triples):
        mine = old[3 * place : 3 * place + 3]
        if mine[:2] != (stream, first):
            break
        common = min(last, mine[2])
        shared += common - first
        if common < last:
            return shared, (stream, common, last, *new[3 * place + 3 :])
        if mine[2] != last:
            return shared, new[3 * place + 3 :]
    else:
        place = len(triples)
    return shared, new[3 * place :]


def _stretches(items: Sequence[Any], known: KnownList) -> list[Stretch]:
    """Divide the list ``items`` into stretches. An item that has changed or is not in the known list is a new item."""
    before = len(known.copies)
    if known.begins(items):
        stretches: list[Stretch] = [(0, 0, before), (None, before, len(items))]
        return [stretch for stretch in stretches if stretch[1] < stretch[2]]
    index = {_name(item): place for place, item in enumerate(known.items)}
    found = [index.get(_name(item), -1) for item in items]
    return _joined([-1 if place >= 0 and differs(items[at], known.copies[place]) else place for at, place in enumerate(found)])


def _name(item: object) -> object:
    """Return a name that all versions of an item have. The name is the id of a message, or the identity of another object."""
    return item.id if isinstance(item, BaseMessage) and item.id else id(item)


def _joined(places: Sequence[int]) -> list[Stretch]:
    """Join consecutive items into stretches. The items belong to the list that will be stored. ``places``: for each item, its
    index in the known list, or -1 for a new item."""
    stretches: list[Stretch] = []
    at, length = 0, len(places)
    while at < length:
        start, first = places[at], at
        at += 1
        if start < 0:
            while at < length and places[at] < 0:
                at += 1
            stretches.append((None, first, at))
        else:
            while at < length and places[at] == start + at - first:
                at += 1
            stretches.append((start, first, at))
    return stretches


def _segments(stretches: Sequence[Stretch], old: Segments) -> Segments:
    """Return the segments of a list. The new items are in the stream NEW_ITEMS, numbered from 0.

    ``old``: the segments of the known list.
    """
    segments: list[int] = []
    new = 0
    for start, first, last in stretches:
        if start is None:
            segments += (NEW_ITEMS, new, new + last - first)
            new += last - first
            continue
        begin, end, offset = start, start + last - first, 0
        for stream, a, b in zip(old[::3], old[1::3], old[2::3], strict=True):
            low, high = max(begin, offset), min(end, offset + b - a)
            if low < high:
                segments += (stream, a + low - offset, a + high - offset)
            offset += b - a
    return tuple(segments)


def _chunks(items: Sequence[Item]) -> Iterable[tuple[int, bytes]]:
    rest = iter(items)
    while part := list(islice(rest, CHUNK_ITEMS)):
        while part:
            size, count = 0, 0
            while count < len(part) and (count == 0 or size < CHUNK_BYTES):
                size += len(part[count][1])
                count += 1
            yield count, msgpack.packb(part[:count], use_bin_type=True)
            part = part[count:]
