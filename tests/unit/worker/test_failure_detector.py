"""When a worker is dead: three reads over 3 s, each answered in 1 s, show one heartbeat; when a run is lost (W1, W2)."""

from datetime import UTC, datetime, timedelta

import pytest

from runyard.ports.scheduling import Job
from runyard.ports.workers import LaneHead, WorkerInfo
from runyard.worker.failure_detector import HeartbeatWatch, MissingWatch

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


def job(run_id: str) -> Job:
    return Job(1, run_id)


def look(watch: MissingWatch, now: float, *missing: LaneHead) -> list[str]:
    watch.begin()
    lost = watch.lost(missing, [head.job for head in missing], now)
    watch.end()
    return [job.run_id for job in lost]


def test_a_head_that_is_on_its_way_is_not_lost() -> None:
    """W2: without faults nothing is rescued, also if a run that waited long became a head just now."""
    watch, head = MissingWatch(), LaneHead(job("r"))
    assert look(watch, 0.0, head) == []
    assert look(watch, 0.5) == []
    assert look(watch, 5.0, head) == []
    assert look(watch, 5.9, head) == []


def test_a_head_that_stays_missing_is_lost() -> None:
    """I1."""
    watch, head = MissingWatch(), LaneHead(job("r"))
    assert look(watch, 0.0, head) == []
    assert look(watch, 1.0, head) == ["r"]


def test_an_orphan_is_lost_at_once() -> None:
    """W2: its worker is dead, so nobody else brings it."""
    assert look(MissingWatch(), 0.0, LaneHead(job("r"), orphaned=True)) == ["r"]
