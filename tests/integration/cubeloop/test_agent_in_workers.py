"""Agents of cubeloop and cubepi as agents of an App (R5, R7, R9, R10, H1, H5, H7, H9, F1, F9)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from runyard import App, RunContext, current_step
from runyard.adapters import cubeloop_agent
from runyard.adapters.cubeloop_agent import CubeloopAgentError
from runyard.domain.states import RunStatus
from runyard.errors import HitlInvalidAnswerError, HitlNotAllowedError, InvalidInputError
from runyard.models import RetryPolicy
from runyard.support import agent_adapters
from runyard.testing import Harness
from runyard_backends.embedded.process import free_port
from tests.support.cubeloop_packages import NAMES, Package, asking

TWO = (("c1", "add", {"a": 1, "b": 2}), ("c2", "add", {"a": 3, "b": 4}))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for name in NAMES:
        agent_adapters.register(name, cubeloop_agent.adapt)
    yield


async def test_run_is_stored_and_streamed(package: Package) -> None:
    """R5, E1: Messages, tool results and tokens arrive, and the next run reads the conversation."""
    provider = package.provider
    agent = package.agent(
        package.calls_for(*TWO), package.says("3 and 7"), package.says("again"), provider=provider, tools=[package.add()]
    )
    async with Harness(App(agents={"a": agent})) as harness:
        run = await harness.prompt("t", "add")
        assert (run.status, run.error, package.calls) == (RunStatus.COMPLETED, None, [(1, 2), (3, 4)])
        stored = await harness.messages("t")
        assert [m.role for m in stored] == ["user", "assistant", "tool", "tool", "assistant"]
        assert [part.content for m in stored for part in m.tool_results] == ["3", "7"]
        deltas = [event.data for event in run.events if event.type == "message.delta"]
        assert "".join(d["text"] for d in deltas if d.get("message_id") == stored[-1].id) == "3 and 7"
        assert {event.type for event in run.events} >= {"tool.started", "tool.completed"}
        assert run.run.usage.output_tokens > 0
        second = await harness.prompt("t", "sure?")
        assert second.text == "again" and len(await harness.messages("t")) == 7
        fork = await harness.fork("t", "u", run.id, message="why?", run_id="f")
        provider.append_responses([package.says("because")])
        assert (await harness.result(fork.thread_id, "f")).text == "because" and len(await harness.messages("u")) == 7


@pytest.mark.parametrize("verb", ["append", "complete"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_crash_resumes_without_repeating_finished_tools(package: Package, verb: Any, moment: Any) -> None:
    """R9: After a crash at any write, the run has the same messages. A tool whose result is stored is not called again."""
    for nth in range(1, 4 if verb == "append" else 2):
        package.calls.clear()
        provider = package.provider
        asked: list[Any] = []

        def model(messages: list[Any], *_: Any, asked: list[Any] = asked) -> Any:
            asked.append(messages)
            done = sum(message.role == "tool_result" for message in messages)
            return package.says("3 and 7") if done == 2 else package.calls_for(*TWO)

        agent = package.agent(*[model] * 9, provider=provider, tools=[package.add()])
        async with Harness(App(agents={"a": agent})) as harness:
            harness.crash(moment, verb, nth)
            run = await harness.prompt("t", "add")
            stored = await harness.messages("t")
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 2 if (verb, moment) != ("complete", "after") else 1)
        results = [part.content for m in stored for part in m.tool_results]
        assert sorted(results) == ["3", "7"] and [m.text for m in stored if m.role == "assistant"] == ["", "3 and 7"]
        repeated = len(package.calls) - 2
        assert repeated <= (2 if moment == "before" and verb == "append" else 1 if verb == "append" else 0), (
            nth,
            package.calls,
        )
        if (verb, moment, nth) == ("append", "after", 3):
            assert repeated == 0


async def test_result_is_stored_while_parallel_calls_run(package: Package) -> None:
    """R9: A crash during a slow tool does not repeat a fast tool of the same answer."""
    tries: list[int] = []

    async def slow() -> str:
        """Hang in the first attempt."""
        tries.append(len(tries))
        if len(tries) == 1:
            await asyncio.Event().wait()
        return "slow"

    calls = package.calls_for(TWO[0], ("c2", "slow", {}))
    agent = package.agent(calls, package.says("done"), tools=[package.add(), package.module().tool(slow)])
    async with Harness(App(agents={"a": agent})) as harness:
        harness.crash_after("append", 2)
        run = await harness.prompt("t", "go")
        assert (run.status, package.calls, len(tries)) == (RunStatus.COMPLETED, [(1, 2)], 2)


async def test_timeout_stores_no_invented_results(package: Package) -> None:
    """R9: cubeloop invents results for the open calls of a stopped attempt. The next attempt executes these calls."""
    tries: list[int] = []

    async def slow() -> str:
        """Hang in the first attempt."""
        tries.append(len(tries))
        if len(tries) == 1:
            await asyncio.Event().wait()
        return "late"

    agent = package.agent(package.calls_for(("c1", "slow", {})), package.says("done"), tools=[package.module().tool(slow)])
    async with Harness(App(agents={"a": agent})) as harness:
        run = await harness.prompt("t", "go", timeout=0.2, max_attempts=2, retry=RetryPolicy(initial=0))
        results = [part.content for m in await harness.messages("t") for part in m.tool_results]
        assert (run.status, results, len(tries)) == (RunStatus.COMPLETED, ["late"], 2)


async def test_question_suspends_and_goes_on(package: Package) -> None:
    """H1, H5, H9: The agent's in-memory channel asks through the run. Each call has its own approval. Edits are used."""
    channel = package.hitl.InMemoryChannel()
    gate = package.hitl.ConfirmToolCallMiddleware(channel, require_confirm=["add"])
    agent = package.agent(
        package.calls_for(("q1", "ask_user", asking())),
        package.calls_for(("q2", "ask_user", asking())),
        package.calls_for(*TWO),
        package.says("done"),
        tools=[package.add(), package.hitl.ask_user_tool(channel)],
        middleware=[gate],
        channel=channel,
    )
    async with Harness(App(agents={"a": agent})) as harness:
        run = await harness.prompt("t", "go")
        assert run.status is RunStatus.SUSPENDED and run.requests[0].payload["question"] == "Which?"
        run = await run.respond({"k": "blue"})
        assert run.status is RunStatus.SUSPENDED and len(run.requests) == 1, "the same question asked again is asked again"
        run = await run.respond({"k": "red"})
        assert run.requests[0].payload["tool_call"]["id"] == "c1"
        run = await run.respond({"approved": False, "reason": "no"})
        run = await run.respond({"approved": True, "arguments": {"a": 10, "b": 20}})
        assert (run.status, package.calls) == (RunStatus.COMPLETED, [(10, 20)])
        results = [part.content for m in await harness.messages("t") for part in m.tool_results]
        assert "blue" in str(results[0]) and "red" in str(results[1]) and results[2:] == ["no", "30"]
        with pytest.raises(HitlNotAllowedError):
            await harness.fork_once("t", "what if?", run.id)


