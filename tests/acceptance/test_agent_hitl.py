"""Humans and an Agent alone in its process, over every kind of checkpointer (H1 to H11, R4, I6)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolReturnPart

from runyard import Agent, Client, Event, Message, current_run, current_step
from runyard.checkpointer import MemoryCheckpointer
from runyard.errors import (
    BackendUnavailableError,
    HitlAlreadyAnsweredError,
    HitlAmbiguousError,
    HitlBindingError,
    HitlInvalidAnswerError,
    HitlNoPendingRequestError,
    HitlStaleAnswerError,
    InvalidInputError,
    ThreadBusyError,
)
from runyard.hitl import (
    ApprovalPolicyMiddleware,
    Approve,
    AskUser,
    CheckpointedChannel,
    Decision,
    Deny,
    InMemoryChannel,
    ask_user_tool,
)
from runyard.models import HitlRequest, JsonObject, JsonValue, ToolCallPart
from runyard.ports.stores import Checkpointer
from tests.acceptance.test_agent import texts
from tests.support.checkpointers import Watched
from tests.support.fleet import until
from tests.support.scripted_models import answering, calling, echo

T, R = "t", "r"
COLOR: JsonObject = {"questions": [{"question": "color?", "options": [{"label": "red"}, {"label": "blue"}], "other": False}]}


class Till:
    """A tool with a side effect, and what came of it."""

    def __init__(self) -> None:
        self.refunds: list[int] = []
        self.keys: set[str] = set()

    async def refund(self, amount: int) -> str:
        """Give money back; once, however often it is asked to under the same key."""
        if (key := current_step().idempotency_key) not in self.keys:
            self.refunds.append(amount)
        self.keys.add(key)
        return f"refunded {amount}"


class Calls(AbstractCapability[Any]):
    """Notes each call of a tool, whatever its idempotency key."""

    def __init__(self) -> None:
        self.amounts: list[int] = []

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: dict[str, Any], handler: Any) -> Any:
        result = await handler(args)
        self.amounts.append(args["amount"])
        await asyncio.sleep(0.01)
        return result


def ask_first(call: ToolCallPart) -> Decision:
    return AskUser("really?")


def agent_of(cp: Checkpointer, model: Any, till: Till | None = None, thread_id: str = T, **fields: Any) -> Agent:
    """An agent that may ask and whose refunds a human approves, as another process would make it again."""
    tools = [ask_user_tool(), *([till.refund] if till else [])]
    fields.setdefault("middleware", [ApprovalPolicyMiddleware(policy=ask_first)])
    return Agent(model, tools=tools, checkpointer=cp, thread_id=thread_id, **fields)


def refunding(*amounts: int) -> Any:
    return calling(*(("refund", {"amount": amount}) for amount in amounts))


def amount_of(request: HitlRequest) -> int:
    """The amount of the refund that a request is about."""
    call = ToolCallPart.model_validate(request.payload["tool_call"])
    assert isinstance(call.arguments["amount"], int)
    return call.arguments["amount"]


async def results(cp: Checkpointer) -> list[tuple[Any, bool]]:
    data = await cp.load(T)
    assert data is not None
    return [(result.content, result.is_error) for message in data.messages for result in message.tool_results]


async def test_h1_h5_a_question_outlives_the_process(cp: Checkpointer) -> None:
    """H1: the prompt returns with the run suspended; H5: another object answers, under the same run id, claiming nothing."""
    claims: list[str] = []
    counted = Watched(cp, lambda method: claims.append(method) if method == "claim_run" else None)
    first = agent_of(counted, calling(("ask_user", COLOR)))
    events: list[Event] = []
    first.subscribe(events.append)
    assert await first.prompt("go", run_id=R) == R
    [told] = [HitlRequest.model_validate(event.data["request"]) for event in events if event.type == "hitl.requested"]
    assert (first.state.active_run_id, first.state.is_streaming) == (R, False)
    [request] = first.state.pending
    assert (request.run_id, request.thread_id, request.payload["question"]) == (R, T, "color?")
    assert told.request_id == request.request_id
    assert await cp.load_pending_run_id(T) == R

    second = agent_of(counted, calling(("ask_user", COLOR)))
    assert [r.request_id for r in await second.pending()] == [request.request_id]
    assert await second.respond("red") == R
    assert (second.state.active_run_id, second.state.pending, await second.pending()) == (None, [], [])
    assert await texts(cp) == ["go", "call:ask_user-0", "result:ask_user-0=User answers:\n- color?: red", "done"]
    assert claims == ["claim_run"]
    assert await cp.load_pending(T) is None


async def test_h1_nobody_is_told_of_a_question_that_was_not_stored(cp: Checkpointer) -> None:
    def fail(method: str) -> None:
        if method in ("save_requests", "save_pending_request"):
            raise BackendUnavailableError("gone")

    agent = agent_of(Watched(cp, fail), calling(("ask_user", COLOR)))
    events: list[Event] = []
    agent.subscribe(events.append)
    with pytest.raises(BackendUnavailableError):
        await agent.prompt("go", run_id=R)
    assert {event.type for event in events}.isdisjoint({"hitl.requested", "run.suspended"})
    assert agent.state.pending == []
    again = agent_of(cp, calling(("ask_user", COLOR)))
    await again.resume(R)
    assert len(again.state.pending) == 1


async def test_h2_every_checkpointed_element_binds(cp: Checkpointer) -> None:
    """H2: the agent's channel, a tool's and the middleware's."""
    channel = CheckpointedChannel(checkpointer=cp, thread_id=T, run_id=R)
    for fields in (
        {"channel": channel},
        {"tools": [ask_user_tool(channel)]},
        {"middleware": [ApprovalPolicyMiddleware(channel)]},
    ):
        agent = Agent(echo(), checkpointer=cp, thread_id=T, **fields)  # type: ignore[arg-type]
        for run_id in (None, "other"):
            with pytest.raises(HitlBindingError, match="'r'") as refused:
                await agent.prompt("x", run_id=run_id)
            assert refused.value.details == {"bound": R, "run_id": run_id}
    two = [channel, CheckpointedChannel(checkpointer=cp, thread_id=T, run_id="s")]
    agent = Agent(echo(), checkpointer=cp, thread_id=T, tools=[ask_user_tool(two[0])], channel=two[1])
    for run_id in (R, "s"):
        with pytest.raises(HitlBindingError):
            await agent.prompt("x", run_id=run_id)


