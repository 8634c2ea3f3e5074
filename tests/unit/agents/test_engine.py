"""A pydantic-ai agent as an attempt of a run (R5, R7, R9, H5, H11, I7, P1)."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput, ToolReturn, UsageLimits
from pydantic_ai import RunContext as ModelContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelRequest, SystemPromptPart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from runyard import current_step
from runyard.agents.engine import drive, serve
from runyard.app import App
from runyard.domain.size_limits import MAX_VALUES
from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError
from runyard.execution.executor import Execution, Stop
from runyard.execution.steps import current_run
from runyard.models import Limit, open_tool_calls
from tests.support.model_lab import Lab, Script, call, prompts, status


@pytest.fixture
async def lab() -> Lab:
    return await Lab.open()


class Tools:
    """Three tools that note when they are called."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.keys: list[str] = []

    def on(self, agent: Agent[Any, Any]) -> None:
        for name in "abc":
            agent.tool_plain(self.tool(name), name=name)

    def tool(self, name: str) -> Any:
        async def tool() -> str:
            self.called.append(name)
            self.keys.append(current_step().idempotency_key)
            return f"result of {name}"

        return tool


def three(script: Script, **options: Any) -> tuple[Agent[Any, Any], Tools]:
    agent: Agent[Any, Any] = Agent(script.model, **options)
    tools = Tools()
    tools.on(agent)
    return agent, tools


class Stopped(AbstractCapability[Any]):
    """Has the first attempt handed over once the agent is through."""

    execution: Execution

    async def after_run(self, ctx: Any, *, result: Any) -> Any:
        if current_run().attempt == 1:
            self.execution.stop(Stop.HANDOVER)
            await asyncio.Event().wait()
        return result


async def test_a_text_answer_completes_the_run_in_one_commit(lab: Lab) -> None:
    """Accept, claim, complete."""
    script = Script(["hello"])
    ended = await lab.attempt(Agent(script.model))
    assert status(ended) is RunStatus.COMPLETED
    assert await lab.said() == [("user", "hi"), ("assistant", "hello")]
    run = await lab.run()
    assert (run.result, run.usage.requests) == (None, 1)


async def test_model_answers_and_tool_results_are_separate_messages(lab: Lab) -> None:
    script = Script([[TextPart("let me see"), call("a"), call("b")], "done"])
    agent, tools = three(script)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    roles = [message.role for message in await lab.messages()]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert sorted(tools.called) == ["a", "b"]
    assert len(set(tools.keys)) == 2
    assert script.results() == {"a": "result of a", "b": "result of b"}


async def test_r9_a_later_attempt_goes_on_where_the_last_one_was_killed(lab: Lab) -> None:
    """R9: killed after each commit in turn; model requests are repeated once per kill at most, finished tools never."""
    script = Script([[call("a")], [call("b"), call("c")], "done"])
    agent, tools = three(script)
    for _ in range(5):
        await lab.crash(agent, appends=1)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert [role for role, _ in await lab.said()] == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]
    assert len(script.requests) <= 3 + 5
    assert tools.called.count("a") == 1  # its result is the only thing that was left to do in its attempt
    results = [result.call_id for message in await lab.messages() for result in message.tool_results]
    assert sorted(results) == ["a", "b", "c"]


@pytest.mark.parametrize("commits", range(1, 5))
async def test_r9_killed_at_one_commit_nothing_is_done_twice(lab: Lab, commits: int) -> None:
    script = Script([[call("a")], [call("b", "b1")], "done"])
    agent, tools = three(script)
    await lab.crash(agent, appends=commits)
    before = list(tools.called)
    stored = [result.call_id for message in await lab.messages() for result in message.tool_results]
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    repeated = [name for name in tools.called[len(before) :] if name in {id[0] for id in stored}]
    assert repeated == []
    assert len(script.requests) <= 3 + 1