async def test_question_in_a_tool_and_its_timeout(package: Package) -> None:
    """H7: A question of a tool times out by cubeloop's own rule. Outside of a run the channel works as before."""
    channel = package.hitl.InMemoryChannel(default_timeout=60)

    async def delete(path: str) -> str:
        """Delete a file."""
        package.calls.append((1, 1))
        return "deleted" if await channel.confirm(f"Delete {path}?") else "kept"

    tools = [package.module().tool(delete), package.hitl.ask_user_tool(channel)]
    calls = [package.calls_for(("c1", "delete", {"path": "a"})), package.calls_for(("c2", "ask_user", asking()))]
    agent = package.agent(*calls, package.says("done"), tools=tools, channel=channel)
    async with Harness(App(agents={"a": agent})) as harness:
        run = await harness.prompt("t", "go")
        run = await run.respond(True)
        assert run.status is RunStatus.SUSPENDED
        await harness.advance(120)
        run = await harness.result("t", run.id)
        results = [part for m in await harness.messages("t") for part in m.tool_results]
        assert run.status is RunStatus.COMPLETED and [part.is_error for part in results] == [False, True]
        assert [part.content for part in results] == ["deleted", "timed out after 60 seconds"]
    outside = asyncio.create_task(channel.confirm("Here?"))
    while channel.pending is None:
        assert not outside.done()
        await asyncio.sleep(0)
    await channel.answer(channel.pending.question_id, True)
    assert await outside is True


