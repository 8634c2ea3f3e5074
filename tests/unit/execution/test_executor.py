"""How attempts end (R5, R7, R9, R10, R11, F5, F9, E2)."""

import asyncio
import contextvars
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from runyard.app import App
from runyard.domain.size_limits import MAX_BYTES, MAX_VALUES, MESSAGE_BYTES
from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError, DataCorruptedError, HitlNotAllowedError, InvalidInputError
from runyard.events.writer import EventEmitter, EventWriter
from runyard.execution.context import RunContext
from runyard.execution.executor import Execution, Stop, WorkerServices
from runyard.execution.retries import backoff
from runyard.models import Event, Message, RetryPolicy, Run, RunOptions, ToolCallPart, ToolResultPart, Usage, new_id
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, Write
from runyard.ports.refs import RunRef
from runyard.ports.results import Claim, Ended
from runyard.ports.scheduling import EventLog
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard.support.agent_adapters import AgentFunction
from runyard.testing.scripted_agent import scripted
from runyard.worker.task_guard import contain
from runyard_backends.memory import connect

Agent = Callable[[RunContext], Awaitable[None]]
AT_ONCE = RetryPolicy(initial=0)


@dataclass
class Lab:
    """Runs of thread "t" on the memory backend, executed attempt by attempt."""

    backend: Backend
    writer: EventWriter

    async def accept(self, run_id: str = "r", text: str = "hi", **fields: Any) -> None:
        request = AcceptRequest(thread_id="t", run_id=run_id, input=Message.user(text), **fields)
        await self.backend.runs.accept(request)

    async def claim(self, run_id: str = "r", worker: str = "w") -> Claim:
        await self.backend.workers.register(WorkerInfo(worker_id=worker, queues=["default"]))
        [claim] = await self.backend.runs.claim(worker, [await self.ref(run_id)])
        assert claim.outcome == "claimed"
        return claim

    def execution(self, agent: Agent | App, claim: Claim) -> Execution:
        app = agent if isinstance(agent, App) else App({"agent": agent})
        return Execution(WorkerServices.of(app, self.backend, self.writer), claim)

    async def attempt(self, agent: Agent | App, run_id: str = "r", worker: str = "w") -> Ended | None:
        return await self.execution(agent, await self.claim(run_id, worker)).run()

    async def ref(self, run_id: str = "r") -> RunRef:
        key = await self.backend.threads.thread_key("t")
        assert key is not None
        return RunRef(key, run_id)

    async def run(self, run_id: str = "r") -> Run:
        run = await self.backend.runs.run("t", run_id)
        assert run is not None
        return run

    async def events(self, run_id: str = "r") -> list[Event]:
        self.writer.close()
        await self.writer.run()
        return await self.backend.events.read(await self.ref(run_id))


async def _lab() -> Lab:
    backend = await connect()
    return Lab(backend, EventWriter(backend.events))


@pytest.fixture
async def lab() -> Lab:
    return await _lab()


def status(ended: Ended | None) -> RunStatus | None:
    return ended.status if ended else None


async def nothing(ctx: RunContext) -> None: ...


async def broken(ctx: RunContext) -> None:
    raise ValueError("no")


async def endless(ctx: RunContext) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def under_way(execution: Execution) -> AsyncIterator["asyncio.Task[Ended | None]"]:
    task = asyncio.create_task(execution.run())
    await asyncio.sleep(0)
    yield task
    await task


async def test_a_value_that_an_agent_returns_is_logged_and_not_stored(lab: Lab) -> None:
    """The run completes. Without the warning, the missing answer would have no explanation."""

    async def agent(_: RunContext) -> Any:
        return "my answer"

    await lab.accept()
    with capture_logs() as logs:
        assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    [warning] = [line for line in logs if line["event"] == "agent_returned_value"]
    assert warning["log_level"] == "warning" and "ctx.append" in warning["do"] and "my answer" not in str(logs)
    assert [message.text for message in (await lab.backend.threads.messages("t")).items] == ["hi"]


async def test_an_error_fails_the_run_and_says_why(lab: Lab) -> None:
    """R7, E2: the terminal event carries the id that the store recorded."""
    await lab.accept()
    ended = await lab.attempt(broken)
    run = await lab.run()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert (run.error.code, run.error.message, run.error.details) == ("agent_error", "no", {"type": "ValueError"})
    last = (await lab.events())[-1]
    assert ended is not None
    assert (last.type, last.id) == ("run.failed", ended.event_id) == ("run.failed", run.event_id)


async def test_errors_are_retried_until_the_attempts_are_used_up(lab: Lab) -> None:
    """R11."""
    await lab.accept(options=RunOptions(max_attempts=3, retry=AT_ONCE))
    outcomes = [status(await lab.attempt(broken)) for _ in range(3)]
    assert outcomes == [RunStatus.QUEUED, RunStatus.QUEUED, RunStatus.FAILED]
    assert (await lab.run()).error_count == 2
    rewound = [event.data for event in await lab.events() if event.type == "run.rewound"]
    assert [(data["attempt"], data["takeover"]) for data in rewound] == [(2, False), (3, False)]
    assert [(data["error"]["message"], "traceback" in data["error"]) for data in rewound] == [("no", False)] * 2


async def test_a_retry_waits_for_its_backoff(lab: Lab) -> None:
    await lab.accept(options=RunOptions(max_attempts=2, retry=RetryPolicy(initial=60, jitter=0)))
    ended = await lab.attempt(broken)
    assert ended is not None
    [job] = ended.effects.jobs
    assert 59 < job.delay <= 60


