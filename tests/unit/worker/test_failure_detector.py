"""When a worker is dead: three reads over 3 s, each answered in 1 s, show one heartbeat (W1)."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from runyard.errors import BackendUnavailableError
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard.worker.failure_detector import FailureDetector, HeartbeatWatch
from runyard_backends.memory import connect

START = datetime(2026, 1, 1, tzinfo=UTC)


def worker(beat: float, worker_id: str = "w", dead_at: datetime | None = None) -> WorkerInfo:
    return WorkerInfo(worker_id=worker_id, queues=["default"], heartbeat_at=START + timedelta(seconds=beat), dead_at=dead_at)


def read(watch: HeartbeatWatch, at: float, *workers: WorkerInfo, took: float = 0.01) -> list[str]:
    return [worker_id for worker_id, _ in watch.observe(workers, asked=at, answered=at + took)]


def test_the_same_heartbeat_over_three_seconds_is_death() -> None:
    watch = HeartbeatWatch()
    assert [read(watch, at, worker(0)) for at in (10, 11, 12, 13)] == [[], [], [], ["w"]]


def test_the_heartbeat_that_was_seen_is_reported_so_that_a_late_beat_wins() -> None:
    watch = HeartbeatWatch()
    for at in (10.0, 11.5, 13.0):
        dead = watch.observe([worker(4)], asked=at, answered=at)
    assert dead == [("w", START + timedelta(seconds=4))]


def test_a_beating_worker_lives() -> None:
    watch = HeartbeatWatch()
    assert not any(read(watch, at, worker(at)) for at in range(10, 40))


def test_a_beat_in_between_starts_the_count_afresh() -> None:
    watch = HeartbeatWatch()
    beats = [0, 0, 0, 1, 1, 1]
    assert not any(read(watch, 10 + n, worker(beat)) for n, beat in enumerate(beats))
    assert read(watch, 16, worker(1)) == ["w"]


def test_a_store_that_stalls_kills_nobody() -> None:
    """A read that took more than a second says nothing, and the count starts afresh."""
    watch = HeartbeatWatch()
    for at in (10, 11, 12):
        read(watch, at, worker(0))
    assert read(watch, 13, worker(0), took=10.0) == []
    assert [read(watch, at, worker(0)) for at in (24, 25, 26)] == [[], [], []]
    assert read(watch, 27, worker(0)) == ["w"]


def test_a_read_without_answer_starts_the_count_afresh() -> None:
    watch = HeartbeatWatch()
    for at in (10, 11, 12):
        read(watch, at, worker(0))
    watch.failed()
    assert read(watch, 13, worker(0)) == []


def test_a_reader_that_was_stopped_itself_judges_nobody() -> None:
    watch = HeartbeatWatch()
    read(watch, 10, worker(0))
    read(watch, 11, worker(0))
    assert read(watch, 60, worker(0)) == []


@pytest.mark.parametrize("workers", [[], [worker(0, dead_at=START)]])
def test_worker_that_left_or_is_dead_is_not_reported(workers: list[WorkerInfo]) -> None:
    watch = HeartbeatWatch()
    for at in (10, 11, 12):
        read(watch, at, worker(0))
    assert read(watch, 13, *workers) == []


def test_workers_are_judged_one_by_one() -> None:
    watch = HeartbeatWatch()
    for at in (10, 11, 12):
        read(watch, at, worker(0, "silent"), worker(at, "beating"))
    assert read(watch, 13, worker(0, "silent"), worker(13, "beating")) == ["silent"]


class Lab:
    """A worker ``w`` that sends no heartbeats, and the failure detector of a worker ``leader`` with short times."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.changes, self.silence = backend, 0, 0.0
        self.worker_id: str | None = "leader"
        self.detector = FailureDetector(lambda: self.worker_id, self.change, lambda: self.silence)

    def change(self) -> None:
        self.changes += 1

    async def step(self) -> None:
        await self.detector.step(self.backend)

    async def dead(self) -> list[str]:
        return [worker.worker_id for worker in await self.backend.workers.workers() if worker.dead_at is not None]


@pytest.fixture
async def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr("runyard.worker.failure_detector.MIN_SPAN_SECONDS", 0.0)
    backend = await connect()
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    return Lab(backend)


async def away(*args: object) -> None:
    raise BackendUnavailableError("postgres is away")