async def test_provider_errors_are_retried_and_not_stored(package: Package) -> None:
    """R7: An error message of the provider is not stored, and the next attempt succeeds."""
    bad = package.says("half", stop_reason="error", error_message="overloaded")
    agent = package.agent(bad, package.says("fine"))
    async with Harness(App(agents={"a": agent})) as harness:
        run = await harness.prompt("t", "hi", max_attempts=2, retry=RetryPolicy(initial=0))
        assert (run.status, run.attempts, run.text) == (RunStatus.COMPLETED, 2, "fine")
        assert [m.text for m in await harness.messages("t")] == ["hi", "fine"]
        failed = await harness.prompt("t2", "hi")
        assert failed.status is RunStatus.FAILED and failed.error is not None
        assert failed.error.details["type"] == CubeloopAgentError.__name__ and "No more faux" in failed.error.message
        assert [m.text for m in failed.messages] == ["hi"]


async def test_an_answer_of_a_human_is_no_timeout(package: Package) -> None:
    """H7: No reason of a denial and no answer to a question counts as the answer at the deadline."""
    channel = package.hitl.InMemoryChannel(default_timeout=60)
    gate = package.hitl.ConfirmToolCallMiddleware(channel, require_confirm=["add"])
    optional = {"questions": [{"key": "k", "prompt": "Which?", "required": False}]}
    agent = package.agent(
        package.calls_for(TWO[0]),
        package.calls_for(("q1", "ask_user", optional)),
        package.says("done"),
        tools=[package.add(), package.hitl.ask_user_tool(channel)],
        middleware=[gate],
        channel=channel,
    )
    async with Harness(App(agents={"a": agent})) as harness:
        run = await harness.prompt("t", "go")
        run = await run.respond({"approved": False, "reason": "approval_timeout"})
        with pytest.raises(HitlInvalidAnswerError):
            await run.respond({"timed_out": True})
        run = await run.respond({"k": "blue"})
        assert run.status is RunStatus.COMPLETED
        results = [part.content for m in await harness.messages("t") for part in m.tool_results]
        assert results[0] == "approval_timeout" and "blue" in str(results[1])


PROVIDER_ERRORS: list[tuple[dict[str, Any], bool]] = [
    ({"error_type": "ProviderUnavailable"}, True),
    ({"error_type": "ProviderUnavailable", "status_code": 503}, True),
    ({"error_type": "RateLimited", "status_code": 429, "error_code": "rate_limit_exceeded"}, True),
    ({"error_type": "RateLimited"}, True),
    ({"status_code": 200, "error_code": "overloaded_error"}, True),
    ({"error_type": "RateLimited", "status_code": 429, "error_code": "insufficient_quota"}, False),
    ({"error_type": "RateLimited", "error_code": "insufficient_quota"}, False),
    ({"error_type": "ProviderBadRequest", "status_code": 400}, False),
    ({"error_type": "ContentFiltered"}, False),
]


@pytest.mark.parametrize(("fields", "again"), PROVIDER_ERRORS, ids=str)
async def test_the_kind_of_a_providers_error_decides(fields: dict[str, Any], again: bool) -> None:
    """R7, R11: A lost connection and a busy provider are retried by default. A spent quota is not, whatever the options are."""
    package = Package("cubeloop")
    bad = package.says("", stop_reason="error", error_message="no").model_copy(update=fields)
    for options in ({}, {"max_attempts": 3}):
        agent = package.agent(bad, package.says("fine"))
        async with Harness(App(agents={"a": agent})) as harness:
            run = await harness.prompt("t", "hi", **options)
        assert (run.attempts, run.status) == ((2, RunStatus.COMPLETED) if again else (1, RunStatus.FAILED))


