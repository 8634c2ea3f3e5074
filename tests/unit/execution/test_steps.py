"""The steps of a run: each is done once for the run, and a step in doubt is treated as its policy says (R9, R20)."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.contextvars import get_contextvars

from runyard.domain.states import RunStatus
from runyard.errors import HitlInvalidAnswerError, InvalidInputError, StepUnknownError
from runyard.execution.context import RunContext
from runyard.execution.steps import OnUnknown, current_step, step
from runyard.models import Message
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Ended
from tests.support.attempt_lab import Lab, status


async def test_a_step_is_done_once_for_the_run(lab: Lab) -> None:
    calls = []

    async def charge(amount: int, idempotency_key: str) -> dict[str, object]:
        calls.append(idempotency_key)
        return {"charged": amount}

    async def agent(ctx: RunContext) -> None:
        results.append(await ctx.step(charge, 5))
        results.append(await ctx.step(charge, 7))
        if ctx.attempt == 1:
            raise ConnectionError("the provider is away")
        await ctx.append(Message.assistant("done"))

    results: list[object] = []
    assert status(await lab.attempt(agent)) is RunStatus.QUEUED
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert results == [{"charged": 5}, {"charged": 7}] * 2
    assert len(calls) == len(set(calls)) == 2


async def test_the_result_of_a_step_is_the_same_json_in_every_attempt(lab: Lab) -> None:
    async def pair() -> tuple[int, int]:
        return 1, 2

    results: list[object] = []

    async def agent(ctx: RunContext) -> None:
        results.append(await ctx.step(pair))
        if ctx.attempt == 1:
            raise ConnectionError("again")

    await lab.attempt(agent)
    await lab.attempt(agent)
    assert results == [[1, 2], [1, 2]]


@dataclass
class Till:
    """An agent with one step, ``charge``, which raises in its first ``failures`` calls."""

    on_unknown: OnUnknown
    failures: int = 1
    calls: list[str] = field(default_factory=list)
    results: list[object] = field(default_factory=list)

    async def charge(self) -> str:
        self.calls.append(current_step().idempotency_key)
        if len(self.calls) <= self.failures:
            raise ConnectionError("nobody knows whether it took effect")
        return "charged"

    async def __call__(self, ctx: RunContext) -> None:
        self.results.append(await ctx.step(self.charge, key="charge", on_unknown=self.on_unknown))


async def test_a_step_in_doubt_is_called_again(lab: Lab) -> None:
    """Ledger, retry: with the same idempotency key."""
    till = Till("retry")
    await lab.attempt(till)
    assert status(await lab.attempt(till)) is RunStatus.COMPLETED
    assert len(till.calls) == 2
    assert len(set(till.calls)) == 1


async def test_a_step_in_doubt_fails_the_run_and_is_named(lab: Lab) -> None:
    """Ledger, fail: an error that no other attempt would get past."""
    till = Till("fail")
    await lab.attempt(till)
    ended = await lab.attempt(till)
    assert ended is not None and ended.error is not None
    assert (ended.status, ended.error.code, ended.error.details) == (RunStatus.FAILED, "step_unknown", {"step": "charge"})
    assert len(till.calls) == 1


async def in_doubt(lab: Lab, till: Till) -> str:
    """Bring the run to the question whether the step was done; the request's id."""
    await lab.attempt(till)
    assert status(await lab.attempt(till)) is RunStatus.SUSPENDED
    [request] = (await lab.backend.runs.requests(thread_id="t")).items
    assert (request.kind, request.payload["step"]) == ("step", "charge")
    assert request.payload["idempotency_key"] == till.calls[0]
    return request.request_id


async def test_a_human_says_that_a_step_was_done(lab: Lab) -> None:
    """Ledger, ask: the result that they give is recorded, and replayed by every later attempt."""
    till = Till("ask")
    await in_doubt(lab, till)
    await lab.backend.runs.respond({"action": "done", "result": {"receipt": 7}}, thread_id="t")

    async def agent(ctx: RunContext) -> None:
        await till(ctx)
        if len(till.results) == 1:
            raise ConnectionError("again")

    assert status(await lab.attempt(agent)) is RunStatus.QUEUED
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert till.results == [{"receipt": 7}] * 2
    assert len(till.calls) == 1


async def test_a_human_has_a_step_called_again(lab: Lab) -> None:
    """Ledger, ask: an answer is for one start; a step that gets lost again is another question."""
    till = Till("ask", failures=2)
    first = await in_doubt(lab, till)
    await lab.backend.runs.respond({"action": "retry"}, thread_id="t")
    second = await in_doubt(lab, till)
    assert first != second
    await lab.backend.runs.respond({"action": "retry"}, thread_id="t")
    assert status(await lab.attempt(till)) is RunStatus.COMPLETED
    assert till.results == ["charged"]
    assert len(till.calls) == 3


async def test_a_human_gives_a_step_up(lab: Lab) -> None:
    """Ledger, ask."""
    till = Till("ask")
    await in_doubt(lab, till)
    await lab.backend.runs.respond({"action": "fail"}, thread_id="t")
    ended = await lab.attempt(till)
    assert ended is not None and ended.error is not None and ended.error.code == "step_unknown"
    assert len(till.calls) == 1


@pytest.mark.parametrize("answer", [True, "retry", {"action": "again"}, {"action": "done"}, {"action": "retry", "result": 1}])
async def test_an_answer_about_a_step_says_what_to_do(lab: Lab, answer: object) -> None:
    """H3: nothing else is accepted."""
    await in_doubt(lab, Till("ask"))
    with pytest.raises(HitlInvalidAnswerError):
        await lab.backend.runs.respond(answer, thread_id="t")


