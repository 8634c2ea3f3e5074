"""An agent of the OpenAI Agents SDK as the agent of an App (R7, R9, H5, H9, M5, F9)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    StopAtTools,
    ToolGuardrailFunctionOutput,
    ToolOutputImage,
    function_tool,
    handoff,
    input_guardrail,
    set_tracing_disabled,
    tool_output_guardrail,
)
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent

from runyard import App, Message, current_run, current_step
from runyard.adapters import openai_agent
from runyard.adapters.openai_agent import serve
from runyard.domain.validation import new_id
from runyard.errors import InvalidInputError
from runyard.models import FilePart, RetryPolicy, Source, TextPart
from runyard.support import agent_adapters
from runyard.testing import Harness, HarnessRun, ScriptedModel, crash_everywhere
from tests.support.openai_models import ItemModel, Items, calls, results, says, texts

set_tracing_disabled(True)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agent_adapters._registered, "agents", openai_agent.adapt)


def agent(script: Any, *tools: Any, **options: Any) -> Agent[Any]:
    return Agent(name=options.pop("name", "a"), model=ItemModel(script), tools=[*tools], **options)


def then(*calls_: Any) -> Any:
    """Return a script that makes these calls in one answer, and then answers with their results."""
    return lambda items: f"done: {results(items)}" if results(items) else [*calls_]


class Work:
    """Tools that record their calls."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.keys: list[str] = []

    def tool(self, name: str, **options: Any) -> Any:
        async def tool() -> str:
            self.done.append(name)
            self.keys.append(current_step().idempotency_key)
            return f"result of {name}"

        return function_tool(tool, name_override=name, **options)


@pytest.fixture
def work() -> Work:
    return Work()


async def run(served: Any, prompt: Any = "go", **options: Any) -> HarnessRun:
    async with Harness(served) as harness:
        return await harness.prompt("t", prompt, **options)


class TestLoop:
    async def test_handoffs_are_recorded(self, work: Work) -> None:
        """The calls and requests of the agent after a handoff are recorded. After a crash at any write, each happens once."""
        second = agent(then(calls("b", "c2")), work.tool("b"), name="second", instructions="You are second.")
        third = agent(lambda items: [calls("transfer_to_second", "h2")], name="third", handoffs=[second])
        first = agent(lambda items: [calls("transfer_to_third", "h1")], name="first", handoffs=[handoff(third)])
        third.handoffs.append(first)

        def last(items: Items) -> Any:
            return "all done" if "result of b" in str(items[-1]) else [calls("b", "c2")]

        second.model = ItemModel(last)

        async def scenario(harness: Harness) -> None:
            work.done.clear()
            run = await harness.prompt("t", "go")
            assert run.ok and run.text == "all done", run.error
            assert [message.role for message in run.messages] == ["user", *["assistant", "tool"] * 3, "assistant"]

        assert await crash_everywhere(App({"a": first}), scenario) >= 16

    async def test_an_output_type_is_the_result(self) -> None:
        class City(BaseModel):
            name: str
            people: int

        done = await run(agent(lambda items: '{"name": "Bonn", "people": 330000}', output_type=City))
        assert done.ok and done.run.result == {"name": "Bonn", "people": 330000}

    async def test_a_text_is_no_result(self) -> None:
        assert (await run(agent(lambda items: "hi"))).run.result is None

    async def test_the_output_of_a_tool_may_be_the_result(self, work: Work) -> None:
        stops = agent(then(calls("a")), work.tool("a"), tool_use_behavior=StopAtTools(stop_at_tool_names=["a"]))
        done = await run(stops)
        assert done.ok and done.run.result == "result of a"
        assert [message.role for message in done.messages] == ["user", "assistant", "tool"]

    async def test_the_context_and_the_hooks_are_the_agents(self) -> None:
        seen: list[Any] = []

        @function_tool
        def look(context: RunContextWrapper[str]) -> str:
            seen.append(context.context)
            return current_run().thread_id

        class Hooks(RunHooks[Any]):
            async def on_agent_end(self, *_: Any) -> None:
                seen.append("end")

        async def context(ctx: Any) -> str:
            return f"context of {ctx.run_id}"

        done = await run(serve(agent(then(calls("look")), look), context=context, hooks=Hooks()), run_id="r")
        assert done.text == "done: ['t']"
        assert seen == ["context of r", "end"]

    async def test_the_models_of_a_run_config(self) -> None:
        override = ItemModel(lambda items: "override")
        config = RunConfig(model=override, model_settings=ModelSettings(temperature=0.1))
        assert (await run(serve(agent(lambda items: "own"), run_config=config))).text == "override"
        assert config.model is override and config.group_id is None

    async def test_too_many_turns_fail_at_once(self, work: Work) -> None:
        endless = agent(lambda items: [calls("a", f"c{len(items)}")], work.tool("a"))
        done = await run(serve(endless, max_turns=3), max_attempts=5)
        assert not done.ok and done.attempts == 1 and done.run.error.details["type"] == "MaxTurnsExceeded"
        assert len(work.done) == 3

    async def test_an_input_guardrail_gets_the_prompt(self) -> None:
        """The items of the session come before the prompt, as with any session of the SDK."""
        seen: list[Any] = []

        @input_guardrail
        async def guard(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
            seen.append(texts(given))
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered="bad" in texts(given)[-1])

        async with Harness(agent(lambda items: "fine", input_guardrails=[guard])) as harness:
            assert (await harness.prompt("t", "good")).ok
            refused = await harness.prompt("t", "bad", max_attempts=3)
            assert refused.attempts == 1 and not refused.ok
        assert seen == [["good"], ["good", "fine", "bad"]]

    async def test_messages_of_other_agents_are_history(self) -> None:
        """The agent of a thread may change. The calls and results of one agent are items for the other agent."""
        model = ItemModel(lambda items: f"saw {len(items)}")
        first = PydanticAgent(ScriptedModel([[*_parts()], "from pydantic-ai"]), tools=[add])
        async with Harness(App({"p": first, "o": Agent(name="o", model=model)})) as harness:
            await harness.prompt("t", "one", agent="p")
            done = await harness.prompt("t", "two", agent="o")
            assert done.ok, done.error
            back = await harness.prompt("t", "three", agent="o")
        assert done.text == "saw 5"
        assert [item.get("type") for item in model.requests[0]] == [
            *("message", "function_call", "function_call_output", "message", "message")
        ]
        assert back.ok and texts(model.requests[1]) == ["one", "from pydantic-ai", "two", "saw 5", "three"]


