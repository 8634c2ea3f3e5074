"""The stream of a thread with more runs than a reader follows, and cursors that claim what they like (E1, E3)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from runyard import Client
from runyard.domain.events import ThreadEvent
from runyard.events import thread_stream
from runyard.events.run_stream import position
from runyard.events.thread_cursor import MAX_CURSOR_BYTES, MAX_NAMED_RUNS, ThreadCursor
from runyard.events.thread_stream import MAX_FOLLOWED_RUNS, MAX_RUNS_TAKEN_UP, follow_thread
from runyard.events.unread import MAX_UNREAD_CHARACTERS
from runyard.models import Event, HitlRequest, JsonObject, Message
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.workers import WorkerInfo
from runyard_backends.memory import MemoryBackend, connect

BOUND = 60.0
FEW = 20
"""Runs of which a reader is to hold its bound, where the deployment's bound would only take longer."""


class Stage:
    """A thread whose runs do what the test says."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.backend, self.client = backend, Client(backend)

    async def claim(self, run_id: str) -> AttemptToken:
        key = await self.backend.threads.thread_key("t")
        assert key is not None
        [claim] = await self.backend.runs.claim("w", [RunRef(key, run_id)])
        assert claim.attempt is not None
        return claim.attempt

    async def begin(self, run_id: str) -> AttemptToken:
        await self.client.enqueue("t", "x", run_id, parallel=True)
        attempt = await self.claim(run_id)
        await self.tell(attempt, 1, "run.started")
        return attempt

    async def tell(self, attempt: AttemptToken, n: int, type: str) -> None:
        event = Event(id=f"{attempt.fence}-{n}", type=type, thread_id="t", run_id=attempt.run_id, data={"attempt": 1})
        await self.backend.events.append(attempt.thread_key, [event])

    async def say_much(self, attempt: AttemptToken) -> None:
        """Twice as much as may wait for a reader: who reads it is held up until its reader takes something."""
        for n in (2, 3):
            data: JsonObject = {"text": "x" * MAX_UNREAD_CHARACTERS}
            event = Event(id=f"{attempt.fence}-{n}", type="message.delta", thread_id="t", run_id=attempt.run_id, data=data)
            await self.backend.events.append(attempt.thread_key, [event])

    async def complete(self, attempt: AttemptToken, last: int = 2) -> None:
        await self.backend.runs.complete([Write(attempt=attempt, first_event=last)])
        await self.tell(attempt, last, "run.completed")

    async def ended(self, count: int) -> list[str]:
        ids = [f"r{n:04}" for n in range(count)]
        for run_id in ids:
            await self.complete(await self.begin(run_id))
        return ids


@pytest.fixture
async def stage() -> Stage:
    stage = Stage(await connect())
    await stage.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    return stage


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller bounds."""
    for name, value in (("MAX_RUNS_TAKEN_UP", FEW), ("PAGE_SIZE", FEW // 4), ("MAX_FOLLOWED_RUNS", FEW // 4)):
        monkeypatch.setattr(thread_stream, name, value)


def cursor(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def tasks() -> int:
    return sum(task.get_name().startswith("runyard-thread") for task in asyncio.all_tasks())


async def turns_over() -> None:
    """No run is being read in turn."""
    if turns := [task for task in asyncio.all_tasks() if task.get_name() == "runyard-thread-turns"]:
        await asyncio.wait(turns)


async def told(stream: AsyncGenerator[ThreadEvent], ends: set[str]) -> tuple[list[Event], int]:
    """Events until the runs ended, and how many tasks there were at once."""
    seen, left, busy = list[Event](), set(ends), 0
    async for entry in stream:
        seen.append(entry.event)
        busy = max(busy, tasks())
        if entry.event.type == "run.completed":
            left.discard(entry.event.run_id)
        if not left:
            break
    return seen, busy


def once(events: list[Event]) -> bool:
    return max(Counter(event.id for event in events if event.id).values()) == 1


async def test_a_cursor_that_has_seen_nothing_costs_no_task_per_run(stage: Stage, most: None) -> None:
    """E1: as many of the newest runs as a reader catches up with, each event once, after one gap for the older ones."""
    ids = await stage.ended(4 * FEW)
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor(-1, {}, None))) as stream:
        seen, busy = await told(stream, set(ids[-FEW:]))
    assert busy <= 3 and once(seen)
    assert [(event.type, event.run_id) for event in seen if event.type == "gap"] == [("gap", "")] and seen[0].type == "gap"
    assert {event.run_id for event in seen if event.run_id} == set(ids[-FEW:])


async def test_reader_that_leaves_while_it_catches_up_misses_nothing(stage: Stage, most: None) -> None:
    """E1: with a cursor from the middle, the rest comes."""
    ids = await stage.ended(4 * FEW)
    after: str | None = cursor(-1, {}, None)
    ended: set[str] = set()
    async with asyncio.timeout(BOUND):
        while not ended >= set(ids[-FEW:]):
            async with aclosing(follow_thread(stage.backend, "t", after)) as stream:
                async for after, event in stream:  # noqa: B007 - the cursor is for the next reader
                    if event.type == "run.completed":
                        ended.add(event.run_id)
                        break


async def test_within_the_bound_no_gap(stage: Stage, most: None) -> None:
    ids = await stage.ended(FEW // 2)
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor(-1, {}, None))) as stream:
        seen, _ = await told(stream, set(ids))
    assert once(seen) and not [event for event in seen if event.type == "gap"]


