"""What an agent can do with its run: append, step, ask, approve (R7, R9, H1, H5, H11, R20)."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field

import pytest

from runyard.app import App
from runyard.domain.derived_ids import request_id
from runyard.domain.states import RunStatus
from runyard.errors import HitlInvalidAnswerError, HitlNotAllowedError, InvalidInputError, StepUnknownError
from runyard.events.writer import EventEmitter, EventWriter
from runyard.execution.attempt_store import ProbeAttemptStore
from runyard.execution.context import RunContext
from runyard.execution.control_signals import ControlSignal
from runyard.execution.executor import Execution, WorkerServices
from runyard.execution.steps import OnUnknown, current_step, step
from runyard.models import (
    Event,
    HitlRequest,
    JsonObject,
    JsonValue,
    Message,
    RetryPolicy,
    RunOptions,
    ToolCallPart,
    ToolResultPart,
)
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Ended
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_backends.memory import connect

Agent = Callable[[RunContext], Awaitable[None]]

CALL = ToolCallPart(id="c1", name="refund", arguments={"amount": 10})


@dataclass
class Lab:
    """One run on the memory backend, executed attempt by attempt."""

    backend: Backend
    writer: EventWriter
    commits: list[str] = field(default_factory=list)

    async def accept(self, text: str = "hi") -> None:
        options = RunOptions(max_attempts=5, retry=RetryPolicy(initial=0))
        await self.backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user(text), options=options))

    async def attempt(self, agent: Agent, worker: str = "w") -> Ended | None:
        """Claim the run and execute one attempt of it."""
        await self.backend.workers.register(WorkerInfo(worker_id=worker, queues=["default"]))
        [claim] = await self.backend.runs.claim(worker, [await self.ref()])
        assert claim.outcome == "claimed"
        return await Execution(WorkerServices.of(App({"agent": agent}), self.backend, self.writer), claim).run()

    async def ref(self) -> RunRef:
        key = await self.backend.threads.thread_key("t")
        assert key is not None
        return RunRef(key, "r")

    async def events(self) -> list[Event]:
        self.writer.close()
        await self.writer.run()
        return await self.backend.events.read(await self.ref())

    async def texts(self) -> list[str]:
        return [message.text for message in (await self.backend.threads.messages("t")).items]


@pytest.fixture
async def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    backend = await connect()
    lab = Lab(backend, EventWriter(backend.events))
    for verb in ("append", "complete", "suspend", "fail", "release", "start_step"):
        original = getattr(backend.runs, verb)

        def noted(*args: object, verb: str = verb, original: Callable[..., object] = original, **kwargs: object) -> object:
            lab.commits.append(verb)
            return original(*args, **kwargs)

        monkeypatch.setattr(backend.runs, verb, noted)
    await lab.accept()
    return lab


def status(ended: Ended | None) -> RunStatus | None:
    return ended.status if ended else None


async def test_task_that_outlives_an_attempt_holds_no_history(lab: Lab) -> None:
    """Timers of drivers hold the contextvars of whoever set them for minutes: a long history each."""
    seen: list[weakref.ref[Message]] = []
    contexts = []

    async def agent(ctx: RunContext) -> None:
        seen.extend(weakref.ref(message) for message in await ctx.history())
        await ctx.append(Message.assistant("hello"))
        contexts.append(copy_context())

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    gc.collect()
    assert len(contexts) == 1 and [message() for message in seen] == [None]


async def test_a_simple_run_is_committed_by_its_completion_alone(lab: Lab) -> None:
    """Accept, claim, complete: the final assistant message is held."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("hello"))
        assert [message.text for message in await ctx.history()] == ["hi", "hello"]

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert lab.commits == ["complete"]
    assert await lab.texts() == ["hi", "hello"]


async def test_a_tool_call_is_durable_when_append_returns_and_takes_what_was_held_along(lab: Lab) -> None:
    """R9."""
    seen = []

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("let me see"))
        await ctx.append(Message.assistant([CALL]))
        seen.append(list(lab.commits))
        await ctx.append(Message.tool(ToolResultPart(call_id="c1", content="ok")), Message.assistant("done"))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert seen == [["append"]]
    assert lab.commits == ["append", "append", "complete"]
    assert [len(message.tool_calls) for message in (await lab.backend.threads.messages("t")).items] == [0, 0, 1, 0, 0]