@pytest.mark.parametrize(
    ("error", "delay"), [(ConnectionResetError(), 30), (ConnectionError(), 30), (KeyError(), None), (LookupError(), 1)]
)
async def test_retry_policy_is_chosen_by_the_closest_error_class(lab: Lab, error: Exception, delay: float | None) -> None:
    """R11: the closest class that the policy names decides; None is no retry."""

    async def agent(ctx: RunContext) -> None:
        raise error

    named = {"ConnectionError": RetryPolicy(initial=30, jitter=0), "OSError": None, "KeyError": None}
    await lab.accept(options=RunOptions(max_attempts=2, retry=RetryPolicy(initial=1, jitter=0, errors=named)))
    ended = await lab.attempt(agent)
    assert ended is not None
    if delay is None:
        assert ended.status is RunStatus.FAILED
    else:
        [job] = ended.effects.jobs
        assert delay - 1 < job.delay <= delay


async def test_the_backoff_of_many_runs_is_spread(lab: Lab) -> None:
    """R11: jitter, so that they do not all come back at once; within its bounds, and growing up to the maximum."""
    policy = RetryPolicy(initial=10, factor=3, maximum=50, jitter=0.5)
    delays = [backoff(policy, 0) for _ in range(200)]
    assert 5 <= min(delays) < 7 and 13 < max(delays) <= 15
    assert all(25 <= backoff(policy, errors) <= 75 for errors in (2, 10, 10_000))


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        (RetryPolicy(initial=1e18, maximum=1e308), None),
        (RetryPolicy(factor=1000, maximum=1e308), None),
        (RetryPolicy(), math.nan),
        (RetryPolicy(), math.inf),
    ],
)
def test_every_backoff_has_a_date(policy: RetryPolicy, asked: float | None) -> None:
    """I1, R11: a release that no store can keep would leave the run to be started again for ever, and no attempt counted."""
    error = ValueError()
    error.retry_after = asked  # type: ignore[attr-defined]
    for errors_before in (0, 1, 1000):
        assert timedelta(0) < timedelta(seconds=backoff(policy, errors_before, error)) < timedelta(days=365 * 20)


async def test_an_error_that_says_so_is_not_retried(lab: Lab) -> None:
    class Hopeless(Exception):
        retryable = False

    async def agent(ctx: RunContext) -> None:
        raise Hopeless

    await lab.accept(options=RunOptions(max_attempts=9))
    assert status(await lab.attempt(agent)) is RunStatus.FAILED


