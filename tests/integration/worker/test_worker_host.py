"""The process host on the memory backend (R3, R4, R9, R10, I1, H1, W1 to W6)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from runyard import Client
from runyard.app import App
from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError, LockedError, RunyardError, WorkerDeadError
from runyard.execution.context import RunContext
from runyard.models import Message
from runyard.ports.refs import RunRef
from runyard.ports.results import Claim
from runyard.ports.scheduling import Delivery, Effects, Job, OutsideEvent
from runyard.ports.stores import Backend
from runyard.ports.workers import Retention, WorkerInfo
from runyard.testing.scripted_agent import scripted
from runyard.worker.reconciler import Reconciler
from runyard.worker.worker import Worker
from runyard_api.worker.process import serve
from runyard_backends.memory import connect

APP = App({"scripted": scripted})


@pytest.fixture
async def backend() -> Backend:
    return await connect()


@pytest.fixture
async def client(backend: Backend) -> Client:
    return Client(backend)


@asynccontextmanager
async def serving(app: App, backend: Backend, **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(app, backend, **options)
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(worker.started.wait(), 30)
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - the state is in a store
            await asyncio.sleep(0.005)


async def test_runs_of_a_thread_run_one_after_another_in_order(backend: Backend, client: Client) -> None:
    """R3, I4: while other threads run beside."""
    running: dict[str, int] = {}
    order: list[str] = []

    async def agent(ctx: RunContext) -> None:
        running[ctx.thread_id] = running.get(ctx.thread_id, 0) + 1
        assert running[ctx.thread_id] == 1
        await asyncio.sleep(0)
        order.append(ctx.run_id)
        await ctx.append(Message.assistant("done"))
        running[ctx.thread_id] -= 1

    async with serving(App({"agent": agent}), backend) as worker:
        handles = [await client.enqueue(f"t{n % 3}", "hi", f"{n % 3}-{n:03}") for n in range(60)]
        results = await asyncio.gather(*(handle.result(20) for handle in handles))
        assert all(result.ok for result in results)
        assert worker.reconciler.rescued == 0
    for thread in "012":
        mine = [run for run in order if run.startswith(thread)]
        assert mine == sorted(mine)
        assert len(mine) == 20


async def test_an_agent_starts_before_its_worker_looks_for_more(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next claim is a system call that wakes another process; what was claimed has waited for longer."""
    claim, order = backend.scheduler.claim, []

    async def noted(*args: Any, **options: Any) -> list[Delivery]:
        order.append("claim")
        deliveries = await claim(*args, **options)
        order.extend(delivery.job.run_id for delivery in deliveries)
        return deliveries

    async def agent(ctx: RunContext) -> None:
        order.append("agent")

    monkeypatch.setattr(backend.scheduler, "claim", noted)
    async with serving(App({"agent": agent}), backend):
        assert (await (await client.enqueue("t", "hi", "r")).result(30)).ok
    after = order.index("r") + 1
    assert order[after : after + 2] == ["agent", "claim"]


async def test_hundreds_of_waiting_runs_share_a_worker(backend: Backend, client: Client) -> None:
    """Q1."""
    gate, waiting = asyncio.Event(), 0

    async def agent(ctx: RunContext) -> None:
        nonlocal waiting
        waiting += 1
        await gate.wait()

    async with serving(App({"agent": agent}), backend, slots=500):
        handles = [await client.enqueue(f"t{n}", "hi") for n in range(500)]

        async def all_wait() -> bool:
            return waiting == 500

        await until(all_wait)
        gate.set()
        assert (await handles[-1].result(20)).ok


async def test_a_worker_takes_no_more_than_its_slots(backend: Backend, client: Client) -> None:
    active, most = 0, 0

    async def agent(ctx: RunContext) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.001)
        active -= 1

    async with serving(App({"agent": agent}), backend, slots=3):
        handles = [await client.enqueue(f"t{n}", "hi") for n in range(30)]
        await asyncio.gather(*(handle.result(20) for handle in handles))
    assert most == 3


async def test_suspend_and_respond(backend: Backend, client: Client) -> None:
    """H1, R4: a suspended run holds no slot; a prompt behind it waits and answers nothing."""
    async with serving(APP, backend, slots=1) as worker:
        handle = await client.enqueue("t", "say hello | approve refund 10 | color?")
        assert (await handle.result(30)).status is RunStatus.SUSPENDED
        behind = await client.enqueue("t", "yes")
        assert (await (await client.enqueue("other", "hi")).result(30)).ok
        await client.respond("t", True)
        assert (await handle.result(30)).status is RunStatus.SUSPENDED
        assert await behind.status() is RunStatus.QUEUED
        await client.respond("t", "blue")
        assert (await handle.result(30)).text == "color? blue"
        assert (await behind.result(30)).ok
        assert worker.reconciler.rescued == 0


