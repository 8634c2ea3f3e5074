"""The stream of a thread where nothing happens by chance: what its cursors name and what they leave out (E1, E3)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from runyard.domain.events import ThreadEvent
from runyard.domain.states import RunStatus
from runyard.events import thread_stream
from runyard.events.thread_cursor import ThreadCursor
from runyard.events.thread_stream import follow_thread
from runyard.events.unread import MAX_UNREAD_CHARACTERS, Unread
from runyard.models import Event, HitlRequest, JsonObject, Run
from runyard.ports.commands import Write
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.results import Page
from runyard_backends.memory import connect
from tests.support.thread_stage import Stage

BOUND = 60.0
HEADER = 20_000
"""Characters of a Last-Event-ID that the API takes."""


@pytest.fixture
async def stage() -> Stage:
    return Stage(await connect())


async def until(stage: Stage, after: str | None, run_id: str, type: str) -> list[ThreadEvent]:
    """The stream from a cursor on, up to an event."""
    seen = []
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", after)) as stream:
        async for entry in stream:
            seen.append(entry)
            if (entry.event.run_id, entry.event.type) == (run_id, type):
                break
    return seen


def told(entries: list[ThreadEvent], run_id: str) -> list[str]:
    return [entry.event.type for entry in entries if entry.event.run_id == run_id]


async def test_before_a_higher_fence_the_runs_below_it_are_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: a run that began and ended beside the one that is read, and of which nobody told this reader, is in the cursor."""
    begins = stage.backend.events.begins

    async def once(thread_key: int) -> AsyncIterator[bool]:
        yield await anext(begins(thread_key))
        await asyncio.Event().wait()

    monkeypatch.setattr(stage.backend.events, "begins", once)
    first = await stage.begin("read")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        assert (await anext(stream)).event.type == "run.queued"
        assert (await anext(stream)).event.type == "run.started"
        beside = await stage.begin("beside", parallel=True)
        await stage.complete(beside)
        await stage.backend.runs.suspend(Write(attempt=first, first_event=2), [HitlRequest(request_id="q")])
        await stage.client.respond("t", 1)
        again = await stage.claim("read")
        assert again.fence > beside.fence
        await stage.tell(again, 1, "run.resumed")
        async for entry in stream:
            if entry.event.type == "run.resumed":
                cursor = entry.cursor
                break
    assert told(await until(stage, cursor, "beside", "run.completed"), "beside")[-1] == "run.completed"


async def test_run_that_ends_during_a_listing_comes_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: the listing says that the run is running, and the run's last event is unread when the listing ends."""
    attempt = await stage.begin("r")
    listed = stage.backend.runs.runs

    async def runs(where: RunFilter, page: PageRequest) -> Page[Run]:
        found = await listed(where, page)
        if where.status is RunStatus.QUEUED and await stage.backend.runs.run("t", "beside") is not None:
            await stage.complete(attempt)
            await stage.tell(attempt, 2, "run.completed")
            await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "runyard-thread-run"])
        return found

    monkeypatch.setattr(stage.backend.runs, "runs", runs)
    seen = []
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        async for entry in stream:
            seen.append(entry)
            match entry.event.run_id, entry.event.type:
                case "r", "run.started":
                    await stage.client.enqueue("t", "x", "beside", parallel=True)
                case "r", "run.completed":
                    monkeypatch.undo()
                    for _ in range(50):  # whoever reads reads to the end
                        await asyncio.sleep(0)
                    await stage.client.enqueue("t", "x", "last", parallel=True)
                case "last", _:
                    break
    assert told(seen, "r") == ["run.queued", "run.started", "run.completed"]


async def test_with_many_that_wait_the_one_that_runs_is_not_forgotten(stage: Stage) -> None:
    """E1: its end has a lower fence than what those who wait said since."""
    running = await stage.begin("running")
    for n in range(60):
        await stage.client.enqueue("t", "x", f"{n:02}" + "w" * 200, parallel=True)
    last = "59" + "w" * 200
    seen = await until(stage, None, last, "run.queued")
    while len({entry.event.run_id for entry in seen}) < 61:
        seen += await until(stage, seen[-1].cursor, next(_missing(seen)), "run.queued")
    cursor = seen[-1].cursor
    assert len(cursor) < HEADER
    await stage.complete(running)
    assert told(await until(stage, cursor, "running", "run.completed"), "running") == ["run.completed"]


