"""``accept_many`` in transactions of a thousand prompts (Q2), beside locked threads (Q4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from runyard import Client, Prompt, RunHandle, RunyardError, errors
from runyard.models import Message
from runyard.ports.commands import MAX_PROMPTS_PER_CALL, AcceptRequest, PromptSeries
from runyard.ports.results import Accepted
from runyard.support import locked_batching, turns
from runyard_backends.postgres import codec
from runyard_backends.postgres.accepts import ACCEPT_MANY_BYTES
from runyard_backends.postgres.backend import PostgresBackend, connect
from tests.support.fleet import until

DEADLINE = 60.0


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    backend = await connect(postgres_url, max_pool_size=4)
    assert isinstance(backend, PostgresBackend)
    yield backend
    await backend.close()


@pytest.fixture
def sizes(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests of each call of ``accept``."""
    found: list[int] = []
    send = backend.db._send

    async def counted(method: str, name: str, args: Sequence[Any]) -> Any:
        if name == "accept":
            found.append(len(args[1]))
        return await send(method, name, args)

    monkeypatch.setattr(backend.db, "_send", counted)
    return found


def prompt(thread_id: str, run_id: str, text: str = "hi") -> AcceptRequest:
    return AcceptRequest(thread_id=thread_id, run_id=run_id, input=Message.user(text))


async def lane(connection: asyncpg.Connection, thread_id: str) -> list[str]:
    """Return the ids of the runs of a thread in the order in which they will be executed."""
    rows = await connection.fetch("SELECT run_id FROM runyard.live_runs WHERE thread_id = $1 ORDER BY lane_seq", thread_id)
    return [row["run_id"] for row in rows]


async def test_a_thousand_prompts_are_one_transaction(backend: PostgresBackend, sizes: list[int]) -> None:
    """A repetition reads the existing runs in one statement."""
    prompts = [Prompt(f"t{n % 50}", "hi", f"r{n}") for n in range(2 * MAX_PROMPTS_PER_CALL + 10)]
    outcomes = await Client(backend).enqueue_many(prompts)
    assert all(isinstance(one, RunHandle) and one.created for one in outcomes)
    assert sizes == [MAX_PROMPTS_PER_CALL, MAX_PROMPTS_PER_CALL, 10]
    again = await Client(backend).enqueue_many(prompts)
    assert all(isinstance(one, RunHandle) and not one.created for one in again)


async def test_a_thousand_prompts_of_one_new_thread(backend: PostgresBackend, postgres_url: str, sizes: list[int]) -> None:
    """They become one lane, in their order, and one job."""
    outcomes = await backend.runs.accept_many([prompt("t", f"r{n}") for n in range(1000)])
    accepted = [one for one in outcomes if isinstance(one, Accepted)]
    assert len(accepted) == 1000 and sizes == [1000]
    assert [job.run_id for one in accepted for job in one.effects.jobs] == ["r0"]
    host = await asyncpg.connect(postgres_url)
    assert await lane(host, "t") == [f"r{n}" for n in range(1000)]
    await host.close()


async def test_single_accepts_do_not_wait_for_a_batch(backend: PostgresBackend, sizes: list[int]) -> None:
    """They have calls of their own."""
    many = asyncio.ensure_future(backend.runs.accept_many([prompt("many", f"r{n}") for n in range(100)]))
    one = asyncio.ensure_future(backend.runs.accept(prompt("one", "r")))
    await asyncio.gather(many, one)
    assert sorted(sizes) == [1, 100]