async def test_cancel_of_a_running_run(backend: Backend, client: Client) -> None:
    """R10."""
    async with serving(APP, backend):
        handle = await client.enqueue("t", "say a | sleep 60")
        behind = await client.enqueue("t", "say b")
        await until(lambda: is_status(client, "t", handle.id, RunStatus.RUNNING))
        await handle.cancel()
        assert (await handle.result(30)).status is RunStatus.CANCELLED
        assert (await behind.result(30)).text == "b"


async def is_status(client: Client, thread_id: str, run_id: str, status: RunStatus) -> bool:
    return (await client.run(thread_id, run_id)).status is status


async def test_a_cancel_whose_hint_was_lost_is_learnt_from_the_store(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: a cancel does not live in pub/sub."""

    async def lost(refs: object) -> None: ...

    monkeypatch.setattr(backend.scheduler, "hint_cancel", lost)
    monkeypatch.setattr("runyard.worker.worker.INSPECT_SECONDS", 0.05)
    async with serving(APP, backend):
        handle = await client.enqueue("t", "sleep 60")
        await until(lambda: is_status(client, "t", handle.id, RunStatus.RUNNING))
        await handle.cancel()
        assert (await handle.result(30)).status is RunStatus.CANCELLED


async def test_sigterm_finishes_what_fits_and_hands_over_the_rest(backend: Backend, client: Client) -> None:
    """R9, W6: stops claiming, drains for the grace time, releases the rest; not a crash, not an error."""
    async with serving(APP, backend, grace=2.0) as worker:
        quick = await client.enqueue("quick", "sleep 0.1 | say done")
        slow = await client.enqueue("slow", "say half | tool add 1 2 | sleep 60 | say end")
        await until(lambda: is_status(client, "slow", slow.id, RunStatus.RUNNING))
        await until(lambda: is_status(client, "quick", quick.id, RunStatus.RUNNING))
        worker.stop()
        late = await client.enqueue("late", "say late")
        assert (await quick.result(30)).text == "done"
    assert ((await late.run()).status, (await late.run()).attempt) == (RunStatus.QUEUED, 0)
    run = await slow.run()
    assert (run.status, run.error_count, run.crash_count) == (RunStatus.QUEUED, 0, 0)
    assert await backend.workers.workers() == []
    assert {delivery.job.run_id for delivery in await backend.scheduler.claim("w", ["default"], 10)} == {slow.id, late.id}


async def test_a_worker_whose_event_writer_ended_stops_and_says_why(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: its runs would go on, and nobody would hear of them."""
    hung, defect = asyncio.Event(), ValueError("a defect")

    async def agent(ctx: RunContext) -> None:
        hung.set()
        await asyncio.Event().wait()

    worker = Worker(App({"agent": agent}), backend, grace=0)
    serving = asyncio.create_task(worker.run())
    handle = await client.enqueue("t", "hi")
    await asyncio.wait_for(hung.wait(), 30)

    def broken(at_once: bool) -> None:
        raise defect

    monkeypatch.setattr(worker.writer, "_collect", broken)
    worker.writer.outside([OutsideEvent(RunRef(1, "r"), "t", "9-1", "run.cancelled")])
    with pytest.raises(ValueError, match="a defect"):
        await asyncio.wait_for(serving, 30)
    assert (await handle.run()).status is RunStatus.QUEUED


async def test_a_stopping_worker_takes_nothing_more(backend: Backend, client: Client) -> None:
    async with serving(APP, backend, grace=5) as worker:
        busy = await client.enqueue("busy", "sleep 0.2")
        await until(lambda: is_status(client, "busy", busy.id, RunStatus.RUNNING))
        worker.stop()
        late = await client.enqueue("late", "hi")
        assert (await busy.result(30)).ok
    assert await late.status() is RunStatus.QUEUED


async def test_an_idle_worker_stops_before_its_next_look(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runyard.worker.claim_loop.QUEUE_POLL_SECONDS", 3600.0)
    async with serving(APP, backend):
        pass


async def test_delivery_to_a_stopping_worker_is_given_back(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9: its wait for work is ended, not cut, so that a delivery on its way is not lost; and nothing starts."""
    claim = backend.scheduler.claim
    taken, arrive = asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any, **options: Any) -> list[Delivery]:
        deliveries = await claim(*args, **options)
        if deliveries:
            taken.set()
            await arrive.wait()
        return deliveries

    monkeypatch.setattr(backend.scheduler, "claim", slowly)
    async with serving(APP, backend) as worker:
        handle = await client.enqueue("t", "hi")
        await asyncio.wait_for(taken.wait(), 30)
        worker.stop()
        await asyncio.sleep(0)
        arrive.set()
    run = await handle.run()
    assert (run.status, run.attempt) == (RunStatus.QUEUED, 0)
    assert [delivery.job.run_id for delivery in await claim("w", ["default"], 10)] == [handle.id]


async def test_a_delivery_of_a_run_whose_task_is_just_ending_is_not_lost(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: suspended, answered and delivered again before its task has left the worker."""
    suspend = backend.runs.suspend
    delivered = asyncio.Event()
    claim = backend.scheduler.claim

    async def answered_at_once(*args: Any) -> Any:
        ended = await suspend(*args)
        await client.respond("t", "blue")
        await asyncio.wait_for(delivered.wait(), 30)
        return ended

    async def noted(*args: Any, **options: Any) -> list[Delivery]:
        deliveries = await claim(*args, **options)
        if deliveries and started:
            delivered.set()
        started.extend(deliveries)
        return deliveries

    started: list[Delivery] = []
    monkeypatch.setattr(backend.runs, "suspend", answered_at_once)
    monkeypatch.setattr(backend.scheduler, "claim", noted)
    async with serving(APP, backend) as worker:
        handle = await client.enqueue("t", "color?")
        await until(lambda: is_status(client, "t", handle.id, RunStatus.COMPLETED))
        assert worker.reconciler.rescued == 0


async def test_a_run_without_a_task_is_released(backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """W4: a task of a live worker vanishes; its own self-check releases the run."""
    monkeypatch.setattr("runyard.worker.worker.INSPECT_SECONDS", 0.05)
    lose = True

    async def dispatch(job: Job, execution: Any) -> Any:
        nonlocal lose
        if lose:
            lose = False
            raise RuntimeError("a defect of the host")
        return await execution.run()

    async with serving(APP, backend, dispatch=dispatch):
        handle = await client.enqueue("t", "say hello")
        result = await handle.result(30)
    assert result.ok
    assert result.run.attempt == 2
    assert result.run.error_count == result.run.crash_count == 0


async def test_a_cancelled_run_without_a_task_tells_of_its_messages(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2: the end that the self-check writes comes after everything that the lost attempt had stored."""
    monkeypatch.setattr("runyard.worker.worker.INSPECT_SECONDS", 0.05)

    async def dispatch(job: Job, execution: Any) -> Any:
        await backend.runs.cancel("t", job.run_id)
        raise RuntimeError("a defect of the host")

    async with serving(APP, backend, dispatch=dispatch):
        handle = await client.enqueue("t", "say hello")
        assert (await handle.result(30)).status is RunStatus.CANCELLED
        told = [event.type async for event in handle.stream() if event.id]
        assert told[-2:] == ["message.completed", "run.cancelled"]


async def test_a_worker_that_was_declared_dead_starts_afresh(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: it stops its attempts without a write and registers under another id."""
    stopped = asyncio.Event()

    async def agent(ctx: RunContext) -> None:
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()
        finally:
            stopped.set()

    async with serving(App({"agent": agent}), backend) as worker:
        first = worker.worker_id
        handle = await client.enqueue("t", "hi")
        await until(lambda: is_status(client, "t", handle.id, RunStatus.RUNNING))
        [info] = await backend.workers.workers()
        assert info.heartbeat_at is not None
        await backend.workers.mark_dead(first, info.heartbeat_at)
        await asyncio.wait_for(stopped.wait(), 30)
        assert (await handle.result(30)).ok
        assert worker.worker_id != first
    run = await handle.run()
    assert (run.attempt, run.crash_count) == (2, 1)


async def test_claiming_goes_on_when_servers_come_back(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5: the loop lives on; a delivery that could not be won is offered again."""
    claim, failures = backend.runs.claim, 3

    async def flaky(worker_id: str, refs: Any, *, wait: float) -> list[Claim]:
        nonlocal failures
        if failures:
            failures -= 1
            raise BackendUnavailableError("away")
        return await claim(worker_id, refs, wait=wait)

    monkeypatch.setattr(backend.runs, "claim", flaky)
    async with serving(APP, backend):
        assert (await (await client.enqueue("t", "hi")).result(20)).ok


@pytest.mark.parametrize("outcome", ["not_due", "skipped"])
async def test_a_delivery_that_cannot_start_yet_is_submitted_again(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    claim, refusals = backend.runs.claim, 5  # more than the attempts of one delivery

    async def later(worker_id: str, refs: list[RunRef], *, wait: float) -> list[Claim]:
        nonlocal refusals
        if refusals:
            refusals -= 1
            return [Claim(ref, outcome, retry_in=0.01) for ref in refs]
        return await claim(worker_id, refs, wait=wait)

    monkeypatch.setattr(backend.runs, "claim", later)
    async with serving(APP, backend) as worker:
        assert (await (await client.enqueue("t", "hi")).result(30)).ok
        assert worker.reconciler.rescued == 0


async def test_a_claim_that_meets_another_lock_is_repeated(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q4: the lock of a table, for example, fails the whole claim. The claim loop makes no pause because of it."""
    claim, refusals = backend.runs.claim, 1

    async def locked(worker_id: str, refs: list[RunRef], *, wait: float) -> list[Claim]:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise LockedError("a lock")
        return await claim(worker_id, refs, wait=wait)

    monkeypatch.setattr(backend.runs, "claim", locked)
    async with serving(APP, backend):
        with capture_logs() as logs:
            assert (await (await client.enqueue("t", "hi")).result(30)).ok
    assert "claim_round_failed" not in [line["event"] for line in logs]


async def test_a_job_of_an_unknown_kind_is_left_for_another_version(backend: Backend, client: Client) -> None:
    await client.enqueue("t", "hi")
    [delivery] = await backend.scheduler.claim("x", ["default"], 1)
    unknown = replace(delivery.job, kind="fork_sideways")  # type: ignore[arg-type]
    await backend.scheduler.release("x", [delivery], submit=[unknown])
    async with serving(APP, backend):
        assert (await (await client.enqueue("other", "hi")).result(30)).ok
        assert await backend.scheduler.missing_jobs([unknown]) == []
        assert (await client.runs("t")).items[0].attempt == 0


async def test_a_run_waits_for_a_worker_of_its_version(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U2: given back and offered again, not started and not counted; explain says what it waits for."""
    monkeypatch.setattr("runyard.worker.claim_loop.OTHER_VERSION_RETRY_SECONDS", 0.02)
    first = App({"scripted": scripted}, version="1")
    second = App({"scripted": scripted}, version="2", on_version_mismatch="wait")
    async with serving(first, backend):
        handle = await client.enqueue("t", "color?")
        assert (await handle.result(30)).status is RunStatus.SUSPENDED
    async with serving(second, backend) as worker:
        await client.respond("t", "blue")
        assert (await (await client.enqueue("other", "hi")).result(30)).ok

        async def offered() -> bool:
            return "waiting for a worker of version 1; workers of queue default run 2" in await handle.explain()

        await until(offered)
        assert (await handle.run()).attempt == 1
        async with serving(first, backend):
            result = await handle.result(30)
            assert result.text == "color? blue"
            assert (result.run.attempt, result.run.crash_count, result.run.app_version) == (2, 0, "1")
        assert worker.reconciler.rescued == 0


def leader(backend: Backend, worker_id: str, carry_out: Callable[[Effects], None]) -> Reconciler:
    return Reconciler(backend, lambda: worker_id, carry_out, Retention(), leading=lambda: True)


async def test_the_leader_rescues_a_head_that_the_scheduler_lost(backend: Backend, client: Client) -> None:
    """I1, W2: once, and only after it was left alone for two seconds."""
    await client.enqueue("t", "hi")
    [delivery] = await backend.scheduler.claim("gone", ["default"], 1)
    await backend.scheduler.release("gone", [delivery])
    reconciler = leader(backend, "w", lambda effects: None)
    await reconciler.step()
    assert reconciler.rescued == 0

    async def rescued() -> bool:
        reconciler.hurry()
        await reconciler.step()
        return reconciler.rescued > 0

    await until(rescued)
    assert reconciler.rescued == 1
    reconciler.hurry()
    await reconciler.step()
    assert reconciler.rescued == 1


@pytest.mark.parametrize("queue", ["paused", "unserved"])
async def test_the_leader_ends_a_cancelled_run_that_lost_its_worker(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    """R10, I1: also one that nobody takes; what waits behind it is offered, and it is not."""
    monkeypatch.setattr("runyard.worker.lost_jobs.MIN_HEAD_AGE", timedelta(0))
    handle = await client.enqueue("t", "hi", queue=queue)
    behind = await client.enqueue("t", "hi", queue=queue)
    await backend.workers.register(WorkerInfo(worker_id="dies", queues=[queue]))
    [delivery] = await backend.scheduler.claim("dies", [queue], 1)
    await backend.runs.claim("dies", [delivery.job.ref])
    await backend.workers.register(WorkerInfo(worker_id="leads", queues=["paused"]))
    await backend.queues.pause("paused")
    await handle.cancel()
    told: list[Effects] = []
    reconciler = leader(backend, "leads", told.append)
    await reconciler.step()
    assert await handle.status() is RunStatus.RUNNING, "its worker has yet to stop"
    await backend.workers.leave("dies")
    told.clear()
    reconciler.hurry()
    await reconciler.step()
    assert await handle.status() is RunStatus.CANCELLED
    assert [event.type for effects in told for event in effects.events] == ["run.cancelled"]
    assert [job.run_id for effects in told for job in effects.jobs] == [behind.id]
    assert reconciler.rescued == 0


@pytest.mark.parametrize(
    "error", [BackendUnavailableError("redis is away"), RunyardError("NOREPLICAS")], ids=["away", "refusing"]
)
async def test_deadlines_fire_while_the_scheduler_is_away(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch, error: RunyardError
) -> None:
    """H7: it costs latency where a worker is needed, and nothing where the store decides alone."""

    async def agent(ctx: RunContext) -> None:
        await ctx.ask("?", timeout=0.05)

    async def away(jobs: object, dead: object = ()) -> list[Job]:
        raise error

    async with serving(App({"agent": agent}), backend):
        handle = await client.enqueue("t", "hi")
        await handle.result(30)
    await client.enqueue("u", "waits")
    monkeypatch.setattr("runyard.worker.lost_jobs.MIN_HEAD_AGE", timedelta(0))
    monkeypatch.setattr(backend.scheduler, "missing_jobs", away)
    reconciler = leader(backend, "w", lambda effects: None)

    async def failed() -> bool:
        await reconciler.step()
        return await handle.status() is RunStatus.FAILED

    await until(failed)


async def test_only_the_leader_acts(backend: Backend) -> None:
    acted: list[object] = []
    reconciler = Reconciler(backend, lambda: "w", acted.append, Retention(), leading=lambda: False)
    await reconciler.step()
    assert acted == []


async def test_a_pass_that_does_not_end_keeps_no_worker_alive(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1: heartbeats are read, the lease is renewed and deaths are declared while the work of the leader takes its time."""

    lead, renewals = backend.workers.lead, 0

    async def endless(**bounds: object) -> None:
        await asyncio.Event().wait()

    async def counted(worker_id: str, seconds: float) -> bool:
        nonlocal renewals
        leads = await lead(worker_id, seconds)
        renewals += leads
        return leads

    monkeypatch.setattr(backend.workers, "waiting", endless)
    monkeypatch.setattr(backend.workers, "lead", counted)
    for name in ("READ_SECONDS", "LEADER_READ_SECONDS"):
        monkeypatch.setattr(f"runyard.worker.failure_detector.{name}", 0.05)
    monkeypatch.setattr("runyard.worker.failure_detector.MIN_SPAN_SECONDS", 0.2)
    monkeypatch.setattr("runyard.worker.failure_detector.LEASE_SECONDS", 60.0)
    await backend.workers.register(WorkerInfo(worker_id="silent", queues=["default"]))
    async with serving(APP, backend) as worker:

        async def dead() -> bool:
            return any(w.worker_id == "silent" and w.dead_at is not None for w in await backend.workers.workers())

        await until(dead)
        before = renewals

        async def renewed() -> bool:
            return renewals > before + 2

        await until(renewed)
        assert worker.leading
        assert not await lead("another", 60)


async def test_a_death_begins_a_pass_at_once(backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """O4: the takeover waits for no further second."""
    monkeypatch.setattr("runyard.worker.reconciler.PASS_SECONDS", 3600)
    monkeypatch.setattr("runyard.worker.lost_jobs.MIN_HEAD_AGE", timedelta(0))
    for name in ("READ_SECONDS", "LEADER_READ_SECONDS"):
        monkeypatch.setattr(f"runyard.worker.failure_detector.{name}", 0.05)
    monkeypatch.setattr("runyard.worker.failure_detector.MIN_SPAN_SECONDS", 0.2)
    handle = await client.enqueue("t", "hi")
    await backend.workers.register(WorkerInfo(worker_id="dies", queues=["default"]))
    [delivery] = await backend.scheduler.claim("dies", ["default"], 1)
    await backend.runs.claim("dies", [delivery.job.ref])
    await backend.scheduler.release("dies", [delivery])
    async with serving(APP, backend):
        assert (await handle.result(30)).ok


async def test_a_run_that_becomes_due_is_admitted_by_the_leader(backend: Backend, client: Client) -> None:
    """R11."""
    async with serving(APP, backend):
        handle = await client.enqueue("t", "hi", delay=0.3)
        assert (await handle.result(30)).ok


async def test_a_store_that_does_not_answer_does_not_keep_a_worker_that_leaves(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6: the grace time begins at the signal, whatever becomes of the announcement."""

    async def frozen(worker_id: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("runyard.worker.worker.ANNOUNCE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(backend.workers, "drain", frozen)
    monkeypatch.setattr(backend.workers, "leave", frozen)
    async with asyncio.timeout(30):
        async with serving(APP, backend):
            handle = await client.enqueue("t", "say half | sleep 0.2 | say end")

            async def started() -> bool:
                return await handle.status() is RunStatus.RUNNING

            await until(started)
        assert (await handle.result(0)).ok


async def test_a_store_that_refuses_the_announcement_changes_nothing(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9: runs finish in the grace time, and the rest are released."""

    async def refuse(worker_id: str) -> None:
        raise KeyError("a table is gone")

    monkeypatch.setattr(backend.workers, "drain", refuse)
    monkeypatch.setattr(backend.workers, "leave", refuse)
    async with serving(APP, backend, grace=2.0):
        quick = await client.enqueue("quick", "sleep 0.1 | say done")
        slow = await client.enqueue("slow", "say half | sleep 60 | say end")
        await until(lambda: is_status(client, "slow", slow.id, RunStatus.RUNNING))
        await until(lambda: is_status(client, "quick", quick.id, RunStatus.RUNNING))
    assert (await quick.result(30)).ok
    assert await slow.status() is RunStatus.QUEUED


async def test_calls_that_cannot_be_cancelled_do_not_keep_a_worker_that_leaves(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6: a driver may wait for its server before it gives a cancelled call up."""
    answered = asyncio.Event()
    kept: set[asyncio.Task[Any]] = set()

    async def deaf(*_: Any, **__: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        kept.add(task)
        while not answered.is_set():
            with suppress(asyncio.CancelledError):
                await answered.wait()
        raise asyncio.CancelledError

    async def hints() -> AsyncIterator[RunRef]:
        yield await deaf()

    async def claiming_beating_and_listening() -> bool:
        return len(kept) == 3

    monkeypatch.setattr("runyard.worker.worker.ANNOUNCE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(backend.scheduler, "cancel_hints", hints)
    monkeypatch.setattr(backend.scheduler, "claim", deaf)
    monkeypatch.setattr(backend.workers, "beat", deaf)
    monkeypatch.setattr(backend.workers, "leave", deaf)
    worker = Worker(APP, backend, grace=0)
    monkeypatch.setattr("runyard.worker.worker.HANDOVER_SECONDS", 0.05)
    serving = asyncio.create_task(worker.run())
    try:
        await until(claiming_beating_and_listening)
        worker.stop()
        done, _ = await asyncio.wait((serving,), timeout=30)
    finally:
        answered.set()
        await asyncio.wait((*kept, serving))
    assert done


@pytest.mark.parametrize("name", ["on_job_start", "on_job_end", "after_job_end"])
async def test_a_hook_of_arq_that_raises_changes_nothing(backend: Backend, client: Client, name: str) -> None:
    """I1, W2: the run is executed once, and the next of its lane is submitted without a rescue."""
    called: list[str] = []

    async def hook(ctx: dict[str, Any]) -> None:
        called.append(ctx["job_id"])
        raise ValueError("no")

    async with serve(APP, backend, **{name: hook}) as worker:
        handles = [await client.enqueue("t", "say hello") for _ in range(2)]
        results = [await handle.result(30) for handle in handles]
        assert [(result.status, result.run.attempt) for result in results] == [(RunStatus.COMPLETED, 1)] * 2
        assert worker.reconciler.rescued == 0
    assert len(called) == 2


async def test_a_dead_worker_cannot_beat(backend: Backend) -> None:
    with pytest.raises(WorkerDeadError):
        await backend.workers.beat("never registered")
