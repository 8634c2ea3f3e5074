"""The extra, the config and the tags of an imported thread."""

from __future__ import annotations

from collections.abc import Mapping

from runyard.domain.size_limits import MAX_BYTES
from runyard.models import JsonObject
from runyard.ports.stores import Backend

from .marks import TAG


async def set_extra(backend: Backend, thread_id: str, present: JsonObject, wanted: JsonObject) -> None:
    """Set the thread's extra. The runs that complete later save this extra for forks."""
    if gone := {key: None for key in present if key not in wanted}:
        await backend.threads.update_thread(thread_id, extra=gone)
    for key, value in wanted.items():
        if key not in present or present[key] != value:
            await backend.checkpointer.save_extra(thread_id, {key: value})


async def set_config(backend: Backend, thread_id: str, present: JsonObject, wanted: JsonObject) -> JsonObject:
    """Set the thread's config, and return it. Each key is a separate call, because a config may be larger than the largest
    change of one call."""
    if gone := {key: None for key in present if key not in wanted}:
        present = (await backend.threads.update_thread(thread_id, config=gone)).config
    for key, value in wanted.items():
        if value is not None and present.get(key) != value:
            present = (await backend.threads.update_thread(thread_id, config={key: value})).config
    return present


def fitting(tags: Mapping[str, str], mark: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the ``tags`` of a file that a thread can have together with the tag ``mark``. Also return the names of the tags
    that do not fit."""
    kept = {name: value for name, value in tags.items() if name != TAG}
    left = MAX_BYTES["tags"] - _bytes(mark) - _bytes(kept)
    dropped = []
    for name in sorted(kept, key=lambda name: len(kept[name]), reverse=True):
        if left >= 0:
            break
        dropped.append(name)
        left += _bytes({name: kept.pop(name)})
    return kept, dropped


def _bytes(tags: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for item in tags.items() for text in item)