async def test_large_prompts_have_few_companions(backend: PostgresBackend, sizes: list[int]) -> None:
    text = "x" * (ACCEPT_MANY_BYTES // 3)
    accepted = await backend.runs.accept_many([prompt("t", f"r{n}", text) for n in range(5)])
    assert all(isinstance(one, Accepted) for one in accepted) and sizes == [2, 2, 1]


async def test_a_locked_thread_delays_its_own_prompts_only(
    backend: PostgresBackend, postgres_url: str, sizes: list[int]
) -> None:
    """The prompts of the locked thread keep their order, also those of a later call."""
    host = await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept_many([prompt(thread, "r") for thread in ("held", "free")])
        async with host.transaction():
            await host.execute("SELECT 1 FROM runyard.threads WHERE thread_id = 'held' FOR UPDATE")
            first = asyncio.ensure_future(
                backend.runs.accept_many([prompt("held" if n % 10 == 0 else "free", f"r{n}") for n in range(50)])
            )
            second = asyncio.ensure_future(backend.runs.accept_many([prompt("held", "later"), prompt("free", "later")]))

            async def stored() -> bool:
                return len(await lane(host, "free")) == 47

            await until(stored)
            assert not first.done() and not second.done()
        async with asyncio.timeout(DEADLINE):
            accepted = [*await first, *await second]
        assert all(isinstance(one, Accepted) and one.created for one in accepted)
        assert await lane(host, "held") == ["r", "r0", "r10", "r20", "r30", "r40", "later"]
    finally:
        await host.close()


async def test_a_single_prompt_waits_until_its_thread_is_unlocked(backend: PostgresBackend, postgres_url: str) -> None:
    """Q4: A transaction of one prompt raises the refusal. The prompt is sent again."""
    await backend.runs.accept(prompt("t", "r0"))
    host = await asyncpg.connect(postgres_url)
    async with host.transaction():
        await host.execute("SELECT 1 FROM runyard.threads WHERE thread_id = 't' FOR UPDATE")
        sent = asyncio.ensure_future(backend.runs.accept_many([prompt("t", "r1")]))
        await asyncio.sleep(0.2)
        assert not sent.done()
    [outcome] = await sent
    assert isinstance(outcome, Accepted)
    await host.close()


async def test_after_a_part_is_lost_later_transactions_of_the_call_are_not_sent(
    backend: PostgresBackend, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: A transaction that fails is divided. Its first part is stored, and the store cannot be reached for the second."""
    send, calls = backend.db._send, list[int]()

    async def fail(method: str, name: str, args: Sequence[Any]) -> Any:
        if name == "accept":
            calls.append(len(args[1]))
            if len(calls) == 1:
                raise errors.InvalidInputError("one of them is wrong")
            if len(calls) == 3:
                raise errors.BackendUnavailableError("gone")
        return await send(method, name, args)

    monkeypatch.setattr(backend.db, "_send", fail)
    text = "x" * (ACCEPT_MANY_BYTES // 3)
    outcomes = await backend.runs.accept_many([prompt("t", f"r{n}", text) for n in range(5)])
    assert [isinstance(one, Accepted) for one in outcomes] == [True, False, False, False, False]
    assert {type(one) for one in outcomes[1:]} == {errors.BackendUnavailableError} and len(calls) == 3


async def test_prompts_of_a_thread_that_stays_locked_are_refused(
    backend: PostgresBackend, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_batching, "LOCKED_SECONDS", 0.2)
    host = await asyncpg.connect(postgres_url)
    try:
        await backend.runs.accept(prompt("held", "r"))
        async with host.transaction():
            await host.execute("SELECT 1 FROM runyard.threads WHERE thread_id = 'held' FOR UPDATE")
            outcomes = await backend.runs.accept_many([prompt("held", "r1"), prompt("free", "r1")])
    finally:
        await host.close()
    assert isinstance(outcomes[0], errors.LockedError) and isinstance(outcomes[1], Accepted)


async def test_the_loss_of_the_server_is_the_outcome_of_each_prompt(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any) -> Any:
        raise errors.BackendUnavailableError("gone")

    monkeypatch.setattr(backend.db, "_send", lost)
    outcomes = await backend.runs.accept_many([prompt("t", f"r{n}") for n in range(3)])
    assert [type(one) for one in outcomes] == [errors.BackendUnavailableError] * 3


async def test_after_a_lost_transaction_later_prompts_of_the_call_are_not_sent(
    backend: PostgresBackend, postgres_url: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: Prompts of another call are sent."""
    send = backend.db._send

    async def lost_once(method: str, name: str, args: Sequence[Any]) -> Any:
        if name == "accept" and len(sizes) == 1:
            sizes.append(len(args[1]))
            raise errors.BackendUnavailableError("gone")
        return await send(method, name, args)

    monkeypatch.setattr(backend.db, "_send", lost_once)
    text = "x" * (ACCEPT_MANY_BYTES // 3)
    first = asyncio.ensure_future(backend.runs.accept_many([prompt("t", f"r{n}", text) for n in range(5)]))
    second = asyncio.ensure_future(backend.runs.accept_many([prompt("u", "r")]))
    outcomes, [other] = await first, await second
    assert [isinstance(one, Accepted) for one in outcomes] == [True, True, False, False, False]
    assert {type(one) for one in outcomes[2:]} == {errors.BackendUnavailableError} and isinstance(other, Accepted)
    host = await asyncpg.connect(postgres_url)
    assert await lane(host, "t") == ["r0", "r1"]
    await host.close()


async def test_after_a_lost_transaction_later_calls_of_the_series_are_not_sent(
    backend: PostgresBackend, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: The later call waits for the transaction of the earlier call. A call of another series is sent."""
    send, lost, waiting = backend.db._send, asyncio.Event(), asyncio.Event()

    async def lost_once(method: str, name: str, args: Sequence[Any]) -> Any:
        if name == "accept" and not lost.is_set():
            waiting.set()
            await lost.wait()
            raise errors.BackendUnavailableError("gone")
        return await send(method, name, args)

    monkeypatch.setattr(backend.db, "_send", lost_once)
    series = PromptSeries()
    first = asyncio.ensure_future(backend.runs.accept_many([prompt("t", "r0")], series))
    await waiting.wait()
    later = asyncio.ensure_future(backend.runs.accept_many([prompt("t", "r1")], series))
    other = asyncio.ensure_future(backend.runs.accept_many([prompt("u", "r")], PromptSeries()))
    await asyncio.sleep(0)
    lost.set()
    outcomes = [*await first, *await later]
    assert [type(one) for one in outcomes] == [errors.BackendUnavailableError] * 2
    [accepted] = await other
    assert isinstance(accepted, Accepted)
    host = await asyncpg.connect(postgres_url)
    assert await lane(host, "t") == []
    await host.close()


async def test_the_event_loop_runs_between_the_prompts(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: while they are encoded. A shorter call does not overtake a call that is being encoded."""
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.0)
    encode, encoded = codec.run_request, []
    turned = 0

    async def count() -> None:
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    def noted(request: AcceptRequest) -> codec.RunRequest:
        encoded.append((request.run_id, turned))
        return encode(request)

    monkeypatch.setattr(codec, "run_request", noted)
    counting = asyncio.create_task(count())
    many = asyncio.ensure_future(backend.runs.accept_many([prompt("t", f"r{n}") for n in range(20)]))
    await asyncio.gather(many, asyncio.ensure_future(backend.runs.accept_many([prompt("t", "later")])))
    counting.cancel()
    assert encoded[-1][0] == "later" and len({turn for _, turn in encoded}) >= 20


async def test_a_prompt_that_breaks_its_transaction_fails_alone(
    backend: PostgresBackend, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are accepted in their order, in smaller transactions."""
    admin = await asyncpg.connect(backend.listen_url)
    try:
        await admin.execute("ALTER TABLE runyard.runs ADD CONSTRAINT unlucky CHECK (run_id <> 'r700')")
        outcomes = await backend.runs.accept_many([prompt(f"t{n % 3}", f"r{n}") for n in range(1000)])
        assert [n for n, one in enumerate(outcomes) if isinstance(one, RunyardError)] == [700]
        refused = outcomes[700]
        assert isinstance(refused, RunyardError) and refused.code == "internal_error" and "r700" not in refused.message
        assert await lane(admin, "t0") == [f"r{n}" for n in range(0, 1000, 3)]
        assert len(sizes) < 25
    finally:
        await admin.close()


async def test_a_damaged_run_is_the_outcome_of_its_prompt_only(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R15: The other prompts of the call are accepted, and their outcomes are returned."""
    await backend.runs.accept_many([prompt("bad", "r"), prompt("fine", "r")])
    decode = codec.run_entry

    def damaged(row: Any) -> Any:
        if row["thread_id"] == "bad":
            raise errors.DataCorruptedError("the row is damaged")
        return decode(row)

    monkeypatch.setattr(codec, "run_entry", damaged)
    bad, fine, new = await backend.runs.accept_many([prompt("bad", "r"), prompt("fine", "r"), prompt("new", "r")])
    assert isinstance(bad, errors.DataCorruptedError)
    assert [isinstance(one, Accepted) and one.created for one in (fine, new)] == [False, True]
