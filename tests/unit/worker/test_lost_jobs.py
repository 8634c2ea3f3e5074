"""The rescue on the memory backend: what a pass examines, when it sweeps, and when a run is lost (I1, W2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError
from runyard.models import Message
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Effects, Job
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard.worker import lost_jobs as module
from runyard.worker.lost_jobs import MissingWatch, Rescue, Rotation
from runyard_backends.memory import connect

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that a test moves. ``tick``: seconds that pass at each look at it."""

    def __init__(self) -> None:
        self.seconds, self.tick = 0.0, 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        self.seconds += self.tick
        return self.seconds


class Lab:
    """A leader's rescue, and runs that wait."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend, self.clock = backend, clock
        self.effects: list[Effects] = []
        self.leads = True
        self.rescue = Rescue(backend, lambda: "leader", self.effects.append, lambda: self.leads, clock.monotonic)

    async def accept(self, *threads: str, known: bool = True) -> list[RunRef]:
        refs = []
        for thread in threads:
            accepted = await self.backend.runs.accept(AcceptRequest(thread_id=thread, run_id="r", input=Message.user("hi")))
            refs += [job.ref for job in accepted.effects.jobs]
            if known:
                await self.backend.scheduler.submit(accepted.effects.jobs)
        return refs

    async def lose(self, *threads: str) -> list[RunRef]:
        """Accept runs whose jobs no queue gets."""
        return await self.accept(*threads, known=False)

    async def execute(self, ref: RunRef) -> None:
        """Run to the end what waits, without a job."""
        await self.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
        [claim] = await self.backend.runs.claim("w", [ref])
        assert claim.attempt is not None
        await self.backend.runs.complete([Write(attempt=claim.attempt, messages=[Message.assistant("done")])])

    async def step(self, seconds: float = 0.0) -> int:
        """Make a pass after so many seconds. Return the number of runs that it submitted."""
        self.clock.seconds += seconds
        before = self.rescue.rescued
        await self.rescue.step()
        return self.rescue.rescued - before


@pytest.fixture
async def lab() -> Lab:
    clock = Clock()
    return Lab(await connect(now=clock.now), clock)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rotation goes two runs per read, and no pass looks at recent runs."""

    async def nothing(self: Rescue) -> None: ...

    monkeypatch.setattr(module, "ROTATION_ROWS", 2)
    monkeypatch.setattr(Rescue, "_look_at_recent", nothing)


async def test_a_lost_head_is_submitted_after_two_looks(lab: Lab) -> None:
    await lab.lose("t")
    assert [await lab.step(0.5), await lab.step(0.6), await lab.step(0.9), await lab.step(0.1)] == [0, 0, 0, 1]
    assert await lab.step(5) == 0, "it is in its queue now"


@pytest.mark.usefixtures("narrow")
async def test_a_young_head_is_not_looked_at_by_the_rotation(lab: Lab) -> None:
    """W2: Redis may be about to receive its job."""
    await lab.lose("t")
    assert [await lab.step(0.5), await lab.step(0.6), await lab.step(0.9), await lab.step(0.1)] == [0, 0, 0, 1]


async def test_a_head_that_was_queued_again_just_now_is_not_submitted(lab: Lab) -> None:
    """W2: it was executed between two looks, and the job of its next attempt is on its way to Redis."""
    [ref] = await lab.lose("t")
    assert await lab.step(2) == 0
    await lab.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    [claim] = await lab.backend.runs.claim("w", [ref])
    assert claim.attempt is not None
    lab.clock.seconds += 2
    await lab.backend.runs.release(claim.attempt, delay=0.0)
    assert [await lab.step(0.5), await lab.step(1), await lab.step(1)] == [0, 0, 1]


