"""The attempts of a run and their outcomes."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.models import ErrorInfo, HitlRequest
from runyard.ports.commands import Write

from .world import T, World, said

pytestmark = pytest.mark.asyncio


async def outcomes(world: World, run_id: str = "r1") -> list[str]:
    return [attempt.outcome for attempt in (await world.runs.attempts(T, run_id)).items]


class TestHistory:
    async def test_a_run_that_nobody_claimed_has_no_attempts(self, world: World) -> None:
        await world.accept("r1")
        assert await outcomes(world) == []
        with pytest.raises((errors.RunNotFoundError, errors.ThreadNotFoundError)):
            await world.runs.attempts(T, "nowhere")

    async def test_attempt_is_listed_from_start_to_end(self, world: World) -> None:
        attempt = await world.start("r1")
        (running,) = (await world.runs.attempts(T, "r1")).items
        assert (running.fence, running.worker_id, running.outcome) == (attempt.fence, "w", "running")
        assert running.started_at is not None and running.ended_at is None and running.error is None
        await world.finish(attempt, said("x"))
        (ended,) = (await world.runs.attempts(T, "r1")).items
        assert (ended.fence, ended.worker_id, ended.outcome) == (attempt.fence, "w", "completed")
        assert ended.ended_at is not None and ended.started_at == running.started_at

    async def test_every_way_an_end_records(self, world: World) -> None:
        """The attempts are listed in order. Each attempt ends in a different way: release, retry, death of the worker,
        suspension, failure, and completion after a redrive."""
        await world.runs.release(await world.start("r1"))
        await world.runs.release(await world.take("r1"), error=ErrorInfo(code="flaky", message="again"))
        await world.take("r1")
        await world.bury()
        await world.hire("v")
        await world.ask(await world.take("r1", worker="v"), HitlRequest(payload={"question": "?"}))
        await world.runs.respond(True, thread_id=T)
        from_v = await world.take("r1", worker="v")
        await world.runs.fail(Write(attempt=from_v), ErrorInfo(code="broken", message="for good"))
        await world.runs.redrive(T, "r1")
        await world.finish(await world.take("r1", worker="v"), said("x"))
        found = (await world.runs.attempts(T, "r1")).items
        assert [a.outcome for a in found] == ["released", "retried", "lost", "suspended", "failed", "completed"]
        assert [a.worker_id for a in found] == ["w", "w", "w", "v", "v", "v"]
        assert [a.error.code if a.error else None for a in found] == [None, "flaky", None, None, "broken", None]
        assert [a.fence for a in found] == sorted(a.fence for a in found)

    async def test_each_attempt_has_the_traceback_of_its_error(self, world: World) -> None:
        """The run also has the traceback of its last error. The list of runs and the run's events have no tracebacks."""
        traces = [f"line {n}\nOSError: ä" for n in range(2)]
        first, last = (ErrorInfo(code="agent_error", message="no", traceback=trace) for trace in traces)
        await world.runs.release(await world.start("r1"), error=first)
        attempt = await world.take("r1")
        await world.runs.fail(Write(attempt=attempt, first_event=2), last)
        found = (await world.runs.attempts(T, "r1")).items
        assert [attempt.error for attempt in found] == [first, last]
        assert (await world.run("r1")).error == last
        assert [run.error for run in (await world.runs.runs()).items] == [last.without_traceback()]
        events = await world.runs.run_events(attempt.ref)
        assert events[-1].data["error"] == {"code": "agent_error", "message": "no", "details": {}}

    async def test_a_cancelled_attempt(self, world: World) -> None:
        attempt = await world.start("r1")
        await world.runs.cancel(T, "r1")
        await world.finish(attempt)
        assert await outcomes(world) == ["cancelled"]
