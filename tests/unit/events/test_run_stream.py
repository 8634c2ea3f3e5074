"""The stream of one run (E1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runyard.events.run_stream import follow_run
from runyard.ports.refs import RunRef
from runyard_backends.memory import connect
from tests.support.thread_stage import Stage


async def test_a_run_that_starts_while_a_reader_returns_repeats_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has lost the stream for a moment. The store proves the event run.queued only until the run starts."""
    stage = Stage(await connect())
    await stage.client.enqueue("t", "hi", "r")
    queued = await stage.backend.runs.run("t", "r")
    assert queued is not None
    attempt = await stage.claim("r")
    (last,) = await stage.backend.events.read(RunRef(attempt.thread_key, "r"))
    await stage.tell(attempt, 1, "run.started")
    await stage.complete(attempt)
    await stage.tell(attempt, 2, "run.completed")

    async def lost(*_: Any) -> bool:
        return False

    monkeypatch.setattr(stage.backend.events, "holds", lost)
    async with asyncio.timeout(10):
        events = [event async for event in follow_run(stage.backend, "t", "r", last.id, found=queued)]
    assert [event.type for event in events] == ["gap", "run.started", "run.completed"]