async def test_a_head_that_was_submitted_or_does_not_wait_is_forgotten(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2: the stores are asked for it once, and it takes no room."""
    asked = list[list[RunRef]]()
    still_waiting = lab.backend.workers.still_waiting

    async def noted(refs: list[RunRef], *, unchanged: timedelta) -> list[Job]:
        asked.append(list(refs))
        return await still_waiting(refs, unchanged=unchanged)

    monkeypatch.setattr(lab.backend.workers, "still_waiting", noted)
    [executed, lost] = await lab.lose("t", "u")
    assert await lab.step(2) == 0
    await lab.execute(executed)
    assert [await lab.step(2) for _ in range(3)] == [1, 0, 0]
    assert asked == [[executed, lost]]


async def test_a_known_head_is_not_submitted(lab: Lab) -> None:
    """W2: without faults nothing is rescued."""
    await lab.accept("t", "u")
    assert [await lab.step(2) for _ in range(5)] == [0] * 5


async def test_a_head_that_was_executed_between_two_looks_is_not_submitted(lab: Lab) -> None:
    """W2: it is missing from Redis at both looks, because it had a job in between only."""
    [ref] = await lab.lose("t")
    assert await lab.step(2) == 0
    await lab.execute(ref)
    assert [await lab.step(2), await lab.step(2)] == [0, 0]


async def test_a_head_that_the_scheduler_holds_again_is_not_submitted(lab: Lab) -> None:
    [ref] = await lab.lose("t")
    assert await lab.step(2) == 0
    await lab.backend.scheduler.submit([Job(ref.thread_key, ref.run_id)])
    assert await lab.step(2) == 0


@pytest.mark.usefixtures("narrow")
async def test_the_rotation_examines_a_part_in_each_pass_and_comes_back(lab: Lab) -> None:
    await lab.accept("a", "b", "c", "d")
    await lab.lose("e")
    lab.clock.seconds = 100.0
    assert [await lab.step(2) for _ in range(4)] == [0, 0, 0, 1], "the third pass met it"


@pytest.mark.usefixtures("narrow")
async def test_a_missing_head_is_looked_at_again_wherever_the_rotation_is(lab: Lab) -> None:
    await lab.lose("a")
    await lab.accept(*"bcdefgh")
    assert [await lab.step(100), await lab.step(1)] == [0, 1]


@pytest.mark.usefixtures("narrow")
async def test_a_lost_run_begins_a_sweep_that_finds_the_others(lab: Lab) -> None:
    await lab.lose("a")
    await lab.accept(*"bcdefgh")
    await lab.lose(*"ij")
    assert [await lab.step(100), await lab.step(1), await lab.step(1)] == [0, 1, 2]
    assert not lab.rescue.sweeping, "it has come round"


@pytest.mark.usefixtures("narrow")
async def test_a_sweep_examines_all_and_ends(lab: Lab) -> None:
    """W2: after a death, or when a worker begins to lead."""
    await lab.accept(*"abcdefg")
    await lab.lose("h")
    lab.rescue.sweep()
    assert [await lab.step(100), await lab.step(1)] == [0, 1]


@pytest.mark.usefixtures("narrow")
async def test_a_sweep_takes_a_part_of_the_time(lab: Lab) -> None:
    await lab.accept(*"abcdefgh")
    await lab.lose("i")
    lab.clock.seconds, lab.clock.tick = 100.0, 0.05
    lab.rescue.sweep()
    await lab.step()
    assert lab.rescue.sweeping and lab.clock.seconds < 100 + 2 * module.SWEEP_SECONDS
    assert await lab.step(1) == 0
    assert not lab.rescue.sweeping
    assert await lab.step(1) == 1


@pytest.mark.usefixtures("narrow")
async def test_a_sweep_is_repeated_when_the_locks_have_expired(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2: a worker that died between its two claims holds the locks of its jobs longer than it lives in the register."""

    async def held(jobs: object, dead: object = ()) -> list[Job]:
        return []

    await lab.accept(*"abcdefghijklmnopqrstuvwxyz")
    await lab.lose("zz")
    with monkeypatch.context() as patch:
        patch.setattr(lab.backend.scheduler, "missing_jobs", held)
        lab.rescue.sweep()
        assert await lab.step(2) == 0
        assert not lab.rescue.sweeping
    assert [await lab.step(3), await lab.step(1)] == [0, 1]


async def test_a_pass_without_the_scheduler_begins_a_sweep(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """O3: Redis may have come back without its data."""
    await lab.accept("t")

    async def away(jobs: object, dead: object = ()) -> list[Job]:
        raise BackendUnavailableError("redis is away")

    with monkeypatch.context() as patch:
        patch.setattr(lab.backend.scheduler, "missing_jobs", away)
        with pytest.raises(BackendUnavailableError):
            await lab.step(2)
    assert lab.rescue.sweeping
    await lab.step(2)
    assert not lab.rescue.sweeping


async def test_a_recent_run_is_found_in_the_next_pass(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2: the client died between commit and submission; a long queue waits before the run."""
    monkeypatch.setattr(module, "ROTATION_ROWS", 1)
    await lab.accept(*"abcdefgh")
    lab.clock.seconds = 100.0
    await lab.lose("late")
    assert [await lab.step(2), await lab.step(1)] == [0, 1]


async def test_more_recent_runs_than_one_pass_examines_are_examined_in_turn(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROTATION_ROWS", 1)
    monkeypatch.setattr(module, "RECENT_ROWS", 3)
    await lab.accept(*"abcdef")
    await lab.lose("g")
    assert [await lab.step(1.5) for _ in range(4)] == [0, 0, 0, 1]


async def test_orphans_are_submitted_at_once_and_a_bounded_number_per_pass(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2: their worker is dead, so nobody else submits them."""
    monkeypatch.setattr(module, "MAX_RESCUES_PER_PASS", 3)
    monkeypatch.setattr(module, "ORPHANS_PER_PAGE", 1)
    refs = await lab.lose(*"abcd")
    for n, ref in enumerate(refs):
        await lab.backend.workers.register(WorkerInfo(worker_id=f"w{n}", queues=["default"]))
        await lab.backend.runs.claim(f"w{n}", [ref])
    assert await lab.step(2) == 0
    for n in range(4):
        await lab.backend.workers.leave(f"w{n}")
    assert [await lab.step(2), await lab.step(), await lab.step(), await lab.step()] == [3, 1, 0, 0]


async def test_a_run_that_became_recent_during_a_long_pass_is_found_in_the_next_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: the time since the last look is added to the age of a recent run."""
    monkeypatch.setattr(module, "ROTATION_ROWS", 1)
    await lab.accept(*"abcdefgh")
    assert await lab.step(100) == 0
    await lab.lose("late")
    assert [await lab.step(60), await lab.step(1)] == [0, 1]


async def orphan(lab: Lab, *threads: str) -> list[RunRef]:
    """Runs of a worker ``gone``, which has the jobs and the locks of their lanes, and is not registered any more."""
    refs = await lab.accept(*threads)
    await lab.backend.workers.register(WorkerInfo(worker_id="gone", queues=["default"]))
    assert len(await lab.backend.scheduler.claim("gone", ["default"], 99)) == len(refs)
    await lab.backend.runs.claim("gone", refs)
    await lab.backend.workers.leave("gone")
    return refs


async def test_an_orphan_does_not_wait_for_the_lock_of_its_worker(lab: Lab) -> None:
    """O4: a worker that is cut off from Postgres may keep its locks in Redis. The next holder of the lock counts."""
    await orphan(lab, "t")
    assert await lab.step() == 1
    assert len(await lab.backend.scheduler.claim("heir", ["default"], 9)) == 1
    assert [await lab.step() for _ in range(3)] == [0] * 3


async def test_a_run_that_a_dead_worker_took_from_its_queue_only_does_not_wait_for_the_lock(lab: Lab) -> None:
    """O4: the worker died between its claim in Redis and its claim in the store, so that the run is still queued there."""
    workers = lab.backend.workers
    for worker_id in ("dead", "alive"):
        await workers.register(WorkerInfo(worker_id=worker_id, queues=["default"]))
    [lost] = await lab.accept("t")
    assert len(await lab.backend.scheduler.claim("dead", ["default"], 9)) == 1
    await lab.accept("u")
    assert len(await lab.backend.scheduler.claim("alive", ["default"], 9)) == 1
    assert await lab.step(1.5) == 0
    [dead] = [worker for worker in await workers.workers() if worker.worker_id == "dead"]
    assert dead.heartbeat_at is not None and await workers.mark_dead("dead", dead.heartbeat_at)
    assert [await lab.step(), await lab.step(1)] == [0, 1]
    [taken] = await lab.backend.scheduler.claim("heir", ["default"], 9)
    assert taken.job.ref == lost


async def test_an_orphan_whose_cancel_was_requested_is_ended_and_not_submitted(lab: Lab) -> None:
    """R10, W2: no worker has to claim a run to learn that it ended."""
    await orphan(lab, "t")
    await lab.backend.runs.cancel("t", "r")
    await lab.backend.workers.register(WorkerInfo(worker_id="leader", queues=["default"]))
    assert await lab.step() == 0
    assert (await lab.backend.runs.run("t", "r")).status is RunStatus.CANCELLED
    assert await lab.backend.scheduler.claim("heir", ["default"], 9) == []


async def test_more_orphans_than_a_pass_submits_leave_no_room_for_lost_heads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2: a pass submits all orphans of a worker, which may be more than the bound of a pass."""
    monkeypatch.setattr(module, "MAX_RESCUES_PER_PASS", 3)
    await lab.lose(*"xyz")
    assert await lab.step(2) == 0
    await orphan(lab, *"abcde")
    assert [await lab.step(2), await lab.step(2)] == [5, 3]


async def test_a_pass_over_an_empty_redis_keeps_a_bounded_number_of_heads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESCUES_PER_PASS", 3)
    monkeypatch.setattr(module, "ROTATION_ROWS", 1)
    monkeypatch.setattr(module, "RECENT_ROWS", 1)
    looked_at = list[int]()
    missing_jobs = lab.backend.scheduler.missing_jobs

    async def noted(jobs: list[Job], dead: object = ()) -> list[Job]:
        looked_at.append(len(jobs))
        return await missing_jobs(jobs)

    monkeypatch.setattr(lab.backend.scheduler, "missing_jobs", noted)
    await lab.lose(*"abcdefghij")
    lab.rescue.sweep()
    assert await lab.step(100) == 0
    assert sum(looked_at) <= 4
    assert [await lab.step(2) for _ in range(4)] == [3, 3, 3, 1]


async def test_a_worker_that_no_longer_leads_submits_no_orphans(lab: Lab) -> None:
    """W1: the new leader does."""
    await orphan(lab, "t")
    lab.leads = False
    assert await lab.step() == 0
    lab.leads = True
    assert await lab.step() == 1


async def test_a_worker_that_no_longer_leads_stops_in_the_middle(lab: Lab) -> None:
    await lab.lose("t")
    lab.leads = False
    lab.rescue.sweep()
    await lab.step(100)
    assert lab.rescue.sweeping


def place(n: int) -> tuple[datetime, int]:
    return (START, n)


def test_a_sweep_from_the_middle_ends_where_it_began() -> None:
    rotation = Rotation()
    rotation.advance(place(3))
    rotation.sweep()
    seen = []
    for after in (place(6), None, place(2), place(5)):
        rotation.advance(after)
        seen.append(rotation.sweeping)
    assert seen == [True, True, True, False]


def test_a_sweep_from_the_middle_of_a_later_round_goes_round_too() -> None:
    rotation = Rotation()
    seen = []
    for after in (None, place(3)):
        rotation.advance(after)
    rotation.sweep()
    for after in (place(6), None, place(3)):
        rotation.advance(after)
        seen.append(rotation.sweeping)
    assert seen == [True, True, False]


def test_a_sweep_that_is_asked_for_in_a_sweep_goes_round_from_there() -> None:
    rotation = Rotation()
    rotation.sweep()
    rotation.advance(place(3))
    rotation.sweep()
    rotation.advance(None)
    assert rotation.sweeping
    rotation.advance(place(3))
    assert not rotation.sweeping


def test_a_missing_head_is_lost_after_a_second() -> None:
    watch, job = MissingWatch(), Job(1, "r")
    watch.note([job], 0.0)
    watch.note([job], 0.9)
    assert watch.lost([job], 0.9) == []
    assert watch.lost([job], 1.0) == [job.ref]
    assert watch.lost([], 2.0) == [] and len(watch) == 0