async def test_message_completed_follows_its_commit(lab: Lab) -> None:
    """E2: a held message is not announced before the completion."""

    async def agent(ctx: RunContext) -> None:
        await ctx.stream_text("hel")
        await ctx.stream_text("lo")
        [message] = await ctx.append(Message.assistant("hello"))
        ctx.extra["message_id"] = message.id

    await lab.attempt(agent)
    events = await lab.events()
    assert [event.type for event in events] == [
        "run.started", "message.completed", "message.started", "message.delta", "message.completed", "run.completed",
    ]  # fmt: skip
    assert len({event.data["message_id"] for event in events[2:5]}) == 1
    fence, _, _ = str(events[0].id).partition("-")
    assert [event.id for event in events] == [f"{fence}-{n}" for n in range(1, 7)]


@pytest.mark.parametrize("piece", [None, b"x", 5, ["x"]], ids=repr)
async def test_a_piece_that_is_not_text_is_refused(lab: Lab, piece: object) -> None:
    """A2, E1: the last chunk of a provider may have None where the text was. Nothing is sent of it."""

    async def agent(ctx: RunContext) -> None:
        with pytest.raises(InvalidInputError, match="skip chunks") as caught:
            await ctx.stream_text(piece)  # type: ignore[arg-type]
        assert caught.value.details["field"] == "text"
        with pytest.raises(InvalidInputError, match="skip chunks"):
            ctx.stream_part(piece, "arguments", ("c1", "refund"))  # type: ignore[arg-type]

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert [event.type for event in await lab.events()] == ["run.started", "message.completed", "run.completed"]


async def test_custom_event_is_copied_when_it_is_checked(lab: Lab) -> None:
    """A2: the dict stays the agent's, and it may go on with it."""

    async def agent(ctx: RunContext) -> None:
        progress: JsonObject = {"n": 0, "of": {"files": [1]}}
        for n in (1, 2):
            progress["n"] = n
            await ctx.emit(progress)
        progress["of"]["files"].append(b"x")  # type: ignore[index,call-overload,union-attr,arg-type]

    await lab.attempt(agent)
    sent = [event.data for event in await lab.events() if event.type == "message.delta"]
    assert sent == [{"n": 1, "of": {"files": [1]}}, {"n": 2, "of": {"files": [1]}}]


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