async def test_the_leader_declares_dead_and_says_so(lab: Lab) -> None:
    """W1: at the third read. It says also that it began to lead, because other work waits for both."""
    seen = []
    for _ in range(4):
        await lab.step()
        seen.append((await lab.dead(), lab.changes))
    assert seen == [([], 1), ([], 1), (["w"], 2), (["w"], 2)]
    assert lab.detector.leading


async def test_only_the_leader_declares_dead(lab: Lab) -> None:
    assert await lab.backend.workers.lead("another", 60)
    for _ in range(5):
        await lab.step()
    assert (await lab.dead(), lab.detector.leading, lab.changes) == ([], False, 0)


async def test_read_that_fails_begins_the_count_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1: the reads before and after it are not consecutive."""
    await lab.step()
    await lab.step()
    with monkeypatch.context() as patch:
        patch.setattr(lab.backend.workers, "workers", away)
        with pytest.raises(BackendUnavailableError):
            await lab.step()
    seen = []
    for _ in range(3):
        await lab.step()
        seen.append(await lab.dead())
    assert seen == [[], [], ["w"]]


@pytest.mark.parametrize("verb", ["workers", "lead"])
@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_lease_that_is_not_renewed_ends_the_leading(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, verb: str, how: str
) -> None:
    """W1: another worker may hold the lease by then, also if the store does not answer."""
    monkeypatch.setattr("runyard.worker.failure_detector.LEASE_SECONDS", 0.05)
    await lab.step()
    lead = lab.backend.workers.lead
    assert lab.detector.leading and not await lead("another", 60)

    async def hang(*args: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(lab.backend.workers, verb, away if how == "fails" else hang)
        step = asyncio.create_task(lab.step())
        async with asyncio.timeout(5):
            while not await lead("another", 0.05):  # noqa: ASYNC110 - the lease is in the store
                await asyncio.sleep(0.001)
            assert not lab.detector.leading
        step.cancel()
        await asyncio.wait((step,))
    async with asyncio.timeout(5):
        while not lab.detector.leading:
            await asyncio.sleep(0.001)
            await lab.step()
    assert lab.changes >= 2


async def test_worker_whose_main_loop_stands_still_does_not_lead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1: the work of the leader is done in that loop, so another worker has to lead."""
    monkeypatch.setattr("runyard.worker.failure_detector.LEASE_SECONDS", 0.05)
    await lab.step()
    lab.silence = 0.1
    async with asyncio.timeout(5):
        while not await lab.backend.workers.lead("another", 0.05):
            await asyncio.sleep(0.001)
            await lab.step()
    assert not lab.detector.leading


async def test_worker_that_is_not_registered_does_not_lead(lab: Lab) -> None:
    lab.worker_id = None
    await lab.step()
    assert not lab.detector.leading and await lab.backend.workers.lead("another", 60)


async def test_leader_whose_lease_expires_while_it_declares_dead_stops(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(9):
        await lab.backend.workers.register(WorkerInfo(worker_id=f"w{n}", queues=["default"]))
    monkeypatch.setattr("runyard.worker.failure_detector.LEASE_SECONDS", 0.05)
    mark_dead = lab.backend.workers.mark_dead

    async def slow(worker_id: str, heartbeat_at: datetime) -> bool:
        await asyncio.sleep(0.06)
        return await mark_dead(worker_id, heartbeat_at)

    monkeypatch.setattr(lab.backend.workers, "mark_dead", slow)
    for _ in range(3):
        await lab.step()
    assert len(await lab.dead()) == 1


async def test_detector_continues_after_any_error(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shares the thread of the heartbeats."""
    for name in ("READ_SECONDS", "LEADER_READ_SECONDS"):
        monkeypatch.setattr(f"runyard.worker.failure_detector.{name}", 0.0)
    workers, failures = lab.backend.workers.workers, [ValueError("odd"), BackendUnavailableError("away")]

    async def odd() -> object:
        if failures:
            raise failures.pop()
        return await workers()

    monkeypatch.setattr(lab.backend.workers, "workers", odd)
    running = asyncio.create_task(lab.detector.run(lab.backend))
    async with asyncio.timeout(5):
        while not lab.detector.leading:  # noqa: ASYNC110 - the detector sets it
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait((running,))
    assert not failures
