"""A thread that another transaction has locked delays its own verbs only (Q4).

The tests lock the row of the thread ``held`` on a plain connection, as user code may do, and keep the lock until they have seen
that the same verb on other threads answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from runyard.app import App
from runyard.domain.states import RunStatus
from runyard.errors import LockedError, RunAlreadyClaimedError
from runyard.events.writer import EventWriter
from runyard.execution.executor import WorkerServices
from runyard.models import HitlRequest, Message, RunOptions, new_id
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Ended
from runyard.ports.workers import WorkerInfo
from runyard.support import locked_batching, store_retries
from runyard_backends.postgres import codec
from runyard_backends.postgres.accepts import encoded
from runyard_backends.postgres.backend import PostgresBackend, connect
from tests.support.lock_waits import until_a_session_waits

AT_ONCE = 6.0
"""Seconds within which a verb on a thread that nobody has locked must answer. One that waits for a lock waits for longer."""
DEADLINE = 30.0
ALONE = RunOptions(parallel=True)


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    backend = await connect(postgres_url, max_pool_size=10)
    assert isinstance(backend, PostgresBackend)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    yield backend
    await backend.close()


@pytest.fixture
async def host(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def locked(host: asyncpg.Connection, *threads: str) -> AsyncIterator[None]:
    async with host.transaction():
        await host.execute("SELECT 1 FROM runyard.threads WHERE thread_id = ANY ($1) FOR UPDATE", list(threads))
        yield


@dataclass
class Scene:
    """A thread with a completed run, one suspended on a lane of its own, one running, and one queued on a lane of its own."""

    thread_id: str
    key: int
    attempt: AttemptToken
    request_id: str


def prompt(thread_id: str, run_id: str, **fields: Any) -> AcceptRequest:
    return AcceptRequest(thread_id=thread_id, run_id=run_id, input=Message.user("hello"), **fields)


async def begin(backend: PostgresBackend, request: AcceptRequest) -> AttemptToken:
    accepted = await backend.runs.accept(request)
    [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
    assert claim.attempt is not None
    return claim.attempt


async def prepare(backend: PostgresBackend, thread_id: str) -> Scene:
    await backend.runs.complete([Write(attempt=await begin(backend, prompt(thread_id, "done")))])
    request_id = new_id()
    asking = await begin(backend, prompt(thread_id, "asking", options=ALONE))
    await backend.runs.suspend(Write(attempt=asking), [HitlRequest(request_id=request_id)])
    attempt = await begin(backend, prompt(thread_id, "running"))
    await backend.runs.accept(prompt(thread_id, "queued", options=ALONE))
    return Scene(thread_id, attempt.thread_key, attempt, request_id)


async def accept(backend: PostgresBackend, scene: Scene) -> Any:
    assert (await backend.runs.accept(prompt(scene.thread_id, "new"))).created


async def claim(backend: PostgresBackend, scene: Scene) -> Any:
    [claimed] = await backend.runs.claim("w", [RunRef(scene.key, "queued")])
    assert claimed.outcome == ("skipped" if scene.thread_id == "held" else "claimed")


async def append(backend: PostgresBackend, scene: Scene) -> Any:
    await backend.runs.append(scene.attempt, [Message.assistant("part")])


async def suspend(backend: PostgresBackend, scene: Scene) -> Any:
    await backend.runs.suspend(Write(attempt=scene.attempt), [HitlRequest(request_id=new_id())])


async def answer(backend: PostgresBackend, scene: Scene) -> Any:
    assert (await backend.runs.respond("yes", request_id=scene.request_id)).created


async def cancel(backend: PostgresBackend, scene: Scene) -> Any:
    await backend.runs.cancel(scene.thread_id, "running")


async def fork(backend: PostgresBackend, scene: Scene) -> Any:
    cut = Cut(after_run_id="done")
    await backend.threads.fork(ForkRequest(src=scene.thread_id, new=f"{scene.thread_id}-fork", cut=cut))


async def store(backend: PostgresBackend, scene: Scene) -> Any:
    await backend.checkpointer.append(scene.thread_id, [Message.user("stored")])


async def delete(backend: PostgresBackend, scene: Scene) -> Any:
    await backend.threads.delete_thread(scene.thread_id, cancel=True)


async def erase(backend: PostgresBackend, scene: Scene) -> Any:
    await backend.threads.erase_thread(scene.thread_id, cancel=True)


VERBS: list[Callable[[PostgresBackend, Scene], Awaitable[Any]]] = [
    *(accept, claim, append, suspend, answer, cancel, fork, store, delete, erase)
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
async def test_a_verb_on_another_thread_answers_at_once(
    backend: PostgresBackend, host: asyncpg.Connection, verb: Callable[[PostgresBackend, Scene], Awaitable[Any]]
) -> None:
    held, free = await prepare(backend, "held"), await prepare(backend, "free")
    async with locked(host, "held"):
        waiting = [asyncio.create_task(verb(backend, held))]
        await asyncio.sleep(0)
        async with asyncio.timeout(AT_ONCE):
            await verb(backend, free)
        assert verb is claim or not waiting[0].done()
    async with asyncio.timeout(DEADLINE):
        await waiting[0]


@pytest.mark.parametrize("many", [1, 6], ids=["one", "more than calls that wait"])
async def test_accepts_for_other_threads_pass_locked_ones(
    backend: PostgresBackend, host: asyncpg.Connection, many: int
) -> None:
    """Also those that were sent in the same batch, and those of batches after it."""
    held = [f"held-{n}" for n in range(many)]
    for thread_id in held:
        await backend.threads.store_message(thread_id, Message.user("hello"))
    async with locked(host, *held):
        blocked = [asyncio.ensure_future(backend.runs.accept(prompt(name, f"r{n}"))) for n in range(3) for name in held]
        for round in range(3):
            async with asyncio.timeout(AT_ONCE):
                await asyncio.gather(*(backend.runs.accept(prompt(f"free-{round}-{n}", "r")) for n in range(20)))
        assert not any(task.done() for task in blocked)
    async with asyncio.timeout(DEADLINE):
        assert all(accepted.created for accepted in await asyncio.gather(*blocked))
    for thread_id in held:
        runs = await host.fetch("SELECT run_id FROM runyard.runs WHERE thread_id = $1 ORDER BY lane_seq", thread_id)
        assert [row["run_id"] for row in runs] == ["r0", "r1", "r2"], "requests of a thread keep their order"


async def test_accepts_wait_for_their_patience_only(
    backend: PostgresBackend, host: asyncpg.Connection, postgres_url: str
) -> None:
    """Whatever the session's limit is."""
    for thread_id in ("free", "held"):
        await backend.threads.store_message(thread_id, Message.user("hello"))
    requests = [codec.run_request(prompt(thread_id, "r")) for thread_id in ("free", "held")]
    accept = "SELECT n, refused->>'code' FROM runyard.accept_many('', $1::runyard.request[], 5)"
    caller = await asyncpg.connect(postgres_url, server_settings={"lock_timeout": "0"}, command_timeout=DEADLINE)
    async with locked(host, "held"):
        assert {tuple(row) for row in await caller.fetch(accept, requests)} == {(1, None), (2, "locked")}
        with pytest.raises(asyncpg.LockNotAvailableError):
            await caller.fetch(accept, requests[1:])
    await caller.close()


