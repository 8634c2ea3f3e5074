"""Tools that need a human, under pydantic-ai (R9, H1, H5, H7, H11, F9)."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, ApprovalRequired, CallDeferred
from pydantic_ai import RunContext as ModelContext
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls, Toolset
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset

from runyard.agents.durable_tools import asks_humans
from runyard.domain.derived_ids import digest, request_id
from runyard.domain.states import RunStatus
from runyard.execution.steps import current_context
from runyard.models import HitlRequest, open_tool_calls
from tests.support.model_lab import Lab, Script, call, status


@pytest.fixture
async def lab() -> Lab:
    return await Lab.open()


class Desk:
    """An agent whose ``refund`` needs approval and whose ``look`` does not; it notes what is called."""

    def __init__(self, *answers: Any) -> None:
        self.script = Script([*answers, "done"])
        self.agent: Agent[Any, Any] = Agent(self.script.model)
        self.called: list[object] = []

        @self.agent.tool_plain(requires_approval=True)
        async def refund(amount: int) -> str:
            self.called.append(amount)
            return f"refunded {amount}"

        @self.agent.tool_plain
        async def look() -> str:
            self.called.append("look")
            return "looked"


def of(requests: list[HitlRequest], call_id: str) -> HitlRequest:
    [found] = [request for request in requests if call_id in str(request.payload)]
    return found


async def test_an_approval_suspends_after_the_tools_beside_it_finished(lab: Lab) -> None:
    """H1: what needs nobody is done and stored; then the run waits, and goes on with the decision."""
    desk = Desk([call("refund", amount=5), call("look")])
    assert status(await lab.attempt(desk.agent)) is RunStatus.SUSPENDED
    assert await lab.said() == [("user", "hi"), ("assistant", ["refund", "look"]), ("tool", {"look": "looked"})]
    [request] = await lab.pending()
    assert request.kind == "approval"
    assert request.payload["tool_call"] == {"type": "tool_call", "id": "refund", "name": "refund", "arguments": {"amount": 5}}
    await lab.respond(True)
    assert status(await lab.attempt(desk.agent)) is RunStatus.COMPLETED
    assert desk.called == ["look", 5]
    assert desk.script.results() == {"refund": "refunded 5", "look": "looked"}
    assert len(desk.script.requests) == 2


async def test_a_denial_is_an_error_result_with_its_reason(lab: Lab) -> None:
    desk = Desk([call("refund", amount=5)])
    await lab.attempt(desk.agent)
    await lab.respond({"approved": False, "reason": "too much"})
    assert status(await lab.attempt(desk.agent)) is RunStatus.COMPLETED
    assert desk.called == []
    [result] = [result for message in await lab.messages() for result in message.tool_results]
    assert (result.is_error, result.content) == (True, "too much")


async def test_edited_arguments_are_validated_like_the_models(lab: Lab) -> None:
    desk = Desk([call("refund", amount=5)], [call("refund", "again", amount=6)])
    await lab.attempt(desk.agent)
    await lab.respond({"approved": True, "arguments": {"amount": "much"}})
    assert status(await lab.attempt(desk.agent)) is RunStatus.SUSPENDED
    assert desk.called == []
    assert "amount" in str(desk.script.results()["refund"])
    await lab.respond({"approved": True, "arguments": {"amount": 4}})
    assert status(await lab.attempt(desk.agent)) is RunStatus.COMPLETED
    assert desk.called == [4]


async def test_h5_parallel_approvals_are_all_asked_and_each_is_applied_to_its_own_call(lab: Lab) -> None:
    desk = Desk([call("refund", "one", amount=1), call("refund", "two", amount=2), call("refund", "three", amount=3)])
    await lab.attempt(desk.agent)
    requests = await lab.pending()
    assert len(requests) == 3
    await lab.respond({"approved": False}, of(requests, "two"))
    assert status(await lab.attempt(desk.agent)) is RunStatus.SUSPENDED
    assert desk.called == []
    assert len(await lab.pending()) == 2
    await lab.respond(True, of(requests, "three"))
    await lab.respond(True, of(requests, "one"))
    assert status(await lab.attempt(desk.agent)) is RunStatus.COMPLETED
    assert sorted(desk.called, key=str) == [1, 3]
    errors = {result.call_id: result.is_error for message in await lab.messages() for result in message.tool_results}
    assert errors == {"one": False, "two": True, "three": False}


async def test_h5_the_same_call_again_needs_another_approval(lab: Lab) -> None:
    desk = Desk([call("refund", amount=5)], [call("refund", amount=5)])
    for _ in range(2):
        assert status(await lab.attempt(desk.agent)) is RunStatus.SUSPENDED
        await lab.respond(True)
    assert status(await lab.attempt(desk.agent)) is RunStatus.COMPLETED
    assert desk.called == [5, 5]


async def test_r9_an_approved_tool_that_finished_is_not_called_again(lab: Lab) -> None:
    desk = Desk([call("refund", amount=5), call("look")])
    await lab.attempt(desk.agent)
    await lab.respond(True)
    await lab.crash(desk.agent, appends=1)
    assert status(await lab.attempt(desk.agent)) is RunStatus.COMPLETED
    assert desk.called == ["look", 5]


async def test_a_tool_that_asks_by_itself_is_called_again_with_the_answer(lab: Lab) -> None:
    """Nested suspensions: two questions one after the other, beside a tool that finishes meanwhile."""
    script = Script([[call("book"), call("other")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)
    called: list[str] = []

    @agent.tool_plain
    async def book() -> str:
        called.append("book")
        context = current_context.get()
        assert context is not None
        try:
            seat = await context.ask("Which seat?", {"enum": ["aisle", "window"]})
            food = await context.ask("Which food?")
        except Exception:
            return "swallowed"
        return f"{seat}, {food}"

    @agent.tool_plain
    async def other() -> str:
        called.append("other")
        await asyncio.sleep(0.01)
        return "ok"

    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    await lab.respond("aisle")
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    await lab.respond("soup")
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert called == ["book", "other", "book", "book"]
    assert script.results() == {"book": "aisle, soup", "other": "ok"}


async def test_questions_of_tools_that_run_beside_each_other_keep_their_answers(lab: Lab) -> None:
    """H5: a question is named within its call, whichever tool asks first."""
    script = Script([[call("a"), call("b")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)
    turn = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def ask(name: str, other: str) -> str:
        await turn[name].wait()
        context = current_context.get()
        assert context is not None
        asked = asyncio.ensure_future(context.ask("Which one?"))
        await asyncio.sleep(0)
        turn[other].set()
        return f"{name}: {await asked}"

    agent.tool_plain(lambda: ask("a", "b"), name="a")
    agent.tool_plain(lambda: ask("b", "a"), name="b")
    turn["a"].set()
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    key = (await lab.ref()).thread_key
    for name in "ab":
        asked = request_id(key, "r", f"ask:{name}/0:{digest([{'question': 'Which one?'}, None])}")
        await lab.backend.runs.respond(f"for {name}", request_id=asked)
    turn["a"].clear()
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert script.results() == {"a": "a: for a", "b": "b: for b"}


async def test_deferrals_carry_question_schema_and_deadline(lab: Lab) -> None:
    """H7, H9: a tool may say what is asked; the answer is its result."""
    script = Script([[call("choose"), call("pay")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)

    @agent.tool_plain
    def choose() -> str:
        details = {"payload": {"question": "A or B?"}, "schema": {"enum": ["A", "B"]}, "timeout": 60.0}
        raise CallDeferred({"runyard": {"kind": "ask", **details, "on_timeout": {"answer": "A"}}})

    @agent.tool
    def pay(ctx: ModelContext[None]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired({"runyard": {"kind": "approve", "question": "Pay?", "timeout": 5.0, "on_timeout": None}})
        return "paid"

    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    requests = await lab.pending()
    chosen, paid = of(requests, "A or B?"), of(requests, "Pay?")
    assert (chosen.answer_schema, chosen.on_deadline) == ({"enum": ["A", "B"]}, {"answer": "A"})
    assert paid.deadline_at is not None and paid.payload["question"] == "Pay?"
    await lab.respond("B", chosen)
    await lab.respond(True, paid)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert script.results() == {"choose": "B", "pay": "paid"}


async def test_the_result_of_an_external_call_is_asked_for(lab: Lab) -> None:
    script = Script([[call("fax", to="you")], "done"])
    fax = ToolDefinition(name="fax", parameters_json_schema={"type": "object", "properties": {"to": {"type": "string"}}})
    agent: Agent[Any, Any] = Agent(script.model, toolsets=[ExternalToolset([fax])])
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    await lab.respond({"pages": 3})
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert script.results() == {"fax": {"pages": 3}}
    assert open_tool_calls(await lab.messages()) == []


async def test_approval_that_the_agent_resolves_itself_asks_nobody(lab: Lab) -> None:
    desk = Desk([call("refund", amount=5)])

    def approve(ctx: Any, requests: Any) -> DeferredToolResults:
        return DeferredToolResults(approvals={call.tool_call_id: True for call in requests.approvals})

    agent: Agent[Any, Any] = Agent(
        desk.script.model, toolsets=list(desk.agent.toolsets), capabilities=[HandleDeferredToolCalls(approve)]
    )
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert desk.called == [5]


async def test_r9_what_the_agent_resolved_itself_is_not_resolved_again(lab: Lab) -> None:
    resolved: list[str] = []

    def resolve(ctx: Any, requests: Any) -> DeferredToolResults:
        resolved.extend(call.tool_call_id for call in requests.calls)
        return DeferredToolResults(calls={call.tool_call_id: "sent" for call in requests.calls})

    script = Script([[call("fax", "one"), call("fax", "two")], "done"])
    fax = ToolDefinition(name="fax", parameters_json_schema={"type": "object", "properties": {}})
    agent: Agent[Any, Any] = Agent(
        script.model, toolsets=[ExternalToolset([fax])], capabilities=[HandleDeferredToolCalls(resolve)]
    )
    await lab.crash(agent, appends=2)
    [stored] = [result.call_id for message in await lab.messages() for result in message.tool_results]
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert sorted(resolved) == sorted(["one", "two", *({"one", "two"} - {stored})])
    assert script.results() == {"one": "sent", "two": "sent"}


async def test_a_hook_that_defers_is_asked_about_and_not_again_once_its_call_is_stored(lab: Lab) -> None:
    """R9: hooks around a tool are not run for a result that an earlier attempt stored."""
    seen: list[str] = []

    class Policy(AbstractCapability[Any]):
        async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            seen.append(call.tool_name)
            if call.tool_name == "pay" and not ctx.tool_call_approved:
                raise ApprovalRequired
            return args

    script = Script([[call("pay"), call("look")], "done"])
    agent: Agent[Any, Any] = Agent(script.model, capabilities=[Policy()])
    agent.tool_plain(lambda: "paid", name="pay")
    agent.tool_plain(lambda: "seen", name="look")
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    await lab.respond(True)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert seen.count("look") == 1
    started = [event.data["call_id"] for event in await lab.events() if event.type == "tool.started"]
    assert started == ["look", "pay"]
    assert script.results() == {"pay": "paid", "look": "seen"}


@pytest.mark.parametrize(
    ("answer", "called", "expected"),
    [
        ({"action": "done", "result": "charged by hand"}, 1, "charged by hand"),
        ({"action": "retry"}, 2, "charged"),
    ],
)
async def test_a_tool_in_doubt_follows_its_policy(lab: Lab, answer: Any, called: int, expected: str) -> None:
    """Effect: a tool with ``on_unknown`` is a step whose start is recorded before it runs."""
    script = Script([[call("charge"), call("look")], "done"])
    agent: Agent[Any, Any] = Agent(script.model)
    calls: list[str] = []
    begun, hang = asyncio.Event(), asyncio.Event()

    @agent.tool_plain(metadata={"on_unknown": "ask"})
    async def charge() -> str:
        calls.append("charge")
        begun.set()
        if len(calls) == 1:
            await hang.wait()
        return "charged"

    @agent.tool_plain
    async def look() -> str:
        await begun.wait()
        return "looked"

    await lab.crash(agent, appends=2)
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    [request] = await lab.pending()
    assert request.kind == "step"
    await lab.respond(answer)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert len(calls) == called
    assert script.results() == {"charge": expected, "look": "looked"}


async def test_h11_extra_is_saved_with_a_suspension(lab: Lab) -> None:
    desk = Desk([call("note"), call("refund", amount=5)])

    @desk.agent.tool_plain
    async def note() -> None:
        context = current_context.get()
        assert context is not None
        context.extra["seen"] = True

    await lab.attempt(desk.agent)
    await lab.respond(True)
    claim = await lab.claim("r")
    assert claim.extra == {"seen": True}


class TestAsksHumans:
    """F9: an agent that can ask is known before a probe of it starts."""

    def test_agent_without_approvals_asks_no_humans(self) -> None:
        agent: Agent[Any, Any] = Agent(TestModel())
        agent.tool_plain(lambda: 1, name="plain")
        assert not asks_humans(agent)

    def test_by_a_tool_that_needs_approval(self) -> None:
        assert asks_humans(Desk().agent)

    def test_by_a_toolset_of_approvals_or_external_calls_however_deep(self) -> None:
        tools: FunctionToolset[Any] = FunctionToolset(id="tools")
        assert asks_humans(Agent(TestModel(), toolsets=[tools.approval_required().prefixed("x")]))
        assert asks_humans(Agent(TestModel(), toolsets=[ExternalToolset([], id="far").prefixed("x")]))
        assert not asks_humans(Agent(TestModel(), toolsets=[tools.prefixed("x")]))

    def test_by_a_toolset_that_a_capability_brings(self) -> None:
        tools: FunctionToolset[Any] = FunctionToolset(id="tools")
        assert asks_humans(Agent(TestModel(), capabilities=[Toolset(tools.approval_required())]))

    def test_by_a_tool_or_a_capability_that_says_so(self) -> None:
        agent: Agent[Any, Any] = Agent(TestModel())
        agent.tool_plain(lambda: 1, name="ask", metadata={"runyard": {"asks_humans": True}})
        assert asks_humans(agent)

        class Policy(AbstractCapability[Any]):
            asks_humans = True

        assert asks_humans(Agent(TestModel(), capabilities=[Policy()]))

    def test_by_a_handler_of_deferred_calls(self) -> None:
        assert asks_humans(Agent(TestModel(), capabilities=[HandleDeferredToolCalls(lambda ctx, requests: None)]))
