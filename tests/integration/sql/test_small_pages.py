"""A page of a SQL store reads the rows that it returns, and not the large rows after them (A2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runyard.models import HitlRequest, Message
from runyard.ports.queries import PageRequest, PathRequest
from runyard.ports.stores import Backend
from runyard_backends.sql.backend import connect_sqlite
from runyard_backends.sql.sqlite import SqliteTransaction

LARGE = "x" * 100_000


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    connected = await connect_sqlite(f"sqlite:///{tmp_path}/pages.db", page_bytes=3 * len(LARGE))
    for n in range(20):
        await connected.checkpointer.append("t", [Message.user(f"{n} {LARGE}")])
    store: Any = connected.checkpointer
    await store.save_requests("t", [HitlRequest(payload={"text": LARGE}) for _ in range(20)], run_id="r")
    yield connected
    await connected.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes of each value that a statement returned."""
    sizes: list[int] = []
    original = SqliteTransaction._read

    async def counted(self: Any, statement: str, values: Any) -> Any:
        columns, rows = await original(self, statement, values)
        sizes.extend(len(value) for row in rows for value in row if isinstance(value, str | bytes))
        return columns, rows

    monkeypatch.setattr(SqliteTransaction, "_read", counted)
    return sizes


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (20, 2)])
async def test_messages(backend: Backend, read: list[int], limit: int, expected: int, newest_first: bool) -> None:
    page = await backend.threads.messages("t", PathRequest(limit=limit, newest_first=newest_first))
    assert len(page.items) == expected and page.next is not None
    assert sum(read) < (expected + 0.5) * len(LARGE)


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (20, 2)])
@pytest.mark.parametrize("thread_id", ["t", None])
async def test_requests(backend: Backend, read: list[int], limit: int, expected: int, thread_id: str | None) -> None:
    page = await backend.runs.requests(thread_id=thread_id, page=PageRequest(limit=limit))
    assert len(page.items) == expected and page.next is not None
    assert sum(read) < (expected + 0.5) * len(LARGE)


async def test_threads(backend: Backend, read: list[int]) -> None:
    for n in range(20):
        await backend.checkpointer.save_extra(f"other {n}", {"text": LARGE})
    read.clear()
    assert len((await backend.threads.threads(page=PageRequest(limit=1))).items) == 1
    assert sum(read) < 2.5 * len(LARGE)
