"""The job of a fan-out on the memory backend, attempt by attempt (F11, F14)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from runyard import Client
from runyard.app import App
from runyard.domain.derived_ids import candidate_id, first_prompt_id
from runyard.domain.fan_outs import JUDGE, Candidate, key_of
from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError, InvalidInputError
from runyard.events.writer import EventWriter
from runyard.execution.context import RunContext
from runyard.execution.executor import Execution, WorkerServices
from runyard.execution.fan_out import JUDGED_TEXT_BYTES
from runyard.models import JsonObject, Message, RunOptions, Usage
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest
from runyard.ports.fan_outs import ProbeEnd
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Claim, Ended, Step
from runyard.ports.workers import WorkerInfo
from runyard_backends.memory import MemoryBackend, connect
from runyard_backends.memory.state import RunState

SPENT = Usage(requests=1, input_tokens=5)
Agent = Callable[[RunContext], Awaitable[None]]


async def echo(ctx: RunContext) -> None:
    """Repeat the prompt, or fail."""
    assert ctx.input is not None
    if ctx.input.text == "fail":
        raise ValueError("as told")
    await ctx.append(Message.assistant(ctx.input.text, usage=SPENT))


class Jobs:
    """A thread ``t`` with a completed run, and fan-outs on it."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.backend, self.client = backend, Client(backend)
        self.writer = EventWriter(backend.events)

    async def prepare(self) -> None:
        await self.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
        await self.backend.runs.accept(AcceptRequest(thread_id="t", run_id="first", input=Message.user("hi")))
        await self.attempt(App({"agent": echo}), "t", "first")

    async def accept(self, *messages: str, **how: Any) -> None:
        fan = FanOut(messages=[Message.user(text) for text in messages], **{"max_parallel": 8} | how)
        fork = ForkRequest(src="t", new="job", cut=Cut(), fan=fan)
        options = RunOptions(max_attempts=1)
        await self.backend.runs.accept(
            AcceptRequest(thread_id="t", run_id="job", kind="fork_many", agent="agent", fork=fork, options=options)
        )

    async def claim(self, thread: str = "t", run: str = "job") -> Claim:
        key = await self.backend.threads.thread_key(thread)
        assert key is not None
        [claim] = await self.backend.runs.claim("w", [RunRef(key, run)])
        assert claim.outcome == "claimed", claim.outcome
        return claim

    async def attempt(self, app: App, thread: str = "t", run: str = "job") -> Ended | None:
        """Claim a run and execute one attempt of it."""
        return await Execution(WorkerServices.of(app, self.backend, self.writer), await self.claim(thread, run)).run()

    def ids(self, number: int) -> tuple[str, str]:
        """The ids of a candidate's thread and run."""
        thread = candidate_id("t", "job", number)
        return thread, first_prompt_id(thread)

    async def run_candidate(self, number: int) -> None:
        await self.attempt(App({"agent": echo}), *self.ids(number))

    async def status(self, number: int) -> RunStatus | None:
        [status] = await self.backend.runs.statuses([self.ids(number)])
        return status

    async def crash(self) -> None:
        """The worker loses the job, so that its next claim is a takeover."""
        await self.backend.workers.leave("w")
        await self.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))

    async def state(self) -> RunState:
        """The job's state in the store."""
        return self.backend.world.db.get("", "t").runs["job"]

    async def result(self) -> JsonObject:
        run = await self.client.run("t", "job")
        assert run.status is RunStatus.COMPLETED, run.error
        assert isinstance(run.result, dict)
        return run.result

    async def candidates(self) -> list[Candidate]:
        return (await self.client.candidates("t", "job")).items


@pytest.fixture
async def jobs() -> Jobs:
    jobs = Jobs(await connect())
    await jobs.prepare()
    return jobs


def says(text: str) -> Agent:
    async def judge(ctx: RunContext) -> None:
        await ctx.append(Message.assistant(text, usage=SPENT))

    return judge


