"""Plain functions with models and tools: ``ctx.model`` and ``ctx.tool`` (P4)."""

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import TextPart

from runyard import RunContext, current_step
from runyard.domain.states import RunStatus
from runyard.models import Message, ToolCallPart, ToolResultPart
from tests.support.model_lab import Lab, Script, call, prompts, status


@pytest.fixture
async def lab() -> Lab:
    return await Lab.open()


async def test_a_model_is_asked_once_for_the_run(lab: Lab) -> None:
    """R9: a later attempt gets the recorded answer; it is appended by who wants it in the conversation."""
    script = Script(["hello"])

    async def agent(ctx: RunContext) -> None:
        answer = await ctx.model(script.model)
        assert (answer.text, answer.output) == ("hello", "hello")
        if ctx.attempt == 1:
            raise ConnectionError("again")
        await ctx.append(answer.message)

    assert status(await lab.attempt(agent)) is RunStatus.QUEUED
    assert await lab.said() == [("user", "hi")]
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await lab.said() == [("user", "hi"), ("assistant", "hello")]
    assert [part.content for part in prompts(script.requests[0])] == ["hi"]
    assert len(script.requests) == 1
    assert (await lab.run()).usage.requests == 1


@pytest.mark.parametrize("appended", [True, False])
async def test_an_answer_is_counted_once_whatever_became_of_its_attempt(lab: Lab, appended: bool) -> None:
    script = Script(["hello", "bye"])

    async def agent(ctx: RunContext) -> None:
        first = await ctx.model(script.model, "one")
        if appended:
            await ctx.append(first.message)
        await ctx.append(Message.assistant([ToolCallPart(id="c", name="x")]), Message.tool(ToolResultPart(call_id="c")))
        script.before = -1
        await ctx.model(script.model, "two")
        await ctx.append(Message.assistant("done"))

    await lab.crash(agent, appends=1)
    script.before = 0
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert len(script.requests) == 2
    assert (await lab.run()).usage.requests == 2


class Weather(BaseModel):
    degrees: int


async def test_an_answer_of_a_type_is_asked_for_again_until_it_fits(lab: Lab) -> None:
    script = Script([[call("final_result", degrees="cold")], [call("final_result", "again", degrees=3)]])

    async def agent(ctx: RunContext) -> None:
        answer = await ctx.model(script.model, "How cold?", output_type=Weather)
        assert answer.output == Weather(degrees=3)
        await ctx.append(answer.message)

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await lab.said() == [("user", "hi"), ("assistant", '{"degrees":3}')]
    assert (await lab.run()).usage.requests == 2


async def test_a_loop_of_models_and_tools_is_durable(lab: Lab) -> None:
    """R9: killed after each commit; nothing that is recorded is done again."""
    script = Script([[TextPart("hm"), call("double", n=2)], "four"])
    called: list[int] = []
    keys: list[str] = []

    def double(n: int, idempotency_key: str = "") -> int:
        called.append(n)
        keys.append(current_step().idempotency_key)
        return 2 * n

    async def agent(ctx: RunContext) -> None:
        history = await ctx.history()
        while not (history[-1].role == "assistant" and not history[-1].tool_calls):
            if history[-1].role == "assistant":
                for wanted in history[-1].tool_calls:
                    result = await ctx.tool(double, wanted)
                    await ctx.append(Message.tool(ToolResultPart(call_id=wanted.id, content=result)))
            else:
                answer = await ctx.model(script.model, tools=[double], key=f"answer-{len(history)}", stream=True)
                await ctx.append(answer.message)
            history = await ctx.history()

    await lab.crash(agent, appends=1)
    await lab.crash(agent, appends=1)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await lab.said() == [("user", "hi"), ("assistant", ["double"]), ("tool", {"double": 4}), ("assistant", "four")]
    assert called == [2]
    assert len(script.requests) == 2
    events = await lab.events()
    kinds = [event.type for event in events]
    assert kinds.count("tool.started") == kinds.count("tool.completed") == 1
    assert [info.name for info in script.prompts[0].function_tools] == ["double"]
    streamed = {event.data["message_id"] for event in events if event.type == "message.started"}
    assert streamed == {message.id for message in await lab.messages() if message.role == "assistant"}


async def test_a_tool_by_its_arguments_is_told_of_and_recorded(lab: Lab) -> None:
    called: list[str] = []

    async def greet(name: str) -> str:
        called.append(name)
        return f"hello {name}"

    async def agent(ctx: RunContext) -> None:
        assert await ctx.tool(greet, name="you") == "hello you"
        assert await asyncio.gather(ctx.tool(greet, name="a"), ctx.tool(greet, name="b")) == ["hello a", "hello b"]
        if ctx.attempt == 1:
            raise ConnectionError("again")

    await lab.attempt(agent)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert called == ["you", "a", "b"]
    started = [event.data for event in await lab.events() if event.type == "tool.started"]
    assert started[0] == {"call_id": "greet#0", "name": "greet", "arguments": {"name": "you"}}
    assert len(started) == 3


@pytest.mark.parametrize(("code", "expected"), [(429, RunStatus.QUEUED), (401, RunStatus.FAILED)])
async def test_r7_a_providers_error_is_retried_if_it_can_pass(lab: Lab, code: int, expected: RunStatus) -> None:
    script = Script([ModelHTTPError(code, "script")])

    async def agent(ctx: RunContext) -> None:
        await ctx.model(script.model)

    assert status(await lab.attempt(agent)) is expected
