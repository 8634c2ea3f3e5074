"""Events of attempts on their way out (E1, E2)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from runyard.domain.size_limits import MAX_BYTES
from runyard.errors import BackendUnavailableError
from runyard.events.writer import EventEmitter, EventWriter
from runyard.models import Event
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import OutsideEvent
from runyard_backends.redis.job_codec import packb

ATTEMPT = AttemptToken(1, "r", 7)


class Log:
    """An event log that can be away."""

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []
        self.away = False
        self.error: Exception | None = None
        self.encode: Callable[[object], object] = str
        self.written = asyncio.Event()

    async def append_many(self, batch: Sequence[tuple[RunRef, Sequence[Event]]]) -> None:
        if self.away:
            raise BackendUnavailableError("away")
        if self.error is not None:
            raise self.error
        self.encode([event.data for _, events in batch for event in events])
        self.batches.append([event for _, events in batch for event in events])
        self.written.set()

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]


@asynccontextmanager
async def writing(log: Log, tick: float = 0.01) -> AsyncIterator[EventWriter]:
    writer = EventWriter(log, tick=tick)  # type: ignore[arg-type]  # only what the writer uses
    task = asyncio.create_task(writer.run())
    yield writer
    writer.close()
    await task


def ids(log: Log) -> list[str | None]:
    return [event.id for event in log.events]


async def test_events_of_an_attempt_are_numbered_from_one_without_holes() -> None:
    log = Log()
    async with writing(log) as writer:
        stream = EventEmitter(writer, ATTEMPT, "t")
        stream.emit("run.started")
        stream.reserve(2).fill([("message.completed", {}), ("run.completed", {})])
    assert ids(log) == ["7-1", "7-2", "7-3"]


async def test_first_delta_is_written_with_run_started() -> None:
    log = Log()
    async with writing(log) as writer:
        await asyncio.sleep(0)
        stream = EventEmitter(writer, ATTEMPT, "t")

        async def agent() -> None:
            stream.delta("m", "Hello")

        stream.emit("run.started")
        await asyncio.create_task(agent())
        await log.written.wait()
    assert [event.type for event in log.batches[0]] == ["run.started", "message.delta"]


async def test_event_never_overtakes_a_write_under_way() -> None:
    """E2: message.completed follows its commit; what was emitted meanwhile waits behind it."""
    log = Log()
    async with writing(log) as writer:
        stream = EventEmitter(writer, ATTEMPT, "t")
        stream.emit("run.started", urgent=True)
        await log.written.wait()
        reservation = stream.reserve(1)
        stream.emit("tool.started", urgent=True)
        await asyncio.sleep(0.03)
        assert [event.type for event in log.events] == ["run.started"]
        reservation.fill([("message.completed", {})])
    assert [event.type for event in log.events] == ["run.started", "message.completed", "tool.started"]
    assert ids(log) == ["7-1", "7-2", "7-3"]


async def test_a_write_that_did_not_happen_leaves_no_hole() -> None:
    """E1: a reader takes a hole for a loss."""
    log = Log()
    async with writing(log) as writer:
        stream = EventEmitter(writer, ATTEMPT, "t")
        reservation = stream.reserve(3)
        stream.emit("tool.started")
        reservation.drop()
        stream.emit("tool.completed")
    assert [(event.id, event.type) for event in log.events] == [("7-1", "tool.started"), ("7-2", "tool.completed")]


async def test_numbers_that_a_write_did_not_use_are_given_back() -> None:
    log = Log()
    async with writing(log) as writer:
        stream = EventEmitter(writer, ATTEMPT, "t")
        reservation = stream.reserve(3)
        stream.emit("tool.started")
        reservation.fill([("run.cancelled", {})])
    assert [(event.id, event.type) for event in log.events] == [("7-1", "run.cancelled"), ("7-2", "tool.started")]


async def test_deltas_of_one_message_are_coalesced_within_a_tick() -> None:
    log = Log()
    async with writing(log, tick=0.05) as writer:
        stream = EventEmitter(writer, ATTEMPT, "t")
        stream.delta("m", "a")
        await log.written.wait()
        for text in ("b", "c", "d"):
            stream.delta("m", text)
            await asyncio.sleep(0)
        stream.delta("n", "e")
    assert [event.data["text"] for event in log.events] == ["a", "bcd", "e"]


@pytest.mark.parametrize("pieces", [["é" * 2_500_000], ["é" * 1000] * 2_500], ids=["one piece", "many pieces"])
async def test_a_delta_holds_no_more_than_an_event_may(pieces: list[str]) -> None:
    """A2: text of any length is sent, in as many deltas as it takes."""
    log = Log()
    async with writing(log, tick=60) as writer:
        stream = EventEmitter(writer, ATTEMPT, "t")
        for piece in pieces:
            stream.delta("m", piece)
        stream.delta("m", "")
    texts = [str(event.data["text"]) for event in log.events]
    assert len(texts) < 25 and "".join(texts) == "".join(pieces)
    assert all(len(text.encode()) <= MAX_BYTES["delta"] for text in texts)
    assert ids(log) == [f"7-{n}" for n in range(1, len(texts) + 1)]


async def test_an_empty_piece_is_sent() -> None:
    """It tells of a tool call without arguments."""
    log = Log()
    async with writing(log) as writer:
        EventEmitter(writer, ATTEMPT, "t").delta("m", "", "arguments", ("c1", "refund"))
    assert [event.data["arguments"] for event in log.events] == [""]


async def test_event_after_a_pause_is_written_at_once() -> None:
    log = Log()
    async with writing(log, tick=60) as writer:
        fast, slow = (EventEmitter(writer, AttemptToken(n, "r", n), "t") for n in (1, 2))
        fast.delta("m", "a")
        await log.written.wait()
        fast.delta("m", "b")
        log.written.clear()
        slow.delta("n", "c")
        async with asyncio.timeout(20):
            await log.written.wait()
        assert [event.data["text"] for event in log.events] == ["a", "c"]
        fast.delta("m", "d")
    assert [event.data["text"] for event in log.events] == ["a", "c", "bd"]


async def test_streams_of_a_worker_are_written_in_one_call() -> None:
    log = Log()
    async with writing(log) as writer:
        for n in range(10):
            EventEmitter(writer, AttemptToken(n, "r", n + 1), "t").emit("run.started")
    assert len(log.batches) == 1
    assert len(log.events) == 10


async def test_events_are_kept_while_the_log_is_away() -> None:
    log = Log()
    async with writing(log) as writer:
        log.away = True
        stream = EventEmitter(writer, ATTEMPT, "t")
        stream.emit("run.started", urgent=True)
        await asyncio.sleep(0.03)
        log.away = False
        stream.emit("run.completed", urgent=True)
        await asyncio.wait_for(log.written.wait(), 5)
    assert ids(log) == ["7-1", "7-2"]


async def test_events_that_are_given_up_are_counted_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """E1: an operator sees that readers have gaps, in one line and not in one per event."""
    monkeypatch.setattr("runyard.events.writer.MAX_HELD_EVENTS", 3)
    monkeypatch.setattr("runyard.events.writer.RETRY_SECONDS", 0.001)
    log, before = Log(), dropped()
    log.away = True
    with capture_logs() as logs:
        async with writing(log) as writer:
            stream = EventEmitter(writer, ATTEMPT, "t")
            for n in range(3):
                for _ in range(4):
                    stream.emit("tool.started", urgent=True)
                async with asyncio.timeout(5):
                    while dropped() < before + 4 * (n + 1):  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
            stream.emit("run.completed", urgent=True)
    assert dropped() == before + 13 and log.events == []
    assert [(entry["event"], entry["events"], entry["first_run_id"]) for entry in logs] == [
        ("events_dropped", 4, "r"),
        ("events_dropped", 9, "r"),
    ]


def dropped() -> float:
    return REGISTRY.get_sample_value("runyard_events_dropped_total") or 0.0


async def test_a_batch_that_cannot_be_written_does_not_end_the_writer() -> None:
    log = Log()
    async with writing(log) as writer:
        log.error = ValueError("a defect")
        EventEmitter(writer, ATTEMPT, "t").emit("run.started", urgent=True)
        await asyncio.sleep(0.02)
        log.error = None
        EventEmitter(writer, AttemptToken(2, "r", 8), "t").emit("run.started", urgent=True)
        await asyncio.wait_for(log.written.wait(), 5)
    assert ids(log) == ["8-1"]


async def test_an_event_that_cannot_be_encoded_is_dropped_alone() -> None:
    """E1: its number says that it is missing; the other events of its run, and other runs, do not notice."""
    log = Log()
    log.encode = packb
    async with writing(log) as writer:
        odd, fine = EventEmitter(writer, ATTEMPT, "t"), EventEmitter(writer, AttemptToken(2, "r", 8), "t")
        odd.emit("run.started")
        odd.emit("tool.started", {"arguments": {"number": 2**70}})
        odd.emit("run.completed")
        fine.emit("run.started")
        fine.emit("run.completed")
    assert sorted(ids(log), key=str) == ["7-1", "7-3", "8-1", "8-2"]


async def test_pieces_that_make_no_text_are_dropped_alone() -> None:
    """E1: their number says that they are missing; the other events of their run, and other runs, do not notice."""
    log = Log()
    async with writing(log) as writer:
        odd, fine = EventEmitter(writer, ATTEMPT, "t"), EventEmitter(writer, AttemptToken(2, "r", 8), "t")
        odd.emit("run.started")
        odd.delta("m", b"a")  # type: ignore[arg-type]
        odd.emit("run.completed")
        fine.emit("run.started")
        fine.delta("n", "a")
    assert sorted(ids(log), key=str) == ["7-1", "7-3", "8-1", "8-2"]


async def test_events_outside_an_attempt_keep_their_ids() -> None:
    log = Log()
    async with writing(log) as writer:
        writer.outside([OutsideEvent(RunRef(1, "r"), "t", "9-1", "run.cancelled")])
    assert [(event.id, event.type) for event in log.events] == [("9-1", "run.cancelled")]


async def test_a_closed_stream_says_nothing_more() -> None:
    log = Log()
    async with writing(log) as writer:
        stream = EventEmitter(writer, ATTEMPT, "t")
        stream.emit("run.completed")
        stream.close()
        stream.emit("message.delta")
    assert [event.type for event in log.events] == ["run.completed"]
