"""Chains: a worker that completes a run goes on with the next run of the lane, on the memory backend (R3, I4, W8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runyard import Client
from runyard.app import App
from runyard.execution.context import RunContext
from runyard.models import Message
from runyard.ports.commands import Write
from runyard.ports.refs import RunRef
from runyard.ports.results import Ended
from runyard.ports.scheduling import Delivery, Job
from runyard.ports.stores import Backend
from runyard.support import metrics
from runyard.worker.slots import Slots
from runyard.worker.worker import Worker
from runyard_backends.memory import connect

BOUND = 30.0


class Watch:
    """Counts the calls of a backend, and gates the agent. ``starts``: the runs in the order in which the agent began them."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend, self.starts, self.gates = backend, list[str](), dict[str, asyncio.Event]()
        self.claimed, self.calls = list[str](), Counter[str]()
        self.ends = list[Ended]()
        claim, complete, release = backend.scheduler.claim, backend.runs.complete, backend.scheduler.release

        async def noted_claim(*args: Any, **options: Any) -> list[Delivery]:
            deliveries = await claim(*args, **options)
            self.claimed.extend(delivery.job.run_id for delivery in deliveries)
            return deliveries

        async def noted_complete(writes: Sequence[Write], **options: Any) -> list[Ended | Exception]:
            ends = await complete(writes, **options)
            self.ends.extend(end for end in ends if isinstance(end, Ended))
            return ends

        async def noted_release(*args: Any, **options: Any) -> None:
            self.calls["release"] += 1
            await release(*args, **options)

        monkeypatch.setattr(backend.scheduler, "claim", noted_claim)
        monkeypatch.setattr(backend.scheduler, "release", noted_release)
        monkeypatch.setattr(backend.runs, "complete", noted_complete)

    async def agent(self, ctx: RunContext) -> None:
        self.starts.append(ctx.run_id)
        if ctx.run_id in self.gates:
            await self.gates[ctx.run_id].wait()
        await ctx.append(Message.assistant(f"{ctx.run_id}!"))

    async def started(self, run_id: str) -> None:
        async with asyncio.timeout(BOUND):
            while run_id not in self.starts:  # noqa: ASYNC110 - the agent runs in a worker
                await asyncio.sleep(0.001)

    def chained(self) -> list[str]:
        return [end.next.ref.run_id for end in self.ends if end.next is not None]


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(await connect(), monkeypatch)


@asynccontextmanager
async def serving(watch: Watch, app: App | None = None, **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(app or App({"agent": watch.agent}), watch.backend, **options)
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(worker.started.wait(), BOUND)
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, BOUND)


async def lane(watch: Watch, *runs: str, thread: str = "t", tenant: str = "") -> Client:
    """Enqueue runs of one lane. The first of them waits for its gate, so that the others are queued when it completes."""
    client = Client(watch.backend.for_tenant(tenant))
    watch.gates[runs[0]] = asyncio.Event()
    for run in runs:
        await client.enqueue(thread, "hi", run)
    return client


async def ended(client: Client, *runs: str, thread: str = "t") -> None:
    results = await asyncio.gather(*(client.handle(thread, run).result(BOUND) for run in runs))
    assert [result.status.value for result in results] == ["completed"] * len(runs)


async def test_a_lane_goes_on_without_the_scheduler(watch: Watch) -> None:
    """I4: The runs start in order. All runs but the first come without a job and without a claim of their own."""
    runs = [f"r{n}" for n in range(5)]
    client = await lane(watch, *runs)
    async with serving(watch) as worker:
        await watch.started("r0")
        watch.gates["r0"].set()
        await ended(client, *runs)
        assert worker.reconciler.rescued == 0
    assert watch.starts == runs and watch.claimed == ["r0"] and watch.chained() == runs[1:]
    assert watch.calls["release"] == 1, "the lock of the lane is kept throughout"
    assert len(worker.slots) == 0


async def test_each_run_of_a_chain_has_all_its_events_in_order(watch: Watch) -> None:
    """I9, E2."""
    client = await lane(watch, "r0", "r1", "r2")
    async with serving(watch):
        watch.gates["r0"].set()
        await ended(client, "r0", "r1", "r2")
    for run in ("r0", "r1", "r2"):
        events = [event async for event in client.handle("t", run).stream()]
        expected = ["run.queued", "run.started", "message.completed", "message.completed", "run.completed"]
        assert [event.type for event in events] == expected, run
        fences = [int(str(event.id).split("-")[0]) for event in events]
        assert fences == sorted(fences) and fences[0] < fences[1] and len(set(fences[1:])) == 1