async def test_r9_recorded_results_answer_their_calls_and_the_others_are_executed(lab: Lab) -> None:
    """R9: the history ends with some of the results."""
    gate = asyncio.Event()
    script = Script([[call("quick"), call("slow")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)
    called: list[str] = []

    @agent.tool_plain
    async def quick() -> ToolReturn:
        called.append("quick")
        return ToolReturn("q", content=["look at this"], metadata={"private": 1})

    @agent.tool_plain
    async def slow() -> str:
        called.append("slow")
        await gate.wait()
        return "s"

    await lab.crash(agent, appends=2)
    gate.set()
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert called == ["quick", "slow", "slow"]
    assert script.results() == {"quick": "q", "slow": "s"}
    shown = [part.content for part in prompts(script.requests[-1])]
    assert shown == ["hi", ["look at this"]]
    assert [message.role for message in await lab.messages()] == ["user", "assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize("now", ["gone", "other arguments"])
async def test_r9_a_recorded_result_outlives_its_tool(lab: Lab, now: str) -> None:
    """R9: another version of the agent goes on with what the first one did, and the model sees that."""
    script = Script([[call("look"), call("pay")], "done"])

    def version(look: Any) -> Agent[Any, Any]:
        agent: Agent[Any, Any] = Agent(script.model)
        agent.tool_plain(lambda: "paid", name="pay", requires_approval=True)
        if look is not None:
            agent.tool_plain(look, name="look")
        return agent

    async def look() -> ToolReturn:
        return ToolReturn("looked", content="as shown")

    async def look_at(what: str) -> str:
        return what

    assert status(await lab.attempt(version(look))) is RunStatus.SUSPENDED
    await lab.respond(True)
    assert status(await lab.attempt(version(None if now == "gone" else look_at))) is RunStatus.COMPLETED
    assert script.results() == {"look": "looked", "pay": "paid"}
    assert [part.content for part in prompts(script.requests[-1])] == ["hi", "as shown"]
    messages = await lab.messages()
    assert open_tool_calls(messages) == []
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]


async def test_r9_tools_that_a_stored_result_made_available_are_available(lab: Lab) -> None:
    script = Script([[call("find")], [call("hidden")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)
    agent.tool_plain(lambda: ToolReturn("found one", tools=["hidden"]), name="find")
    agent.tool_plain(lambda: "seen", name="hidden", defer_loading=True)
    await lab.crash(agent, appends=2)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert script.results() == {"find": "found one", "hidden": "seen"}
    script.before = 3
    script.answers = [[call("hidden", "later")], "done"]
    assert status(await lab.attempt(agent, "later")) is RunStatus.COMPLETED
    assert script.results()["later"] == "seen"


async def test_r9_the_idempotency_key_of_a_call_is_the_same_in_every_attempt(lab: Lab) -> None:
    script = Script([[call("a", "one"), call("a", "two")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)
    keys: list[tuple[str, str]] = []

    @agent.tool
    async def a(ctx: ModelContext[None]) -> str:
        assert ctx.tool_call_id is not None
        keys.append((ctx.tool_call_id, current_step().idempotency_key))
        return "ok"

    await lab.crash(agent, appends=2)
    await lab.attempt(agent)
    assert (len(set(keys)), len(keys)) == (2, 3)


async def test_r9_an_answer_that_was_committed_and_not_completed_is_the_answer(lab: Lab) -> None:
    """R9: handed over after the model's last word; it is not asked again, with or without instructions."""
    script = Script(["the answer"])
    stopped = Stopped()
    agent = Agent(script.model, instructions="Be brief.", system_prompt="Be kind.", capabilities=[stopped])
    stopped.execution = await lab.execution(agent)
    assert status(await stopped.execution.run()) is RunStatus.QUEUED
    assert await lab.said() == [("user", "hi"), ("assistant", "the answer")]
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await lab.said() == [("user", "hi"), ("assistant", "the answer")]
    assert len(script.requests) == 1


async def test_system_prompt_and_instructions_are_the_agents_and_not_stored(lab: Lab) -> None:
    script = Script([[call("a")], "done"])
    agent, _ = three(script, system_prompt="Be kind.", instructions="Be brief.")

    @agent.system_prompt
    def more() -> str:
        return "Be quick."

    await lab.crash(agent, appends=2)
    await lab.attempt(agent)
    assert [message.role for message in await lab.messages()] == ["user", "assistant", "tool", "assistant"]
    for messages, info in zip(script.requests, script.prompts, strict=True):
        assert [part.content for part in system_prompts(messages)] == ["Be kind.", "Be quick."]
        assert info.instructions == "Be brief."
    script.before = 2
    await lab.attempt(agent, "second")
    assert [part.content for part in system_prompts(script.requests[-1])] == ["Be kind.", "Be quick."]


class Weather(BaseModel):
    city: str
    degrees: int


async def test_r5_structured_output_is_the_runs_result_and_closes_its_call(lab: Lab) -> None:
    """R5, I7: the output tool's call gets its result in the commit that completes the run."""
    script = Script([[call("a")], [call("final_result", city="Ulm", degrees=3)]])
    agent, _ = three(script, output_type=Weather)
    appended: list[Any] = []
    append = lab.backend.runs.append

    async def noted(attempt: Any, messages: Any, **fields: Any) -> Any:
        appended.extend(message.role for message in messages)
        return await append(attempt, messages, **fields)

    lab.backend.runs.append = noted  # type: ignore[method-assign]
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert appended == ["assistant", "tool", "assistant"]
    run = await lab.run()
    assert run.result == {"city": "Ulm", "degrees": 3}
    assert open_tool_calls(await lab.messages()) == []
    assert (await lab.messages())[-1].role == "tool"


async def test_r9_structured_output_that_was_committed_and_not_completed_is_the_result(lab: Lab) -> None:
    script = Script([[call("final_result", city="Ulm", degrees=3)]])
    agent, _ = three(script, output_type=Weather)
    await lab.crash(agent, appends=1)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert (await lab.run()).result == {"city": "Ulm", "degrees": 3}
    assert len(script.requests) == 1


async def test_r9_structured_output_that_was_handed_over_before_its_completion_is_the_result(lab: Lab) -> None:
    script = Script([[call("final_result", city="Ulm", degrees=3)]])
    agent, _ = three(script, output_type=Weather, instructions="Be brief.", capabilities=[(stopped := Stopped())])
    stopped.execution = await lab.execution(agent)
    assert status(await stopped.execution.run()) is RunStatus.QUEUED
    assert [message.role for message in await lab.messages()] == ["user", "assistant", "tool"]
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert (await lab.run()).result == {"city": "Ulm", "degrees": 3}
    assert [message.role for message in await lab.messages()] == ["user", "assistant", "tool"]
    assert len(script.requests) == 1


async def test_output_that_does_not_fit_is_asked_for_again_and_both_are_kept(lab: Lab) -> None:
    """R5: the refused call has its result too."""
    script = Script([[call("final_result", "x", city="Ulm")], [call("final_result", "y", city="Ulm", degrees=3)]])
    agent, _ = three(script, output_type=Weather)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    messages = await lab.messages()
    assert [result.is_error for message in messages for result in message.tool_results] == [True, False]
    assert open_tool_calls(messages) == []


async def test_text_that_does_not_fit_is_asked_for_again_with_the_reason(lab: Lab) -> None:
    script = Script(["{}", '{"city": "Ulm", "degrees": 3}'])
    agent = Agent(script.model, output_type=NativeOutput(Weather))
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert (await lab.run()).result == {"city": "Ulm", "degrees": 3}
    messages = await lab.messages()
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant"]
    assert "degrees" in messages[2].text


async def test_r7_an_exception_of_a_tool_is_a_result_and_the_run_goes_on(lab: Lab) -> None:
    script = Script([[call("broken"), call("fine")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)

    @agent.tool_plain
    def broken() -> str:
        raise KeyError("no such thing")

    @agent.tool_plain
    async def fine() -> str:
        return "fine"

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    errors = {result.call_id: result.is_error for message in await lab.messages() for result in message.tool_results}
    assert errors == {"broken": True, "fine": False}
    assert "no such thing" in str(script.results()["broken"])


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(2),
        asyncio.CancelledError("lost"),
        BaseException("odd"),
        BackendUnavailableError("BackendUnavailableError of a tool"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_r7_whatever_a_tool_raises_is_a_result(lab: Lab, error: BaseException, threaded: bool) -> None:
    """R7: a tool that exits, or awaits what was cancelled, neither ends its worker nor the tools beside it."""
    script = Script([[call("broken"), call("fine")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)

    async def broken() -> str:
        raise error

    def broken_in_a_thread() -> str:
        raise error

    agent.tool_plain(broken_in_a_thread if threaded else broken, name="broken")
    agent.tool_plain(lambda: "fine", name="fine")
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    errors = {result.call_id: result.is_error for message in await lab.messages() for result in message.tool_results}
    assert errors == {"broken": True, "fine": False}
    assert type(error).__name__ in str(script.results()["broken"])


async def test_r7_characters_that_a_provider_cut_in_two_are_put_together(lab: Lab) -> None:
    """R7: what neither store nor provider would take; the run does not fail of it, and its model is not asked again."""
    script = Script([[TextPart("so \ud83d"), call("note")], "\ud83d\ude00!"])
    agent: Agent[Any, Any] = Agent(script.model)
    agent.tool_plain(lambda: "noted", name="note")
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert len(script.requests) == 2
    assert [message.text for message in await lab.messages() if message.role == "assistant"] == ["so \ufffd", "😀!"]


@pytest.mark.parametrize(
    "value",
    ["half \ud800", "x" * 100_000, object(), [0] * (MAX_VALUES + 1), 2**64],
    ids=["surrogate", "large", "no json", "many values", "many bits"],
)
async def test_r7_a_result_that_cannot_be_stored_is_an_error_result(lab: Lab, value: object) -> None:
    await lab.backend.limits.set_limit(Limit(name="message_bytes", most=50_000))
    script = Script([[call("odd"), call("fine")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)
    agent.tool_plain(lambda: value, name="odd")
    agent.tool_plain(lambda: "fine", name="fine")
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    errors = {result.call_id: result.is_error for message in await lab.messages() for result in message.tool_results}
    assert errors == {"odd": True, "fine": False}
    assert "cannot be stored" in str(script.results()["odd"])


async def test_a_call_that_cannot_be_stored_fails_the_run(lab: Lab) -> None:
    """A2, R7: arguments are the model's word, which nobody can put into other ones."""
    script = Script([[ToolCallPart("noted", {"numbers": [0] * MAX_VALUES})]])
    agent: Agent[Any, Any] = Agent(script.model)
    agent.tool_plain(lambda numbers: None, name="noted")
    ended = await lab.attempt(agent)
    assert ended is not None and ended.error is not None
    assert (ended.status, ended.error.code, ended.error.details["most"]) == (RunStatus.FAILED, "invalid_input", MAX_VALUES)
    assert len(script.requests) == 1


async def test_r7_a_tool_that_asks_for_a_retry_is_given_one_and_too_many_fail_the_run(lab: Lab) -> None:
    script = Script([[call("picky", str(n))] for n in range(5)])
    agent: Agent[Any, Any] = Agent(script.model)

    @agent.tool_plain(retries=2)
    def picky() -> str:
        raise ModelRetry("another one, please")

    ended = await lab.attempt(agent)
    assert status(ended) is RunStatus.FAILED
    assert len(script.requests) == 3
    assert "another one, please" in str(script.results())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (429, RunStatus.QUEUED),
        (503, RunStatus.QUEUED),
        (529, RunStatus.QUEUED),
        (401, RunStatus.FAILED),
        (400, RunStatus.FAILED),
    ],
)
async def test_r7_a_providers_error_is_retried_if_it_can_pass(lab: Lab, code: int, expected: RunStatus) -> None:
    """R7: nothing is appended; what can never succeed is not tried again."""
    script = Script([[call("a")], ModelHTTPError(code, "script")])
    agent, tools = three(script)
    assert status(await lab.attempt(agent)) is expected
    assert [message.role for message in await lab.messages()] == ["user", "assistant", "tool"]
    if expected is RunStatus.QUEUED:
        assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
        assert tools.called == ["a"]


async def test_r7_streamed_text_of_a_failed_request_is_rewound(lab: Lab) -> None:
    async def breaking(messages: Any, info: Any) -> Any:
        yield "half a "
        if not broken:
            broken.append(1)
            raise ModelHTTPError(503, "script")
        yield "sentence"

    broken: list[int] = []
    agent = Agent(FunctionModel(stream_function=breaking))
    assert status(await lab.attempt(agent)) is RunStatus.QUEUED
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await lab.said() == [("user", "hi"), ("assistant", "half a sentence")]
    kinds = [event.type for event in await lab.events()]
    assert kinds.index("message.delta") < kinds.index("run.rewound") < len(kinds) - 1 - kinds[::-1].index("message.delta")


async def test_usage_limits_of_pydantic_ai_fail_the_run(lab: Lab) -> None:
    """An attempt cannot get past them, so there is no other one."""
    script = Script([[call("a")], [call("a", "a2")], "done"])
    agent, _ = three(script)

    async def limited(ctx: Any) -> None:
        await drive(ctx, agent, usage_limits=UsageLimits(request_limit=2))

    ended = await lab.attempt(limited)
    assert status(ended) is RunStatus.FAILED
    assert len(script.requests) == 2


async def test_text_thinking_and_calls_are_streamed(lab: Lab) -> None:
    script = Script([[ThinkingPart("hm"), TextPart("one moment"), call("a", x=1)], "done"])
    agent: Agent[Any, Any] = Agent(script.model)

    @agent.tool_plain
    def a(x: int) -> int:
        return x

    await lab.attempt(agent)
    events = await lab.events()
    kinds = [event.type for event in events]
    assert kinds[2] == "message.started"
    deltas = [event.data for event in events if event.type == "message.delta"]
    assert "".join(str(data.get("thinking", "")) for data in deltas) == "hm"
    assert "".join(str(data.get("text", "")) for data in deltas) == "one momentdone"
    assert "".join(str(data.get("arguments", "")) for data in deltas) == '{"x": 1}'
    [described] = [data["tool_call"] for data in deltas if "tool_call" in data]
    assert described == {"id": "a", "name": "a"}
    assert kinds.index("tool.started") < kinds.index("tool.completed") < kinds.index("run.completed")
    ids = {event.data["message_id"] for event in events if event.type in ("message.started", "message.delta")}
    completed = {event.data["message_id"] for event in events if event.type == "message.completed"}
    assert ids <= completed


async def test_a_model_that_cannot_stream_is_served_as_well(lab: Lab) -> None:
    script = Script([[call("a")], "done"])
    tools = Tools()
    agent: Agent[Any, Any] = Agent(script.silent)
    tools.on(agent)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    deltas = [event.data.get("text") for event in await lab.events() if event.type == "message.delta"]
    assert deltas[-1] == "done"


async def test_calls_with_the_id_of_an_earlier_one_are_told_apart(lab: Lab) -> None:
    """H5: results and approvals belong to one call, even if the model does not name its calls well."""
    script = Script([[call("a", "x")], [call("a", "x")], "done"])
    agent, tools = three(script)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    ids = [call.id for message in await lab.messages() for call in message.tool_calls]
    assert len(set(ids)) == 2
    assert len(set(tools.keys)) == 2


async def test_every_tool_and_output_of_the_test_model_is_driven(lab: Lab) -> None:
    agent: Agent[Any, Any] = Agent(TestModel(), output_type=Weather)
    tools = Tools()
    tools.on(agent)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert sorted(tools.called) == ["a", "b", "c"]


async def test_usage_adds_up_over_crashes(lab: Lab) -> None:
    """Each committed answer counts once in the run and in the thread, whatever became of its attempt."""
    script = Script([[call("a")], [call("b")], "done"])
    agent, _ = three(script)
    await lab.crash(agent, appends=1)
    await lab.crash(agent, appends=2)
    await lab.attempt(agent)
    run = await lab.run()
    thread = await lab.backend.threads.thread("t")
    assert thread is not None
    carried = [message.usage for message in await lab.messages() if message.usage is not None]
    assert run.usage.requests == thread.usage.requests == len(carried) == 3
    assert run.usage.input_tokens == thread.usage.input_tokens == sum(usage.input_tokens for usage in carried) > 0
    assert run.usage.seconds == pytest.approx(sum(usage.seconds for usage in carried))


async def test_dependencies_are_made_for_each_attempt(lab: Lab) -> None:
    script = Script([[call("where")], "done"])
    agent: Agent[Any, Any] = Agent(script.model, deps_type=dict)

    @agent.tool
    def where(ctx: ModelContext[dict[str, str]]) -> str:
        return ctx.deps["run"]

    async def make(ctx: Any) -> dict[str, str]:
        return {"run": ctx.run_id}

    assert status(await lab.attempt(serve(agent, deps=make))) is RunStatus.COMPLETED
    assert script.results() == {"where": "r"}


async def test_a_cancelled_attempt_closes_the_models_stream(lab: Lab) -> None:
    """R10: the agent unwinds at once and stores nothing of what was under way."""
    streaming, closed = asyncio.Event(), asyncio.Event()

    async def endless(messages: Any, info: Any) -> Any:
        try:
            yield "on and "
            streaming.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    execution = await lab.execution(Agent(FunctionModel(stream_function=endless)))
    attempt = asyncio.create_task(execution.run())
    async with asyncio.timeout(10):
        await streaming.wait()
        await lab.backend.runs.cancel("t", "r")
        execution.stop(Stop.CANCEL)
        assert status(await attempt) is RunStatus.CANCELLED
    assert closed.is_set()
    assert await lab.said() == [("user", "hi")]


async def test_toolsets_are_entered_and_closed_by_each_attempt(lab: Lab) -> None:
    entered: list[str] = []

    class Server(FunctionToolset[Any]):
        async def __aenter__(self) -> Any:
            entered.append("in")
            return self

        async def __aexit__(self, *args: Any) -> None:
            entered.append("out")

    server = Server(id="server")

    @server.tool_plain
    def remote() -> str:
        return "far"

    script = Script([[call("remote")], "done"])
    agent: Agent[Any, Any] = Agent(script.model, toolsets=[server])
    await lab.crash(agent, appends=1)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert entered == ["in", "out"] * 2


def test_an_app_takes_agents_of_pydantic_ai_as_they_are() -> None:
    agent: Agent[Any, Any] = Agent(TestModel())
    app = App({"support": agent})
    assert not app["support"].hitl
    guarded: Agent[Any, Any] = Agent(TestModel())

    @guarded.tool_plain(requires_approval=True)
    def refund() -> None: ...

    assert App(agents={"support": guarded})["support"].hitl
    app.agent("guarded", timeout=60)(guarded)  # type: ignore[arg-type]
    assert (app["guarded"].hitl, app["guarded"].timeout) == (True, 60)


def system_prompts(messages: list[Any]) -> list[SystemPromptPart]:
    return [part for m in messages if isinstance(m, ModelRequest) for part in m.parts if isinstance(part, SystemPromptPart)]
