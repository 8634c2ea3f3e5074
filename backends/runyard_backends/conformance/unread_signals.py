"""A run can take a signal and end before an attempt has read the signal. The store then gives the signal back to the thread
(K2)."""

from __future__ import annotations

from typing import Any

import pytest

from runyard.domain.states import RunStatus
from runyard.domain.waits import Wait
from runyard.models import ErrorInfo, RunOptions
from runyard.ports.commands import Write
from runyard.ports.refs import AttemptToken

from .world import T, World, said

pytestmark = pytest.mark.asyncio


async def wait(world: World, attempt: AttemptToken, *names: str) -> RunStatus:
    """Suspend the run with one wait for the signal ``paid`` for each of ``names``. ``names``: the ids of the waits."""
    waits = [Wait(wait_id=name, kind="signal", name="paid") for name in names]
    return (await world.runs.suspend(Write(attempt=attempt), [], waits)).status


async def send(world: World, *values: int) -> None:
    for value in values:
        await world.runs.signal(T, "paid", value, signal_id=f"s{value}")


async def taken(world: World, attempt: AttemptToken) -> dict[str, Any]:
    waits = (await world.runs.ledger(attempt)).waits
    return {name: wait.value for name, wait in waits.items() if wait.signal_id is not None}


class TestUnreadSignals:
    async def test_k2_a_cancelled_run_gives_its_unread_signals_back(self, world: World) -> None:
        """K2: A run takes signals and is cancelled before its next attempt. The waits of the next run take these signals, the
        oldest signal first."""
        await wait(world, await world.start("r1"), "a", "b")
        await send(world, 0, 1, 2)
        assert (await world.runs.cancel(T, "r1")).run.status is RunStatus.CANCELLED
        attempt = await world.start("r2")
        assert await wait(world, attempt, "x", "y", "z") is RunStatus.RUNNING
        assert await taken(world, attempt) == {"x": 0, "y": 1, "z": 2}
        again = await world.runs.signal(T, "paid", 0, signal_id="s0")
        assert (again.created, again.signal.run_id) == (False, "r2")

    @pytest.mark.parametrize("end", ["failed", "completed", "cancelled"])
    async def test_k2_a_signal_that_an_attempt_had_is_not_given_back(self, world: World, end: str) -> None:
        """K2: The second attempt of the run has read the first signal. The second signal came after the begin of this attempt.
        When the run ends, only the second signal is given back."""
        await wait(world, await world.start("r1"), "a", "b")
        await send(world, 0)
        attempt = await world.take("r1")
        await send(world, 1)
        if end == "failed":
            await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
        elif end == "completed":
            await world.finish(attempt, said("done"))
        else:
            await world.runs.cancel(T, "r1")
            await world.runs.release(attempt)
        assert await world.status("r1") is RunStatus(end)
        other = await world.start("r2")
        assert await wait(world, other, "x") is RunStatus.RUNNING
        assert await taken(world, other) == {"x": 1}
        assert await wait(world, other, "y") is RunStatus.SUSPENDED

    async def test_k2_a_suspension_that_need_not_happen_receives_its_signals(self, world: World) -> None:
        """K2, H5: The signal exists before the wait, so the attempt continues with the signal and is not suspended. The
        attempt counts as having read the signal."""
        attempt = await world.start("r1")
        await send(world, 0)
        assert await wait(world, attempt, "a") is RunStatus.RUNNING
        await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
        assert await wait(world, await world.start("r2"), "x") is RunStatus.SUSPENDED

    async def test_k2_a_waiting_run_takes_what_an_ended_run_gives_back(self, world: World) -> None:
        """K2, R3: A run in another lane already waits for the signal. The call that ends the first run queues the waiting run
        and returns its job."""
        await wait(world, await world.start("r1"), "a")
        await wait(world, await world.start("r2", options=RunOptions(parallel=True)), "x")
        await send(world, 0)
        assert await world.status("r2") is RunStatus.SUSPENDED
        changed = await world.runs.cancel(T, "r1")
        assert [job.run_id for job in changed.effects.jobs] == ["r2"]
        assert await taken(world, await world.take("r2")) == {"x": 0}

    async def test_k2_a_redriven_run_waits_again(self, world: World) -> None:
        """K2: The redriven run takes the signal that it gave back, if no other run has taken it."""
        await wait(world, await world.start("r1"), "a", "b")
        await send(world, 0)
        attempt = await world.take("r1")
        await send(world, 1)
        await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
        await world.runs.redrive(T, "r1")
        attempt = await world.take("r1")
        assert await taken(world, attempt) == {"a": 0}
        assert await wait(world, attempt, "b") is RunStatus.RUNNING
        assert await taken(world, attempt) == {"a": 0, "b": 1}