async def test_more_open_runs_than_are_followed_come_in_turn(stage: Stage, most: None) -> None:
    """E3: a bounded number of tasks, and every event of every run once, with no gap."""
    await stage.client.create_thread("t")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        attempts = [await stage.begin(f"r{n}") for n in range(FEW - 2)]
        ids = {attempt.run_id for attempt in attempts}
        begun: set[str] = set()
        seen: list[Event] = []
        async for entry in stream:
            seen.append(entry.event)
            assert tasks() <= FEW // 4 + 2
            if entry.event.type == "run.started":
                begun.add(entry.event.run_id)
            if begun == ids:
                break
        for attempt in attempts:
            await stage.tell(attempt, 2, "message.delta")
        for attempt in attempts:
            await stage.complete(attempt, last=3)
        more, busy = await told(stream, ids)
    assert busy <= FEW // 4 + 2 and once(seen + more)
    assert Counter(event.type for event in seen + more) == dict.fromkeys(
        ("run.queued", "run.started", "message.delta", "run.completed"), len(ids)
    )


async def test_behind_more_that_wait_than_are_looked_at_each_end_is_told(stage: Stage, most: None) -> None:
    """E1: runs that wait are the newest ones, and what ends in front of them is found all the same."""
    for n in range(3 * FEW):
        await stage.client.enqueue("t", "x", f"r{n:04}")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        assert (await anext(stream)).event.type in ("gap", "run.queued")
        for n in range(FEW):
            attempt = await stage.claim(f"r{n:04}")
            await stage.tell(attempt, 1, "run.started")
            await stage.complete(attempt)
        seen, _ = await told(stream, {f"r{n:04}" for n in range(FEW)})
    assert once(seen)


async def test_a_run_whose_end_was_told_has_no_further_turn(stage: Stage) -> None:
    """E1: it was found again while it was read, and its end is handed on while the next one has its turn."""
    for run_id in ("first", "second"):
        attempt = await stage.begin(run_id)
        await stage.say_much(attempt)
        await stage.complete(attempt, last=4)
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor(-1, {}, None))) as stream:
        seen, _ = await told(stream, {"first", "second"})
        await stage.complete(await stage.begin("last"))
        more, _ = await told(stream, {"last"})
    assert once(seen + more)


