"""The stream of a thread with random runs, a slow store and a reader of random speed: each event once, none lost (E1, E3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from runyard.domain.runs import ErrorInfo
from runyard.errors import BackendUnavailableError
from runyard.events import thread_stream, unread
from runyard.events.thread_cursor import FINAL_ENDS
from runyard.events.thread_stream import follow_thread, thread_cursor
from runyard.models import Event, HitlRequest
from runyard.ports.commands import Write
from runyard_backends.memory import MemoryBackend, connect
from tests.support.thread_stage import Stage

BOUND = 10.0
SEEDS = range(8)
FAULTS = 0.02
"""Share of the reads of a run that fail."""


async def delay(rng: Random) -> None:
    for _ in range(rng.choice((0, 0, 1, 2, 5, 20))):
        await asyncio.sleep(0)


class Lives(Stage):
    """Runs that suspend, fail, crash, complete, and are redriven and cancelled at random. ``sent``: the ids of their events."""

    def __init__(self, backend: MemoryBackend, rng: Random) -> None:
        super().__init__(backend)
        self.rng, self.sent = rng, set[tuple[str, str]]()

    async def say(self, attempt: Any, n: int, type: str) -> None:
        await self.tell(attempt, n, type)
        self.sent.add((attempt.run_id, f"{attempt.fence}-{n}"))
        await delay(self.rng)

    async def live(self, run_id: str) -> None:
        runs, rng = self.backend.runs, self.rng
        await delay(rng)
        await self.client.enqueue("t", "x", run_id, parallel=True)
        for left in range(rng.randint(1, 3), -1, -1):
            await delay(rng)
            attempt, last = await self.claim(run_id), rng.randint(2, 10)
            await self.say(attempt, 1, "run.started")
            for n in range(2, last):
                await self.say(attempt, n, "message.delta")
            write, request_id = Write(attempt=attempt, first_event=last), f"{run_id}-{left}"
            match rng.choice(("suspend", "fail", "crash")) if left else "complete":
                case "suspend":
                    await runs.suspend(write, [HitlRequest(request_id=request_id)], [])
                    await self.say(attempt, last, "hitl.requested")
                    await self.say(attempt, last + 1, "run.suspended")
                    await self.client.respond("t", True, request_id)
                case "fail":
                    await runs.fail(write, ErrorInfo(code="x", message="x"))
                    await self.say(attempt, last, "run.failed")
                    if rng.random() < 0.5:  # the reader may see the failure, and other runs may end, before the redrive
                        for _ in range(20):
                            await delay(rng)
                    await self.client.redrive("t", run_id)
                    if rng.random() < 0.2:
                        await self.client.cancel("t", run_id)
                        return
                case "crash":
                    await runs.release(attempt)
                case _:
                    await runs.complete([write])
                    await self.say(attempt, last, "run.completed")

    async def all(self, count: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for n in range(count):
                tasks.create_task(self.live(f"r{n}"))
                await delay(self.rng)


def slow(stage: Lives, monkeypatch: pytest.MonkeyPatch, faults: float) -> None:
    """Let the reads of the store take a while, and let some reads of one run fail."""

    def slowed(real: Any, faults: float) -> Any:
        async def read(*args: Any, **more: Any) -> Any:
            await delay(stage.rng)
            if faults and stage.rng.random() < faults:
                raise BackendUnavailableError("away for a moment")
            found = await real(*args, **more)
            await delay(stage.rng)
            return found

        return read

    runs = stage.backend.runs
    for verb, share in (("runs", 0.0), ("run", faults), ("run_events", 0.0)):
        monkeypatch.setattr(runs, verb, slowed(getattr(runs, verb), share))


@pytest.mark.parametrize("faults", [0.0, FAULTS])
@pytest.mark.parametrize("leaves", [0.0, 0.1])
@pytest.mark.parametrize("seed", SEEDS)
async def test_each_event_comes_once(seed: int, leaves: float, faults: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """E1, E3: also to a reader that leaves after an event and comes back with its cursor."""
    rng = Random(seed)
    stage = Lives(await connect(), rng)
    monkeypatch.setattr(thread_stream, "MAX_FOLLOWED_RUNS", rng.choice((0, 1, 3, 100)))
    monkeypatch.setattr(thread_stream, "TURN_SECONDS", 0.005)
    monkeypatch.setattr(thread_stream, "RETRY_SECONDS", 0.005)
    monkeypatch.setattr(unread, "MAX_UNREAD_EVENTS", 5)
    await stage.client.create_thread("t")
    cursor, count = await thread_cursor(stage.backend, "t"), rng.randint(2, 10)
    slow(stage, monkeypatch, faults)
    seen: list[Event] = []
    lives = asyncio.create_task(stage.all(count))
    async with asyncio.timeout(BOUND):
        while sum(event.type in FINAL_ENDS for event in seen) < count:
            try:
                async with aclosing(follow_thread(stage.backend, "t", cursor)) as stream:
                    async for cursor, event in stream:  # noqa: B007 - the cursor is for the next reader
                        seen.append(event)
                        await delay(rng)
                        if lives.done():
                            lives.result()
                        if event.type in FINAL_ENDS or rng.random() < leaves:
                            break
            except BackendUnavailableError:
                assert faults
        await lives
    got = Counter((event.run_id, event.id) for event in seen if event.id is not None)
    assert max(got.values()) == 1
    assert stage.sent <= got.keys()
    for run_id, _ in got:
        ids = [tuple(map(int, event.id.split("-"))) for event in seen if event.run_id == run_id and event.id is not None]
        assert ids == sorted(ids)