async def test_a_step_cut_short_by_a_question_beside_it_is_in_doubt(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger: also where the answer comes while the question is being stored, so that the same attempt goes on."""
    suspend, calls = lab.backend.runs.suspend, []

    async def charge() -> None:
        calls.append(1)
        await asyncio.Event().wait()

    async def agent(ctx: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            if ctx.attempt > 1:
                group.create_task(ctx.step(charge, on_unknown="fail"))
                await until(lambda: bool(calls))
            group.create_task(ctx.ask("a?", key="a"))
            group.create_task(ctx.ask("b?", key="b"))

    async def answered_first(write: Write, requests: list[HitlRequest]) -> Ended:
        await lab.backend.runs.respond("B", request_id=second.request_id)
        return await suspend(write, requests)

    await lab.attempt(agent)
    first, second = (await lab.backend.runs.requests(thread_id="t")).items
    await lab.backend.runs.respond("A", request_id=first.request_id)
    monkeypatch.setattr(lab.backend.runs, "suspend", answered_first)
    ended = await lab.attempt(agent)
    assert ended is not None and ended.error is not None and ended.error.code == "step_unknown"
    assert len(calls) == 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a list is filled by another task
            await asyncio.sleep(0)


async def test_a_step_whose_function_returned_is_recorded_although_the_agent_is_cancelled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledger: a cancel in the middle of the record does not make a step that finished one in doubt."""
    recording, go_on = asyncio.Event(), asyncio.Event()
    finish_step = lab.backend.runs.finish_step

    async def slow(attempt: AttemptToken, key: str, result: object) -> None:
        recording.set()
        await go_on.wait()
        await finish_step(attempt, key, result)

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


async def test_ask_suspends_and_later_returns_the_answer(lab: Lab) -> None:
    """H1, H5, H11: extra goes with the suspension; the run keeps its id; earlier answers are replayed."""

    async def agent(ctx: RunContext) -> None:
        ctx.extra["asked"] = True
        color = await ctx.ask("color?")
        size = await ctx.ask("size?")
        await ctx.append(Message.assistant(f"{color} {size}"))

    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    for answer in ("red", "big"):
        [request] = (await lab.backend.runs.requests(thread_id="t")).items
        await lab.backend.runs.respond(answer, thread_id="t")
        ended = await lab.attempt(agent)
    assert request.payload == {"question": "size?"}
    assert status(ended) is RunStatus.COMPLETED
    assert (await lab.texts())[-1] == "red big"


async def test_value_nested_too_deep_is_refused_in_the_agents_call(lab: Lab) -> None:
    """Nothing is asked or sent, and the agent goes on."""
    deep: JsonValue = []
    for _ in range(100_000):
        deep = [deep]
    value: JsonObject = {"k": deep}

    async def agent(ctx: RunContext) -> None:
        for refused in (
            ctx.emit(value),
            ctx.ask(value),
            ctx.ask("ok?", value),
            ctx.ask("ok?", timeout=1, on_timeout=value),
            ctx.approve(CALL, details=value),
            ctx.step(lambda: value),
        ):
            with pytest.raises(InvalidInputError):
                await refused
        await ctx.append(Message.assistant("done"))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await lab.texts() == ["hi", "done"]
    assert "message.delta" not in [event.type for event in await lab.events()]


async def test_extra_nested_too_deep_fails_its_run_and_not_the_next_one(lab: Lab) -> None:
    """R15, H11: nothing of it is kept."""

    async def agent(ctx: RunContext) -> None:
        ctx.extra["fine"] = True
        ctx.extra["k"] = ctx.extra

    ended = await lab.attempt(agent)
    assert ended is not None and ended.error is not None
    assert (ended.status, ended.error.code, ended.error.details["field"]) == (RunStatus.FAILED, "invalid_input", "extra")
    thread = await lab.backend.threads.thread("t")
    assert thread is not None and thread.extra == {}


async def test_only_changed_keys_of_extra_are_saved(lab: Lab) -> None:
    """R15, H11: what others changed meanwhile survives a run that changed another key."""
    threads = lab.backend.threads

    async def agent(ctx: RunContext) -> None:
        ctx.extra["mine"] = 1
        await threads.update_thread("t", extra={"theirs": 2})

    await threads.update_thread("t", extra={"theirs": 1})
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    thread = await threads.thread("t")
    assert thread is not None and thread.extra == {"mine": 1, "theirs": 2}


async def test_the_identical_question_asked_twice_is_asked_twice(lab: Lab) -> None:
    """H5."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant(f"{await ctx.ask('sure?')} {await ctx.ask('sure?')}"))

    await lab.attempt(agent)
    await lab.backend.runs.respond("yes", thread_id="t")
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    await lab.backend.runs.respond("no", thread_id="t")
    await lab.attempt(agent)
    assert (await lab.texts())[-1] == "yes no"


async def test_an_answer_never_goes_to_another_question(lab: Lab) -> None:
    """H5: an agent that asks something else in its next attempt is not answered from the wrong row."""

    async def agent(ctx: RunContext) -> None:
        await ctx.ask("delete all?" if ctx.attempt > 1 else "color?")

    await lab.attempt(agent)
    await lab.backend.runs.respond("yes", thread_id="t")
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED


async def test_parallel_questions_are_asked_together(lab: Lab) -> None:
    """H5: a TaskGroup cancels the others when the first unwinds; all of them are asked before."""
    answers: list[object] = []

    async def agent(ctx: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.ask(f"q{n}", key=str(n))) for n in range(3)]
        answers.extend(task.result() for task in tasks)

    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    requests = (await lab.backend.runs.requests(thread_id="t")).items
    assert sorted(str(request.payload["question"]) for request in requests) == ["q0", "q1", "q2"]
    for request in requests:
        await lab.backend.runs.respond(f"a to {request.payload['question']}", request_id=request.request_id)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert answers == ["a to q0", "a to q1", "a to q2"]


@pytest.mark.parametrize("swallow", ["except", "gather"])
async def test_user_code_cannot_swallow_a_suspension(lab: Lab, swallow: str) -> None:
    async def agent(ctx: RunContext) -> None:
        if swallow == "gather":
            await asyncio.gather(ctx.ask("a?"), ctx.ask("b?"), return_exceptions=True)
        else:
            try:
                await ctx.ask("a?")
            except BaseException as signal:
                assert isinstance(signal, ControlSignal)

    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED


async def test_an_approval_belongs_to_the_call_and_its_arguments(lab: Lab) -> None:
    """H5, I6: changed arguments need another approval."""
    approvals = []

    async def agent(ctx: RunContext) -> None:
        amount = 10 if ctx.attempt < 3 else 1000
        approvals.append(await ctx.approve(CALL.model_copy(update={"arguments": {"amount": amount}})))
        if ctx.attempt == 2:
            raise ConnectionError("again")

    await lab.attempt(agent)
    await lab.backend.runs.respond({"approved": True, "arguments": {"amount": 9}}, thread_id="t")
    assert status(await lab.attempt(agent)) is RunStatus.QUEUED
    assert approvals[0].approved
    assert approvals[0].arguments == {"amount": 9}
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    assert len(approvals) == 1


def test_request_ids_are_the_same_in_every_attempt_and_different_in_every_thread() -> None:
    """I6: a fork, which is another thread, never inherits an answer."""
    assert request_id(1, "r", "k") == request_id(1, "r", "k")
    assert len({request_id(1, "r", "k"), request_id(2, "r", "k"), request_id(1, "s", "k"), request_id(1, "r", "l")}) == 4


async def test_a_cancelled_agent_does_not_tear_a_commit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """I2, R9: what a cancelled append stored is known to the attempt, and nothing is stored twice."""
    committing, go_on = asyncio.Event(), asyncio.Event()
    append = lab.backend.runs.append

    async def slow(attempt: AttemptToken, messages: list[Message], *, first_event: int = 1) -> list[Message]:
        committing.set()
        await go_on.wait()
        return await append(attempt, messages, first_event=first_event)

    monkeypatch.setattr(lab.backend.runs, "append", slow)

    async def agent(ctx: RunContext) -> None:
        writing = asyncio.create_task(ctx.append(Message.assistant([CALL])))
        await committing.wait()
        writing.cancel()
        go_on.set()
        await asyncio.wait((writing,))
        await ctx.append(Message.tool(ToolResultPart(call_id="c1", content="ok")))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert [message.role for message in (await lab.backend.threads.messages("t")).items] == ["user", "assistant", "tool"]


async def test_a_refused_commit_of_a_cancelled_agent_is_not_reported_as_forgotten(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: a cancel that stops the agent in its write is an everyday event, not a defect in the log."""
    committing, go_on = asyncio.Event(), asyncio.Event()
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))
    append = lab.backend.runs.append

    async def slow(attempt: AttemptToken, messages: list[Message], *, first_event: int = 1) -> list[Message]:
        committing.set()
        await go_on.wait()
        return await append(attempt, messages, first_event=first_event)

    monkeypatch.setattr(lab.backend.runs, "append", slow)

    async def agent(ctx: RunContext) -> None:
        writing = asyncio.create_task(ctx.append(Message.assistant([CALL])))
        await committing.wait()
        await lab.backend.runs.cancel("t", "r")
        writing.cancel()
        go_on.set()
        await asyncio.wait((writing,))

    assert status(await lab.attempt(agent)) is RunStatus.CANCELLED
    gc.collect()
    assert reported == []


async def test_a_refused_write_unwinds_the_agent(lab: Lab) -> None:
    """I2, I8: neither `except Exception` nor another try gets past it, and the attempt writes nothing more."""
    reached = []

    async def agent(ctx: RunContext) -> None:
        await lab.backend.runs.cancel("t", "r")
        for _ in range(3):
            try:
                await ctx.append(Message.assistant([CALL]))
            except Exception:
                reached.append("except")
        reached.append("end")

    assert status(await lab.attempt(agent)) is RunStatus.CANCELLED
    assert reached == []
    assert await lab.texts() == []


async def test_a_probe_cannot_ask() -> None:
    """F9."""
    backend = await connect()
    accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hi")))
    stream = EventEmitter(EventWriter(backend.events), AttemptToken(1, "r", 1), "t")
    context = RunContext(accepted.run, ProbeAttemptStore([], accepted.run), stream)
    with pytest.raises(HitlNotAllowedError):
        await context.ask("color?")
    with pytest.raises(HitlNotAllowedError):
        await context.approve(CALL)
