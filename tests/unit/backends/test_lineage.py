"""The bounds of a page of ancestors."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runyard.models import Thread
from runyard_backends.lineage import MAX_DELETED, ancestors

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("deleted, following", [(MAX_DELETED, "t0"), (MAX_DELETED + 1, None)])
async def test_a_page_has_a_bounded_number_of_deleted_ancestors(deleted: int, following: str | None) -> None:
    """F12, A3: A page has at most a thousand deleted ancestors, and the lineage ends before the next one."""
    reads = 0

    async def parent(key: int) -> tuple[int, Thread] | None:
        nonlocal reads
        reads += 1
        if key == 0:
            return None
        thread = Thread(thread_id=f"t{key - 1}", created_at=NOW, updated_at=NOW)
        return key - 1, thread if key == 1 else thread.tombstone(NOW)

    page = await ancestors(parent, deleted + 1, 1)
    assert (len(page.items), page.next, reads) == (MAX_DELETED, following, MAX_DELETED + 1)
