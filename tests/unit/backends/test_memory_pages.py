"""Pages of runs in memory, where runs change between two pages."""

from __future__ import annotations

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.ports.queries import PageRequest, RunFilter
from runyard_backends.memory import connect


async def test_run_that_the_cursor_names_may_leave_the_list() -> None:
    """E3: the next page begins after its place, as in Postgres."""
    backend = await connect()
    client = Client(backend)
    for run_id in ("a", "b", "c", "d"):
        await client.enqueue("t", "x", run_id, parallel=True)
    queued = RunFilter(thread_id="t", status=RunStatus.QUEUED)
    first = await backend.runs.runs(queued, PageRequest(limit=2))
    await client.cancel("t", "c")
    second = await backend.runs.runs(queued, PageRequest(limit=2, cursor=first.next))
    assert [[run.run_id for run in page.items] for page in (first, second)] == [["d", "c"], ["b", "a"]]
    assert second.next is None
