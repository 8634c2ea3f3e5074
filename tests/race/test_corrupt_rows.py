"""Rows that no code of ours wrote: the error names the thread and the row, and no driver's or library's error gets out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from backends.postgres.backend import connect
from runner.errors import DataCorruptedError
from runner.exchange import AcceptRequest, Cut, WorkerInfo, Write
from runner.models import HitlRequest, Message
from runner.ports import Backend

MESSAGES = {
    "no msgpack": b"\xc1",
    "cut short": b"\x81\xa7content\x92",
    "no object": b"\x07",
    "no content": b"\x80",
    "another content": b"\x81\xa7content\x07",
    "no JSON": b"{nope",
    "a list": b"\x90",
}


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    backend = await connect(postgres_url)
    yield backend
    await backend.close()


async def execute(url: str, statement: str, *args: object) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement, *args)
    finally:
        await connection.close()


@pytest.mark.parametrize("payload", MESSAGES.values(), ids=MESSAGES)
async def test_a_message_that_cannot_be_decoded(backend: Backend, postgres_url: str, payload: bytes) -> None:
    """R15: the thread and the message are named, whoever reads it; other threads are read as before."""
    cp = backend.checkpointer
    messages = [Message.user("a"), Message.user("b"), Message.user("c")]
    await cp.append("t", messages)
    await cp.claim_run("t", "x")
    await cp.mark_run_complete("t", "x")
    await cp.append("other", [Message.user("fine")])
    await execute(postgres_url, "UPDATE runyard.messages SET payload = $1 WHERE message_id = $2", payload, messages[1].id)
    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: cp.load("t"),
        lambda: cp.snapshot("t", after_run_id="x"),
        lambda: backend.threads.messages("t"),
        lambda: backend.threads.cut_messages("t", Cut(after_run_id="x")),
    ]
    for read in reads:
        with pytest.raises(DataCorruptedError, match=messages[1].id) as refused:
            await read()
        assert refused.value.details["message_id"] == messages[1].id
        assert refused.value.details["thread_id"] == "t"
    loaded = await cp.load("other")
    assert loaded is not None and loaded.messages[0].text == "fine"


async def test_other_rows_that_cannot_be_decoded(backend: Backend, postgres_url: str) -> None:
    """R15: a run, a request and a thread are named too."""
    accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hello")))
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
    assert claim.attempt is not None
    await backend.runs.suspend(Write(attempt=claim.attempt), [HitlRequest(request_id="q")])
    await execute(postgres_url, "UPDATE runyard.hitl_requests SET body = '\\xc1'")
    with pytest.raises(DataCorruptedError) as refused:
        await backend.runs.requests()
    assert (refused.value.details["thread_id"], refused.value.details["request_id"]) == ("t", "q")
    await execute(postgres_url, "UPDATE runyard.runs SET result = '\\xc1'")
    with pytest.raises(DataCorruptedError) as refused:
        await backend.runs.run("t", "r")
    assert (refused.value.details["thread_id"], refused.value.details["run_id"]) == ("t", "r")
    await execute(postgres_url, "UPDATE runyard.threads SET tags = '[]'")
    with pytest.raises(DataCorruptedError) as refused:
        await backend.threads.thread("t")
    assert refused.value.details == {"thread_id": "t"}


async def test_a_run_that_cannot_be_decoded_fails_when_it_is_claimed(backend: Backend, postgres_url: str) -> None:
    """I1: no worker could ever execute it. Its neighbours in the batch are claimed, and its lane goes on."""
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    refs = []
    for thread_id in ("bad", "fine"):
        accepted = await backend.runs.accept(AcceptRequest(thread_id=thread_id, run_id="r", input=Message.user("hello")))
        refs.append(accepted.effects.jobs[0].ref)
    await backend.runs.accept(AcceptRequest(thread_id="bad", run_id="next", input=Message.user("hello")))
    await execute(
        postgres_url, """UPDATE runyard.runs SET options = '{"timeout": -1}' WHERE thread_id = 'bad' AND run_id = 'r'"""
    )
    bad, fine = sorted(await backend.runs.claim("w", refs), key=lambda claim: refs.index(claim.ref))
    assert (bad.outcome, fine.outcome) == ("ended", "claimed")
    assert [job.run_id for job in bad.effects.jobs] == ["next"]
    [event] = bad.effects.events
    assert (event.type, event.data["status"]) == ("run.failed", "failed")
    connection = await asyncpg.connect(postgres_url)
    try:
        status, code = await connection.fetchrow(
            "SELECT status, error->>'code' FROM runyard.runs WHERE thread_id = 'bad' AND run_id = 'r'"
        )
    finally:
        await connection.close()
    assert (status, code) == ("failed", "data_corrupted")