async def test_a_group_with_one_error_is_told_as_that_error(lab: Lab) -> None:
    async def agent(ctx: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(broken(ctx))

    await lab.accept()
    await lab.attempt(agent)
    error = (await lab.run()).error
    assert error is not None
    assert error.details == {"type": "ValueError"}


async def test_a_timeout_ends_the_attempt(lab: Lab) -> None:
    """R11: the agent sees its deadline, and is cancelled at it."""
    seen: dict[str, object] = {}

    async def agent(ctx: RunContext) -> None:
        seen["deadline"] = ctx.deadline
        try:
            await asyncio.Event().wait()
        finally:
            seen["cancelled"] = ctx.cancelled

    await lab.accept(options=RunOptions(timeout=0.02))
    assert status(await lab.attempt(agent)) is RunStatus.FAILED
    error = (await lab.run()).error
    assert error is not None
    assert error.code == "run_timeout"
    assert seen["deadline"] is not None
    assert seen["cancelled"] is True


async def test_a_timeout_names_the_line_at_which_the_agent_was(lab: Lab) -> None:
    """R11: The record of the run has the place and the traceback of the user's code."""

    async def wait_long() -> None:
        await asyncio.Event().wait()

    async def agent(ctx: RunContext) -> None:
        async with asyncio.timeout(60):
            await wait_long()

    await lab.accept(options=RunOptions(timeout=0.02))
    await lab.attempt(agent)
    error = (await lab.run()).error
    assert error is not None and error.traceback is not None
    line = wait_long.__code__.co_firstlineno + 1
    assert error.message == f"the attempt took longer than 0.02 s; the agent was at {__file__}:{line} in wait_long"
    assert "in agent\n    await wait_long()" in error.traceback and "runyard/" not in error.traceback
    assert error.traceback.endswith(f"RunTimeoutError: {error.message}\n")


@pytest.mark.parametrize("timeout", [1e300, 1e12])
async def test_a_timeout_beyond_all_dates_bounds_nothing(lab: Lab, timeout: float) -> None:
    """R11."""
    await lab.accept(options=RunOptions(timeout=timeout))
    assert status(await lab.attempt(nothing)) is RunStatus.COMPLETED


async def test_sys_exit_in_an_agent_fails_its_run_only(lab: Lab) -> None:
    async def agent(ctx: RunContext) -> None:
        raise SystemExit(3)

    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.FAILED


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt()], ids=repr)
def test_system_exit_in_a_guarded_task_is_an_error_of_the_run(error: BaseException) -> None:
    async def leave() -> None:
        raise error

    async def beget() -> None:
        await asyncio.create_task(leave())

    async def agent(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            await asyncio.create_task(leave(), context=contextvars.Context())
        if ctx.attempt == 2:
            await asyncio.create_task(beget(), context=contextvars.Context())
        await leave()

    with asyncio.Runner() as runner:
        contain(runner.get_loop())
        lab = runner.run(_lab())
        runner.run(lab.accept(options=RunOptions(max_attempts=3, retry=AT_ONCE)))
        outcomes = [status(runner.run(lab.attempt(agent))) for _ in range(3)]
        assert outcomes == [RunStatus.QUEUED, RunStatus.QUEUED, RunStatus.FAILED]


def test_a_contained_task_may_be_cancelled_before_it_starts(recwarn: pytest.WarningsRecorder) -> None:
    """Nobody is warned of work that was never awaited."""

    async def agent(ctx: RunContext) -> None:
        task = asyncio.create_task(nothing(ctx))
        task.cancel()
        await asyncio.wait([task])

    with asyncio.Runner() as runner:
        contain(runner.get_loop())
        lab = runner.run(_lab())
        runner.run(lab.accept())
        assert status(runner.run(lab.attempt(agent))) is RunStatus.COMPLETED
    assert not recwarn


async def test_a_tool_call_without_its_result_fails_the_run(lab: Lab) -> None:
    """R5."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant([ToolCallPart(id="c", name="x")]))

    await lab.accept()
    ended = await lab.attempt(agent)
    assert ended is not None
    assert ended.error is not None
    assert ended.error.code == "incomplete_tool_cycle"
    assert [event.type for event in await lab.events()][-2:] == ["message.completed", "run.failed"]


async def test_a_cancel_wins_over_the_completion(lab: Lab) -> None:
    """R10, I8: none of the write's messages is stored, and none is announced."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("too late"))
        await lab.backend.runs.cancel("t", "r")

    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.CANCELLED
    assert [event.type for event in await lab.events()] == ["run.started", "message.completed", "run.cancelled"]


async def test_a_cancel_hint_stops_an_agent_that_writes_nothing(lab: Lab) -> None:
    """R10."""
    await lab.accept()
    execution = lab.execution(endless, await lab.claim())
    async with under_way(execution) as task:
        await lab.backend.runs.cancel("t", "r")
        execution.stop(Stop.CANCEL)
    assert status(task.result()) is RunStatus.CANCELLED


async def test_a_hint_of_a_cancel_that_never_was_costs_nothing(lab: Lab) -> None:
    await lab.accept()
    execution = lab.execution(endless, await lab.claim())
    async with under_way(execution) as task:
        execution.stop(Stop.CANCEL)
    assert status(task.result()) is RunStatus.QUEUED
    assert (await lab.run()).error_count == 0


async def test_a_hand_over_keeps_what_was_said_and_counts_no_error(lab: Lab) -> None:
    """R9: released at its last commit; the next attempt continues after it."""

    async def agent(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            await ctx.append(Message.assistant("half"))
            await asyncio.Event().wait()
        assert [message.text for message in await ctx.history()] == ["hi", "half"]

    await lab.accept()
    execution = lab.execution(agent, await lab.claim())
    async with under_way(execution) as task:
        await asyncio.sleep(0.01)
        execution.stop(Stop.HANDOVER)
    assert status(task.result()) is RunStatus.QUEUED
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert (await lab.run()).error_count == 0
    rewound = next(event for event in await lab.events() if event.type == "run.rewound")
    assert rewound.data["message_id"] == (await lab.backend.threads.messages("t")).items[-1].id


async def test_only_an_attempt_that_answers_started_resumes_the_run(lab: Lab) -> None:
    """E2: after a hand over of a run that had asked before, readers discard the text that was streamed. An error in between
    does not hide a later answer."""

    async def agent(ctx: RunContext) -> None:
        await ctx.ask("first?", key="first")
        if ctx.attempt == 2:
            await asyncio.Event().wait()
        if ctx.attempt == 3:
            raise ConnectionError
        await ctx.ask("second?", key="second")

    await lab.accept(options=RunOptions(max_attempts=2, retry=AT_ONCE))
    await lab.attempt(agent)
    await lab.backend.runs.respond(True, thread_id="t")
    execution = lab.execution(agent, await lab.claim())
    async with under_way(execution) as task:
        execution.stop(Stop.HANDOVER)
    assert status(task.result()) is RunStatus.QUEUED
    await lab.attempt(agent)
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    await lab.backend.runs.respond(True, thread_id="t")
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    began = [event.type for event in await lab.events() if event.type in ("run.started", "run.resumed", "run.rewound")]
    assert began == ["run.started", "run.resumed", "run.rewound", "run.rewound", "run.resumed"]


@pytest.mark.parametrize("leaves_by", [None, ConnectionError("closed while it was cancelled"), SystemExit(1)], ids=repr)
async def test_however_an_agent_takes_a_hand_over_its_run_goes_on(lab: Lab, leaves_by: BaseException | None) -> None:
    """R9, R11: it is neither done nor failed; a deploy uses up no attempt."""

    async def agent(ctx: RunContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if leaves_by is not None:
                raise leaves_by from None

    await lab.accept()
    execution = lab.execution(agent, await lab.claim())
    async with under_way(execution) as task:
        await asyncio.sleep(0.01)
        execution.stop(Stop.HANDOVER)
    assert status(task.result()) is RunStatus.QUEUED
    run = await lab.run()
    assert (run.error, run.error_count) == (None, 0)


async def test_an_abandoned_attempt_writes_nothing(lab: Lab) -> None:
    """I2: its worker was declared dead, and somebody else may have the run."""
    await lab.accept()
    execution = lab.execution(endless, await lab.claim())
    async with under_way(execution) as task:
        execution.stop(Stop.ABANDON)
    assert task.result() is None
    assert (await lab.run()).status is RunStatus.RUNNING


async def test_a_taken_over_end_records_without_a_write_and_the_other_rewinds(lab: Lab) -> None:
    """I2, R9: a zombie's completion is refused; the run says what it committed once."""

    async def agent(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            await lab.backend.workers.leave("w")
            taken.append(await lab.attempt(agent, worker="w2"))
        await ctx.append(Message.assistant(f"by attempt {ctx.attempt}"))

    taken: list[Ended | None] = []
    await lab.accept()
    assert await lab.attempt(agent) is None
    assert status(taken[0]) is RunStatus.COMPLETED
    assert [message.text for message in (await lab.backend.threads.messages("t")).items] == ["hi", "by attempt 2"]
    begins = [event for event in await lab.events() if str(event.id).endswith("-1")]
    assert [event.type for event in begins] == ["run.started", "run.rewound"]
    assert (begins[1].data["attempt"], begins[1].data["takeover"]) == (2, True)


async def test_an_agent_that_is_not_served_here_is_left_to_others(lab: Lab) -> None:
    await lab.accept(agent="elsewhere")
    ended = await lab.attempt(App({"here": nothing}))
    assert status(ended) is RunStatus.QUEUED
    assert ended is not None
    assert ended.effects.jobs[0].delay > 1
    assert (await lab.run()).error_count == 0


async def test_an_answer_that_came_meanwhile_continues_the_same_attempt(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """H6: the answer to a question of an earlier attempt arrives between the ledger's reading and the suspension."""
    starts = []

    async def agent(ctx: RunContext) -> None:
        starts.append(ctx.attempt)
        answers = [await ctx.ask("a?", key="a"), await ctx.ask("b?", key="b")] if ctx.attempt > 1 else []
        if ctx.attempt == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.ask("a?", key="a"))
                group.create_task(ctx.ask("b?", key="b"))
        await ctx.append(Message.assistant(f"{answers}"))

    await lab.accept()
    await lab.attempt(agent)
    first, second = (await lab.backend.runs.requests(thread_id="t")).items
    await lab.backend.runs.respond("A", request_id=first.request_id)
    suspend = lab.backend.runs.suspend

    async def answered_first(*parts: Any) -> Ended:
        await lab.backend.runs.respond("B", request_id=second.request_id)
        return await suspend(*parts)

    monkeypatch.setattr(lab.backend.runs, "suspend", answered_first)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert starts == [1, 2, 2]


class EagerWriter(EventWriter):
    """Notes events in the moment from which on they may be sent. ``told``: their types."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self.told: list[str] = []

    def pending(self, stream: EventEmitter, *, urgent: bool = False) -> None:
        self.told += [event.type for event in stream.take()]


@pytest.mark.parametrize(
    ("script", "verb", "announced"),
    [
        ("color?", "suspend", ["hitl.requested", "run.suspended"]),
        ("say hi", "complete", ["run.completed"]),
        ("fail", "fail", ["run.failed"]),
    ],
)
async def test_a_question_and_an_end_are_announced_after_their_commit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, script: str, verb: str, announced: list[str]
) -> None:
    """H1, E2: while the write is under way readers are told neither."""
    lab.writer = writer = EagerWriter(lab.backend.events)
    write, before = getattr(lab.backend.runs, verb), list[str]()

    async def watched(*arguments: Any, **options: Any) -> Any:
        before.extend(writer.told)
        return await write(*arguments, **options)

    monkeypatch.setattr(lab.backend.runs, verb, watched)
    await lab.accept(text=script)
    await lab.attempt(scripted)
    assert before and set(before).isdisjoint(announced)
    assert writer.told[-len(announced) :] == announced


async def test_a_store_that_does_not_answer_is_asked_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """O2: fenced writes retry within a bound, nothing lost, nothing twice."""
    complete, away = lab.backend.runs.complete, [True, True]

    async def flaky(writes: list[Write], *, wait: float) -> list[Ended | Exception]:
        answer = await complete(writes, wait=wait)
        if away:
            away.pop()
            raise BackendUnavailableError("the answer was lost")
        return answer

    monkeypatch.setattr(lab.backend.runs, "complete", flaky)
    await lab.accept()
    assert status(await lab.attempt(scripted)) is RunStatus.COMPLETED
    assert len((await lab.backend.threads.messages("t")).items) == 2


async def test_message_that_cannot_be_stored_fails_only_its_run(lab: Lab) -> None:
    """Both ends travel in one commit."""

    async def agent(ctx: RunContext) -> None:
        if ctx.run_id == "bad":
            ctx.extra["nul"] = "\0"

    await lab.accept("bad")
    await lab.backend.runs.accept(AcceptRequest(thread_id="t2", run_id="good", input=Message.user("hi")))
    await lab.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    key = await lab.backend.threads.thread_key("t2")
    assert key is not None
    claims = await lab.backend.runs.claim("w", [await lab.ref("bad"), RunRef(key, "good")])
    tools = WorkerServices.of(App({"agent": agent}), lab.backend, lab.writer)
    bad, good = await asyncio.gather(*(Execution(tools, claim).run() for claim in claims))
    assert (status(bad), status(good)) == (RunStatus.FAILED, RunStatus.COMPLETED)
    error = (await lab.run("bad")).error
    assert error is not None
    assert error.code == "invalid_input"


@pytest.mark.parametrize("leaves", ["by an error", "by a hand-over"])
async def test_last_messages_that_cannot_be_stored_fail_their_run(lab: Lab, leaves: str) -> None:
    """I1, R9, R11: a held answer is refused only when its attempt ends; given back, the run would begin it again for ever."""
    said = Message.assistant("said before", id=new_id())
    held = asyncio.Event()

    async def agent(ctx: RunContext) -> None:
        await ctx.append(said)
        if ctx.run_id == "r":
            held.set()
            if leaves == "by an error":
                raise ValueError("no")
            await asyncio.Event().wait()

    await lab.accept("first")
    assert status(await lab.attempt(agent, "first")) is RunStatus.COMPLETED
    await lab.accept(options=RunOptions(max_attempts=3, retry=AT_ONCE))
    execution = lab.execution(agent, await lab.claim())
    async with under_way(execution) as task:
        await held.wait()
        if leaves == "by a hand-over":
            execution.stop(Stop.HANDOVER)
    assert status(task.result()) is RunStatus.FAILED
    error = (await lab.run()).error
    assert error is not None and error.code == "invalid_input"


async def too_many(ctx: RunContext) -> None:
    await ctx.append(Message.tool(ToolResultPart(call_id="c", content=[0] * (MAX_VALUES + 1))))


async def too_large(ctx: RunContext) -> None:
    await ctx.append(Message.assistant("x" * (MESSAGE_BYTES + 1)))


async def large_extra(ctx: RunContext) -> None:
    ctx.extra["k"] = "x" * MAX_BYTES["extra"]


async def large_result(ctx: RunContext) -> None:
    ctx.result = "x" * (MAX_BYTES["result"] + 1)


async def large_step(ctx: RunContext) -> None:
    await ctx.step(lambda: "x" * (MAX_BYTES["result"] + 1))


async def large_event(ctx: RunContext) -> None:
    await ctx.emit({"k": "x" * MAX_BYTES["delta"]})


async def large_error(ctx: RunContext) -> None:
    raise InvalidInputError("no", wide=[0] * (2 * MAX_VALUES), long="x" * MAX_BYTES["error"])


@pytest.mark.parametrize(
    "agent", [too_many, too_large, large_extra, large_result, large_step, large_event, large_error], ids=lambda a: a.__name__
)
async def test_message_that_is_too_large_fails_its_run_once(lab: Lab, agent: AgentFunction) -> None:
    """A2, R16: another attempt would only bring it again; and the thread goes on."""
    await lab.accept(options=RunOptions(max_attempts=3, retry=AT_ONCE))
    ended = await lab.attempt(agent)
    assert ended is not None and ended.error is not None and status(ended) is RunStatus.FAILED
    assert ended.error.code == ("message_too_large" if agent is too_large else "invalid_input")
    thread = await lab.backend.threads.thread("t")
    assert thread is not None and thread.extra == {}


@pytest.mark.parametrize("extra", [None, [("k", 1)], "k"], ids=repr)
async def test_extra_that_is_no_dict_is_refused_where_it_is_set(lab: Lab, extra: Any) -> None:
    """H11: the dict of before stays."""

    async def agent(ctx: RunContext) -> None:
        ctx.extra = {"k": 1}
        try:
            ctx.extra = extra
        finally:
            assert ctx.extra == {"k": 1}

    await lab.accept()
    ended = await lab.attempt(agent)
    assert ended is not None
    assert ended.error is not None
    assert (ended.error.code, ended.error.details) == ("invalid_input", {"field": "extra"})


async def test_an_agent_that_ignores_a_refused_write_is_cancelled(lab: Lab) -> None:
    """I2: its side effects end with its right to write."""

    async def agent(ctx: RunContext) -> None:
        await lab.backend.workers.leave("w")
        await lab.claim(worker="w2")
        await asyncio.gather(ctx.append(Message.assistant([ToolCallPart(id="c", name="x")])), return_exceptions=True)
        await asyncio.Event().wait()

    await lab.accept()
    async with asyncio.timeout(5):
        assert await lab.attempt(agent) is None


async def test_an_agent_cannot_send_runyards_own_events(lab: Lab) -> None:
    """E2: a stream ends with exactly one terminal event, after the commit."""

    async def agent(ctx: RunContext) -> None:
        await ctx.emit({}, type="run.completed")

    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.FAILED
    assert [event.type for event in await lab.events()].count("run.completed") == 0


async def completed_thread(lab: Lab) -> None:
    await lab.accept("first", "say one")
    assert status(await lab.attempt(scripted, "first")) is RunStatus.COMPLETED


async def test_a_fork_job_makes_the_fork_and_returns_its_id(lab: Lab) -> None:
    """F5."""
    await completed_thread(lab)
    request = ForkRequest(src="t", new="t2", cut=Cut(after_run_id="first"))
    await lab.backend.runs.accept(AcceptRequest(thread_id="t", run_id="job", kind="fork", fork=request))
    assert status(await lab.attempt(scripted, "job")) is RunStatus.COMPLETED
    assert (await lab.run("job")).result == {"thread_id": "t2"}
    assert [message.text for message in (await lab.backend.threads.messages("t2")).items] == ["say one", "one"]


async def probe(lab: Lab, agent: Agent | App, text: str = "say two") -> Run:
    await completed_thread(lab)
    request = ForkRequest(src="t", new="job", cut=Cut(after_run_id="first"))
    await lab.accept("job", text, kind="fork_once", fork=request)
    await lab.attempt(agent, "job")
    return await lab.run("job")


async def test_a_probe_answers_from_the_snapshot_and_writes_to_no_thread(lab: Lab) -> None:
    """F9."""

    async def agent(ctx: RunContext) -> None:
        texts = [message.text for message in await ctx.history()]
        ctx.extra["probed"] = True
        await ctx.append(Message.assistant(f"saw {texts}", stop_reason="max_tokens"))

    result = (await probe(lab, agent)).result
    assert isinstance(result, dict)
    assert result["text"] == "saw ['say one', 'one', 'say two']"
    assert result["stop_reason"] == "max_tokens"
    assert [message["role"] for message in result["messages"]] == ["user", "assistant"]  # type: ignore[index, call-overload, union-attr]
    assert len((await lab.backend.threads.messages("t")).items) == 2
    thread = await lab.backend.threads.thread("t")
    assert thread is not None
    assert "probed" not in thread.extra


async def test_a_probe_sees_the_messages_of_each_run_together(lab: Lab) -> None:
    """F9, I7: as a run does, whatever was stored between them: a provider takes no call without its result next to it."""
    checkpointer = lab.backend.checkpointer
    await checkpointer.claim_run("t", "beside")
    await checkpointer.append("t", [Message.user("asked", run_id="beside")])
    await completed_thread(lab)
    await checkpointer.append("t", [Message.assistant("answered", run_id="beside")])
    await checkpointer.mark_run_complete("t", "beside")

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant(" ".join(message.text for message in await ctx.history())))

    request = ForkRequest(src="t", new="job", cut=Cut(after_run_id="beside"))
    await lab.accept("job", "what if", kind="fork_once", fork=request)
    await lab.attempt(agent, "job")
    result = (await lab.run("job")).result
    assert isinstance(result, dict) and result["text"] == "asked answered say one one what if"


async def test_a_probe_whose_agent_fails_stops_with_error(lab: Lab) -> None:
    """F9."""
    run = await probe(lab, broken)
    assert run.status is RunStatus.COMPLETED
    assert isinstance(run.result, dict)
    assert run.result["stop_reason"] == "error"
    error = run.result["error"]
    assert isinstance(error, dict)
    assert error["details"] == {"type": "ValueError"} and "in broken" in str(error["traceback"])


async def test_a_probe_that_asks_is_refused(lab: Lab) -> None:
    """F9."""
    run = await probe(lab, scripted, "color?")
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.code == HitlNotAllowedError.code


async def test_a_probe_of_an_agent_that_may_ask_is_refused_before_the_snapshot_is_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9."""

    async def read(*_: object) -> None:
        raise AssertionError("the snapshot was read")

    monkeypatch.setattr(lab.backend.threads, "cut_messages", read)
    app = App()
    app.agent(hitl=True)(scripted)
    run = await probe(lab, app)
    assert run.error is not None
    assert run.error.code == HitlNotAllowedError.code


@pytest.mark.parametrize("judge", [False, True])
async def test_a_fan_out_to_an_agent_that_may_ask_is_refused_before_the_snapshot_is_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, judge: bool
) -> None:
    """F9, F11: by the worker, where nobody knew it when the job was accepted."""

    async def read(*_: object) -> None:
        raise AssertionError("the snapshot was read")

    await completed_thread(lab)
    fan = FanOut(messages=[Message.user("a"), Message.user("b")], max_parallel=2, judge="judge" if judge else None)
    request = ForkRequest(src="t", new="job", cut=Cut(after_run_id="first"), fan=fan)
    await lab.backend.runs.accept(AcceptRequest(thread_id="t", run_id="job", kind="fork_many", fork=request))
    monkeypatch.setattr(lab.backend.threads, "cut_messages", read)
    app = App()
    app.agent("default", hitl=not judge)(scripted)
    app.agent("judge", hitl=judge)(scripted)
    await lab.attempt(app, "job")
    run = await lab.run("job")
    assert run.error is not None
    assert run.error.code == HitlNotAllowedError.code


@pytest.mark.parametrize("words", ["nul \0", "lone \ud800", RuntimeError("no words")])
async def test_an_error_can_be_recorded_whatever_it_says(lab: Lab, words: object) -> None:
    """I1, R7: a run whose error a store refuses to keep would be started again for ever."""

    class Odd(Exception):
        def __str__(self) -> str:
            if isinstance(words, Exception):
                raise words
            return str(words)

    async def agent(ctx: RunContext) -> None:
        raise Odd

    await lab.accept()
    await lab.attempt(agent)
    run = await lab.run()
    assert run.status is RunStatus.FAILED and run.error is not None
    assert "\0" not in run.error.message and run.error.message.encode("utf-8")


async def test_an_error_can_be_recorded_however_deep_its_details_are(lab: Lab) -> None:
    """I1, R7: what stands too deep to be stored is left out."""
    details: dict[str, Any] = {"there": True}
    details["again"] = details

    async def agent(ctx: RunContext) -> None:
        raise InvalidInputError("no", **details)

    await lab.accept()
    await lab.attempt(agent)
    error = (await lab.run()).error
    assert error is not None and (error.code, error.message) == ("invalid_input", "no")
    assert error.details["there"] and isinstance(error.details["again"], dict)


async def test_an_error_can_be_recorded_whatever_its_details_hold(lab: Lab) -> None:
    """I1, R7: a number of too many digits to be written down, and what raises when it is asked for its words."""

    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def agent(ctx: RunContext) -> None:
        raise InvalidInputError("no", n=10**5000, what=Mute(), names={10**5000: 2**64})

    await lab.accept()
    await lab.attempt(agent)
    run = await lab.run()
    assert run.status is RunStatus.FAILED and run.error is not None
    assert run.error.details == {"n": "int", "what": "Mute", "names": {"int": str(2**64)}}


@pytest.mark.parametrize("carried", [True, False], ids=["by a message", "by nothing"])
@pytest.mark.parametrize(
    "usage", [Usage(cost=math.inf), Usage(cost=math.nan), Usage(input_tokens=10**5000), Usage(requests=-1)]
)
async def test_usage_that_is_no_amount_is_refused_where_it_is_added(lab: Lab, usage: Usage, carried: bool) -> None:
    """R7: the agent learns of it, and its run ends."""

    async def agent(ctx: RunContext) -> None:
        with pytest.raises(InvalidInputError, match="usage"):
            await ctx.append(Message.assistant("no", usage=usage)) if carried else ctx.add_usage(usage)
        ctx.add_usage(Usage(requests=1))

    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert (await lab.run()).usage == Usage(requests=1)


async def test_usage_that_cannot_be_stored_fails_its_run(lab: Lab) -> None:
    """I1: each amount can be stored and their sum cannot; the run would be started again for ever."""

    async def agent(ctx: RunContext) -> None:
        for _ in range(2):
            ctx.add_usage(Usage(input_tokens=2**62))

    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.FAILED
    error = (await lab.run()).error
    assert error is not None and error.code == "invalid_input"


async def test_of_an_endless_error_the_beginning_is_recorded(lab: Lab) -> None:
    """R7: it may quote all that a server answered; readers of the run's stream and of lists get it too."""

    async def agent(ctx: RunContext) -> None:
        raise ValueError("no " + "x" * 5_000_000)

    await lab.accept()
    await lab.attempt(agent)
    error = (await lab.run()).error
    assert error is not None
    assert error.message.startswith("no xxx") and len(error.message) < 20_000


async def test_a_defect_costs_an_attempt(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: what breaks outside the agent counts as the attempt's error; the run ends after max_attempts."""

    async def refuse(*_: object, **__: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(lab.backend.runs, "complete", refuse)
    await lab.accept(options=RunOptions(max_attempts=2, retry=AT_ONCE))
    assert (await lab.attempt(scripted)) is not None
    assert (await lab.run()).status is RunStatus.QUEUED
    await lab.attempt(scripted, worker="w2")
    run = await lab.run()
    assert run.status is RunStatus.FAILED and run.error is not None and run.error.code == "agent_error"


@pytest.mark.parametrize(("policy", "becomes"), [("run", RunStatus.COMPLETED), ("fail", RunStatus.FAILED)])
async def test_a_run_that_another_version_began(lab: Lab, policy: Any, becomes: RunStatus) -> None:
    """U2: what becomes of it is the App's choice."""
    await lab.accept()
    claim = await lab.claim()
    assert claim.attempt is not None
    await lab.backend.runs.release(claim.attempt)
    claim = await lab.claim()
    claim.version_before = "1"
    app = App({"agent": nothing}, version="2", on_version_mismatch=policy)
    assert status(await lab.execution(app, claim).run()) is becomes
    error = (await lab.run()).error
    assert error is None if policy == "run" else error is not None and error.code == "version_mismatch"


@pytest.mark.parametrize("leaves", ["by an error", "by a hand-over", "by a cancel"])
async def test_usage_of_an_attempt_counts_once_whatever_becomes_of_it(lab: Lab, leaves: str) -> None:
    """R11: the usage of a stored message, of a held one and of none, although no later attempt reads the history."""
    used = asyncio.Event()

    async def agent(ctx: RunContext) -> None:
        call = ToolCallPart(id=f"c{ctx.attempt}", name="look", arguments={})
        await ctx.append(Message.assistant([call], usage=Usage(requests=1)))
        await ctx.append(Message.tool(ToolResultPart(call_id=call.id)), Message.assistant("held", usage=Usage(requests=10)))
        ctx.add_usage(Usage(requests=100))
        if ctx.attempt > 1:
            return
        used.set()
        if leaves == "by an error":
            raise ValueError("no")
        await asyncio.Event().wait()

    await lab.accept(options=RunOptions(max_attempts=2, retry=AT_ONCE))
    execution = lab.execution(agent, await lab.claim())
    async with under_way(execution) as task:
        await used.wait()
        if leaves == "by a cancel":
            await lab.backend.runs.cancel("t", "r")
        if leaves != "by an error":
            execution.stop(Stop.CANCEL if leaves == "by a cancel" else Stop.HANDOVER)
    ended = status(task.result())
    if leaves != "by a cancel":
        assert ended is RunStatus.QUEUED
        ended = status(await lab.attempt(agent))
    run = await lab.run()
    assert (ended, run.usage) == (
        (RunStatus.CANCELLED, Usage(requests=111)) if leaves == "by a cancel" else (RunStatus.COMPLETED, Usage(requests=222))
    )


async def test_usage_of_a_refused_write_after_a_cancel_counts(lab: Lab) -> None:
    """R10: the agent learns of the cancel by its own write."""

    async def agent(ctx: RunContext) -> None:
        ctx.add_usage(Usage(requests=1))
        await lab.backend.runs.cancel("t", "r")
        await ctx.append(Message.user("late"))

    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.CANCELLED
    assert (await lab.run()).usage == Usage(requests=1)


async def test_usage_of_an_end_that_cannot_be_stored_counts(lab: Lab) -> None:
    """R7: what the models cost is counted although the run fails."""

    async def agent(ctx: RunContext) -> None:
        ctx.add_usage(Usage(requests=1))
        ctx.extra["nul"] = "\0"

    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.FAILED
    assert (await lab.run()).usage == Usage(requests=1)


async def test_another_deployment_that_is_away_is_the_agents_error(lab: Lab) -> None:
    """R11: it costs an attempt, and the run fails after max_attempts."""

    async def agent(ctx: RunContext) -> None:
        raise BackendUnavailableError("the other deployment cannot be reached")

    await lab.accept("once")
    assert status(await lab.attempt(agent, "once")) is RunStatus.FAILED
    await lab.accept(options=RunOptions(max_attempts=2, retry=RetryPolicy(initial=3600)))
    assert status(await lab.attempt(agent)) is RunStatus.QUEUED
    run = await lab.run()
    assert (run.error_count, run.error and run.error.code) == (1, "backend_unavailable")
    [claim] = await lab.backend.runs.claim("w", [await lab.ref()])
    assert claim.outcome == "not_due"


async def test_the_attempts_own_store_that_is_away_costs_no_attempt(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """O2: also if the agent calls the store in a task of its own."""

    async def away(*_: object, **__: object) -> None:
        raise BackendUnavailableError("the store does not answer")

    async def agent(ctx: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.append(Message.user("more")))

    monkeypatch.setattr("runyard.support.store_retries.RETRY_LIMIT_SECONDS", 0.0)
    monkeypatch.setattr("runyard.execution.attempt_store.patiently", lambda call: call())
    monkeypatch.setattr(lab.backend.runs, "append", away)
    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.QUEUED
    run = await lab.run()
    assert (run.error_count, run.error) == (0, None)


async def test_another_deployment_that_is_away_is_an_answer_of_a_probe(lab: Lab) -> None:
    """F9: provider errors become the stop reason ``error``."""

    async def agent(ctx: RunContext) -> None:
        if ctx.run_id == "probe":
            raise BackendUnavailableError("the other deployment cannot be reached")

    await lab.accept()
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    fork = ForkRequest(src="t", new="probe", cut=Cut(after_run_id="r"))
    await lab.accept("probe", kind="fork_once", fork=fork)
    assert status(await lab.attempt(agent, "probe")) is RunStatus.COMPLETED
    result = (await lab.run("probe")).result
    assert isinstance(result, dict) and result["stop_reason"] == "error"


async def test_a_record_of_an_earlier_attempt_that_cannot_be_read_fails_the_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: every attempt would read it."""

    async def damaged(*_: object) -> None:
        raise DataCorruptedError("the step with step_key k cannot be decoded", step_key="k")

    await lab.accept(options=RunOptions(max_attempts=5))
    claim = await lab.claim()
    assert claim.attempt is not None
    await lab.backend.runs.release(claim.attempt)
    monkeypatch.setattr(lab.backend.runs, "ledger", damaged)
    assert status(await lab.attempt(scripted)) is RunStatus.FAILED
    error = (await lab.run()).error
    assert error is not None and (error.code, error.details) == ("data_corrupted", {"step_key": "k"})


async def test_each_attempt_stores_the_traceback_of_its_error_and_its_events_do_not(lab: Lab) -> None:
    """E2: the stream of a run is for its readers, and the traceback is for the operators."""
    await lab.accept(options=RunOptions(max_attempts=2, retry=AT_ONCE))
    await lab.attempt(broken)
    await lab.attempt(broken)
    attempts = (await lab.backend.runs.attempts("t", "r")).items
    assert [attempt.outcome for attempt in attempts] == ["retried", "failed"]
    for error in (*(attempt.error for attempt in attempts), (await lab.run()).error):
        assert error is not None and error.details == {"type": "ValueError"} and error.traceback is not None
        head, first, *_, last = error.traceback.splitlines()
        assert head.startswith("Traceback") and __file__ in first and last.startswith("ValueError: ")
    [failed] = [event for event in await lab.events() if event.type == "run.failed"]
    assert "traceback" not in failed.data["error"]


async def test_a_traceback_has_no_values_of_variables_and_no_messages(lab: Lab) -> None:
    await lab.accept(text="card 4242")

    async def agent(ctx: RunContext) -> None:
        card = (await ctx.history())[-1].text
        raise KeyError(len(card))

    await lab.attempt(agent)
    error = (await lab.run()).error
    assert error is not None and error.traceback is not None
    assert "raise KeyError(len(card))" in error.traceback and "4242" not in error.traceback


async def test_the_apps_filter_decides_which_traceback_is_stored(lab: Lab) -> None:
    """A filter that fails stores no traceback, because the text may be what the filter should have removed."""

    def fails(_: str) -> str:
        raise OSError

    expected = {"r1": "Trace", "r2": None, "r3": None}
    filters = {"r1": lambda text: text[:5], "r2": lambda _: None, "r3": fails}
    for run_id, trace in expected.items():
        await lab.accept(run_id)
        await lab.attempt(App({"agent": broken}, traceback_filter=filters[run_id]), run_id)
        error = (await lab.run(run_id)).error
        assert error is not None and error.traceback == trace and error.details == {"type": "ValueError"}


async def test_one_line_tells_the_end_of_an_attempt(lab: Lab) -> None:
    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("x", usage=Usage(input_tokens=7, output_tokens=3)))
        if ctx.attempt < 3:
            raise ValueError("no")

    await lab.accept(options=RunOptions(max_attempts=3, retry=AT_ONCE))
    await lab.accept("r2", options=RunOptions(max_attempts=1))
    with capture_logs() as logs:
        for _ in range(3):
            await lab.attempt(agent)
        await lab.attempt(broken, "r2")
    lines = [line for line in logs if line["event"] == "run_ended"]
    assert [(line["log_level"], line["status"]) for line in lines] == [
        ("warning", "queued"),
        ("warning", "queued"),
        ("info", "completed"),
        ("error", "failed"),
    ]
    first = lines[0]
    assert (first["agent"], first["queue"], first["worker_id"], first["error"]) == ("default", "default", "w", "ValueError: no")
    assert (first["input_tokens"], first["output_tokens"]) == (7, 3) and first["seconds"] >= 0
    [retried, *_] = (await lab.backend.runs.attempts("t", "r")).items
    assert retried.error is not None and first["exception"] == retried.error.traceback is not None