async def test_a_run_that_goes_on_during_its_turn_is_followed_after_it(stage: Stage) -> None:
    """E1: nobody else reads what its turn reads."""
    attempt = await stage.begin("r")
    await stage.say_much(attempt)
    await stage.backend.runs.suspend(Write(attempt=attempt, first_event=4), [HitlRequest(request_id="q")])
    await stage.tell(attempt, 4, "run.suspended")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor(-1, {}, None))) as stream:
        seen = [(await anext(stream)).event]
        await stage.client.respond("t", 1)
        again = await stage.claim("r")
        while seen[-1].type != "run.suspended":
            seen.append((await anext(stream)).event)
            for _ in range(50):  # whoever reads goes as far as there is room
                await asyncio.sleep(0)
        await stage.tell(again, 1, "run.resumed")
        await stage.complete(again)
        more, _ = await told(stream, {"r"})
    places = [place for event in seen + more if (place := position(event.id)) is not None]
    assert places == sorted(set(places))


async def test_run_beside_those_that_are_followed_is_looked_at_soon(
    stage: Stage, most: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: also where nothing else on the thread begins."""
    monkeypatch.setattr(thread_stream, "TURN_SECONDS", 0.01)
    attempts = [await stage.begin(f"r{n}") for n in range(FEW // 4 + 2)]
    async with asyncio.timeout(10), aclosing(follow_thread(stage.backend, "t", cursor(-1, {}, None))) as stream:
        for n, type in enumerate(("run.started", "message.delta"), 1):
            waiting = {attempt.run_id for attempt in attempts}
            for attempt in attempts:
                await stage.tell(attempt, n, type)  # what was told before changes nothing
            while waiting:
                event = (await anext(stream)).event
                waiting -= {event.run_id} if event.type == type else set()
            await turns_over()


async def test_first_event_of_a_run_may_come_late(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """E1: a run is committed before its stream hears of it; whoever looked in between looks again."""
    events, looked = stage.backend.events, asyncio.Event()
    read = events.read

    async def reading(ref: RunRef, after: str | None = None, *, page: bool = False) -> list[Event]:
        looked.set()
        return await read(ref, after, page=page)

    monkeypatch.setattr(events, "read", reading)
    accepted = await stage.backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("x")))
    async with asyncio.timeout(10), aclosing(follow_thread(stage.backend, "t", cursor(-1, {}, None))) as stream:
        following = asyncio.create_task(anext(stream))
        await looked.wait()
        await turns_over()
        await stage.backend.scheduler.submit(accepted.effects.jobs)
        assert (await following).event.type == "run.queued"


@pytest.mark.parametrize(
    "parts",
    [
        (-1, {f"{n}": "" for n in range(MAX_NAMED_RUNS + 1)}, None),
        (-1, {"r": "x"}, None),
        (-1, {"r": "1-01"}, None),
        (-1, {"r": "1-2-3"}, None),
        (-1, {"r": f"{2**63}-1"}, None),
        (-1, {"r": "١-١"}, None),
        (-1, {"r": 7}, None),
        (-1, {"..": ""}, None),
        (-1, [["r", ""]], None),
        (-2, {}, None),
        (2**63, {}, None),
        (True, {}, None),
        (1.5, {}, None),
        ("1", {}, None),
        (-1, {"x" * 200 + f"{n}": "" for n in range(MAX_NAMED_RUNS)}, None),
    ],
)
def test_a_cursor_says_what_a_stream_could_have_said(parts: Any) -> None:
    """A2: types, ranges and numbers of each part."""
    assert ThreadCursor.parse(cursor(*parts)) is None


def test_cursor_survives_its_text_form() -> None:
    place = ThreadCursor(7, {f"r{n}": f"{n}-1" for n in range(1, MAX_NAMED_RUNS)} | {"q": ""})
    assert ThreadCursor.parse(str(place.within(MAX_CURSOR_BYTES, {}))) == place


def test_the_bounds_are_what_the_documentation_says() -> None:
    assert (MAX_FOLLOWED_RUNS, MAX_RUNS_TAKEN_UP, MAX_NAMED_RUNS) == (100, 500, 128)
