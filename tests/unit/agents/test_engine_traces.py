"""The spans of pydantic-ai in the attempts of its agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic_ai import Agent, ModelRetry

from runyard import App, RunContext, current_run
from runyard.support import genai_spans
from runyard.testing import Harness, ScriptedModel, call
from runyard_api import trace_export
from tests.support.traces import Spans, recorded

SECRET = "the-secret-words"


@pytest.fixture(params=[False])
def spans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The spans of this process, which traces agents as a worker does. The parameter is RUNYARD_TRACE_CONTENT."""
    monkeypatch.setattr(genai_spans, "_content", False)
    with recorded() as spans:
        trace_export.set_up(trace_export.WORKER, content=request.param)
        yield spans


def agent_of(model: ScriptedModel) -> Agent[None, str]:
    agent = Agent(model, instructions=SECRET)

    @agent.tool_plain
    async def ask(word: str) -> str:
        return f"{await current_run().ask(SECRET)} {word}"

    @agent.tool_plain(retries=2)
    async def fail(word: str) -> str:
        raise ModelRetry(SECRET) if word == "retry" else ValueError(SECRET)

    return agent


async def test_model_requests_and_tools_are_below_their_attempt(spans: Spans) -> None:
    """T1: by the names of the GenAI conventions, with the usage of each request."""
    model = ScriptedModel([call("ask", word=SECRET), "done"])
    async with Harness(App({"support": agent_of(model)})) as harness:
        asked = await harness.prompt("t", SECRET, "r")
        await asked.respond(SECRET)
    first, second = spans.named("invoke_agent support")
    assert spans.tree(first) == ("invoke_agent support", ["chat scripted", "execute_tool ask"])
    assert spans.tree(second) == ("invoke_agent support", ["execute_tool ask", "chat scripted"])
    for span in (first, second, *spans.named("chat scripted"), *spans.named("execute_tool ask")):
        expected = {"gen_ai.agent.name": "support", "gen_ai.conversation.id": "t"}
        assert expected.items() <= span.attributes.items(), span.name
    chat = spans.named("chat scripted")[0].attributes
    assert chat["gen_ai.operation.name"] == "chat" and chat["gen_ai.usage.output_tokens"] > 0
    assert second.attributes["gen_ai.aggregated_usage.output_tokens"] > 0
    assert not any(span.failed for span in spans), "a question is no error"
    assert not any(SECRET in span.everything for span in spans)


async def test_failures_of_tools_and_models_have_no_text(spans: Spans) -> None:
    """T4."""
    script = [call("fail", word="retry"), call("fail", word="now"), ConnectionError(SECRET)]
    async with Harness(App({"support": agent_of(ScriptedModel(script))})) as harness:
        await harness.prompt("t", SECRET, "r")
    assert [span.failed for span in spans.named("execute_tool fail")] == [True, True]
    assert spans.one("invoke_agent support").attributes["error.type"] == "ConnectionError"
    assert not any(SECRET in span.everything for span in spans)


@pytest.mark.parametrize("spans", [True], indirect=True)
async def test_content_is_recorded_when_asked(spans: Spans) -> None:
    """T4: RUNYARD_TRACE_CONTENT."""
    async with Harness(App({"support": agent_of(ScriptedModel(["done"]))})) as harness:
        await harness.prompt("t", SECRET, "r")
    assert SECRET in spans.one("chat scripted").everything


async def test_a_plain_function_asks_models_below_its_attempt(spans: Spans) -> None:
    """T1, P4."""

    async def agent(ctx: RunContext) -> None:
        answer = await ctx.model(ScriptedModel(["done"]))
        await ctx.append(answer.message)

    async with Harness(agent) as harness:
        await harness.prompt("t", SECRET, "r")
    assert spans.tree(spans.one("invoke_agent agent")) == ("invoke_agent agent", [("step model", ["chat scripted"])])
    assert spans.one("invoke_agent agent").attributes["gen_ai.operation.name"] == "invoke_agent"
    assert not any(SECRET in span.everything for span in spans)


async def test_an_agents_own_instrumentation_is_kept(spans: Spans) -> None:
    agent = agent_of(ScriptedModel(["done"]))
    agent.instrument = False
    async with Harness(App({"support": agent})) as harness:
        await harness.prompt("t", "hi", "r")
        assert spans.tree(spans.one("invoke_agent support")) == "invoke_agent support"
        spans.clear()
        agent.instrument = True
        await harness.prompt("t2", "hi", "r")
    outer, inner = spans.named("invoke_agent support")[0], spans.one("invoke_agent agent")
    assert spans.tree(outer) == ("invoke_agent support", [("invoke_agent agent", ["chat scripted"])])
    assert SECRET in inner.everything, "the program's own settings"