def add(a: int, b: int) -> int:
    return a + b


def _parts() -> Iterator[Any]:
    from runyard.testing import call

    yield call("add", a=1, b=2)


class TestTools:
    async def test_parallel_tools_are_recorded_one_by_one(self, work: Work) -> None:
        """R9: After a crash between two parallel tools, only the tool without a stored result is called again."""
        both = agent(then(calls("a", "1"), calls("b", "2")), work.tool("a"), work.tool("b"))

        async def scenario(harness: Harness) -> None:
            work.done.clear()
            work.keys.clear()
            done = await harness.prompt("t", "go")
            assert done.ok and done.text == "done: ['result of a', 'result of b']"
            assert len(work.done) <= 4 and len(set(work.keys)) == 2

        await crash_everywhere(App({"a": both}), scenario)

    async def test_a_result_is_stored_while_another_tool_works(self, work: Work) -> None:
        """R9: The worker dies after the first result. Only the tool that hung is called again."""

        @function_tool
        async def hangs() -> str:
            if current_step().attempt == 1:
                await asyncio.Event().wait()
            return "late"

        both = agent(then(calls("a", "1"), calls("hangs", "2")), work.tool("a"), hangs)
        async with asyncio.timeout(20), Harness(both) as harness:
            harness.crash_after("append", 2)
            done = await harness.prompt("t", "go")
        assert done.ok and done.attempts == 2 and work.done == ["a"], done.error

    async def test_a_tool_may_ask(self, work: Work) -> None:
        """A tool that asks parks the run. A parallel tool finishes first and is not called again."""

        @function_tool
        async def ask() -> str:
            work.done.append("asked")
            return f"human said {await current_run().ask('which?')}"

        async with Harness(agent(then(calls("ask", "1"), calls("a", "2")), ask, work.tool("a"))) as harness:
            parked = await harness.prompt("t", "go")
            assert parked.status == "suspended" and parked.requests[0].payload == {"question": "which?"}
            assert work.done.count("a") == 1 and [m.role for m in parked.messages] == ["user", "assistant", "tool"]
            done = await parked.respond("red")
        assert done.ok and set(results_of(done)) == {"human said red", "result of a"}
        assert work.done.count("a") == 1

    async def test_several_approvals_are_asked_at_once(self, work: Work) -> None:
        tools = [work.tool(name, needs_approval=True) for name in "ab"]
        script = then(calls("a", "1"), calls("b", "2"), calls("c", "3"))
        async with Harness(agent(script, *tools, work.tool("c"))) as harness:
            parked = await harness.prompt("t", "go")
            assert len(parked.requests) == 2 and work.done == ["c"]
            one, two = sorted(parked.requests, key=lambda r: str(r.payload["tool_call"]["id"]))
            await harness.client.respond("t", False, one.request_id)
            done = await harness.respond("t", True, two.request_id)
        assert done.ok and work.done == ["c", "b"]
        assert "The tool call was denied." in results_of(done)

    async def test_an_approval_by_function(self, work: Work) -> None:
        async def dear(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
            return bool(arguments["amount"] > 10)

        @function_tool(needs_approval=dear)
        async def pay(amount: int) -> str:
            work.done.append(str(amount))
            return "paid"

        async with Harness(agent(then(calls("pay", "1", amount=5), calls("pay", "2", amount=50)), pay)) as harness:
            parked = await harness.prompt("t", "go")
            assert [r.payload["tool_call"]["arguments"] for r in parked.requests] == [{"amount": 50}]
            assert (await parked.respond(True)).ok
        assert work.done == ["5", "50"]

    async def test_repeated_call_ids_are_made_distinct(self, work: Work) -> None:
        """H5: Results and approvals belong to one call, even if a provider repeats the ids of calls in each answer."""
        script = lambda items: [calls("a", "call_0")] if len(results(items)) < 2 else "done"  # noqa: E731
        async with Harness(agent(script, work.tool("a"))) as harness:
            for _ in range(2):
                done = await harness.prompt("t", "go")
                assert done.ok, done.error
            stored = await harness.messages("t")
        assert work.done == ["a"] * 4
        assert len({call.id for message in stored for call in message.tool_calls}) == 4

    async def test_a_guarded_output_is_stored_as_the_model_sees_it(self) -> None:
        @tool_output_guardrail
        def hide(data: Any) -> ToolGuardrailFunctionOutput:
            return ToolGuardrailFunctionOutput.reject_content("hidden")

        @function_tool(tool_output_guardrails=[hide])
        def secret() -> str:
            return "the secret"

        done = await run(agent(then(calls("secret")), secret))
        assert done.text == "done: ['hidden']" and results_of(done) == ["hidden"]
        assert "the secret" not in str(done.messages)

    async def test_the_output_of_a_tool_may_be_an_image(self) -> None:
        @function_tool
        def draw() -> ToolOutputImage:
            return ToolOutputImage(image_url="data:image/png;base64,AAAA")

        shown: list[Any] = []

        def script(items: Items) -> Any:
            if not results(items):
                return [calls("draw")]
            shown.append(results(items)[0][0])
            return "drawn"

        async def scenario(harness: Harness) -> None:
            done = await harness.prompt("t", "go")
            assert done.ok, done.error
            assert [part.type for m in done.messages for result in m.tool_results for part in result.parts] == ["image"]

        await crash_everywhere(App({"a": agent(script, draw)}), scenario)
        assert {item["image_url"] for item in shown} == {"data:image/png;base64,AAAA"}

    async def test_an_error_of_a_tool_is_for_the_model(self) -> None:
        @function_tool
        def broken() -> str:
            raise ValueError("no luck")

        done = await run(agent(then(calls("broken")), broken))
        assert done.ok and "An error occurred while running the tool" in done.text

    async def test_an_error_that_a_tool_lets_out_fails_the_run(self) -> None:
        @function_tool(failure_error_function=None)
        def broken() -> str:
            raise ValueError("no luck")

        done = await run(agent(then(calls("broken")), broken), max_attempts=3)
        assert not done.ok and "no luck" in done.run.error.message

    async def test_an_agent_as_a_tool_is_one_call(self, work: Work) -> None:
        """The requests of the inner agent count as usage. Its result is stored like that of another tool."""
        inner_model = ItemModel(lambda items: f"inner: {texts(items)[-1]}")
        inner = Agent(name="inner", model=inner_model)
        outer = agent(then(calls("help", "1", input="x")), inner.as_tool("help", "helps"))
        done = await run(outer)
        assert done.ok and done.text == "done: ['inner: x']", done.error
        assert done.run.usage.requests == 3 and done.run.usage.input_tokens == 21

    async def test_an_approval_inside_an_agent_as_a_tool_is_refused(self, work: Work) -> None:
        inner = agent(then(calls("a")), work.tool("a", needs_approval=True), name="inner")
        outer = agent(then(calls("help", "1", input="x")), inner.as_tool("help", "helps"))
        done = await run(outer, max_attempts=3)
        assert (
            not done.ok
            and done.attempts == 1
            and "set needs_approval of the tool that calls this agent" in done.run.error.message
        )

    async def test_an_agent_as_a_tool_may_need_approval(self, work: Work) -> None:
        inner = agent(lambda items: "inner", name="inner")
        outer = agent(then(calls("help", "2", input="x")), inner.as_tool("help", "helps", needs_approval=True))
        async with Harness(outer) as harness:
            parked = await harness.prompt("t", "go")
            assert parked.status == "suspended", parked.error
            assert (await parked.respond(True)).text == "done: ['inner']"


def results_of(done: HarnessRun) -> list[Any]:
    return [result.content for message in done.messages for result in message.tool_results]


class TestErrors:
    def failing(self, status: int, code: str | None = None, **headers: str) -> Any:
        reply = httpx.Response(status, headers=headers, request=httpx.Request("POST", "https://x"))
        error = openai.APIStatusError("no", response=reply, body={"code": code})
        replies = [error]
        return agent(lambda items: replies.pop() if replies else "after all")

    @pytest.mark.parametrize("status", [408, 429, 500, 503])
    async def test_a_busy_provider_is_asked_again(self, status: int) -> None:
        """R7: Another attempt repeats the request if the run's max_attempts allow another attempt."""
        done = await run(self.failing(status), max_attempts=2)
        assert done.text == "after all" and done.attempts == 2

    async def test_the_provider_says_when(self) -> None:
        async with Harness(self.failing(429, **{"retry-after": "300"})) as harness:
            began = harness.now
            assert (await harness.prompt("t", "go", max_attempts=2, retry=RetryPolicy(initial=1))).ok
            assert (harness.now - began).total_seconds() >= 300

    @pytest.mark.parametrize(("status", "code"), [(400, None), (401, None), (429, "insufficient_quota")])
    async def test_a_refused_request_fails_at_once(self, status: int, code: str | None) -> None:
        done = await run(self.failing(status, code), max_attempts=2)
        assert not done.ok and done.attempts == 1

    async def test_a_failed_request_leaves_no_text(self) -> None:
        """The text that was streamed before the error belongs to no message."""

        class Cut(ItemModel):
            async def stream_response(self, *args: Any, **options: Any) -> Any:
                n = 0
                async for event in super().stream_response(*args, **options):
                    n += 1
                    if n == 3 and len(self.requests) == 1:
                        raise openai.APIConnectionError(request=httpx.Request("POST", "https://x"))
                    yield event

        done = await run(Agent(name="a", model=Cut(lambda items: "one two three")), max_attempts=2)
        assert done.ok and done.text == "one two three" and done.attempts == 2
        ids = [event.data["message_id"] for event in done.events if event.type == "message.completed"]
        assert done.messages[-1].id == ids[-1]

    @pytest.mark.parametrize(("code", "again"), [(None, True), ("server_error", True), ("invalid_prompt", False)])
    async def test_the_kind_of_a_bad_end_decides(self, code: str | None, again: bool) -> None:
        """R11: A stream that breaks off (None) and a failure of the provider are retried by default."""

        class Ends(ItemModel):
            async def stream_response(self, *args: Any, **options: Any) -> Any:
                async for event in super().stream_response(*args, **options):
                    if event.type != "response.completed" or len(self.requests) > 1:
                        yield event
                    elif code is not None:
                        failed = SimpleNamespace(error=SimpleNamespace(code=code, message="no"))
                        yield SimpleNamespace(type="response.failed", response=failed)

        done = await run(Agent(name="a", model=Ends(lambda items: "one two three")))
        assert (done.ok, done.attempts) == ((True, 2) if again else (False, 1))

    @pytest.mark.parametrize("is_async", [False, True])
    async def test_a_model_without_streams_is_asked_for_the_whole(self, is_async: bool) -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def refuse_later(*_: Any, **__: Any) -> Any:
            raise NotImplementedError

        model = ItemModel(lambda items: "whole")
        model.stream_response = refuse_later if is_async else refuse  # type: ignore[method-assign]
        done = await run(Agent(name="a", model=model))
        assert done.ok and done.text == "whole", done.error

    async def test_a_server_without_streams(self) -> None:
        """With ``stream=False`` no stream is requested."""
        model = ItemModel(lambda items: "whole")
        model.stream_response = None  # type: ignore[assignment, method-assign]
        assert (await run(serve(Agent(name="a", model=model), stream=False))).text == "whole"


class TestCallersContent:
    async def test_m5_the_original_of_a_callers_message_is_not_shown(self) -> None:
        """M5: The original could refer to files and items in the account of the worker's operator."""
        model = ItemModel(lambda items: "ok")
        evil = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "extra": "evil"}
        sent = [
            Message.user("hi", source=Source(format="openai_responses", blob=evil)),
            Message.user("hi", source=Source(format="openai_agents_item", blob={"type": "item_reference", "id": "msg_evil"})),
            Message.user([TextPart(text="see"), FilePart(file_id="file_evil", provider="openai")]),
            Message.user("hi", metadata={"evil": 1}, provider_details={"openai_agents": {"items": [{"evil": 1}]}}),
            Message.assistant("hi", provider_details={"openai_agents": {"response_id": "evil", "items": []}}),
        ]
        async with Harness(Agent(name="a", model=model)) as harness:
            for message in sent:
                await harness.client.store_message("t", message)
            await harness.client.store_message("t", {"type": "item_reference", "id": "evil"}, format="openai_responses")
            prompt = sent[3].model_copy(update={"id": new_id()})
            assert (await harness.prompt("t", prompt)).ok
        assert "evil" not in str(model.requests)
        assert texts(model.requests[0]) == ["hi", "hi", "see", "hi", "hi", "hi"]

    async def test_an_answer_of_this_agent_is_shown_as_it_was(self) -> None:
        """The provider gets its ids and signatures again in the next run."""
        model = ItemModel(lambda items: [says("one", "msg_a"), says("two", "msg_b")])
        async with Harness(Agent(name="a", model=model)) as harness:
            first = await harness.prompt("t", "go")
            await harness.prompt("t", "again")
        assert first.text == "onetwo"
        assert [item.get("id") for item in model.requests[1]] == [None, "msg_a", "msg_b", None]