class TestJudge:
    async def judged(self, jobs: Jobs, judge: Agent, *answers: str) -> JsonObject:
        """Return the verdict of ``judge`` on candidates with these answers."""
        await jobs.accept(*answers, judge="judge")
        await jobs.attempt(App({"agent": echo, "judge": judge}))
        result = await jobs.result()
        assert [one.text for one in await jobs.candidates()] == list(answers)
        return result

    async def test_f11_a_verdict_has_the_assignment_once(self, jobs: Jobs) -> None:
        """F11: The judge reads the candidates as metadata. The verdict has them as text only."""
        result = await self.judged(jobs, says("1"), "a", "b")
        assignment, answer = result["verdict"]["messages"]
        assert assignment["metadata"] == {} and "Answer: a" in assignment["content"][0]["text"]
        assert answer["content"][0]["text"] == "1" and result["winner"] == 1

    async def test_f11_half_of_the_verdict_is_for_the_judged_texts(self, jobs: Jobs) -> None:
        """F11, F15: Answers whose text would fill the verdict are not judged."""
        large = "x" * (JUDGED_TEXT_BYTES // 2)
        result = await self.judged(jobs, says("1"), large, "b")
        assert result["winner"] is None and result["verdict"]["error"]["code"] == "message_too_large"

    @pytest.mark.parametrize("fails", [False, True])
    async def test_f11_a_verdict_that_is_too_large_has_no_winner(self, jobs: Jobs, fails: bool) -> None:
        """F11: The job completes, the answers stay, and what the judge used counts."""

        async def judge(ctx: RunContext) -> None:
            await ctx.append(Message.assistant("1" + "x" * 2**23, usage=SPENT))
            if fails:
                raise ValueError("as told")

        result = await self.judged(jobs, judge, "a", "b")
        assert result["winner"] is None and result["verdict"]["error"]["code"] == "invalid_input"
        assert (await jobs.client.fan_out_progress("t", "job")).usage == SPENT + SPENT + SPENT

    async def test_f11_a_number_that_is_too_long_is_a_failure_of_the_judge(self, jobs: Jobs) -> None:
        """F11: Python refuses to convert a text of more than 4,300 digits."""
        result = await self.judged(jobs, says("9" * 5000), "a", "b")
        assert result["winner"] is None
        assert (result["verdict"]["stop_reason"], result["verdict"]["error"]["code"]) == ("error", "invalid_input")

    async def test_f11_the_failure_of_a_judge_is_recorded(self, jobs: Jobs) -> None:
        """F11, F14, I1: A later attempt does not ask the judge again, and its usage is known."""

        async def judge(ctx: RunContext) -> None:
            await ctx.append(Message.assistant("?", usage=SPENT))
            raise ValueError("as told")

        await self.judged(jobs, judge, "a", "b")
        job = await jobs.state()
        assert job.steps[JUDGE].result == await jobs.result()


class TestPreviousRelease:
    """Jobs that a worker of the previous release began. Its steps have no outcome."""

    async def test_f11_the_start_of_a_thread_is_not_its_end(self, jobs: Jobs) -> None:
        """F11: The step of a candidate with a thread recorded its start."""
        await jobs.accept("a", "b", threads=True)
        await jobs.attempt(App({"agent": echo}))
        job = await jobs.state()
        job.steps = {key: Step(key, True, {"thread_id": "…"}, step.fence) for key, step in job.steps.items()}
        job.until_fewer = 2
        await jobs.run_candidate(0)
        ended = await jobs.attempt(App({"agent": echo}))
        assert ended is not None and ended.status is RunStatus.QUEUED
        await jobs.run_candidate(1)
        await jobs.attempt(App({"agent": echo}))
        await jobs.result()
        assert [(one.status, one.text) for one in await jobs.candidates()] == [("completed", "a"), ("completed", "b")]
        assert (await jobs.client.fan_out_progress("t", "job")).usage == SPENT + SPENT

    async def test_f11_the_answer_of_a_probe_has_its_outcome(self, jobs: Jobs) -> None:
        """F11, F14: A probe that failed is not a candidate for the winner, and neither is one that is cancelled."""
        await jobs.accept("a", "fail", "c", stop="first")
        attempt = (await jobs.claim()).attempt
        assert attempt is not None
        for number, reason in enumerate(("error", "aborted")):
            answer = {"text": "", "messages": [], "stop_reason": reason, "error": None, "thread_id": None}
            await jobs.backend.runs.finish_step(attempt, key_of(number), answer)
        await jobs.crash()
        await jobs.attempt(App({"agent": echo}))
        assert (await jobs.result())["winner"] == 2
        assert [one.status for one in await jobs.candidates()] == ["failed", "cancelled", "completed"]
        progress = await jobs.client.fan_out_progress("t", "job")
        assert (progress.completed, progress.failed, progress.cancelled) == (1, 1, 1)


class TestThreads:
    async def test_f11_a_loser_that_was_started_before_a_crash_is_cancelled(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """F11, I1: The worker dies after it has started a candidate, and before it records this. Meanwhile another one wins."""
        await jobs.accept("fail", "b", "c", threads=True, stop="first", max_parallel=2)
        await jobs.attempt(App({"agent": echo}))
        await jobs.run_candidate(0)
        with monkeypatch.context() as patched:
            patched.setattr(type(jobs.backend.fan_outs), "begin", die)
            with pytest.raises(Died):
                await jobs.attempt(App({"agent": echo}))
        await jobs.crash()
        assert await jobs.status(2) is RunStatus.QUEUED
        await jobs.run_candidate(1)
        await jobs.attempt(App({"agent": echo}))
        assert (await jobs.result())["winner"] == 1
        assert await jobs.status(2) is RunStatus.CANCELLED
        assert [one.status for one in await jobs.candidates()] == ["failed", "completed", "cancelled"]

    async def test_f11_a_deleted_run_of_a_candidate_does_not_fail_the_job(self, jobs: Jobs) -> None:
        """F11, D1: A run that failed may be deleted before the job has recorded its end. It stays a failure."""
        await jobs.accept("fail", "b", threads=True)
        await jobs.attempt(App({"agent": echo}))
        for number in (0, 1):
            await jobs.run_candidate(number)
        await jobs.client.delete_run(*jobs.ids(0))
        await jobs.attempt(App({"agent": echo}))
        await jobs.result()
        assert [(one.status, one.stop_reason) for one in await jobs.candidates()] == [
            ("failed", "error"),
            ("completed", "stop"),
        ]


class Died(BaseException):
    """The death of a worker."""


async def die(*_: object) -> None:
    raise Died


async def test_f15_a_page_has_at_most_as_many_candidates_as_a_fan_out(jobs: Jobs) -> None:
    await jobs.accept("a")
    for call in (jobs.client.candidates("t", "job", limit=1001), jobs.client.handle("t", "job").candidates(limit=1001)):
        with pytest.raises(InvalidInputError):
            await call
    assert len((await jobs.client.candidates("t", "job", limit=1000)).items) == 1


class TestUsage:
    @pytest.mark.parametrize("then", ["cancel", "outage"])
    async def test_f14_a_lost_reply_counts_no_usage_twice(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
        """F14: The reply to the record of a probe is lost. The repetition is refused, because the job was cancelled meanwhile,
        or finds no store."""
        await jobs.accept("a")
        store = type(jobs.backend.fan_outs)
        commit = store.end

        async def end(self: Any, attempt: AttemptToken, ends: Sequence[ProbeEnd]) -> None:
            await commit(self, attempt, ends)
            if then == "cancel":
                await jobs.client.cancel("t", "job")
                await commit(self, attempt, ends)
            raise BackendUnavailableError("no reply")

        monkeypatch.setattr(store, "end", end)
        monkeypatch.setattr("runyard.execution.fan_out.patiently", once)
        await asyncio.wait_for(jobs.attempt(App({"agent": echo})), 30)
        monkeypatch.undo()
        if then == "outage":
            await jobs.attempt(App({"agent": echo}))
        assert (await jobs.client.run("t", "job")).usage == SPENT


async def once(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()
