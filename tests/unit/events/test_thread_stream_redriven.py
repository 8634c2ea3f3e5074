"""The stream of a thread whose runs fail, are redriven, or go on while their reader is slow (E1, E3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from runyard.domain.events import ThreadEvent
from runyard.domain.runs import ErrorInfo
from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError
from runyard.events import thread_stream
from runyard.events.run_stream import START, position
from runyard.events.thread_cursor import ThreadCursor
from runyard.events.thread_stream import follow_thread, thread_cursor
from runyard.models import HitlRequest, Run
from runyard.ports.commands import Write
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Page
from runyard_backends.memory import connect
from tests.support.thread_stage import Stage

BOUND = 10.0
"""Seconds within which a test ends. A reader lists the runs on its own after longer."""


class Redrives(Stage):
    async def fail(self, attempt: AttemptToken, n: int) -> None:
        await self.backend.runs.fail(Write(attempt=attempt, first_event=n), ErrorInfo(code="x", message="x"))
        await self.tell(attempt, n, "run.failed")

    async def redrive(self, run_id: str) -> AttemptToken:
        """Redrive the run, and claim it."""
        await self.client.redrive("t", run_id)
        again = await self.claim(run_id)
        await self.tell(again, 1, "run.started")
        return again

    async def completed(self, attempt: AttemptToken) -> None:
        await self.complete(attempt)
        await self.tell(attempt, 2, "run.completed")


@pytest.fixture
async def stage() -> Redrives:
    return Redrives(await connect())


async def others() -> None:
    """Let the tasks of the reader run, as a socket does."""
    for _ in range(20):
        await asyncio.sleep(0)


async def events(
    stream: AsyncGenerator[ThreadEvent], over: Callable[[ThreadEvent], bool], *, slow: bool = False
) -> list[ThreadEvent]:
    """Read the stream up to an event."""
    seen = []
    async for entry in stream:
        seen.append(entry)
        if over(entry):
            break
        if slow:
            await others()
    return seen


def is_a(type: str, run_id: str = "r") -> Callable[[ThreadEvent], bool]:
    return lambda entry: (entry.event.type, entry.event.run_id) == (type, run_id)


def of(entries: list[ThreadEvent], run_id: str = "r") -> list[str]:
    return [entry.event.type for entry in entries if entry.event.run_id == run_id]


def before_the_first_read(stage: Stage, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Act after the listing, before the task that follows a run reads it."""
    read, acted = stage.backend.runs.run, list[bool]()

    async def run(thread_id: str, run_id: str) -> Run | None:
        if not acted:
            acted.append(True)
            await act()
        return await read(thread_id, run_id)

    monkeypatch.setattr(stage.backend.runs, "run", run)


async def test_redriven_run_completes_before_its_failure_is_passed_on(stage: Redrives, monkeypatch: pytest.MonkeyPatch) -> None:
    """E1: a later run has the highest fence by then, and the redriven run's end comes all the same."""
    first = await stage.begin("r", parallel=True)
    for n in range(2, 400):
        await stage.tell(first, n, "message.delta")
    before_the_first_read(stage, monkeypatch, lambda: stage.fail(first, 400))
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        for _ in range(5):
            await anext(stream)
        await stage.completed(await stage.redrive("r"))
        await stage.begin("o", parallel=True)
        seen = await events(stream, is_a("run.completed"), slow=True)
    assert [type for type in of(seen) if type != "message.delta"] == [
        "run.failed",
        "run.queued",
        "run.started",
        "run.completed",
    ]


async def test_reader_that_comes_back_at_the_failure_sees_how_the_redriven_run_ended(stage: Redrives) -> None:
    """E1: the run was redriven and completed below the highest fence that the cursor knows."""
    await stage.client.enqueue("t", "x", "o", parallel=True)
    first = await stage.begin("r", parallel=True)
    begin = await thread_cursor(stage.backend, "t")
    await stage.fail(first, 2)
    await stage.completed(await stage.redrive("r"))
    await stage.tell(await stage.claim("o"), 1, "run.started")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", begin)) as stream:
        [*_, (cursor, _)] = await events(stream, is_a("run.failed"))
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor)) as stream:
        assert of(await events(stream, is_a("run.completed"))) == ["run.queued", "run.started", "run.completed"]


