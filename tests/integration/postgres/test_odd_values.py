"""Values at the edge of what msgpack, JSON and SQL can hold."""

from __future__ import annotations

import json
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import structlog

from runyard.domain.size_limits import MAX_NESTING
from runyard.errors import InvalidInputError
from runyard.models import HitlRequest, JsonObject, Message
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_backends.postgres import workers
from runyard_backends.postgres.backend import connect


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    backend = await connect(postgres_url)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    yield backend
    await backend.close()


async def begin(backend: Backend) -> AttemptToken:
    accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hello")))
    [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
    assert claim.attempt
    return claim.attempt


@pytest.mark.parametrize("value", [123, -1, 0, "", "{", b"{".decode(), {"a": 123}, [], None, 2**63, 1.5])
async def test_results_and_answers_come_back_as_they_were(backend: Backend, value: Any) -> None:
    """H3, I1: msgpack for 123 is the byte of an opening brace."""
    attempt = await begin(backend)
    await backend.runs.suspend(Write(attempt=attempt), [HitlRequest(request_id="q")])
    assert (await backend.runs.respond(value, request_id="q")).request.answer == value
    [claim] = await backend.runs.claim("w", [RunRef(attempt.thread_key, "r")])
    assert claim.attempt and (await backend.runs.ledger(claim.attempt)).requests["q"].answer == value
    await backend.runs.complete([Write(attempt=claim.attempt, result=value)])
    run = await backend.runs.run("t", "r")
    assert run and run.result == value


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", "\x00", object()])
async def test_value_that_jsonb_cannot_hold_is_refused(backend: Backend, value: Any) -> None:
    """Nothing above the backend sees a driver's error, and nothing is half written."""
    attempt = await begin(backend)
    with pytest.raises(InvalidInputError):
        await backend.runs.complete([Write(attempt=attempt, extra={"x": value})])
    run = await backend.runs.run("t", "r")
    assert run and run.status == "running"


async def test_key_that_no_index_can_hold_is_refused(backend: Backend) -> None:
    """Nothing above the backend sees a driver's error: keys that the store must find again by."""
    attempt = await begin(backend)
    endless = random.Random(0).randbytes(5000).hex()  # not to be compressed
    with pytest.raises(InvalidInputError):
        await backend.runs.start_step(attempt, endless)
    with pytest.raises(InvalidInputError):
        await backend.runs.suspend(Write(attempt=attempt), [HitlRequest(request_id=endless)])
    await backend.runs.suspend(Write(attempt=attempt), [HitlRequest(request_id="q")])
    with pytest.raises(InvalidInputError):
        await backend.runs.respond("yes", request_id="q", response_id=endless)
    assert (await backend.runs.respond("yes", request_id="q")).created


async def test_a_worker_whose_budgets_cannot_be_stored_registers_without_them(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Budgets are only shown, so they prevent no work."""
    monkeypatch.setattr(workers, "log", structlog.get_logger("test"))
    odd: dict[str, list[JsonObject]] = {"x": [{"per": "run", "on_exceeded": "fail", "limits": {"cost": math.inf}}]}
    with structlog.testing.capture_logs() as logs:
        await backend.workers.register(WorkerInfo(worker_id="odd", queues=["default"], agents={"x": "default"}, budgets=odd))
    assert [(line["event"], line["worker_id"]) for line in logs] == [("budgets_not_announced", "odd")]
    [shown] = [worker for worker in await backend.workers.workers() if worker.worker_id == "odd"]
    assert (shown.agents, shown.budgets) == ({"x": "default"}, {})


async def test_sql_accept_takes_metadata_as_deep_as_python_does(backend: Backend, postgres_url: str) -> None:
    """The number of levels stands in the migration as well."""
    metadata: JsonObject = {}
    for _ in range(MAX_NESTING - 1):
        metadata = {"k": metadata}
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("SELECT runyard.accept('t', 'hello', run_id => 'r', metadata => $1)", json.dumps(metadata))
    finally:
        await connection.close()
    run = await backend.runs.run("t", "r")
    assert run is not None and run.metadata == metadata
