"""Values at the edge of what msgpack, JSON and SQL can hold."""

from __future__ import annotations

import json
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from runyard.domain.size_limits import MAX_NESTING
from runyard.errors import InvalidInputError
from runyard.models import HitlRequest, JsonObject, Message
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.queries import RunFilter
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
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


async def refused(postgres_url: str, arguments: str) -> None:
    """SQL's accept refuses the arguments, and no run comes of them."""
    connection = await asyncpg.connect(postgres_url)
    try:
        with pytest.raises(asyncpg.PostgresError) as error:
            await connection.execute(f"SELECT runyard.accept({arguments})")
        assert error.value.sqlstate == "RY000" and error.value.hint == "invalid_input"
        assert await connection.fetchval("SELECT count(*) FROM runyard.runs") == 0
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "argument",
    [
        "priority => 'urgent'",
        "metadata => '[]'",
        "metadata => '{\"n\": 1e100}'",
        "metadata => '{\"n\": [-1e5000]}'",
        "metadata => jsonb_build_object('k', repeat('x', 300000))",
        "metadata => jsonb_build_object('k', (SELECT jsonb_agg(1) FROM generate_series(1, 25000)))",
        """metadata => ('{"k": ' || repeat('[', 100) || repeat(']', 100) || '}')::jsonb""",
        """metadata => ('{"k": ' || repeat('{"k": ', 500) || '1' || repeat('}', 500) || '}')::jsonb""",
        "options => '[]'",
        """options => '{"timeout": "x"}'""",
        """options => '{"timeout": 1e-400}'""",
        """options => '{"timeout": 1e400}'""",
        """options => ('{"timeout": 1' || repeat('0', 5000) || '}')::jsonb""",
        """metadata => ('{"k": 1' || repeat('0', 5000) || '}')::jsonb""",
        """metadata => '{"k": 18446744073709551616}'""",
        "run_at => 'infinity'",
        "run_at => '-infinity'",
        "run_at => '20000-01-01'",
        "run_at => '0044-03-15 BC'",
        """options => '{"max_attempts": 0}'""",
        """options => '{"multitask_strategy": "queue"}'""",
        """options => '{"unknown": 1}'""",
        "run_id => ''",
        "agent => repeat('x', 256)",
        "queue => ''",
        "run_id => '.'",
        "run_id => '..'",
        "agent => '..'",
        *(
            f"run_id => 'a' || chr({code})"
            for code in (1, 10, 0x1F, 0x7F, 0x85, 0xA0, 0xAD, 0x200B, 0x2028, 0x202E, 0x3000, 0xFEFF)
        ),
        "run_id => chr(917505) || 'a'",
        "agent => E'a\\nb'",
        "queue => E'a\\tb'",
    ],
)
async def test_sql_accept_refuses_what_python_could_not_read(postgres_url: str, argument: str) -> None:
    """I1: a run that no worker can decode would never end."""
    await refused(postgres_url, f"'t', 'hello', {argument}")


async def test_sql_accept_takes_the_ids_that_python_does(backend: Backend, postgres_url: str) -> None:
    """I1: words, signs and pictures of any script."""
    ids = ["a b", "ünï-ço/dé", "线程", "مرحبا", "😀", "a!\"#$%&'()*+,:;<=>?@[]^_`{|}~\\", "ก็", "x" * 255]
    connection = await asyncpg.connect(postgres_url)
    try:
        for run_id in ids:
            assert run_id.isprintable()
            await connection.execute("SELECT runyard.accept('t', 'hello', run_id => $1)", run_id)
    finally:
        await connection.close()
    assert {run.run_id for run in (await backend.runs.runs(RunFilter(thread_id="t"))).items} == set(ids)


@pytest.mark.parametrize("name", ["thread_id", "message", "run_id", "priority", "metadata", "options"])
async def test_sql_accept_refuses_null(postgres_url: str, name: str) -> None:
    """I1: a column that is NULL reaches it from a trigger."""
    arguments = {"thread_id": "'t'", "message": "'hello'"} | {name: "NULL"}
    await refused(postgres_url, ", ".join(f"{k} => {v}" for k, v in arguments.items()))


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