async def test_run_that_failed_leaves_the_cursor_and_the_memory_of_its_reader(stage: Redrives) -> None:
    """E3: however many runs fail, a reader holds none of them."""
    await stage.client.create_thread("t")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        lengths = []
        for n in range(20):
            following = asyncio.create_task(events(stream, is_a("run.failed", f"r{n:02}")))
            await others()
            await stage.fail(await stage.begin(f"r{n:02}"), 2)
            [*_, (cursor, _)] = await following
            lengths.append(len(cursor))
    assert max(lengths[1:]) <= lengths[1] + 8


async def test_run_that_resumes_while_its_reader_is_slow_is_followed_at_once(
    stage: Redrives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: the task that follows the run has read it as suspended, and still passes on what came before."""
    attempt = await stage.begin("r")
    for n in range(2, 400):
        await stage.tell(attempt, n, "message.delta")

    async def suspend() -> None:
        await stage.backend.runs.suspend(Write(attempt=attempt, first_event=400), [HitlRequest(request_id="q")])
        await stage.tell(attempt, 400, "hitl.requested")
        await stage.tell(attempt, 401, "run.suspended")

    before_the_first_read(stage, monkeypatch, suspend)
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        for _ in range(5):
            await anext(stream)
        await others()
        await stage.client.respond("t", True, "q")
        await stage.tell(await stage.claim("r"), 1, "run.resumed")
        seen = await events(stream, is_a("run.resumed"), slow=True)
    assert of(seen)[-3:] == ["hitl.requested", "run.suspended", "run.resumed"]


async def test_run_is_followed_again_after_one_failed_read(stage: Redrives, monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: after a moment, though nothing else on the thread begins."""
    monkeypatch.setattr(thread_stream, "RETRY_SECONDS", 0.05)
    await stage.begin("r")

    async def fail() -> None:
        raise BackendUnavailableError("away for a moment")

    before_the_first_read(stage, monkeypatch, fail)
    since = asyncio.get_running_loop().time()
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        assert of(await events(stream, is_a("run.started"))) == ["run.queued", "run.started"]
    assert asyncio.get_running_loop().time() - since > 0.04


async def test_stop_of_a_run_costs_one_listing_and_its_completion_none(
    stage: Redrives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: a run that stopped is not listed over and over, though it waits."""
    listed, count = stage.backend.runs.runs, 0

    async def runs(where: RunFilter, page: PageRequest) -> Page[Run]:
        nonlocal count
        count += where.status is RunStatus.RUNNING
        return await listed(where, page)

    attempt, other = await stage.begin("r"), await stage.begin("o", parallel=True)
    monkeypatch.setattr(stage.backend.runs, "runs", runs)
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        begun = {"r", "o"}
        while begun:
            entry = await anext(stream)
            begun -= {entry.event.run_id} if entry.event.type == "run.started" else set()
        before = count
        following = asyncio.create_task(events(stream, is_a("run.completed", "o")))
        await others()
        await stage.backend.runs.suspend(Write(attempt=attempt, first_event=2), [HitlRequest(request_id="q")])
        await stage.tell(attempt, 2, "run.suspended")
        await others()
        assert count == before + 1
        await stage.completed(other)
        await following
        following = asyncio.create_task(events(stream, is_a("run.queued", "last")))
        await others()
        assert count == before + 1
        await stage.client.enqueue("t", "x", "last", parallel=True)
        await following


@pytest.mark.parametrize("leaves", ["at the failure", "later", "never"])
async def test_redriven_run_does_not_begin_again(stage: Redrives, leaves: str) -> None:
    """E1: what the reader saw before the redrive does not come again, also if other runs ended meanwhile."""
    await stage.client.create_thread("t")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        following = asyncio.create_task(events(stream, is_a("run.failed")))
        await others()
        first = await stage.begin("r")
        await stage.fail(first, 2)
        [*_, (cursor, _)] = await following
        if leaves != "at the failure":
            await stage.completed(await stage.begin("o", parallel=True))
            [*_, (cursor, _)] = await events(stream, is_a("run.completed", "o"))
        if leaves == "never":
            await stage.completed(await stage.redrive("r"))
            seen = await events(stream, is_a("run.completed"))
    if leaves != "never":
        await stage.client.redrive("t", "r")
        async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor)) as stream:
            seen = await events(stream, is_a("run.queued"))
            again = await stage.claim("r")
            await stage.tell(again, 1, "run.started")
            await stage.completed(again)
            seen += await events(stream, is_a("run.completed"))
    assert of(seen) == ["run.queued", "run.started", "run.completed"]


async def test_first_event_of_a_redriven_run_may_come_late(stage: Redrives, monkeypatch: pytest.MonkeyPatch) -> None:
    """E1: a redrive is committed before the event log has its event; a reader that looked in between looks again."""
    await stage.client.create_thread("t")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        following = asyncio.create_task(events(stream, is_a("run.completed", "o")))
        await others()
        first = await stage.begin("r")
        await stage.fail(first, 2)
        await others()
        await stage.completed(await stage.begin("o", parallel=True))
        [*_, (cursor, _)] = await following
    changed = await stage.backend.runs.redrive("t", "r")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor)) as stream:
        following = asyncio.create_task(events(stream, is_a("run.queued")))
        await others()
        await stage.backend.scheduler.submit(changed.effects.jobs)
        [(_, event)] = await following
    assert (position(event.id) or START) > (first.fence, 2)


async def test_run_that_suspends_while_a_reader_begins_is_in_its_cursor(
    stage: Redrives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: other runs ended with higher fences, and the end of this run would count as seen."""
    attempt = await stage.begin("r")
    await stage.completed(await stage.begin("o", parallel=True))
    listed = stage.backend.runs.runs

    async def runs(where: RunFilter, page: PageRequest) -> Page[Run]:
        found = await listed(where, page)
        if where.status is RunStatus.QUEUED and (
            (run := await stage.backend.runs.run("t", "r")) is not None and run.status is RunStatus.RUNNING
        ):
            await stage.backend.runs.suspend(Write(attempt=attempt, first_event=2), [HitlRequest(request_id="q")])
        return found

    monkeypatch.setattr(stage.backend.runs, "runs", runs)
    place = ThreadCursor.parse(await thread_cursor(stage.backend, "t"))
    assert place is not None and "r" in place.open


@pytest.mark.parametrize("again", ["cancelled", "redriven twice"])
@pytest.mark.parametrize("leaves", ["at the failure", "later"])
async def test_run_that_is_redriven_while_its_reader_is_away_does_not_begin_again(
    stage: Redrives, leaves: str, again: str
) -> None:
    """E1: also if the run ends before another attempt begins, or fails once more and is redriven."""
    await stage.client.create_thread("t")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t")) as stream:
        following = asyncio.create_task(events(stream, is_a("run.failed")))
        await others()
        await stage.fail(await stage.begin("r"), 2)
        [*_, (cursor, _)] = await following
        if leaves == "later":
            await stage.completed(await stage.begin("o", parallel=True))
            [*_, (cursor, _)] = await events(stream, is_a("run.completed", "o"))
    if again == "redriven twice":
        await stage.fail(await stage.redrive("r"), 2)
    await stage.client.redrive("t", "r")
    await stage.client.cancel("t", "r")
    async with asyncio.timeout(BOUND), aclosing(follow_thread(stage.backend, "t", cursor)) as stream:
        seen = await events(stream, is_a("run.cancelled"))
    once = ["run.queued", "run.started", "run.failed"] if again == "redriven twice" else []
    assert of(seen) == [*once, "run.queued", "run.cancelled"]