async def test_h3_which_question_an_answer_is_for(cp: Checkpointer) -> None:
    till = Till()
    agent = agent_of(cp, refunding(1, 2), till)
    with pytest.raises(Exception) as nothing:
        await agent.respond(True)
    assert "thread" in str(nothing.value)
    await agent.prompt("go", run_id=R)
    first, second = agent.state.pending
    with pytest.raises(HitlAmbiguousError) as several:
        await agent.respond(True)
    assert set(several.value.details["request_ids"]) == {first.request_id, second.request_id}
    with pytest.raises(HitlStaleAnswerError) as stale:
        await agent.respond(True, "another")
    assert stale.value.details["request_id"] == "another"
    with pytest.raises(HitlInvalidAnswerError):
        await agent.respond("maybe", first.request_id)
    assert [r.request_id for r in await agent.pending()] == [first.request_id, second.request_id]
    await agent.respond(True, first.request_id, response_id="click-1")
    assert await agent.respond(True, first.request_id, response_id="click-1") == R
    with pytest.raises(HitlAlreadyAnsweredError):
        await agent.respond(False, first.request_id)
    await agent.respond(True)
    assert sorted(till.refunds) == [1, 2]
    with pytest.raises(HitlNoPendingRequestError):
        await agent.respond(True)


@pytest.mark.parametrize("cp_url", ["memory", "sqlite", "postgres", "mysql"], indirect=True)
async def test_h4_two_who_answer_at_once(cp: Checkpointer) -> None:
    """H4: exactly one wins, and the tool runs once. The documented methods alone cannot decide between two processes."""
    till = Till()
    await agent_of(cp, refunding(5), till).prompt("go", run_id=R)
    answers = await asyncio.gather(
        agent_of(cp, refunding(5), till).respond({"approved": True, "reason": "one"}),
        agent_of(cp, refunding(5), till).respond({"approved": True, "reason": "two"}),
        return_exceptions=True,
    )
    won = [answer for answer in answers if answer == R]
    lost = [answer for answer in answers if answer != R]
    assert len(won) == 1 and isinstance(lost[0], HitlAlreadyAnsweredError | HitlNoPendingRequestError), answers
    assert till.refunds == [5]


