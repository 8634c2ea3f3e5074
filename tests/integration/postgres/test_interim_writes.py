"""Writes of attempts before their last writes share transactions. Each write has the outcome that it has alone (I2, I8)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from runyard.errors import CancelRequestedError, MessageTooLargeError, StaleFenceError
from runyard.models import Message, TextPart, ToolCallPart, ToolResultPart, new_id
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard.ports.workers import WorkerInfo
from runyard_backends.postgres import codec, interim_writes
from runyard_backends.postgres.backend import PostgresBackend, connect


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    backend = await connect(postgres_url, max_pool_size=6)
    assert isinstance(backend, PostgresBackend)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    yield backend
    await backend.close()


@pytest.fixture
def sent(backend: PostgresBackend) -> list[int]:
    """The number of writes of each transaction that was sent."""
    sizes: list[int] = []
    once = backend.db.rows_unless_locked

    async def noted(name: str, *arguments: Any) -> Any:
        if name == "write_interim":
            sizes.append(len(arguments[0]))
        return await once(name, *arguments)

    backend.db.rows_unless_locked = noted  # type: ignore[method-assign]
    return sizes


async def begin(backend: PostgresBackend, thread_id: str) -> AttemptToken:
    accepted = await backend.runs.accept(AcceptRequest(thread_id=thread_id, run_id="r", input=Message.user("go")))
    [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
    assert claim.attempt is not None
    return claim.attempt


async def begin_many(backend: PostgresBackend, count: int) -> list[AttemptToken]:
    return [await begin(backend, f"t{n}") for n in range(count)]


def call(name: str = "c") -> Message:
    return Message.assistant([TextPart(text="look"), ToolCallPart(id=name, name="t", arguments={})])


def result(name: str = "c") -> Message:
    return Message.tool(ToolResultPart(call_id=name, content="ok"))


async def append_each(
    backend: PostgresBackend, attempts: Sequence[AttemptToken], messages: Sequence[Message]
) -> list[list[Message]]:
    return await asyncio.gather(*(backend.runs.append(a, [m], first_event=3) for a, m in zip(attempts, messages, strict=True)))


async def texts(backend: PostgresBackend, thread_id: str) -> list[str]:
    return [message.role for message in (await backend.threads.messages(thread_id)).items]


async def test_writes_of_many_runs_share_transactions(backend: PostgresBackend, sent: list[int]) -> None:
    attempts = await begin_many(backend, 40)
    messages = [call() for _ in attempts]
    stored = await asyncio.gather(
        *(backend.runs.append(a, [m], first_event=3) for a, m in zip(attempts, messages, strict=True))
    )
    assert sent == [interim_writes.BATCH, 40 - interim_writes.BATCH]
    assert [m.id for [m] in stored] == [m.id for m in messages], "each caller gets its own messages"
    await asyncio.gather(
        *(backend.runs.start_step(a, "s") for a in attempts),
        *(backend.runs.append(a, [result()], first_event=4) for a in attempts),
    )
    await asyncio.gather(*(backend.runs.finish_step(a, "s", n) for n, a in enumerate(attempts)))
    again = await asyncio.gather(*(backend.runs.start_step(a, "s") for a in attempts))
    assert [step.result for step in again if step] == list(range(40))
    for n in (0, 39):
        assert await texts(backend, f"t{n}") == ["user", "assistant", "tool"]
    ends = await backend.runs.complete([Write(attempt=a, first_event=5) for a in attempts])
    assert {str(end.status) for end in ends if not isinstance(end, Exception)} == {"completed"}


async def test_the_writes_of_a_run_keep_their_order_in_a_batch(backend: PostgresBackend, sent: list[int]) -> None:
    attempt, other = await begin_many(backend, 2)
    one, two, three = call("a"), result("a"), Message.assistant("so")
    outcomes = await asyncio.gather(
        backend.runs.append(attempt, [one], first_event=3),
        backend.runs.append(other, [call()], first_event=3),
        backend.runs.finish_step(attempt, "s", 1),
        backend.runs.append(attempt, [two, three], first_event=4),
        backend.runs.start_step(attempt, "s"),
    )
    assert sent == [5]
    assert outcomes[-1] is not None and outcomes[-1].result == 1
    assert [m.id for m in (await backend.threads.messages("t0")).items][1:] == [one.id, two.id, three.id]


async def test_the_inputs_of_steps_take_no_transaction_of_their_own(backend: PostgresBackend, sent: list[int]) -> None:
    attempts = await begin_many(backend, 2)
    await asyncio.gather(*(backend.runs.start_step(a, "s", input=f"{n}") for n, a in enumerate(attempts)))
    assert sent == [2]
    assert [await step_of(backend, f"t{n}") for n in range(2)] == [("s", "started", "0"), ("s", "started", "1")]


async def test_steps_that_workers_of_the_previous_release_start(backend: PostgresBackend) -> None:
    """A worker of the previous release sends no input. A step that such a worker starts has none, even if another worker has
    started the step before."""
    attempts = await begin_many(backend, 3)
    earlier = [codec.InterimWrite(a.thread_key, "r", a.fence, [], 1, start_key="s") for a in attempts[:2]]
    await backend.runs.start_step(attempts[1], "s", input="1")
    rows = await backend.db.rows("write_interim", earlier, None)
    assert [(row["refused"], row["step_key"]) for row in rows] == [(None, None)] * 2
    statement = "SELECT s.step_key FROM runyard.start_step($1, $2, $3, $4) s"
    async with backend.db.pool.acquire() as connection:
        assert await connection.fetch(statement, attempts[2].thread_key, "r", attempts[2].fence, "s") == []
    await backend.runs.finish_step(attempts[0], "s", 1)
    shown = [await step_of(backend, f"t{n}") for n in range(3)]
    assert shown == [("s", "done", None), ("s", "started", None), ("s", "started", None)]


async def step_of(backend: PostgresBackend, thread_id: str) -> tuple[str, str | None, str | None]:
    [entry] = [e for e in (await backend.timelines.timeline(thread_id, "r")).entries if e.type == "step"]
    return entry.id, entry.status, entry.input


async def test_a_refused_write_does_not_affect_the_others(backend: PostgresBackend, sent: list[int]) -> None:
    """I2."""
    attempts = await begin_many(backend, 6)
    await backend.runs.cancel("t1", "r")
    stale = AttemptToken(attempts[2].thread_key, "r", attempts[2].fence - 1)
    gone = AttemptToken(attempts[3].thread_key, "unknown", attempts[3].fence)
    no_thread = AttemptToken(10**15, "r", 1)
    writers = [attempts[0], attempts[1], stale, gone, attempts[4], no_thread, attempts[5]]
    appended = await asyncio.gather(*(backend.runs.append(a, [call()]) for a in writers), return_exceptions=True)
    finished = await asyncio.gather(*(backend.runs.finish_step(a, "s", 1) for a in writers), return_exceptions=True)
    assert sent == [7, 7]
    outcome: Sequence[Any]
    for outcome in (appended, finished):
        assert [type(outcome[n]) for n in (1, 2, 3, 5)] == [CancelRequestedError, *[StaleFenceError] * 3]
        assert not any(isinstance(outcome[n], Exception) for n in (0, 4, 6))
    assert [len(await texts(backend, f"t{n}")) for n in range(6)] == [2, 1, 1, 1, 2, 2]


async def test_a_message_that_cannot_be_stored_does_not_affect_the_others(backend: PostgresBackend) -> None:
    attempts = await begin_many(backend, 4)
    taken = (await backend.threads.messages("t1")).items[0]
    large = Message.assistant("x" * 11_000_000)
    outcomes: Sequence[Any] = await asyncio.gather(
        backend.runs.append(attempts[0], [large]),
        backend.runs.append(attempts[1], [call().model_copy(update={"id": taken.id})]),
        *(backend.runs.append(a, [call()]) for a in attempts[2:]),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], MessageTooLargeError)
    assert not any(isinstance(outcome, Exception) for outcome in outcomes[2:])
    assert [len(await texts(backend, f"t{n}")) for n in (0, 2, 3)] == [1, 2, 2]


async def test_a_repeated_append_in_a_batch_stores_nothing_twice(backend: PostgresBackend, sent: list[int]) -> None:
    """I8: the repetition after a lost reply."""
    attempts = await begin_many(backend, 3)
    messages = [call() for _ in attempts]
    for _ in range(2):
        stored = await append_each(backend, attempts, messages)
        assert [m.id for [m] in stored] == [m.id for m in messages]
    twice = await asyncio.gather(
        backend.runs.append(attempts[0], [messages[0]]), backend.runs.append(attempts[0], [messages[0]])
    )
    assert [m.id for [m] in twice] == [messages[0].id] * 2
    assert [len(await texts(backend, f"t{n}")) for n in range(3)] == [2, 2, 2]


async def test_a_locked_thread_delays_only_its_own_writes(backend: PostgresBackend, postgres_url: str) -> None:
    """Q4."""
    attempts = await begin_many(backend, 8)
    host = await asyncpg.connect(postgres_url)
    async with host.transaction():
        await host.execute("SELECT 1 FROM runyard.threads WHERE thread_id = 't3' FOR UPDATE")
        writes = [asyncio.create_task(backend.runs.append(a, [call()])) for a in attempts]
        writes += [asyncio.create_task(backend.runs.append(attempts[3], [result()]))]
        await asyncio.gather(*(task for n, task in enumerate(writes) if n not in (3, 8)))
        assert not writes[3].done() and not writes[8].done()
    await asyncio.gather(writes[3], writes[8])
    await host.close()
    assert await texts(backend, "t3") == ["user", "assistant", "tool"]


async def test_a_large_write_has_a_transaction_of_its_own(backend: PostgresBackend, sent: list[int]) -> None:
    attempts = await begin_many(backend, 4)
    large = Message.assistant("x" * (interim_writes.LARGE_BYTES + 1))
    await append_each(backend, attempts, [call(), large, call(), large.model_copy(update={"id": new_id()})])
    assert sorted(sent) == [1, 1, 2]


async def test_a_locked_run_delays_only_its_own_write(backend: PostgresBackend, postgres_url: str) -> None:
    """Q4: the row of a run is locked without its thread, as by the start of a child."""
    attempts = await begin_many(backend, 6)
    host = await asyncpg.connect(postgres_url)
    async with host.transaction():
        await host.execute("SELECT 1 FROM runyard.runs WHERE thread_id = 't3' FOR UPDATE")
        writes = [asyncio.create_task(backend.runs.append(a, [call()])) for a in attempts]
        await asyncio.gather(*(task for n, task in enumerate(writes) if n != 3))
        assert not writes[3].done()
    await writes[3]
    await host.close()


async def test_a_locked_run_among_many_costs_few_transactions(
    backend: PostgresBackend, postgres_url: str, sent: list[int]
) -> None:
    """Q4: a batch is divided by halves, not into its writes."""
    attempts = await begin_many(backend, interim_writes.BATCH)
    host = await asyncpg.connect(postgres_url)
    async with host.transaction():
        await host.execute("SELECT 1 FROM runyard.runs WHERE thread_id = 't13' FOR UPDATE")
        writes = [asyncio.create_task(backend.runs.append(a, [call()])) for a in attempts]
        await asyncio.gather(*(task for n, task in enumerate(writes) if n != 13))
        first = sent.index(1) + 1
        assert (
            sent[:2] == [interim_writes.BATCH, interim_writes.BATCH // 2] and first <= 2 * math.log2(interim_writes.BATCH) + 1
        )
    await writes[13]
    await host.close()
    assert max(sent[first + 1 :], default=1) <= interim_writes.BATCH // 2


async def test_a_refused_message_among_many_costs_few_transactions(backend: PostgresBackend, sent: list[int]) -> None:
    """Its thread has another message with the same id."""
    taken = (await backend.threads.store_message("t21", Message.user("hello"))).id
    attempts = await begin_many(backend, interim_writes.BATCH)
    messages = [call() for _ in attempts]
    messages[21] = call().model_copy(update={"id": taken})
    stored = await asyncio.gather(
        *(backend.runs.append(a, [m], first_event=3) for a, m in zip(attempts, messages, strict=True)), return_exceptions=True
    )
    assert [n for n, outcome in enumerate(stored) if isinstance(outcome, BaseException)] == [21]
    assert len(sent) <= 2 * math.log2(interim_writes.BATCH) + 1