@pytest.mark.parametrize("many", [1, 6], ids=["one", "more than calls that wait"])
async def test_completions_of_other_threads_pass_locked_ones(
    backend: PostgresBackend, host: asyncpg.Connection, many: int
) -> None:
    services = WorkerServices.of(App(), backend, EventWriter(backend.events))
    held = [await begin(backend, prompt(f"held-{n}", "r")) for n in range(many)]
    free = [await begin(backend, prompt(f"free-{n}", "r")) for n in range(30)]
    async with locked(host, *(f"held-{n}" for n in range(many))):
        blocked = [asyncio.ensure_future(services.complete(Write(attempt=attempt))) for attempt in held]
        for n in range(0, 30, 10):
            async with asyncio.timeout(AT_ONCE):
                ends = await asyncio.gather(*(services.complete(Write(attempt=attempt)) for attempt in free[n : n + 10]))
            assert [end.status for end in ends] == [RunStatus.COMPLETED] * 10
        assert not any(task.done() for task in blocked)
    async with asyncio.timeout(DEADLINE):
        assert [end.status for end in await asyncio.gather(*blocked)] == [RunStatus.COMPLETED] * many


async def test_a_completion_that_was_refused_as_locked_stores_nothing(
    backend: PostgresBackend, host: asyncpg.Connection
) -> None:
    held, free = await begin(backend, prompt("held", "r")), await begin(backend, prompt("free", "r"))
    writes = [Write(attempt=attempt, messages=[Message.assistant("end")]) for attempt in (held, free)]
    async with locked(host, "held"):
        refused, ended = await backend.runs.complete(writes, wait=0)
        assert isinstance(refused, LockedError) and isinstance(ended, Ended)
        [refused] = await backend.runs.complete(writes[:1], wait=0.01)
        assert isinstance(refused, LockedError)
        with pytest.raises(LockedError):
            await backend.runs.complete(writes[:1])
    assert [m.text for m in await backend.runs.context(held)] == ["hello"]
    run = await backend.runs.run("held", "r")
    assert run is not None and run.status is RunStatus.RUNNING