async def test_an_agent_may_catch_a_step_in_doubt_and_go_on(lab: Lab) -> None:
    """Ledger, fail: the doubt stays in every attempt."""
    caught = []

    async def agent(ctx: RunContext) -> None:
        try:
            await till(ctx)
        except StepUnknownError as error:
            caught.append(error.details["step"])
            if len(caught) == 1:
                raise ConnectionError("again") from None

    till = Till("fail")
    await lab.attempt(agent)
    await lab.attempt(agent)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert caught == ["charge", "charge"]


async def test_a_step_cut_short_by_its_own_question_is_in_doubt(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger: also where the answer comes while the question is being stored, so that the same attempt goes on."""
    suspend, calls = lab.backend.runs.suspend, []

    async def agent(ctx: RunContext) -> None:
        async def charge() -> None:
            calls.append(1)
            await ctx.ask("b?", key="b")

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.ask("a?", key="a"))
            group.create_task(ctx.step(charge, on_unknown="fail") if ctx.attempt > 1 else ctx.ask("b?", key="b"))

    async def answered_first(*parts: Any) -> Ended:
        await lab.backend.runs.respond("B", request_id=second.request_id)
        return await suspend(*parts)

    await lab.attempt(agent)
    first, second = (await lab.backend.runs.requests(thread_id="t")).items
    await lab.backend.runs.respond("A", request_id=first.request_id)
    monkeypatch.setattr(lab.backend.runs, "suspend", answered_first)
    ended = await lab.attempt(agent)
    assert ended is not None and ended.error is not None and ended.error.code == "step_unknown"
    assert len(calls) == 1


async def test_a_step_whose_function_returned_is_recorded_although_the_agent_is_cancelled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledger: a cancel in the middle of the record does not make a step that finished one in doubt."""
    recording, go_on = asyncio.Event(), asyncio.Event()
    finish_step = lab.backend.runs.finish_step

    async def slow(attempt: AttemptToken, key: str, result: object, **fields: Any) -> None:
        recording.set()
        await go_on.wait()
        await finish_step(attempt, key, result, **fields)

    monkeypatch.setattr(lab.backend.runs, "finish_step", slow)

    async def agent(ctx: RunContext) -> None:
        stepping = asyncio.create_task(ctx.step(lambda: 5, key="five"))
        await recording.wait()
        stepping.cancel()
        go_on.set()
        await asyncio.wait((stepping,))
        assert await ctx.step(lambda: 6, key="five") == 5

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED


async def test_a_result_that_is_no_json_fails_the_run(lab: Lab) -> None:
    """Ledger: another attempt would repeat the effect and be no wiser."""
    calls = []

    def handle() -> object:
        calls.append(1)
        return object()

    async def agent(ctx: RunContext) -> None:
        await ctx.step(handle)

    ended = await lab.attempt(agent)
    assert ended is not None and ended.error is not None and ended.error.code == "invalid_input"
    assert len(calls) == 1


async def test_a_step_knows_itself(lab: Lab) -> None:
    """Ledger: by the name of a parameter or however deep; the key is the run's and the step's, the same in every attempt."""
    given: list[str] = []

    def deep() -> str:
        step = current_step()
        assert (step.thread_id, step.run_id) == ("t", "r")
        return f"{step.key} {step.idempotency_key}"

    def pay(idempotency_key: str) -> None:
        given.append(deep())
        assert given[-1].endswith(idempotency_key)
        raise ConnectionError("again")

    async def agent(ctx: RunContext) -> None:
        for key in ("one", "two"):
            with suppress(ConnectionError):
                await ctx.step(pay, key=key)
        with pytest.raises(InvalidInputError):
            current_step()
        raise ConnectionError("again")

    await lab.attempt(agent)
    await lab.attempt(agent)
    assert given[:2] == given[2:]
    assert len({step.split()[1] for step in given}) == 2


async def test_a_key_that_the_caller_gives_stays(lab: Lab) -> None:
    @step
    async def pay(*, idempotency_key: str) -> str:
        return idempotency_key

    async def agent(ctx: RunContext) -> None:
        assert await pay(idempotency_key="mine") == "mine"

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED


async def test_a_policy_that_does_not_exist_is_refused_before_anything_happens(lab: Lab) -> None:
    with pytest.raises(InvalidInputError, match="retry, fail, ask"):
        step(on_unknown="guess")  # type: ignore[call-overload]


async def test_the_step_decorator_works_for_whatever_run_calls_it(lab: Lab) -> None:
    calls = []

    @step
    async def double(n: int, *, plus: int = 0) -> int:
        calls.append(n)
        return 2 * n + plus

    async def agent(ctx: RunContext) -> None:
        assert await double(2, plus=1) == 5
        if ctx.attempt == 1:
            raise ConnectionError("again")

    await lab.attempt(agent)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await double(1) == 2
    assert calls == [2, 1]


async def test_log_lines_of_a_step_name_the_run_and_the_step(lab: Lab) -> None:
    """The lines of the agent between its steps have the fields of the run only."""
    lines: list[dict[str, Any]] = []

    def note() -> None:
        lines.append({**get_contextvars()})

    async def agent(ctx: RunContext) -> None:
        await ctx.step(note, key="first")
        note()

    await lab.attempt(agent)
    step, outside = lines
    assert outside == {"thread_id": "t", "run_id": "r", "attempt": 1, "fence": outside["fence"]}
    assert step == {**outside, "step": "first"} and get_contextvars() == {}