async def test_the_waits_of_a_chained_run_are_measured(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run waited for its lane, and was picked up at the end of the run before."""
    observed: list[tuple[Any, float]] = []
    observe = metrics.observe

    def noted(metric: Any, value: float, *args: Any) -> None:
        observed.append((metric, value))
        observe(metric, value, *args)

    monkeypatch.setattr(metrics, "observe", noted)
    client = await lane(watch, "r0", "r1")
    async with serving(watch):
        watch.gates["r0"].set()
        await ended(client, "r0", "r1")
    assert watch.chained() == ["r1"]
    queue = metrics.queue_label("default")
    waits = [value for metric, value in observed if metric is metrics.child(metrics.QUEUE_WAIT, queue)]
    pickups = [value for metric, value in observed if metric is metrics.child(metrics.PICKUP, queue)]
    assert len(waits) == len(pickups) == 2 and waits[1] > 0 and pickups[1] < 0.1 <= BOUND


@pytest.mark.parametrize("how", ["stop", "drain"])
async def test_a_worker_that_stops_leaves_the_next_run_to_others(watch: Watch, how: str) -> None:
    """W8: The run that it executes ends. The next run of the lane is submitted, and has no attempt yet."""
    client = await lane(watch, "r0", "r1")
    async with serving(watch, grace=BOUND) as worker:
        await watch.started("r0")
        getattr(worker, how)()
        watch.gates["r0"].set()
        await ended(client, "r0")
    assert watch.starts == ["r0"] and watch.chained() == []
    assert (await client.handle("t", "r1").run()).attempt == 0
    async with serving(watch):
        await ended(client, "r1")


class Held:
    """A verb of a store whose answer is held until ``go`` is set. ``done``: the store has carried out the verb."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: object, verb: str) -> None:
        self.done, self.go = asyncio.Event(), asyncio.Event()
        original = getattr(store, verb)

        async def held(*args: Any, **options: Any) -> Any:
            answer = await original(*args, **options)
            if answer:
                self.done.set()
                await self.go.wait()
            return answer

        monkeypatch.setattr(store, verb, held)


@pytest.mark.parametrize("verb", ["complete", "claim"])
async def test_w6_a_run_whose_claim_arrives_after_the_handover_is_released(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    held = Held(monkeypatch, watch.backend.runs, verb)
    client = await lane(watch, "r0", "r1")
    watch.gates["r1"] = asyncio.Event()
    if verb == "complete":
        watch.gates["r0"].set()
    async with serving(watch, grace=0.0) as worker:
        await asyncio.wait_for(held.done.wait(), BOUND)
        worker.stop()
        async with asyncio.timeout(BOUND):
            while not worker.claim_loop._handing_over:  # noqa: ASYNC110 - the worker drains in its own task
                await asyncio.sleep(0.001)
        held.go.set()
    run = await client.handle("t", "r1" if verb == "complete" else "r0").run()
    assert run.status.value == "queued" and run.attempt == 1 and run.crash_count == 0


@pytest.mark.parametrize("verb", ["complete", "claim"])
async def test_w1_a_run_whose_claim_arrives_after_the_death_of_its_worker_is_abandoned(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    held = Held(monkeypatch, watch.backend.runs, verb)
    client = await lane(watch, "r0", "r1")
    watch.gates["r1"] = asyncio.Event()
    if verb == "complete":
        watch.gates["r0"].set()
    async with serving(watch) as worker:
        await asyncio.wait_for(held.done.wait(), BOUND)
        worker._abandon_runs(worker.worker_id)
        held.go.set()
        async with asyncio.timeout(BOUND):
            while len(worker.slots):  # noqa: ASYNC110 - the attempt ends in the worker
                await asyncio.sleep(0.001)
    run = await client.handle("t", "r1" if verb == "complete" else "r0").run()
    assert run.status.value == "running", "the attempt writes nothing"


async def test_a_queue_that_is_paused_ends_the_chain(watch: Watch) -> None:
    client = await lane(watch, "r0", "r1")
    async with serving(watch):
        await watch.started("r0")
        await client.backend.queues.pause("default")
        watch.gates["r0"].set()
        await ended(client, "r0")
        assert (await client.handle("t", "r1").run()).attempt == 0
        await client.backend.queues.resume("default")
        await ended(client, "r1")
    assert watch.chained() == []


async def test_a_long_lane_leaves_its_slot_to_other_tenants(watch: Watch) -> None:
    """W9, W10: No slot is free, and another tenant waits. After CHAIN_RUNS runs its turn has come, however long the lane is."""
    busy = [f"a{n:03}" for n in range(100)]
    client = await lane(watch, *busy, thread="a", tenant="a")
    async with serving(watch, slots=1):
        await watch.started("a000")
        other = Client(watch.backend.for_tenant("b"))
        await other.enqueue("b", "hi", "b")
        watch.gates["a000"].set()
        await ended(other, "b", thread="b")
        await ended(client, *busy, thread="a")
    assert watch.starts.index("b") <= 8
    assert [run for run in watch.starts if run != "b"] == busy


async def test_a_slot_is_passed_on_for_a_short_time_only(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """W10: Other workers may have free slots. A lane of slow runs is therefore never chained."""
    monkeypatch.setattr("runyard.worker.slots.CHAIN_SECONDS", 0.0)
    client = await lane(watch, "r0", "r1", "r2")
    async with serving(watch):
        watch.gates["r0"].set()
        await ended(client, "r0", "r1", "r2")
    assert watch.claimed == ["r0", "r1", "r2"] and watch.chained() == []


async def test_a_worker_with_a_late_heartbeat_ends_its_chains(watch: Watch) -> None:
    """W1: Before the leader can declare the worker dead, it claims nothing."""
    client = await lane(watch, "r0", "r1")
    async with serving(watch) as worker:
        await watch.started("r0")
        ref = (await client.backend.threads.thread_key("t"), "r0")
        assert ref[0] is not None
        assert worker.claim_loop.may_claim_next(RunRef(ref[0], "r0"))
        worker.claim_loop._late = lambda: True
        assert not worker.claim_loop.may_claim_next(RunRef(ref[0], "r0"))
        worker.claim_loop._late = lambda: False
        worker.claim_loop.close()
        assert not worker.claim_loop.may_claim_next(RunRef(ref[0], "r0"))
        worker.claim_loop.open(worker.worker_id)
        watch.gates["r0"].set()
        await ended(client, "r0", "r1")


def delivery(run_id: str, token: int = 7) -> Delivery:
    return Delivery(Job(1, run_id), token)


async def test_a_lock_stays_among_the_held_locks_when_its_slot_is_passed_on() -> None:
    """W3: The heartbeat thread renews what ``held`` returns."""
    slots = Slots(2)
    slots.take("w", [delivery("a")])
    assert slots.pass_on(RunRef(1, "a"), Job(1, "b")) == delivery("b")
    assert slots.held("w") == [delivery("b")] and slots.free == 1
    assert not slots.holds(RunRef(1, "a")) and slots.holds(RunRef(1, "b"))


async def test_the_newest_lock_is_passed_on() -> None:
    """The lock of the first delivery was lost if the run was delivered again."""
    slots = Slots(2)
    slots.take("w", [delivery("a")])
    slots.take("w", [delivery("a", 8)])
    assert slots.pass_on(RunRef(1, "a"), Job(1, "b")) == delivery("b", 8)


async def test_a_run_that_was_delivered_meanwhile_keeps_its_slot() -> None:
    """Its claim is under way. The worker looks again at its end."""
    slots = Slots(3)
    slots.take("w", [delivery("a"), delivery("b", 8)])
    assert slots.pass_on(RunRef(1, "a"), Job(1, "b")) is None
    assert slots.held("w") == [delivery("b")] and slots.free == 2


async def test_another_id_of_the_worker_passes_nothing_on() -> None:
    """W1: The runs of an id that was declared dead are taken over."""
    slots = Slots(2)
    slots.take("w", [delivery("a")])
    assert slots.may_pass_on(RunRef(1, "a"), "w")
    assert not slots.may_pass_on(RunRef(1, "a"), "another") and not slots.may_pass_on(RunRef(1, "unknown"), "w")