async def test_a_claim_waits_for_a_lock_for_the_given_time(backend: PostgresBackend, host: asyncpg.Connection) -> None:
    ref = (await backend.runs.accept(prompt("held", "r"))).effects.jobs[0].ref
    async with locked(host, "held"):
        [skipped] = await backend.runs.claim("w", [ref])
        assert skipped.outcome == "skipped"
        [skipped] = await backend.runs.claim("w", [ref], wait=0.01)
        assert skipped.outcome == "skipped"
        waiting = asyncio.create_task(backend.runs.claim("w", [ref], wait=DEADLINE))
        await until_a_session_waits(host, call=waiting)
    [claimed] = await waiting
    assert claimed.outcome == "claimed"


async def test_a_batch_waits_for_many_locked_threads_as_for_two(backend: PostgresBackend, host: asyncpg.Connection) -> None:
    """The wait is halved after each lock that was not free in time."""
    held = [f"held-{n}" for n in range(8)]
    attempts = [await begin(backend, prompt(name, "r")) for name in held]
    refs = [(await backend.runs.accept(prompt(name, "queued", options=ALONE))).effects.jobs[0].ref for name in held]

    async def seconds(many: int) -> float:
        began = time.monotonic()
        ends = await backend.runs.complete([Write(attempt=attempt) for attempt in attempts[:many]], wait=0.5)
        assert all(isinstance(end, LockedError) for end in ends)
        assert {claim.outcome for claim in await backend.runs.claim("w", refs[:many], wait=0.5)} == {"skipped"}
        return time.monotonic() - began

    async with locked(host, *held):
        two = await seconds(2)
        assert await seconds(8) < 2 * two, "four times as long, if each lock were waited for"


async def test_a_batch_stores_what_waits_for_a_short_lock(backend: PostgresBackend, host: asyncpg.Connection) -> None:
    attempts = [await begin(backend, prompt(name, "r")) for name in ("held", "free")]
    async with locked(host, "held"):
        accepting = asyncio.ensure_future(backend.runs.accept(prompt("held", "next")))
        completing = asyncio.create_task(backend.runs.complete([Write(attempt=a) for a in attempts], wait=DEADLINE))
        await until_a_session_waits(host, call=completing)
    assert (await accepting).created
    assert all(isinstance(end, Ended) for end in await completing)


class TestAdmit:
    async def test_takes_what_is_free_and_asks_to_come_back(self, backend: PostgresBackend, host: asyncpg.Connection) -> None:
        """H7, O5: a run that is due, a deadline and an expiry; each on the locked thread and on another one."""
        for thread_id in ("held", "free"):
            asking = await begin(backend, prompt(thread_id, "asking", options=ALONE))
            soon = HitlRequest(request_id=new_id(), timeout=0.01)
            await backend.runs.suspend(Write(attempt=asking), [soon])
            await backend.runs.accept(prompt(thread_id, "expiring", options=RunOptions(parallel=True, expires_in=0.01)))
            await backend.runs.accept(prompt(thread_id, "delayed", delay=0.01))  # last, because an accept admits what is due
        await host.fetchval("SELECT pg_sleep(0.02)")
        async with locked(host, "held"):
            async with asyncio.timeout(AT_ONCE):
                admitted = await backend.runs.admit()
            assert {job.run_id for job in admitted.effects.jobs} == {"delayed"}
            assert {event.thread_id for event in admitted.effects.events} == {"free"} and len(admitted.effects.events) == 2
            assert admitted.next_due is not None and 0.01 <= admitted.next_due <= 1
        admitted = await backend.runs.admit()
        assert len(admitted.effects.jobs) == 1 and {event.thread_id for event in admitted.effects.events} == {"held"}
        assert admitted.next_due is None

    async def test_is_not_held_up_by_many_runs_of_a_locked_thread(
        self, backend: PostgresBackend, host: asyncpg.Connection
    ) -> None:
        await backend.threads.store_message("held", Message.user("hello"))
        await host.executemany("SELECT runyard.accept('held', 'hi', run_id => $1)", [(f"r{n}",) for n in range(30)])
        await host.execute("SELECT runyard.accept('free', 'hi', run_id => 'r')")
        async with locked(host, "held"):
            admitted = await backend.runs.admit(10)
            assert [job.run_id for job in admitted.effects.jobs] == ["r"]
            assert admitted.next_due is not None and admitted.next_due >= 0.01

    async def test_does_not_make_a_thread_again_that_was_deleted_meanwhile(
        self, backend: PostgresBackend, host: asyncpg.Connection
    ) -> None:
        """D1: the deletion had the lock when the thread's run fell due."""
        await backend.threads.store_message("t", Message.user("hello"))
        await backend.runs.accept(prompt("t", "delayed", run_at=datetime.now(UTC) - timedelta(seconds=1)), connection=host)
        async with host.transaction():
            await host.execute("SELECT runyard.delete_thread('', 't', true, NULL)")
            admitting = asyncio.create_task(backend.runs.admit())
            await asyncio.wait([admitting], timeout=0.2)
        await admitting
        await backend.runs.admit()
        assert (await backend.threads.threads()).items == []

    async def test_makes_no_thread_whose_run_is_gone(self, backend: PostgresBackend, host: asyncpg.Connection) -> None:
        """D1: the thread was made and deleted between the read of its run and the lock."""
        row = await host.fetchrow("SELECT (d.t).thread_key, d.locked FROM runyard.due_thread('', 'gone', NULL) d")
        assert row is not None and tuple(row) == (None, False)
        assert (await backend.threads.threads()).items == []


