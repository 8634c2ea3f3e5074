"""A worker is killed after a step took effect and before that is recorded: the step's own policy decides (the ledger)."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from runyard import RunHandle, RunStatus
from tests.support.agents.sweep import EFFECTS
from tests.support.fleet import Fleet

APP = "tests.support.agents.sweep:app"
BOUND = 40.0


class World:
    """One run whose worker dies between the effect and its record, and another worker that goes on."""

    def __init__(self, fleet: Fleet, path: Path) -> None:
        self.fleet, self.path = fleet, path

    async def doubt(self, script: str) -> RunHandle:
        handle = await self.fleet.client.enqueue("t", script, "r")
        await self.die()
        return handle

    async def die(self) -> None:
        """A worker takes the run and dies as soon as the effect is there; then one that lives is started."""
        victim = await self.fleet.spawn(APP, failpoints="runs.finish_step.before=crash")
        assert await asyncio.wait_for(victim.wait(), BOUND) == -signal.SIGKILL
        await self.fleet.start(app=APP)

    def effects(self) -> list[list[str]]:
        """``[run, step, fence, idempotency key]`` of each."""
        return [line.split() for line in self.path.read_text().splitlines()]

    async def question(self) -> dict[str, Any]:
        [request] = (await self.fleet.client.requests("t")).items
        assert request.kind == "step"
        return dict(request.payload)


@pytest.fixture
def world(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    return World(fleet, tmp_path / "effects")


async def test_retry_repeats_the_effect_with_the_same_key(world: World) -> None:
    result = await (await world.doubt("tool-a say-on")).result(BOUND)
    assert result.ok
    first, second = world.effects()
    assert (first[:2], second[:2]) == (["r", "tool-a"], ["r", "tool-a"])
    assert int(first[2]) < int(second[2])
    assert first[3] == second[3]


async def test_fail_fails_the_run_and_repeats_nothing(world: World) -> None:
    result = await (await world.doubt("tool-fail say-on")).result(BOUND)
    assert result.status is RunStatus.FAILED and result.error is not None
    assert (result.error.code, result.error.details) == ("step_unknown", {"step": "tool-fail"})
    assert len(world.effects()) == 1


async def test_ask_waits_for_a_human_who_says_that_it_was_done(world: World) -> None:
    """The answer is the step's result in this attempt and in every later one."""
    handle = await world.doubt("tool-ask say-on")
    assert (await handle.result(BOUND)).status is RunStatus.SUSPENDED
    assert (await world.question())["idempotency_key"] == world.effects()[0][3]
    await world.fleet.client.respond("t", {"action": "done", "result": 1})
    result = await handle.result(BOUND)
    assert result.ok
    [tool] = [message for message in result.messages if message.tool_results]
    assert tool.tool_results[0].content == 1
    assert len(world.effects()) == 1


async def test_ask_waits_for_a_human_who_has_it_called_again(world: World) -> None:
    handle = await world.doubt("tool-ask say-on")
    assert (await handle.result(BOUND)).status is RunStatus.SUSPENDED
    await world.fleet.client.respond("t", {"action": "retry"})
    assert (await handle.result(BOUND)).ok
    first, second = world.effects()
    assert first[3] == second[3]
