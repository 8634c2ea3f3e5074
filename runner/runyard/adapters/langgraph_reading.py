"""Conversion of stored checkpoints to checkpoints of LangGraph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from ..ports.graph_checkpoints import GraphCheckpointStore, Segments, StoredCheckpoint, StoredList
from .langgraph_cache import Key, KnownList, ListCache, copied, part_of
from .langgraph_values import decode_items, shared_prefix

T = TypeVar("T")

IN_THREAD_ITEMS: Final = 200
"""Maximum number of items that are serialized in the event loop. A longer list is serialized in a thread."""


async def apart(items: int, work: Callable[[], T]) -> T:
    """Return ``work()``. ``items``: the number of items that ``work`` serializes.

    If this number is larger than IN_THREAD_ITEMS, call ``work`` in a thread.
    """
    return await asyncio.to_thread(work) if items > IN_THREAD_ITEMS else work()


async def read(
    store: GraphCheckpointStore,
    stored: StoredCheckpoint,
    thread_id: str,
    serde: SerializerProtocol,
    cache: ListCache,
    key: Callable[[str], Key | None],
) -> CheckpointTuple | None:
    """Return a stored checkpoint, or None if the checkpoint was deleted during the read.

    ``key``: a function that returns the key under which ``cache`` has a channel's list. If the function returns None, the list
    is read from the store.
    """
    values: dict[str, Any] = {}
    for value in stored.values:
        if value.segments is None:
            values[value.channel] = serde.loads_typed((value.kind, value.data or b""))
            continue
        items = await _items(store, value.segments, serde, cache, key(value.channel))
        if items is None:
            return None
        values[value.channel] = items

    def config(checkpoint_id: str) -> RunnableConfig:
        where = {"thread_id": thread_id, "checkpoint_ns": stored.namespace, "checkpoint_id": checkpoint_id}
        return {"configurable": where}

    checkpoint = serde.loads_typed((stored.kind, stored.content))
    return CheckpointTuple(
        config(stored.checkpoint_id),
        cast(Checkpoint, {**checkpoint, "channel_values": values}),
        cast(CheckpointMetadata, stored.metadata),
        config(stored.parent_id) if stored.parent_id else None,
        [(write.task_id, write.channel, serde.loads_typed((write.kind, write.data))) for write in stored.writes],
    )


async def _items(
    store: GraphCheckpointStore, segments: Segments, serde: SerializerProtocol, cache: ListCache, key: Key | None
) -> list[Any] | None:
    """Return the objects of a stored list, or None if the list was deleted. Read only the items that are not in the cache."""
    known = cache.take(key) if key is not None else None
    shared, rest = shared_prefix(known.stored.segments, segments) if known is not None else (0, segments)
    if known is not None and not rest and shared == len(known.items):
        return known.items
    parts = await store.items(rest) if rest else []
    if parts is None:
        return None
    count = sum(last - first for first, last in zip(rest[1::3], rest[2::3], strict=True))
    items = await apart(count, lambda: decode_items(parts, rest, serde))
    copies = await apart(count, lambda: copied(items)) if key is not None else None
    if known is not None:
        items = [*known.items[:shared], *items]
        copies = [*known.copies[:shared], *copies] if copies is not None else None
    if key is not None:
        at = StoredList(segments, segments[-3], segments[-1])
        cache.put(key, KnownList([*items], [*map(part_of, items)], copies, at) if copies is not None else None)
    return items