class TestOpenHostTransaction:
    """A host's open transaction has accepted a run id. A client's call with the same id waits without the thread's lock."""

    @pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
    @pytest.mark.parametrize("committed", [False, True], ids=["undone", "committed"])
    async def test_an_accept_waits_without_the_lock(
        self, backend: PostgresBackend, host: asyncpg.Connection, committed: bool, batched: bool
    ) -> None:
        attempt = await begin(backend, prompt("t", "running"))
        request = prompt("t", "taken")
        transaction = host.transaction()
        await transaction.start()
        await backend.runs.accept(request, connection=host)
        waiting = asyncio.create_task(backend.runs.accept(request))
        beside = [asyncio.create_task(backend.runs.accept(prompt(f"other-{n}", "r"))) for n in range(3 * batched)]
        await asyncio.wait([waiting], timeout=0.3)
        async with asyncio.timeout(AT_ONCE):
            await asyncio.gather(*beside)
            await backend.runs.append(attempt, [Message.assistant("part")])
            [ended] = await backend.runs.complete([Write(attempt=attempt)])
            assert isinstance(ended, Ended)
        assert not waiting.done()
        await (transaction.commit() if committed else transaction.rollback())
        async with asyncio.timeout(DEADLINE):
            accepted = await waiting
        assert accepted.created is not committed

    async def test_the_insert_of_an_accept_waits_for_a_moment_only(
        self, backend: PostgresBackend, host: asyncpg.Connection
    ) -> None:
        """It has the lock of the thread. The wait for that lock may be longer."""
        await backend.threads.store_message("t", Message.user("hello"))
        request = prompt("t", "taken")
        async with host.transaction():
            await backend.runs.accept(request, connection=host)
            async with asyncio.timeout(AT_ONCE):
                with pytest.raises(LockedError):
                    await backend.runs.accepts.rows_apart([encoded(request)], wait=DEADLINE)

    async def test_an_accept_answers_within_its_bound(
        self, backend: PostgresBackend, host: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(locked_batching, "LOCKED_SECONDS", 0.2)
        request = prompt("t", "taken")
        async with host.transaction():
            await backend.runs.accept(request, connection=host)
            async with asyncio.timeout(DEADLINE):
                with pytest.raises(LockedError):
                    await backend.runs.accept(request)

    async def test_a_claim_of_an_external_run_waits_without_the_lock(
        self, backend: PostgresBackend, host: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempt = await begin(backend, prompt("t", "running"))
        async with host.transaction():
            await backend.runs.accept(prompt("t", "taken"), connection=host)
            waiting = asyncio.create_task(backend.checkpointer.claim_run("t", "taken"))
            await asyncio.wait([waiting], timeout=0.3)
            async with asyncio.timeout(AT_ONCE):
                await backend.runs.append(attempt, [Message.assistant("part")])
            assert not waiting.done()
            with monkeypatch.context() as patched:
                patched.setattr(store_retries, "LOCKED_SECONDS", 0.2)
                async with asyncio.timeout(DEADLINE):
                    with pytest.raises(LockedError):
                        await backend.checkpointer.claim_run("t", "taken")
        with pytest.raises(RunAlreadyClaimedError):
            await waiting


async def test_a_busy_thread_is_completed_in_turn(backend: PostgresBackend) -> None:
    """Other transactions lock the thread one after the other without a pause. A completion waits its turn among them."""
    services = WorkerServices.of(App(), backend, EventWriter(backend.events))
    attempts = [await begin(backend, prompt("t", f"r{n}", options=ALONE)) for n in range(6)]
    stop, said = asyncio.Event(), 0

    async def chatter(attempt: AttemptToken) -> None:
        nonlocal said
        while not stop.is_set():
            await backend.runs.append(attempt, [Message.assistant("part")])
            said += 1

    talking = [asyncio.create_task(chatter(attempt)) for attempt in attempts[1:]]
    try:
        before = said
        ended = await services.complete(Write(attempt=attempts[0]))
        assert ended.status is RunStatus.COMPLETED and said - before < 200, "about 20, if the locks are given in turn"
    finally:
        stop.set()
        await asyncio.gather(*talking)
