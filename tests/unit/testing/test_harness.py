"""runyard.testing: what it promises to tests of users."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pydantic_ai
import pytest

from runyard import Agent, App, Budget, Client, Message, RetryPolicy, RunContext, RunStatus, current_step, serve
from runyard.errors import HitlNotAllowedError, RunNotCompletedError
from runyard.hitl import ask_user_tool
from runyard.models import HitlRequest
from runyard.testing import Harness, ScriptedModel, ScriptEndedError, StuckError, call, crash_everywhere
from runyard.testing.model import tokens


def refunding(script: Any, refunds: list[str], **how: Any) -> pydantic_ai.Agent[None, str]:
    """An agent with a tool that writes down its idempotency keys."""
    agent = pydantic_ai.Agent(ScriptedModel(script))

    @agent.tool_plain(**how)
    def refund(order: str) -> str:
        refunds.append(current_step().idempotency_key)
        return f"refunded {order}"

    return agent


async def test_a_prompt_runs_to_its_end() -> None:
    model = ScriptedModel(["Hello.", "Fine."])
    async with Harness(pydantic_ai.Agent(model)) as harness:
        run = await harness.prompt("t1", "hi", "r1")
        assert (run.status, run.id, run.text, run.attempts) == (RunStatus.COMPLETED, "r1", "Hello.", 1)
        assert [message.role for message in run.messages] == ["user", "assistant"]
        assert (run.events[0].type, run.events[-1].type) == ("run.queued", "run.completed")
        assert (await harness.prompt("t1", "how are you?")).text == "Fine."
        assert [request.prompt for request in model.requests] == ["hi", "how are you?"]
        assert [message.text for message in await harness.messages("t1")] == ["hi", "Hello.", "how are you?", "Fine."]


async def test_answers_stream_in_tokens() -> None:
    text = " One  two\nthree."
    async with Harness(pydantic_ai.Agent(ScriptedModel([text]))) as harness:
        run = await harness.prompt("t1", "count")
    assert "".join(str(event.data["text"]) for event in run.events if event.type == "message.delta") == text == run.text
    assert tokens(text) == [" ", "One  ", "two\n", "three."]


async def test_a_suspended_run_goes_on_with_its_answer() -> None:
    refunds: list[str] = []
    agent = refunding([call("refund", order="7"), "Done."], refunds, requires_approval=True)
    async with Harness(agent) as harness:
        run = await harness.prompt("t1", "refund 7")
        assert run.status is RunStatus.SUSPENDED and not refunds
        assert run.requests[0].payload["tool_call"]["name"] == "refund"  # type: ignore[index, call-overload]
        [asked] = [HitlRequest.model_validate(event.data["request"]) for event in run.events if event.type == "hitl.requested"]
        assert (asked.request_id, asked.payload) == (run.requests[0].request_id, run.requests[0].payload)
        done = await run.respond(True)
        assert (done.id, done.text, done.attempts, len(refunds)) == (run.id, "Done.", 2, 1)


async def test_replies_are_calls_together_exceptions_and_functions() -> None:
    script = [
        pydantic_ai.ModelHTTPError(503, "scripted"),
        ["Looking.", call("refund", order="7"), call("refund", order="8")],
        lambda request: f"{request.prompt}: {request.results['refund']}",
    ]
    refunds: list[str] = []
    app = App()
    app.agent("desk", max_attempts=2)(serve(refunding(script, refunds)))
    async with Harness(app) as harness:
        run = await harness.prompt("t1", "go")
    assert (run.text, run.attempts, len(set(refunds))) == ("go: refunded 8", 2, 2)
    assert [c.id for message in run.messages for c in message.tool_calls] == ["refund-0", "refund-1"]


async def test_a_script_does_not_run_out_silently() -> None:
    async with Harness(pydantic_ai.Agent(ScriptedModel(["only this"]))) as harness:
        await harness.prompt("t1", "one")
        with pytest.raises(ScriptEndedError, match="'two'"):
            await harness.prompt("t1", "two")


async def test_threads_and_forks_follow_the_script_each_by_itself() -> None:
    async with Harness(pydantic_ai.Agent(ScriptedModel(["first", "second", "third"]))) as harness:
        assert (await harness.prompt("t1", "a", "r1")).text == (await harness.prompt("t2", "a")).text == "first"
        await harness.prompt("t1", "b")
        await harness.fork("t1", "t3", "r1")
        assert (await harness.prompt("t3", "c")).text == "second"
        assert (await harness.fork_once("t1", "d")).text == "third"


async def test_times_are_skipped_and_not_waited_for() -> None:
    """R11: backoffs and delays."""
    app = App()
    tries: list[int] = []

    @app.agent(max_attempts=3, retry=RetryPolicy(initial=60, factor=2, maximum=120, jitter=0))
    async def flaky(ctx: RunContext) -> None:
        tries.append(ctx.attempt)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        await ctx.append(Message.assistant("ok"))

    async with Harness(app) as harness:
        begin = harness.now
        assert (await harness.prompt("t1", "go", delay=86400)).text == "ok"
        assert harness.now - begin == timedelta(days=1, minutes=3)
    assert tries == [1, 2, 3]


async def test_advance_brings_deadlines_and_what_is_due() -> None:
    """H7."""
    app = App()

    @app.agent
    async def asker(ctx: RunContext) -> None:
        answer = await ctx.ask("Sure?", timeout=600, on_timeout={"answer": "nobody knows"})
        await ctx.append(Message.assistant(str(answer)))

    async with Harness(app) as harness:
        run = await harness.prompt("t1", "go", "r1")
        later = await harness.client.enqueue("t2", "later", delay=500)
        await harness.advance(499)
        assert (await harness.result("t1", "r1")).status is RunStatus.SUSPENDED and (await later.status()) is RunStatus.QUEUED
        await harness.advance(102)
        assert (await harness.result("t1", run.id)).text == "nobody knows"
        assert await later.status() is RunStatus.SUSPENDED


async def test_harness_explains_why_a_run_never_ends() -> None:
    """R4, R12: behind a run that waits for a human."""
    app = App()

    @app.agent
    async def asker(ctx: RunContext) -> None:
        await ctx.ask("Sure?")

    async with Harness(app) as harness:
        await harness.prompt("t1", "go", "r1")
        with pytest.raises(StuckError, match="behind run r1"):
            await harness.prompt("t1", "and then?")


async def test_runs_of_several_threads_and_a_cancel() -> None:
    """R10: a run under way is stopped; the others end."""
    begun = asyncio.Event()
    app = App()

    @app.agent
    async def endless(ctx: RunContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.agent
    async def quick(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("done"))

    async with Harness(app) as harness:
        hanging = await harness.client.enqueue("t1", "go", agent="endless")
        await begun.wait()
        runs = await asyncio.gather(*(harness.prompt(f"q{n}", "go", agent="quick") for n in range(3)))
        assert [run.text for run in runs] == ["done"] * 3
        await hanging.cancel()
        assert (await harness.result("t1", hanging.id)).status is RunStatus.CANCELLED


async def test_a_worker_that_dies_before_a_result_is_stored_calls_the_tool_again_with_the_same_key() -> None:
    """R9."""
    refunds: list[str] = []
    async with Harness(refunding([call("refund", order="7"), "Done."], refunds)) as harness:
        harness.crash_before("append", 2)
        run = await harness.prompt("t1", "refund 7")
    assert (run.text, run.attempts) == ("Done.", 2)
    assert len(refunds) == 2 and len(set(refunds)) == 1
    assert "run.rewound" in [event.type for event in run.events]


async def test_a_worker_that_dies_after_a_result_is_stored_does_not() -> None:
    """R9."""
    refunds: list[str] = []
    async with Harness(refunding([call("refund", order="7"), "Done."], refunds)) as harness:
        harness.crash_after("append", 2)
        run = await harness.prompt("t1", "refund 7")
    assert (run.text, run.attempts, len(refunds)) == ("Done.", 2, 1)


async def test_a_crash_everywhere_and_the_run_is_as_it_would_have_been() -> None:
    """R9, I3, I7: the helper itself finds every write."""
    paid: dict[str, str] = {}
    app = App()

    @app.agent
    async def payer(ctx: RunContext) -> None:
        if await ctx.ask("Pay?", {"type": "boolean"}):
            key = await ctx.step(pay)
            await ctx.append(Message.assistant(str(key)))

    async def pay(idempotency_key: str) -> str:
        return paid.setdefault(idempotency_key, "paid")

    async def scenario(harness: Harness) -> None:
        paid.clear()
        run = await harness.prompt("t1", "go", "r1")
        run = await run.respond(True)
        assert run.ok and run.text == "paid" and len(paid) == 1
        assert [message.role for message in await harness.messages("t1")] == ["user", "assistant"]

    crashes = await crash_everywhere(app, scenario)
    assert crashes == 2 * len(["claim", "suspend", "claim", "start_step", "finish_step", "complete"])


async def test_a_crash_everywhere_with_a_model_that_fails_once() -> None:
    """R7: each harness begins with the whole script, so each crash meets the same failure."""
    app = App()
    model = ScriptedModel([pydantic_ai.ModelHTTPError(503, "scripted"), "Done."])
    app.agent("desk", max_attempts=2)(serve(pydantic_ai.Agent(model)))

    async def scenario(harness: Harness) -> None:
        assert (await harness.prompt("t1", "go", "r1")).text == "Done."
        assert harness.writes.count("release") >= 1

    assert await crash_everywhere(app, scenario) == 2 * len(["claim", "release", "claim", "complete"])


async def test_a_failure_in_the_crashing_scenario_says_where() -> None:
    async def once(ctx: RunContext) -> None:
        assert ctx.attempt == 1
        await ctx.append(Message.assistant("done"))

    async def scenario(harness: Harness) -> None:
        assert (await harness.prompt("t1", "go")).ok

    with pytest.raises(AssertionError) as caught:
        await crash_everywhere(App({"once": once}), scenario)
    assert "after write 1 of 2, claim" in caught.value.__notes__[0]


async def test_a_poison_run_dies() -> None:
    """R21: it takes down its workers, the last time alone."""
    async with Harness(pydantic_ai.Agent(ScriptedModel(["never"]))) as harness:
        for nth in (1, 2, 3):
            harness.crash("before", "complete", nth)
        run = await harness.prompt("t1", "go")
    assert run.status is RunStatus.DEAD


async def test_a_crash_that_did_not_happen_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="before append did not happen; writes still needed: 3"):
        async with Harness(pydantic_ai.Agent(ScriptedModel(["hi"]))) as harness:
            harness.crash_before("append", 3)
            await harness.prompt("t1", "go")


async def test_probes_and_budgets_are_the_real_ones() -> None:
    """F9."""
    agent = refunding([call("refund", order="7"), "Done."], [], requires_approval=True)
    async with Harness(serve(agent, budget=Budget(steps=1))) as harness:
        run = await (await harness.prompt("t1", "refund 7", "r1")).respond(True)
        assert run.error is not None and run.error.code == "budget_exceeded"
        with pytest.raises((HitlNotAllowedError, RunNotCompletedError)):
            await harness.fork_once("t1", "and?")


async def test_the_client_of_a_harness_is_a_client() -> None:
    async with Harness(pydantic_ai.Agent(ScriptedModel(lambda request: request.prompt.upper()))) as harness:
        assert isinstance(harness.client, Client)
        handle = await harness.client.enqueue("t1", "hi")
        async with asyncio.timeout(5):
            assert (await handle.result()).text == "HI"


@pytest.mark.parametrize("threads", [False, True])
async def test_fan_out_and_what_else_waits_for_runs(threads: bool) -> None:
    """F11: probes in the job's own slot, and threads whose job is offered again."""
    async with Harness(pydantic_ai.Agent(ScriptedModel(lambda request: request.prompt.upper()))) as harness:
        await harness.prompt("t1", "begin", "r1")
        fan = harness.client.fork_many("t1", "r1", messages=["a", "b", "c"], max_parallel=2, threads=threads)
        result = await harness.work(fan)
        assert [candidate.text for candidate in result.results] == ["A", "B", "C"]
        assert len(await harness.messages("t1")) == 2