class TestAdapter:
    async def test_serve_takes_agents_only(self) -> None:
        with pytest.raises(InvalidInputError):
            serve(object())  # type: ignore[arg-type]
        assert openai_agent.adapt(object()) is None

    def test_it_knows_who_may_ask(self, work: Work) -> None:
        """F9: The tools of agents to which the agent hands off count too."""
        asks = agent(then(), work.tool("a", needs_approval=True), name="asks")
        assert serve(asks).asks_humans
        assert serve(agent(then(), handoffs=[agent(then(), handoffs=[handoff(asks)])])).asks_humans
        circle = agent(then())
        circle.handoffs.append(circle)
        assert not serve(circle).asks_humans

    def test_a_package_agents_of_the_program_is_another_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = ModuleType("agents")
        own.Agent = type("Agent", (), {})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "agents", own)
        assert openai_agent.adapt(own.Agent()) is None  # type: ignore[attr-defined]
        assert App({"f": _function})["f"].function is _function

    def test_the_adapter_does_not_import_the_sdk(self) -> None:
        program = "import sys, runyard.adapters.openai_agent as a; a.adapt(1); sys.exit('agents' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

    async def test_the_agent_itself_is_unchanged(self, work: Work) -> None:
        """The program can use the same agent object with its own Runner beside the worker."""
        shared = agent(then(calls("a")), work.tool("a"))
        before = dict(vars(shared))
        assert (await run(shared)).text == "done: ['result of a']"
        assert vars(shared) == before


async def _function(ctx: Any) -> None: ...


async def test_a_probe_of_the_sdk_agent_has_its_tools(work: Work) -> None:
    """F9: The tools of a probe have their real effects."""
    async with Harness(agent(then(calls("a")), work.tool("a"))) as harness:
        first = await harness.prompt("t", "go")
        probe = await harness.fork_once("t", "again", first.id)
    assert probe.text == "done: ['result of a']" and work.done == ["a", "a"]


async def test_the_runner_still_works_outside(work: Work) -> None:
    plain = agent(lambda items: "plain", work.tool("a"))
    assert (await Runner.run(plain, "hi")).final_output == "plain"