async def test_h5_parallel_approvals_are_each_asked_and_each_applied_to_their_own_call(cp: Checkpointer) -> None:
    till = Till()
    asking = agent_of(cp, refunding(1, 2, 3), till)
    await asking.prompt("go", run_id=R)
    waiting = {amount_of(request): request.request_id for request in asking.state.pending}
    assert sorted(waiting) == [1, 2, 3]
    for amount, answer in ((3, True), (1, {"approved": False, "reason": "too little"}), (2, True)):
        assert till.refunds == []
        await agent_of(cp, refunding(1, 2, 3), till).respond(answer, waiting[amount])
    assert sorted(till.refunds) == [2, 3]
    assert sorted(str(content) for content, _ in await results(cp)) == ["refunded 2", "refunded 3", "too little"]


async def test_e1_questions_and_answers_are_announced_once(cp: Checkpointer) -> None:
    """E1: The run waits three times, the second time for the same question. Nothing is announced again."""
    events: list[Event] = []
    agent = agent_of(cp, answering(lambda prompt, results: [("ask_user", COLOR)] if len(results) < 2 else "done"))
    agent.subscribe(events.append)
    await agent.prompt("go", run_id=R)
    await agent.resume(R)
    assert await agent.respond("red") == R
    assert await agent.respond("blue") == R
    told = [event.type for event in events if event.type.startswith("hitl.")]
    assert told == ["hitl.requested", "hitl.answered"] * 2


@pytest.mark.parametrize("cp_url", ["memory", "sqlite", "postgres", "mysql"], indirect=True)
async def test_h4_h5_approvals_that_are_answered_at_once_by_two(cp: Checkpointer) -> None:
    """H4, H5, I7: each in its own process; one of them goes on with the run, and each tool runs once."""
    for n in range(5):
        till, called = Till(), Calls()
        await agent_of(
            cp, refunding(1, 2), till, f"t{n}", middleware=[ApprovalPolicyMiddleware(policy=ask_first), called]
        ).prompt("go", run_id=R)
        agents = [
            agent_of(cp, refunding(1, 2), till, f"t{n}", middleware=[ApprovalPolicyMiddleware(policy=ask_first), called])
            for _ in "ab"
        ]
        waiting = [request.request_id for request in await agents[0].pending()]
        assert await asyncio.gather(*(a.respond(True, w) for a, w in zip(agents, waiting, strict=True))) == [R, R]
        assert sorted(called.amounts) == [1, 2]
        data = await cp.load(f"t{n}")
        assert data is not None
        assert [m.role for m in data.messages] == ["user", "assistant", "tool", "tool", "assistant"]


async def test_h5_the_same_question_twice_is_asked_twice(cp: Checkpointer) -> None:
    """H5: earlier answers are replayed to their own question only."""

    def twice(prompt: str, results: list[ToolReturnPart]) -> Any:
        return [("ask_user", COLOR)] if len(results) < 2 else "done"

    agent = agent_of(cp, answering(twice))
    await agent.prompt("go", run_id=R)
    asked = [r.request_id for r in agent.state.pending]
    await agent.respond("red")
    asked += [r.request_id for r in agent.state.pending]
    assert len(set(asked)) == 2
    await agent_of(cp, answering(twice)).respond("blue")
    assert [content for content, _ in await results(cp)] == ["User answers:\n- color?: red", "User answers:\n- color?: blue"]


async def test_h5_i6_an_approval_is_of_one_call_of_one_run_of_one_thread(cp: Checkpointer) -> None:
    """H5: other arguments need another approval, also under the same call id; I6: a fork inherits none."""
    till = Till()
    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("hi", run_id="before")
    agent = agent_of(cp, refunding(5), till)
    await agent.prompt("go", run_id=R)
    await cp.claim_run(T, "beside")
    await cp.append(T, [Message.user("?", run_id="beside"), Message.assistant("!", run_id="beside")])
    await cp.mark_run_complete(T, "beside")
    beside = await agent.fork(after_run_id="beside")
    assert await agent_of(cp, refunding(5), till, beside).pending() == []
    await agent.respond(True)
    fork = await agent.fork(after_run_id="before")
    for thread_id, run_id, amount in ((T, "s", 5), (fork, R, 5), (fork, "u", 6)):
        other = agent_of(cp, refunding(amount), till, thread_id)
        await other.prompt("go", run_id=run_id)
        assert len(other.state.pending) == 1, (thread_id, run_id)
        await other.respond(False)
    assert till.refunds == [5]