async def test_an_unreachable_provider_is_asked_again() -> None:
    """R11: The provider of cubeloop itself reports the lost connection, without an HTTP status."""
    package = Package("cubeloop")
    provider = package.module("providers.openai").OpenAIProvider(
        provider_id="p", api_key="k", base_url=f"http://127.0.0.1:{free_port()}/v1"
    )
    provider._client = provider._client.with_options(max_retries=0)
    agent = package.module().Agent(model=provider.model("m"))
    async with Harness(App(agents={"a": agent})) as harness:
        run = await harness.prompt("t", "hi")
    assert run.status is RunStatus.FAILED and run.attempts > 1, run.error


async def test_cancel_stores_no_invented_results(package: Package) -> None:
    """R10, I8: After a cancel during a tool, the agent stores no message. With keep, runyard closes the open calls."""
    begun = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    agent = package.agent(package.calls_for(("c1", "wait", {})), tools=[package.module().tool(wait)])
    async with Harness(App(agents={"a": agent})) as harness:
        handle = await harness.client.enqueue("t", "go", "r")
        running = asyncio.create_task(harness.result("t", handle.id))
        await begun.wait()
        await harness.client.cancel("t", "r", keep=True)
        run = await running
        assert run.status is RunStatus.CANCELLED
        assert "by user" not in str([m.model_dump() for m in await harness.messages("t")])


async def test_extra_and_idempotency_keys(package: Package) -> None:
    """H11: The agent's extra is the thread's extra. A call's key is the same in every attempt. Other calls have other keys."""
    keys: list[str] = []

    async def note() -> str:
        """Note the key."""
        keys.append(current_step().idempotency_key)
        return "ok"

    async def count(context: Any, **_: Any) -> None:
        context.extra["turns"] = context.extra.get("turns", 0) + 1

    agent = package.agent(
        package.calls_for(("c1", "note", {}), ("c2", "note", {})),
        package.says("done"),
        package.says("done"),
        tools=[package.module().tool(note)],
        on_run_end=count,
    )
    async with Harness(App(agents={"a": agent})) as harness:
        await harness.prompt("t", "go")
        await harness.prompt("t", "go on")
        assert (await harness.client.thread("t")).extra == {"turns": 2} and len(set(keys)) == 2


async def test_parallel_runs_have_agents_of_their_own(package: Package) -> None:
    provider = package.provider

    def echo(messages: list[Any], *_: Any) -> Any:
        return package.says(messages[-1].content[0].text)

    agent = package.agent(*[echo] * 10, provider=provider)
    async with Harness(App(agents={"a": agent})) as harness:
        handles = [await harness.client.enqueue(f"t{n}", f"text {n}") for n in range(10)]
        runs = [await harness.result(handle.thread_id, handle.id) for handle in handles]
        assert [run.text for run in runs] == [f"text {n}" for n in range(10)]
    assert agent.state.messages == []


async def test_a_function_makes_the_agent_of_each_attempt(package: Package) -> None:
    provider = package.provider
    made: list[str] = []

    async def make(ctx: RunContext) -> Any:
        made.append(ctx.run_id)
        return package.agent(package.says("hello"), provider=provider)

    async with Harness(App(agents={"a": cubeloop_agent.serve(make, asks_humans=False)})) as harness:
        run = await harness.prompt("t", "hi")
        assert (run.text, made) == ("hello", [run.id])
        probe = await harness.fork_once("t", "what if?", run.id)
        assert probe.text == "hello" and len(await harness.messages("t")) == 2


async def test_agents_that_cannot_be_copied_are_refused(package: Package) -> None:
    todo = package.module("middleware.todo").TodoListMiddleware(extra_ref=dict)
    with pytest.raises(InvalidInputError, match="serve\\(lambda"):
        App(agents={"a": package.agent(middleware=[todo])})
    with pytest.raises(InvalidInputError, match="Agent of cubeloop"):
        cubeloop_agent.serve(3)  # type: ignore[arg-type]
    assert cubeloop_agent.adapt("text") is None