async def test_a_probe_whose_worker_dies_is_asked_again() -> None:
    """F9: before its result is stored."""
    model = ScriptedModel(["hi", "probed"])
    async with Harness(pydantic_ai.Agent(model)) as harness:
        await harness.prompt("t1", "begin", "r1")
        harness.crash_before("complete")
        assert (await harness.fork_once("t1", "what if?")).text == "probed"
    assert len(model.requests) == 3


async def test_an_agent_of_runyard_asks_its_questions() -> None:
    """H9: two questions of one call, answered together."""
    questions: Any = [{"question": "Which colour?"}, {"question": "Which size?"}]
    model = ScriptedModel([call("ask_user", questions=questions), lambda request: str(request.results["ask_user"])])
    async with Harness(Agent(model, tools=[ask_user_tool()])) as harness:
        run = await harness.prompt("t1", "a shirt, please")
        assert run.requests[0].payload["question"] == "Which colour?\nWhich size?"
        run = await run.respond({"answers": ["blue", "M"]})
        assert run.text == "User answers:\n- Which colour?: blue\n- Which size?: M"


async def test_tenants_do_not_meet() -> None:
    async with Harness(pydantic_ai.Agent(ScriptedModel(["hi"])), tenant="acme") as harness:
        assert (await harness.prompt("t1", "hello")).ok
        assert harness.client.backend.tenant == "acme"


async def test_a_block_that_is_cancelled_again_and_again_ends_its_agents() -> None:
    at_work, ended = asyncio.Event(), []

    async def thorough(ctx: RunContext) -> None:
        try:
            at_work.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            ended.append(ctx.run_id)

    async def block() -> None:
        async with Harness(thorough) as harness:
            await harness.client.enqueue("t1", "go", "r1")
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    running = asyncio.create_task(block())
    await at_work.wait()
    while not running.done():
        running.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
    assert (running.cancelled(), ended, asyncio.all_tasks()) == (True, ["r1"], before)