async def test_h5_in_another_process(postgres_url: str) -> None:
    """H5, H6: a process asks and is gone; another one answers."""
    program = """
import asyncio
from runyard.checkpointer import PostgresCheckpointer
from tests.acceptance.test_agent_hitl import Till, agent_of, refunding
async def main(url, what):
    till = Till()
    async with PostgresCheckpointer(url) as cp:
        agent = agent_of(cp, refunding(7), till)
        await (agent.prompt("go", run_id="r") if what == "prompt" else agent.respond(True))
        print(agent.state.active_run_id, till.refunds)
import sys
asyncio.run(main(*sys.argv[1:]))
"""
    said = []
    for what in ("prompt", "respond"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, postgres_url, what),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        out, _ = await process.communicate()
        said.append(out.decode().strip())
    assert said == ["r []", "None [7]"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_h6_wherever_the_store_is_lost(cp: Checkpointer, after: bool) -> None:
    """H6, R9: at whichever call the process loses its store, no question is lost, no answer invented, no tool repeated."""
    writes = ("append", "save_extra", "save_requests", "answer_request", "save_pending_request", "mark_run_complete")
    for nth in range(100):
        till, thread_id, count = Till(), f"t{nth}", 0

        def lose(method: str, nth: int = nth) -> None:
            nonlocal count
            if method in writes:
                count += 1
                if count == nth + 1:
                    raise BackendUnavailableError("lost")

        ignore: Callable[[str], object] = lambda method: None  # noqa: E731
        lossy = Watched(cp, ignore, lose) if after else Watched(cp, lose)
        try:
            agent = agent_of(lossy, refunding(5), till, thread_id)
            await agent.prompt("go", run_id=R)
            await agent.respond(True)
        except BackendUnavailableError:
            pass
        if count <= nth:
            assert nth > 3
            return
        await recover(cp, till, thread_id)
        assert till.refunds == [5], nth
        assert [m.run_id for m in await cp.snapshot(thread_id, after_run_id=R)] == [R] * 4, nth
    raise AssertionError("the run makes more calls than anybody expected")


async def recover(cp: Checkpointer, till: Till, thread_id: str) -> None:
    """What a host does after a crash: prompt again if nothing was stored, else answer what waits, else resume."""
    agent = agent_of(cp, refunding(5), till, thread_id)
    data = await cp.load(thread_id)
    if data is None or not data.messages:
        await cp.append(thread_id, [Message.user("go", run_id=R)])
    for _ in range(2):
        if await agent.pending():
            await agent.respond(True)
        elif not await completed(cp, thread_id):
            await agent.resume(R)


async def completed(cp: Checkpointer, thread_id: str) -> bool:
    from runyard.errors import RunNotCompletedError

    try:
        await cp.snapshot(thread_id, after_run_id=R)
    except RunNotCompletedError:
        return False
    return True


async def test_h7_what_the_question_chose_happens_at_its_deadline(cp: Checkpointer) -> None:
    """H7, H9: the channel's default timeout; then the model is told, and a late answer is stale."""
    channel = CheckpointedChannel(checkpointer=cp, thread_id=T, run_id=R, default_timeout=1.0)
    model = calling(("ask_user", COLOR), ("refund", {"amount": 5}))
    till = Till()
    agent = agent_of(cp, model, till, channel=channel)
    await agent.prompt("go", run_id=R)
    waiting = agent.state.pending
    assert {request.kind for request in waiting} == {"question", "approval"}

    async def over() -> bool:
        return not await agent.pending()

    await until(over, 30)
    with pytest.raises(HitlStaleAnswerError):
        await agent.respond(True, waiting[0].request_id)
    await agent.resume()
    assert agent.state.active_run_id is None and till.refunds == []
    told = await results(cp)
    assert all(is_error for _, is_error in told)
    assert "did not answer in time" in str(told) and "nobody decided in time" in str(told)


async def test_h8_abort_pending(cp: Checkpointer) -> None:
    """H8: an error result for each open call, the assistant's last word, no model call; again it is a no-op."""
    till, requests = Till(), []
    model = answering(lambda prompt, results: requests.append(1) or [("refund", {"amount": n}) for n in (1, 2)])  # type: ignore[func-returns-value]
    agent = agent_of(cp, model, till)
    await agent.prompt("go", run_id=R)
    [*_] = agent.state.pending
    other = agent_of(cp, model, till)
    for _ in range(2):
        await other.abort_pending("shop is closed")
        assert (await texts(cp))[3:] == [
            *("result:refund-0=aborted: shop is closed", "result:refund-1=aborted: shop is closed"),
            "aborted: shop is closed",
        ]
    assert (len(requests), till.refunds, await other.pending()) == (1, [], [])
    data = await cp.load(T)
    assert data is not None and data.messages[-1].stop_reason == "aborted"
    assert [is_error for _, is_error in await results(cp)] == [True, True]
    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("next", run_id="s")
    assert (await texts(cp))[-3:] == ["aborted: shop is closed", "next", "next!"]


async def test_h9_policy(cp: Checkpointer) -> None:
    """H9: Approve calls the tool, Deny is an error result, AskUser asks with its prompt and details; a human may edit."""
    till = Till()

    async def policy(call: ToolCallPart) -> Decision:
        amount = call.arguments["amount"]
        assert isinstance(amount, int)
        if amount > 100:
            return Deny("too much")
        return Approve() if amount < 10 else AskUser("Refund?", details={"limit": 100})

    def agent() -> Agent:
        middleware = [ApprovalPolicyMiddleware(policy=policy)]
        return agent_of(cp, refunding(1, 50, 500), till, middleware=middleware)

    first = agent()
    await first.prompt("go", run_id=R)
    [request] = first.state.pending
    assert (request.kind, request.payload["question"], request.payload["details"]) == ("approval", "Refund?", {"limit": 100})
    assert till.refunds == [1]
    await agent().respond({"approved": True, "arguments": {"amount": 60}})
    assert till.refunds == [1, 60]
    assert sorted(await results(cp), key=str) == [
        ("The call was denied: too much", True), ("refunded 1", False), ("refunded 60", False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "why"), [({"amount": "all"}, "valid"), ({"amount": 500}, "too much")], ids=["invalid", "denied"]
)
async def test_h9_edited_arguments_are_judged_like_the_models(cp: Checkpointer, arguments: JsonObject, why: str) -> None:
    till = Till()
    policy = ApprovalPolicyMiddleware(policy=lambda call: Deny("too much") if call.arguments["amount"] == 500 else AskUser())
    agent = agent_of(cp, refunding(50), till, middleware=[policy])
    await agent.prompt("go", run_id=R)
    await agent.respond({"approved": True, "arguments": arguments})
    assert till.refunds == []
    [(content, is_error)] = await results(cp)
    assert is_error and why in str(content)


@pytest.mark.parametrize(
    ("answer", "is_error", "shown"),
    [
        ("red", False, "User answers:\n- color?: red"),
        ({"answers": ["blue"]}, False, "User answers:\n- color?: blue"),
        ({"cancelled": True, "reason": "left"}, True, "left"),
    ],
)
async def test_h9_ask_user(cp: Checkpointer, answer: Any, is_error: bool, shown: str) -> None:
    """H9: answers are the result; a cancel is an error result with details; what fits no question is refused."""
    agent = agent_of(cp, calling(("ask_user", COLOR)))
    await agent.prompt("go", run_id=R)
    for wrong in ("green", ["red"], {"answers": []}, {"answers": ["red", "red"]}, {"timed_out": True}, None):
        with pytest.raises(HitlInvalidAnswerError):
            await agent.respond(wrong)
    await agent.respond(answer)
    [(content, failed)] = await results(cp)
    assert failed is is_error and shown in str(content)


async def test_h10_the_inbox_has_what_an_agent_asked_and_answers_it(postgres_url: str) -> None:
    """H10: beside the workers' questions; the answer is applied once, and the agent goes on with it."""
    from runyard.checkpointer import PostgresCheckpointer

    till = Till()
    async with PostgresCheckpointer(postgres_url) as cp, Client.connect(postgres_url) as client:
        agent = agent_of(cp, refunding(5), till)
        await agent.prompt("go", run_id=R)
        [request] = (await client.requests()).items
        assert (request.thread_id, request.run_id) == (T, R)
        assert request.created_at is not None and request.payload["question"] == "really?"
        await client.respond(T, True, request.request_id)
        with pytest.raises(HitlAlreadyAnsweredError):
            await agent.respond(False, request.request_id)
        await agent.resume()
    assert till.refunds == [5]


async def test_h11_extra_is_saved_with_the_suspension(cp: Checkpointer) -> None:
    async def remember() -> str:
        current_run().extra["cart"] = ["book"]
        return "noted"

    model = calling(("remember", {}), ("ask_user", COLOR))
    agent = Agent(model, tools=[remember, ask_user_tool()], checkpointer=cp, thread_id=T)
    await agent.prompt("go", run_id=R)
    assert len(agent.state.pending) == 1
    data = await cp.load(T)
    assert data is not None and data.extra["cart"] == ["book"]


async def test_r4_a_prompt_never_answers(cp: Checkpointer) -> None:
    """R4: an ordinary message is no approval; the prompt has to wait for the answer, whoever sends it."""
    till = Till()
    agent = agent_of(cp, refunding(5), till)
    await agent.prompt("go", run_id=R)
    for who in (agent, agent_of(cp, refunding(5), till)):
        with pytest.raises(ThreadBusyError, match="abort_pending"):
            await who.prompt("yes, approved", run_id="s")
    assert till.refunds == [] and agent.state.active_run_id == R
    assert (await texts(cp))[-1] == "call:refund-0"


class TestInMemory:
    """Questions that wait in the process."""

    async def test_h3_h9_answers(self) -> None:
        channel, till = InMemoryChannel(), Till()
        agent = agent_of(MemoryCheckpointer(), refunding(1, 2), till, channel=channel)
        asked: asyncio.Queue[str] = asyncio.Queue()
        channel.subscribe(lambda request: asked.put_nowait(request.request_id))
        prompt = asyncio.create_task(agent.prompt("go"))
        first, second = await asked.get(), await asked.get()
        assert [r.request_id for r in channel.pending] == [first, second] == [r.request_id for r in await agent.pending()]
        with pytest.raises(HitlAmbiguousError):
            await agent.respond(True)
        with pytest.raises(HitlInvalidAnswerError):
            channel.answer(first, "maybe")
        with pytest.raises(HitlStaleAnswerError):
            channel.answer("another", True)
        assert len(channel.pending) == 2
        channel.cancel(first, "not today")
        assert await agent.respond({"approved": True, "arguments": {"amount": 20}}) == agent.state.active_run_id
        await prompt
        assert till.refunds == [20]
        with pytest.raises(HitlNoPendingRequestError):
            channel.answer(None, True)

    async def test_h7_h9_timeouts(self) -> None:
        """H7, H9: the channel's default where the ask gives none."""
        cp, till = MemoryCheckpointer(), Till()
        model = calling(("ask_user", COLOR), ("refund", {"amount": 5}))
        agent = agent_of(cp, model, till, channel=InMemoryChannel(default_timeout=0.01))
        await agent.prompt("go")
        assert till.refunds == []
        assert all(is_error for _, is_error in await results(cp))

    async def test_h3_an_answer_nested_too_deep(self) -> None:
        """H3: the question stays."""
        channel = InMemoryChannel()
        deep: JsonValue = None
        for _ in range(100_000):
            deep = [deep]
        asking = asyncio.create_task(channel.ask(HitlRequest()))
        await asyncio.sleep(0)
        with pytest.raises(InvalidInputError):
            channel.answer(None, deep)
        channel.answer(None, "fine")
        assert await asking == "fine"

    async def test_h8_abort_pending(self) -> None:
        cp = MemoryCheckpointer()
        channel = InMemoryChannel()
        agent = agent_of(cp, calling(("ask_user", COLOR)), channel=channel)
        asked = asyncio.Event()
        channel.subscribe(lambda request: asked.set())
        prompt = asyncio.create_task(agent.prompt("go"))
        await asked.wait()
        await agent.abort_pending("closed")
        await prompt
        [(content, is_error)] = await results(cp)
        assert is_error and "aborted: closed" in str(content)
