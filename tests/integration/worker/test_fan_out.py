"""fork_many on a worker in this process, over both stores (F9, F11, H1, I1, I2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runyard import Client
from runyard.app import App
from runyard.domain.fan_outs import MAX_CANDIDATES
from runyard.domain.states import RunStatus
from runyard.errors import (
    HitlNotAllowedError,
    InvalidInputError,
    ResultExpiredError,
    RunConflictError,
    RunNotCompletedError,
    ThreadNotFoundError,
    TooManyCandidatesError,
)
from runyard.execution.context import RunContext
from runyard.models import FanOutProgress, ForkManyResult, Message, Usage
from runyard.ports.refs import AttemptToken
from runyard.ports.stores import Backend
from runyard.ports.workers import Retention
from runyard.support import backend_urls
from runyard.worker.worker import Worker

BOUND = 60.0
Agent = Callable[[RunContext], Awaitable[None]]


@pytest.fixture(params=["memory", "postgres"])
def servers(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """The url of a store, and options."""
    if request.param == "memory":
        return "memory://", {}
    return request.getfixturevalue("postgres_url"), {"redis": request.getfixturevalue("redis_url")}


@pytest.fixture
async def backend(servers: tuple[str, dict[str, str]]) -> AsyncIterator[Backend]:
    connected = await backend_urls.connect(servers[0], **servers[1])
    yield connected
    await connected.close()


@pytest.fixture
async def client(backend: Backend) -> Client:
    client = Client(backend)
    await client.store_message("t", "a message without a run")
    return client


@asynccontextmanager
async def serving(backend: Backend, agents: Agent | App, **options: Any) -> AsyncIterator[Worker]:
    """A worker with one slot."""
    app = agents if isinstance(agents, App) else App({"agent": agents})
    worker = Worker(app, backend, **{"slots": 1, "grace": 0.0} | options)
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(worker.started.wait(), 30)
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND):
        while not await condition():  # noqa: ASYNC110 - the state is in a store
            await asyncio.sleep(0.005)


async def echo(ctx: RunContext) -> None:
    """Repeats its prompt; does as ``fail`` or ``hang`` says. What it says shows how much of the thread it sees."""
    assert ctx.input is not None
    words = ctx.input.text
    if words == "fail":
        raise ValueError("as told")
    if words == "hang":
        await asyncio.Event().wait()
    await ctx.append(Message.assistant(f"{len(await ctx.history())} {words}!", stop_reason="stop"))


async def first_run(client: Client) -> None:
    assert (await (await client.enqueue("t", "first", "first")).result(BOUND)).ok


async def steps_of(backend: Backend, job: str) -> list[str]:
    """What the job has recorded."""
    run, key = await backend.runs.run("t", job), await backend.threads.thread_key("t")
    if run is None or run.fence is None:
        return []
    assert key is not None
    return [step.key for step in (await backend.runs.ledger(AttemptToken(key, job, run.fence))).steps.values() if step.done]


def texts(result: ForkManyResult) -> list[str]:
    return [candidate.text for candidate in result.results]


def reasons(result: ForkManyResult) -> list[str]:
    return [candidate.stop_reason for candidate in result.results]


class Watch:
    """Counts how many agents run at once, and which prompts were run how often."""

    def __init__(self, agent: Agent = echo) -> None:
        self.agent, self.running, self.most, self.asked = agent, 0, 0, list[str]()

    async def __call__(self, ctx: RunContext) -> None:
        assert ctx.input is not None
        self.asked.append(ctx.input.text)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.01)
            await self.agent(ctx)
        finally:
            self.running -= 1


class TestProbes:
    async def test_f11_each_message_is_asked_on_the_snapshot_and_nothing_is_written(
        self, backend: Backend, client: Client
    ) -> None:
        """F11, F9: more probes than slots, ``max_parallel`` at once."""
        together = asyncio.Event()

        async def agent(ctx: RunContext) -> None:
            if watch.running == 2:
                together.set()
            if ctx.run_id != "first":
                await together.wait()
            await echo(ctx)

        watch = Watch(agent)
        async with serving(backend, watch):
            await first_run(client)
            result = await client.fork_many("t", messages=[f"m{n}" for n in range(6)], max_parallel=2, wait=BOUND)
        assert texts(result) == [f"4 m{n}!" for n in range(6)]
        assert set(reasons(result)) == {"stop"} and result.winner is None and result.verdict is None
        assert [[m.role for m in one.messages] for one in result.results] == [["user", "assistant"]] * 6
        assert len({m.run_id for one in result.results for m in one.messages}) == 6
        assert watch.most == 2
        assert len((await client.messages("t")).items) == 3
        assert [thread.thread_id for thread in (await client.threads()).items] == ["t"]

    async def test_f11_one_that_fails_is_told_beside_the_others(self, backend: Backend, client: Client) -> None:
        """F11: its error is its stop reason."""
        async with serving(backend, echo):
            await first_run(client)
            result = await client.fork_many("t", messages=["a", "fail"], wait=BOUND)
        assert reasons(result) == ["stop", "error"]
        error = result.results[1].error
        assert error is not None and error.message == "as told" and not result.results[1].ok

    async def test_f11_the_first_that_succeeds_wins_and_the_others_are_cancelled(
        self, backend: Backend, client: Client
    ) -> None:
        """F11: one that failed before is no winner; one that was not begun is not begun."""
        watch = Watch()
        async with serving(backend, watch):
            await first_run(client)
            messages = ["hang", "fail", "good", "late"]
            result = await client.fork_many("t", messages=messages, stop="first", max_parallel=2, wait=BOUND)
        assert result.winner == 2
        assert reasons(result) == ["cancelled", "error", "stop", "cancelled"]
        assert "late" not in watch.asked and watch.running == 0

    async def test_f11_nobody_wins_where_all_fail(self, backend: Backend, client: Client) -> None:
        async with serving(backend, echo):
            await first_run(client)
            result = await client.fork_many("t", messages=["fail", "fail"], stop="first", wait=BOUND)
        assert result.winner is None and reasons(result) == ["error", "error"]

    async def test_usage_of_probes_is_added_to_their_job(self, backend: Backend, client: Client) -> None:
        """Also what one used that failed; a judge's too."""

        async def pays(ctx: RunContext) -> None:
            await ctx.append(Message.assistant("0", usage=Usage(requests=1, input_tokens=5)))
            if ctx.input is not None and ctx.input.text == "fail":
                raise ValueError("as told")

        async with serving(backend, App({"agent": pays, "judge": pays})):
            await first_run(client)
            await client.fork_once("t", "a", run_id="probe", wait=BOUND)
            await client.fork_many("t", messages=["a", "b", "fail"], judge="judge", run_id="job", wait=BOUND)
        assert (await client.run("t", "probe")).usage == Usage(requests=1, input_tokens=5)
        assert (await client.run("t", "job")).usage == Usage(requests=4, input_tokens=20)

    async def test_f11_the_same_job_again_has_the_same_answer(self, backend: Backend, client: Client) -> None:
        """F11, R2: nothing is asked twice; other messages under its id are refused; the result is kept for its time."""
        watch = Watch()
        async with serving(backend, watch):
            await first_run(client)
            one = await client.fork_many("t", messages=["a", "b"], run_id="job", wait=BOUND)
            assert await client.fork_many("t", messages=["a", "b"], run_id="job", wait=BOUND) == one
        assert sorted(watch.asked) == ["a", "b", "first"]
        with pytest.raises(RunConflictError) as caught:
            await client.enqueue_fork_many("t", "job", messages=["a", "c"])
        assert caught.value.details["differs"] == ["messages"]
        await backend.workers.prune(Retention(results=Retention().results * 0))
        with pytest.raises(ResultExpiredError):
            await client.fork_many("t", messages=["a", "b"], run_id="job", wait=BOUND)
        assert await steps_of(backend, "job") == []

    async def test_f11_a_handed_over_job_does_not_repeat_the_probes_that_finished(
        self, backend: Backend, client: Client
    ) -> None:
        """F11, I1: each is recorded when it finishes; the next attempt asks only the others."""
        gate = asyncio.Event()

        async def agent(ctx: RunContext) -> None:
            assert ctx.input is not None
            if ctx.input.text == "slow":
                await gate.wait()
            await echo(ctx)

        watch = Watch(agent)

        async def recorded() -> bool:
            return sorted(await steps_of(backend, "job")) == ["candidate:0", "candidate:2"]

        async with serving(backend, watch):
            await first_run(client)
            job = await client.enqueue_fork_many("t", "job", messages=["a", "slow", "b"])
            await until(recorded)
        assert await job.status() is RunStatus.QUEUED
        gate.set()
        async with serving(backend, watch):
            result = await client.fork_many("t", messages=["a", "slow", "b"], run_id="job", wait=BOUND)
        assert texts(result) == ["4 a!", "4 slow!", "4 b!"]
        assert sorted(watch.asked) == ["a", "b", "first", "slow", "slow"]

    async def test_f11_a_cancel_stops_every_probe(self, backend: Backend, client: Client) -> None:
        """R10."""
        watch = Watch()

        async def all_asked() -> bool:
            return watch.running == 3

        async with serving(backend, watch):
            await first_run(client)
            job = await client.enqueue_fork_many("t", messages=["hang"] * 3)
            await until(all_asked)
            await job.cancel()
            assert (await job.result(BOUND)).status is RunStatus.CANCELLED
            assert watch.running == 0

    async def test_f9_an_agent_that_may_ask_is_refused_before_the_snapshot_is_read(
        self, backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """F9, F11: as a candidate's agent and as the judge."""

        async def read(*_: object) -> None:
            raise AssertionError("the snapshot was read")

        app = App({"agent": echo})
        app.agent("asks", hitl=True)(echo)
        async with serving(backend, app):
            await first_run(client)
            monkeypatch.setattr(type(backend.threads), "cut_messages", read)
            for how in ({"agent": "asks"}, {"judge": "asks"}):
                with pytest.raises(HitlNotAllowedError):
                    await client.fork_many("t", messages=["a", "b"], wait=BOUND, **how)  # type: ignore[arg-type]

    async def test_f9_a_candidate_that_asks_fails_the_job(self, backend: Backend, client: Client) -> None:
        """F9: an agent of which nobody said that it may ask."""

        async def asks(ctx: RunContext) -> None:
            assert ctx.input is not None
            if ctx.input.text == "ask":
                await ctx.ask("really?")
            await echo(ctx)

        async with serving(backend, asks):
            await first_run(client)
            with pytest.raises(HitlNotAllowedError):
                await client.fork_many("t", messages=["hang", "ask"], wait=BOUND)

    async def test_f14_progress_events_and_usage(self, backend: Backend, client: Client) -> None:
        """F14: The handle counts the candidates while they run, an event tells each end, and the result has the whole usage."""
        gate = asyncio.Event()
        spent = Usage(requests=1, input_tokens=5, cost=0.25)

        async def pays(ctx: RunContext) -> None:
            assert ctx.input is not None
            if ctx.input.text == "slow":
                await gate.wait()
            await ctx.append(Message.assistant("0", usage=spent))
            if ctx.input.text == "fail":
                raise ValueError("as told")

        async with serving(backend, App({"agent": pays, "judge": pays})):
            await first_run(client)
            messages = ["a", "fail", "slow", "b"]
            job = await client.enqueue_fork_many("t", "job", messages=messages, max_parallel=3, judge="judge")

            async def three_ended() -> bool:
                return (await job.progress()).ended == 3

            await until(three_ended)
            assert await job.progress() == FanOutProgress(
                total=4, running=1, completed=2, failed=1, usage=spent + spent + spent
            )
            [slow] = [one for one in (await job.candidates()).items if one.status == "running"]
            assert (slow.number, slow.text, slow.stop_reason) == (2, "", None)
            gate.set()
            result = await client.fork_many("t", messages=messages, run_id="job", judge="judge", wait=BOUND)
            events = [event async for event in job.stream()]
        whole = Usage(requests=5, input_tokens=25, cost=1.25)
        assert result.usage == (await job.progress()).usage == (await job.run()).usage == whole
        assert [one.usage for one in result.results] == [spent] * 4
        ends = [event.data for event in events if event.type == "candidate.ended"]
        assert [end["ended"] for end in ends] == [1, 2, 3, 4] and {end["total"] for end in ends} == {4}
        assert {end["number"]: end["status"] for end in ends} == {n: "failed" if n == 1 else "completed" for n in range(4)}

    async def test_f15_hundreds_of_probes(self, backend: Backend, client: Client) -> None:
        """F15, F11: Each message is asked once, and ``max_parallel`` bounds the number at once."""
        watch = Watch()
        messages = [f"m{n}" for n in range(250)]
        async with serving(backend, watch):
            await first_run(client)
            result = await client.fork_many("t", messages=messages, max_parallel=20, wait=60)
        assert texts(result) == [f"4 m{n}!" for n in range(250)]
        assert sorted(watch.asked) == sorted(["first", *messages]) and watch.most <= 20

    async def test_f15_an_answer_that_is_too_large_fails_alone(self, backend: Backend, client: Client) -> None:
        """F15: An answer beyond the bounds of a result is the error of its candidate, and the others have theirs."""

        async def agent(ctx: RunContext) -> None:
            assert ctx.input is not None
            await ctx.append(Message.assistant("x" * (2**23 + 1 if ctx.input.text == "large" else 1)))

        async with serving(backend, agent):
            await first_run(client)
            result = await client.fork_many("t", messages=["small", "large"], wait=BOUND)
        assert reasons(result) == ["stop", "error"]
        error = result.results[1].error
        assert error is not None and error.code == "invalid_input"


class TestJudge:
    async def chosen(self, backend: Backend, client: Client, judge: Agent, *messages: str, **how: Any) -> ForkManyResult:
        async with serving(backend, App({"agent": echo, "judge": judge})):
            await first_run(client)
            return await client.fork_many("t", messages=messages, judge="judge", wait=BOUND, **how)

    @pytest.mark.parametrize("threads", [False, True])
    async def test_f11_a_function_sees_the_candidates_and_sets_the_winner(
        self, backend: Backend, client: Client, threads: bool
    ) -> None:
        """F11: those that succeeded, under their numbers; whatever it writes stays in no thread."""
        seen: list[object] = []

        async def judge(ctx: RunContext) -> None:
            assert ctx.input is not None
            told = ctx.input.metadata["candidates"]
            assert isinstance(told, list)
            seen.append([(one["number"], one["text"]) for one in told if isinstance(one, dict)])
            seen.append([message.text for message in await ctx.history()][:-1])
            ctx.result = 2

        result = await self.chosen(backend, client, judge, "a", "fail", "c", threads=threads)
        assert result.winner == 2
        assert seen == [[(0, "4 a!"), (2, "4 c!")], ["a message without a run", "first", "2 first!"]]
        assert result.verdict is not None and result.verdict.stop_reason == "stop"

    async def test_f11_a_model_answers_with_a_number(self, backend: Backend, client: Client) -> None:
        async def judge(ctx: RunContext) -> None:
            assert ctx.input is not None and "4 b!" in ctx.input.text
            await ctx.append(Message.assistant("Number 1 is the best of 2."))

        result = await self.chosen(backend, client, judge, "a", "b")
        assert result.winner == 1 and result.verdict is not None and result.verdict.text == "Number 1 is the best of 2."

    @pytest.mark.parametrize("says", [None, 7, True, "none of them", 1])
    async def test_f11_a_judge_that_names_no_candidate_that_succeeded(
        self, backend: Backend, client: Client, says: Any
    ) -> None:
        """F11: nobody wins, and the results are there."""

        async def judge(ctx: RunContext) -> None:
            ctx.result = says

        result = await self.chosen(backend, client, judge, "a", "fail", "c")
        assert result.winner is None and result.verdict is not None and texts(result)[0] == "4 a!"

    async def test_f11_a_judge_that_fails(self, backend: Backend, client: Client) -> None:
        """F11: what the candidates said is not lost with it."""

        async def judge(ctx: RunContext) -> None:
            raise ValueError("undecided")

        result = await self.chosen(backend, client, judge, "a", "b")
        assert result.winner is None and result.verdict is not None
        assert (result.verdict.stop_reason, result.verdict.text) == ("error", "undecided")

    async def test_f11_one_that_is_left_wins_without_a_judge(self, backend: Backend, client: Client) -> None:
        async def judge(ctx: RunContext) -> None:
            raise AssertionError("asked")

        result = await self.chosen(backend, client, judge, "a", "fail")
        assert result.winner == 0 and result.verdict is None

    async def test_r12_a_job_waits_for_a_worker_that_has_its_judge(self, backend: Backend, client: Client) -> None:
        """R12: the sentence names it."""
        watch = Watch()

        async def busy() -> bool:
            return watch.running == 1

        async with serving(backend, watch):
            await first_run(client)
            await client.enqueue("other", "hang")
            await until(busy)  # in the only slot, so nobody takes the job
            job = await client.enqueue_fork_many("t", messages=["a"], judge="elsewhere")
            assert "serves agent elsewhere" in await job.explain()

    async def test_f11_f15_more_than_a_judge_can_read(self, backend: Backend, client: Client) -> None:
        """F11, F15: The judge is not asked, nobody wins, and the answers are there."""

        async def agent(ctx: RunContext) -> None:
            await ctx.append(Message.assistant("x" * (3 * 2**20)))

        async def judge(ctx: RunContext) -> None:
            raise AssertionError("asked")

        async with serving(backend, App({"agent": agent, "judge": judge})):
            await first_run(client)
            result = await client.fork_many("t", messages=["a", "b", "c"], judge="judge", wait=BOUND)
        assert result.winner is None and result.verdict is not None and result.verdict.error is not None
        assert result.verdict.error.code == "message_too_large"
        assert [len(text) for text in texts(result)] == [3 * 2**20] * 3


class TestThreads:
    async def test_f14_f15_many_threads_with_their_usage(self, backend: Backend, client: Client) -> None:
        """F14, F15: More threads than a page. The usage is that of each run and of the judge, and the job's own is the judge's
        alone, so that nothing is billed twice."""
        spent = Usage(requests=1, input_tokens=5)

        async def pays(ctx: RunContext) -> None:
            await ctx.append(Message.assistant("7", usage=spent))

        async with serving(backend, App({"agent": pays, "judge": pays}), slots=8):
            await first_run(client)
            messages = [f"m{n}" for n in range(110)]
            how: dict[str, Any] = {"messages": messages, "threads": True, "judge": "judge", "run_id": "job"}
            result = await client.fork_many("t", max_parallel=30, wait=60, **how)
        assert result.winner == 7 and len(result.results) == 110 and {one.status for one in result.results} == {"completed"}
        assert result.usage == Usage(requests=111, input_tokens=555)
        assert (await client.run("t", "job")).usage == spent
        assert len({one.thread_id for one in result.results}) == 110

    async def test_f14_a_cancel_in_the_middle(self, backend: Backend, client: Client) -> None:
        """F14, R10: The runs on threads go on, and the progress follows them. What was not begun is cancelled."""
        watch = Watch()

        async def two_run() -> bool:
            return watch.running == 2

        async with serving(backend, watch, slots=4):
            await first_run(client)
            job = await client.enqueue_fork_many("t", "job", messages=["hang"] * 5, threads=True, max_parallel=2)
            await until(two_run)
            await job.cancel()
            assert (await job.result(BOUND)).status is RunStatus.CANCELLED
            assert await job.progress() == FanOutProgress(total=5, running=2, cancelled=3)
            for thread in (await client.threads(parent_thread_id="t")).items:
                [run] = (await client.runs(thread.thread_id)).items
                await client.cancel(thread.thread_id, run.run_id)
                await client.handle(thread.thread_id, run.run_id).result(BOUND)
            assert await job.progress() == FanOutProgress(total=5, cancelled=5)

    async def test_f14_the_source_is_deleted_in_the_middle(self, backend: Backend, client: Client) -> None:
        """F14, D1: The job is gone with its thread. Its runs on other threads go on, and no further one is started."""
        watch = Watch()

        async def two_run() -> bool:
            return watch.running == 2

        async with serving(backend, watch, slots=4):
            await first_run(client)
            job = await client.enqueue_fork_many("t", "job", messages=["hang"] * 5, threads=True, max_parallel=2)
            await until(two_run)
            threads = (await client.threads(parent_thread_id="t")).items
            await client.delete_thread("t", cancel=True)
            with pytest.raises(ThreadNotFoundError):
                await job.progress()
            for thread in threads:
                [run] = (await client.runs(thread.thread_id)).items
                assert run.status is RunStatus.RUNNING
                await client.cancel(thread.thread_id, run.run_id)
                await client.handle(thread.thread_id, run.run_id).result(BOUND)
        assert watch.asked.count("hang") == 2

    async def test_f11_one_slot_is_enough_for_many_threads(self, backend: Backend, client: Client) -> None:
        """F11: the job holds no slot while its threads wait for one; nothing is rescued, so nothing was lost on the way."""
        watch = Watch()
        async with serving(backend, watch) as worker:
            await first_run(client)
            messages = [f"m{n}" for n in range(5)]
            result = await client.fork_many("t", messages=messages, threads=True, max_parallel=2, run_id="job", wait=BOUND)
            assert worker.reconciler.rescued == 0
        assert texts(result) == [f"4 m{n}!" for n in range(5)] and set(reasons(result)) == {"stop"}
        for n, candidate in enumerate(result.results):
            assert candidate.thread_id is not None
            path = (await client.messages(candidate.thread_id)).items
            assert [message.text for message in path][1:] == ["first", "2 first!", f"m{n}", f"4 m{n}!"]
            assert [message.id for message in candidate.messages] == [message.id for message in path[-2:]]
        forks = (await client.threads(parent_thread_id="t")).items
        assert {thread.thread_id for thread in forks} == {candidate.thread_id for candidate in result.results}
        assert {thread.forked_after_run_id for thread in forks} == {"first"}
        assert sorted(watch.asked) == ["first", *messages]
        assert len((await client.messages("t")).items) == 3

    async def test_f11_max_parallel_bounds_the_runs(self, backend: Backend, client: Client) -> None:
        together = asyncio.Event()

        async def agent(ctx: RunContext) -> None:
            if watch.running == 3:
                together.set()
            if ctx.thread_id != "t":
                await together.wait()
            await echo(ctx)

        watch = Watch(agent)
        async with serving(backend, watch, slots=20):
            await first_run(client)
            messages = [f"m{n}" for n in range(7)]
            await client.fork_many("t", messages=messages, threads=True, max_parallel=3, wait=BOUND)
        assert watch.most == 3

    async def test_f11_the_first_that_completes_wins_and_the_others_are_cancelled(
        self, backend: Backend, client: Client
    ) -> None:
        """F11: a thread that was not begun is not made."""
        watch = Watch()
        async with serving(backend, watch, slots=4):
            await first_run(client)
            messages = ["hang", "fail", "good", "late"]
            result = await client.fork_many("t", messages=messages, threads=True, stop="first", max_parallel=2, wait=BOUND)
            assert result.winner == 2
            assert reasons(result) == ["cancelled", "error", "stop", "cancelled"]
            assert [candidate.thread_id is None for candidate in result.results] == [False, False, False, True]
            loser = result.results[0].thread_id
            assert loser is not None
            [run] = (await client.runs(loser)).items
            assert (await client.handle(loser, run.run_id).result(BOUND)).status is RunStatus.CANCELLED
        assert "late" not in watch.asked

    async def test_h1_a_thread_that_waits_for_a_human_holds_no_slot(self, backend: Backend, client: Client) -> None:
        """H1, F11: threads may ask; the job waits with them, and says so (R12)."""

        async def agent(ctx: RunContext) -> None:
            assert ctx.input is not None
            if ctx.input.text == "ask":
                await ctx.append(Message.assistant(f"told {await ctx.ask('really?')}"))
            else:
                await echo(ctx)

        async def asked() -> bool:
            return bool((await client.requests()).items)

        app = App()
        app.agent("agent", hitl=True)(agent)
        async with serving(backend, app):
            await first_run(client)
            job = await client.enqueue_fork_many("t", "job", messages=["ask", "b"], threads=True)
            await until(asked)
            assert (await (await client.enqueue("other", "hi")).result(BOUND)).ok

            async def parked() -> bool:
                return "runs that it started, 1 of them live" in await job.explain()

            await until(parked)
            [request] = (await client.requests()).items
            await client.respond(None, "yes", request.request_id)
            result = await client.fork_many("t", messages=["ask", "b"], threads=True, run_id="job", wait=BOUND)
        assert texts(result) == ["told yes", "4 b!"]

    async def test_f11_a_thread_that_was_deleted_is_not_made_again(self, backend: Backend, client: Client) -> None:
        async def running() -> bool:
            return any(run.status is RunStatus.RUNNING for run in (await client.runs()).items if run.kind == "prompt")

        async with serving(backend, echo, slots=3):
            await first_run(client)
            await client.enqueue_fork_many("t", "job", messages=["hang", "b"], threads=True, max_parallel=1)
            await until(running)
            [thread] = (await client.threads(parent_thread_id="t")).items
            await client.delete_thread(thread.thread_id, cancel=True)
            how: dict[str, Any] = {"messages": ["hang", "b"], "threads": True, "max_parallel": 1, "run_id": "job"}
            result = await client.fork_many("t", wait=BOUND, **how)
        assert reasons(result) == ["cancelled", "stop"]
        assert len((await client.threads(parent_thread_id="t")).items) == 1

    async def test_f11_f5_the_job_waits_for_the_run_of_its_cut(self, backend: Backend, client: Client) -> None:
        """F5: accepted while the run it cuts after has not ended; if that fails, so does the job."""
        gate = asyncio.Event()

        async def agent(ctx: RunContext) -> None:
            assert ctx.input is not None
            if ctx.input.text == "wait":
                await gate.wait()
            await echo(ctx)

        async with serving(backend, agent, slots=2):
            await client.enqueue("t", "wait", "cut")
            await client.enqueue("t", "fail", "lost")
            good = await client.enqueue_fork_many("t", "good", messages=["a"], after_run_id="cut", threads=True)
            bad = await client.enqueue_fork_many("t", "bad", messages=["a"], after_run_id="lost")
            assert "cut" in await good.explain()
            gate.set()
            assert (await good.result(BOUND)).ok
            with pytest.raises(RunNotCompletedError):
                (await bad.result(BOUND)).raise_for_status()


class TestRefusals:
    async def test_f11_a_fan_out_is_capped(self, client: Client) -> None:
        with pytest.raises(TooManyCandidatesError) as caught:
            await client.enqueue_fork_many("t", messages=["x"] * (MAX_CANDIDATES + 1))
        assert caught.value.details == {"most": MAX_CANDIDATES, "given": MAX_CANDIDATES + 1}

    @pytest.mark.parametrize(
        "how",
        [
            {"messages": []},
            {"messages": "word"},
            {"max_parallel": 0},
            {"max_parallel": 101},
            {"stop": "last"},
            {"stop": "first", "judge": "j"},
        ],
        ids=str,
    )
    async def test_f11_what_can_never_be_done(self, client: Client, how: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError):
            await client.enqueue_fork_many("t", **{"messages": ["a"]} | how)

    async def test_f11_f10_a_thread_without_a_completed_run(self, client: Client) -> None:
        with pytest.raises(RunNotCompletedError):
            await client.enqueue_fork_many("t", messages=["a"])
