"""The filters of runs that have no index examine a limited number of runs, however few fit."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from runyard import Client
from runyard.models import Run
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.results import Page

STORED = 150
SEARCHED = 100
"""Maximum number of runs of a search in these tests."""


class Counted:
    """Counts the runs that a store reads for lists."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        self.calls = 0
        runs = client.backend.runs.runs

        async def counting(where: RunFilter, page: PageRequest) -> Page[Run]:
            found = await runs(where, page)
            self.read += len(found.items)
            self.calls += 1
            return found

        monkeypatch.setattr(client.backend.runs, "runs", counting)


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """A client of a store with STORED runs; the oldest one has the text ``needle``, in the queue ``rare``."""
    monkeypatch.setattr("runyard.client.runs.MAX_SEARCHED", SEARCHED)
    async with Client.connect("memory://") as client:
        await client.enqueue("old", "a Needle", "r0", queue="rare")
        for n in range(1, STORED):
            await client.enqueue(f"t{n}", "hay", f"r{n}")
        yield client


@pytest.fixture
def counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(client, monkeypatch)


@pytest.mark.parametrize("limit", [1, 10, 20])
@pytest.mark.parametrize("where", [{"text": "needle"}, {"queue": "rare"}, {"text": "needle", "queue": "rare"}])
async def test_a_page_examines_a_limited_number_of_runs(
    client: Client, counted: Counted, where: dict[str, str], limit: int
) -> None:
    """A page that stops has a cursor. The pages after it find the run."""
    page = await client.runs(**where, limit=limit)
    assert page.items == [] and page.next is not None
    assert counted.read <= SEARCHED + limit
    pages = 1
    while page.next is not None and not page.items:
        page = await client.runs(**where, limit=limit, cursor=page.next)
        pages += 1
    assert [run.run_id for run in page.items] == ["r0"]
    assert pages <= 2 + STORED // SEARCHED


async def test_a_search_without_a_hit_ends(client: Client, counted: Counted) -> None:
    page, pages = await client.runs(error="agent_error"), 1
    while page.next is not None:
        page = await client.runs(error="agent_error", cursor=page.next)
        pages += 1
    assert counted.read == STORED and pages == 2


async def test_a_list_without_such_a_filter_reads_one_page(client: Client, counted: Counted) -> None:
    page = await client.runs(limit=50)
    assert (len(page.items), counted.read, counted.calls) == (50, 50, 1)
