"""Steps of an attempt. Each step is recorded once, with the attempt that started it."""

from __future__ import annotations

import pytest

from runyard import errors

from .world import World

pytestmark = pytest.mark.asyncio


class TestSteps:
    async def test_steps_are_recorded_once(self, world: World) -> None:
        """R20: A later attempt finds the steps that an earlier one started or finished."""
        attempt = await world.start("r1")
        assert await world.runs.start_step(attempt, "a") is None
        await world.runs.finish_step(attempt, "a", {"n": 1})
        assert await world.runs.start_step(attempt, "b") is None
        await world.runs.release(attempt)
        attempt = await world.take("r1")
        done, begun = await world.runs.start_step(attempt, "a"), await world.runs.start_step(attempt, "b")
        assert done is not None and done.done and done.result == {"n": 1}
        assert begun is not None and not begun.done
        ledger = await world.runs.ledger(attempt)
        assert {key: step.done for key, step in ledger.steps.items()} == {"a": True, "b": False}

    async def test_repeated_step_calls_are_one_step(self, world: World) -> None:
        """A call that is repeated after a lost reply makes one step. For the attempt that started a step, this step is not in
        doubt."""
        attempt = await world.start("r1")
        assert await world.runs.start_step(attempt, "a") is None
        assert await world.runs.start_step(attempt, "a") is None
        await world.runs.finish_step(attempt, "a", 1)
        await world.runs.finish_step(attempt, "a", 2)  # the second result has no effect
        done = await world.runs.start_step(attempt, "a")
        assert done is not None and (done.done, done.result) == (True, 1)

    async def test_the_ledger_says_which_attempt_started_a_step(self, world: World) -> None:
        """The ledger names the attempt that started a step. A step that an earlier attempt started and did not finish is in
        doubt."""
        first = await world.start("r1")
        await world.runs.start_step(first, "a")
        await world.runs.release(first)
        second = await world.take("r1")
        assert (await world.runs.ledger(second)).steps["a"].fence == first.fence
        begun = await world.runs.start_step(second, "a")
        assert begun is not None and begun.fence == first.fence
        await world.runs.release(second)
        third = await world.take("r1")
        assert (await world.runs.ledger(third)).steps["a"].fence == second.fence

    async def test_a_step_of_a_stale_attempt_is_refused(self, world: World) -> None:
        """I2: An attempt that is over can neither start nor finish a step."""
        first = await world.start("r1")
        await world.runs.start_step(first, "a")
        second = await world.take("r1")
        for write in (world.runs.start_step(first, "b"), world.runs.finish_step(first, "a", 1)):
            with pytest.raises(errors.StaleFenceError):
                await write
        assert {key: step.done for key, step in (await world.runs.ledger(second)).steps.items()} == {"a": False}
