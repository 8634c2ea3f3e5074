"""Decode threads from rows."""

from __future__ import annotations

from pydantic import BaseModel

from runyard.models import JsonObject, Thread, Usage

from .damaged_rows import entry, named
from .values import Row, from_json


@named("thread")
def thread(row: Row) -> Thread:
    """Decode a thread."""
    return Thread(
        thread_id=row["thread_id"],
        parent_thread_id=row["parent_thread_id"],
        forked_after_run_id=row["forked_after_run_id"],
        forked_at_seq=row["forked_at_seq"],
        agent=row["agent"],
        title=row["title"],
        tags=from_json(row["tags"]),
        extra=from_json(row["extra"]),
        config=from_json(row["config"]),
        usage=Usage.model_validate(from_json(row["usage"]), extra="ignore"),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        omitted=row.get("omitted") or [],
    )


thread_entry = entry(thread, tags="{}", extra="{}", config="{}", usage="{}")


class LoadedThread(BaseModel):
    """The first row of ``runyard.load``. ``more``: True if the thread may have more messages than the caller asked for. If the
    caller asked for at least one message, the other fields are then empty."""

    more: bool
    extra: JsonObject = {}
    config: JsonObject = {}
    parent_thread_id: str | None = None


@named("thread")
def loaded_thread(row: Row) -> LoadedThread:
    """Decode the first row of ``runyard.load``, with the thread's id as the column ``thread_id``."""
    return LoadedThread.model_validate(from_json(row["note"]))