def _missing(seen: list[ThreadEvent]) -> Any:
    found = {entry.event.run_id for entry in seen}
    return (id for n in range(60) if (id := f"{n:02}" + "w" * 200) not in found)


async def test_a_cursor_fits_into_a_header_and_loses_nothing(stage: Stage) -> None:
    """E1, E3: however many runs wait, and behind how many newer ones: who comes back sees how each of them ended."""
    ids = [f"{n:03}" + "w" * 200 for n in range(150)]
    for run_id in ids:
        await stage.client.enqueue("t", "x", run_id)
    for n in range(thread_stream.PAGE_SIZE + 1):
        await stage.client.enqueue("t", "x", f"over{n}", parallel=True)
        await stage.client.cancel("t", f"over{n}")
    [*_, (cursor, _)] = await until(stage, None, ids[0], "run.queued")
    assert len(cursor) < HEADER
    for run_id in ids:
        await stage.client.cancel("t", run_id)
    ended: set[str] = set()
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor)) as stream:
        async for entry in stream:
            assert len(entry.cursor) < HEADER
            if entry.event.type == "run.cancelled":
                ended.add(entry.event.run_id)
            if ended >= set(ids):
                break


async def test_a_reader_without_cursor_gets_nothing_of_old_runs(stage: Stage) -> None:
    """E3: not even behind a page full of runs that wait."""
    await stage.complete(await stage.begin("old"))
    for n in range(thread_stream.PAGE_SIZE + 10):
        await stage.client.enqueue("t", "x", f"r{n}")
    [*_, (cursor, _)] = await until(stage, None, "r0", "run.queued")
    place = ThreadCursor.parse(cursor)
    assert place is not None and "r0" in place.open and "old" not in place.open


@pytest.mark.parametrize(
    "place",
    [
        "x",
        [1, {}],
        [1, {"a\0b": ""}, None],
        [1, {"\ud800": ""}, None],
        [1, {"": ""}, None],
        [1, {"x" * 256: ""}, None],
        [1, {}, "2030-01-01T00:00:00"],
        [1, {}, 7],
        [1e999, {}, None],
    ],
)
async def test_cursor_that_no_stream_issued_is_refused(stage: Stage, place: Any) -> None:
    """A2: names that no store could be asked for among it."""
    await stage.client.create_thread("t")
    cursor = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
    [(_, event)] = await until(stage, cursor, "", "gap")
    assert event.id is None


async def test_unread_events_of_a_slow_reader_are_bounded_in_text(stage: Stage) -> None:
    """E3: a hundred events may be a hundred large ones; those that wait are handed on later, and none is lost."""
    attempt = await stage.begin("r")
    for n in range(2, 42):
        data: JsonObject = {"text": "x" * 100_000}
        event = Event(id=f"{attempt.fence}-{n}", type="message.delta", thread_id="t", run_id="r", data=data)
        await stage.backend.events.append(attempt.thread_key, [event])
    unread = Unread()
    events = await stage.backend.events.read(await stage.ref("r"))

    async def write() -> None:
        for event in events:
            await unread.put(event)
        await unread.put(None)

    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write())
        for _ in range(200):
            await asyncio.sleep(0)
        assert unread.waiting <= 5 and not writing.done()
        assert [await unread.get() for _ in range(len(events) + 1)] == [*events, None]


async def test_unread_event_larger_than_the_bound_is_delivered(stage: Stage) -> None:
    unread = Unread()
    large = Event(
        id="1-1", type="message.delta", thread_id="t", run_id="r", data={"text": ["x" * MAX_UNREAD_CHARACTERS, {"y": "x"}]}
    )
    async with asyncio.timeout(BOUND):
        for _ in range(3):
            await unread.put(large)
            assert await unread.get() == large
