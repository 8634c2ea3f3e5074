"""Deadlines of requests on a SQL store, which has no reconciler (H7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runyard.domain.states import RunStatus
from runyard.models import HitlRequest
from runyard.ports.queries import RunFilter
from runyard.ports.stores import Backend
from runyard_backends.sql.backend import connect_sqlite


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    connected = await connect_sqlite(f"sqlite:///{tmp_path}/deadlines.db")
    store: Any = connected.checkpointer
    await store.claim_run("t", "fails")
    await store.save_requests("t", [HitlRequest(request_id="f", timeout=0, on_deadline={"fail": True})], run_id="fails")
    await store.claim_run("t", "goes on")
    await store.save_requests("t", [HitlRequest(request_id="a", timeout=0, on_deadline={"answer": 7})], run_id="goes on")
    yield connected
    await connected.close()


async def status(backend: Backend) -> Any:
    run = await backend.runs.run("t", "fails")
    return run and run.status


async def listed(backend: Backend) -> Any:
    return {run.run_id: run.status for run in (await backend.runs.runs(RunFilter(thread_id="t"))).items}["fails"]


async def answer(backend: Backend) -> Any:
    request = await backend.runs.request("a")
    return request and request.answer


async def of_tenant(backend: Backend) -> Any:
    return [request.request_id for request in (await backend.runs.requests()).items]


async def of_thread(backend: Backend) -> Any:
    return [request.request_id for request in (await backend.runs.requests(thread_id="t")).items]


async def pending(backend: Backend) -> Any:
    return await backend.checkpointer.load_pending("t")


async def aborted(backend: Backend) -> Any:
    return (await backend.runs.abort_pending("t", "why")).run


READS: dict[Callable[[Backend], Awaitable[Any]], Any] = {
    status: RunStatus.FAILED,
    listed: RunStatus.FAILED,
    answer: 7,
    of_tenant: [],
    of_thread: [],
    pending: None,
    aborted: None,
}


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
async def test_each_read_shows_the_state_after_the_deadline(
    backend: Backend, read: Callable[[Backend], Awaitable[Any]]
) -> None:
    """H7: No call shows a request as pending, or its run as running, after the deadline."""
    assert await read(backend) == READS[read]
