"""An Agent alone in its process, over every kind of checkpointer (R1, R4, R5, R7 to R9, R13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import RunContext as ToolContext
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.usage import UsageLimits

from runyard import Agent, Budget, Event, Message, RunContext, ToolCallPart
from runyard.checkpointer import MemoryCheckpointer
from runyard.errors import (
    AgentCancelledError,
    BackendUnavailableError,
    BudgetExceededError,
    IncompleteToolCycleError,
    InvalidInputError,
    NothingToRunError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    ThreadBusyError,
)
from runyard.ports.stores import Checkpointer
from tests.support.checkpointers import Watched
from tests.support.scripted_models import answering, calling, echo

T = "t"


async def texts(cp: Checkpointer, thread_id: str = T) -> list[str]:
    """What was said on the thread: text, or ``call:<id>`` and ``result:<id>=<content>``."""
    data = await cp.load(thread_id)
    return [
        text
        for message in (data.messages if data else [])
        for text in (
            *([message.text] if message.text else []),
            *(f"call:{call.id}" for call in message.tool_calls),
            *(f"result:{result.call_id}={result.content}" for result in message.tool_results),
        )
    ]


async def test_r1_a_conversation(cp: Checkpointer) -> None:
    """R1: each prompt sees what was said before; another agent object goes on with it."""
    seen: list[str] = []
    model = answering(lambda prompt, results: seen.append(prompt) or f"{len(seen)}")  # type: ignore[func-returns-value]
    agent = Agent(model, checkpointer=cp, thread_id=T, system_prompt="be brief")
    await agent.prompt("a")
    await agent.prompt(Message.user("b"))
    other = Agent(model, checkpointer=cp, thread_id=T)
    await other.prompt("c")
    assert await texts(cp) == ["a", "1", "b", "2", "c", "3"]
    assert [m.text for m in other.state.messages] == ["a", "1", "b", "2", "c", "3"]


async def test_r1_in_memory_only() -> None:
    """R1: without a checkpointer an agent keeps its own conversation, and nothing else."""
    agent = Agent(echo())
    await agent.prompt("a")
    await agent.prompt("b")
    assert [m.text for m in agent.state.messages] == ["a", "a!", "b", "b!"]


async def test_r1_no_message_goes_on_from_the_leaf(cp: Checkpointer) -> None:
    """R1: None answers the last message; there has to be one to answer."""
    agent = Agent(echo(), checkpointer=cp, thread_id=T)
    with pytest.raises(NothingToRunError):
        await agent.prompt(None)
    await cp.append(T, [Message.user("stored")])
    await agent.prompt(None, run_id="r")
    assert await texts(cp) == ["stored", "stored!"]
    with pytest.raises(NothingToRunError):
        await agent.prompt(None)
    assert agent.state.active_run_id is None


async def test_r8_r13_a_claim_that_is_refused_leaves_no_active_run(cp: Checkpointer) -> None:
    agent = Agent(echo(), checkpointer=cp, thread_id=T)
    await agent.prompt("a", run_id="r")
    await cp.claim_run(T, "others")
    for run_id, refusal in (("r", RunAlreadyCompletedError), ("others", RunAlreadyClaimedError)):
        with pytest.raises(refusal):
            await agent.prompt("again", run_id=run_id)
        assert agent.state.active_run_id is None and not agent.state.is_streaming
    assert await texts(cp) == ["a", "a!"]


async def test_agent_with_a_prompt_under_way_refuses_another(cp: Checkpointer) -> None:
    """R3: in one process an agent refuses what would interleave."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        begun.set()
        await go_on.wait()
        return "waited"

    agent = Agent(calling(("wait", {})), tools=[wait], checkpointer=cp, thread_id=T)
    prompt = asyncio.create_task(agent.prompt("a", run_id="r"))
    await begun.wait()
    for call in (agent.prompt("b"), agent.resume("r"), agent.abort_pending()):
        with pytest.raises(ThreadBusyError):
            await call
    go_on.set()
    assert await prompt == "r"


async def test_of_two_that_begin_at_once_one_is_refused(cp: Checkpointer) -> None:
    """R3: also before either of them has reached the store; what is refused has stored nothing, and no tool runs twice."""
    called: list[str] = []

    def note() -> str:
        called.append("note")
        return "noted"

    agent = Agent(calling(("note", {})), tools=[note], checkpointer=cp, thread_id=T)
    both = await asyncio.gather(agent.prompt("a", run_id="r"), agent.prompt("b"), return_exceptions=True)
    assert both[0] == "r" and isinstance(both[1], ThreadBusyError)
    lost = iter([BackendUnavailableError("lost")])
    agent = Agent(
        answering(lambda p, r: next(lost, "done" if r else [("note", {})])), tools=[note], checkpointer=cp, thread_id=T
    )
    with pytest.raises(BackendUnavailableError):
        await agent.prompt("c", run_id="s")
    both = await asyncio.gather(agent.resume("s"), agent.resume("s"), return_exceptions=True)
    assert both[0] == "s" and isinstance(both[1], ThreadBusyError)
    assert called == ["note", "note"]
    assert [text for text in await texts(cp) if text in "abc"] == ["a", "c"]


async def test_r5_r7_an_incomplete_tool_cycle_is_no_completion(cp: Checkpointer) -> None:
    """R5: judged before the run is marked complete; what was written stays out of later contexts."""

    class Careless(Agent):
        async def __call__(self, ctx: RunContext) -> None:
            await ctx.append(Message.assistant([ToolCallPart(id="c", name="lost")]))

    agent = Careless(echo(), checkpointer=cp, thread_id=T)
    with pytest.raises(IncompleteToolCycleError):
        await agent.prompt("a", run_id="r")
    assert agent.state.active_run_id is None
    whole = Agent(echo(), checkpointer=cp, thread_id=T)
    await whole.prompt("b", run_id="s")
    assert [m.text for m in whole.state.messages] == ["b", "b!"]
    assert [m.run_id for m in await cp.snapshot(T, after_run_id="s")] == ["s", "s"]


async def test_r7_r8_a_providers_error_is_no_completion(cp: Checkpointer) -> None:
    """R7: no error message is stored, nothing of the run is in a later context; R8: it stays active, and can be resumed."""
    said = iter([RuntimeError("down"), "b!", "a!"])
    agent = Agent(answering(lambda prompt, results: next(said)), checkpointer=cp, thread_id=T)
    events: list[Event] = []
    agent.subscribe(events.append)
    with pytest.raises(RuntimeError):
        await agent.prompt("a", run_id="r")
    assert (agent.state.active_run_id, events[-1].type) == ("r", "run.failed")
    assert await texts(cp) == ["a"]
    await agent.prompt("b", run_id="s")
    assert [m.text for m in agent.state.messages] == ["b", "b!"]
    await agent.prompt(None, run_id="r")
    assert [m.text for m in agent.state.messages] == ["a", "a!"]
    assert agent.state.active_run_id is None


async def test_r9_resumes_after_the_last_stored_message(cp: Checkpointer) -> None:
    """R9: no model request and no finished tool is repeated; nothing is claimed anew."""
    asked, called = [], []
    quick = asyncio.Event()

    def answer(prompt: str, results: list[Any]) -> Any:
        asked.append(len(results))
        return "done" if results else [("fast", {}), ("slow", {})]

    async def fast() -> str:
        called.append("fast")
        return "f"

    async def slow() -> str:
        called.append("slow")
        if called.count("slow") == 1:
            quick.set()
            await asyncio.Event().wait()
        return "s"

    def agent() -> Agent:
        return Agent(answering(answer), tools=[fast, slow], checkpointer=cp, thread_id=T)

    first = agent()
    stored = asyncio.Event()
    first.subscribe(lambda event: stored.set() if event.type == "tool.completed" else None)
    prompt = asyncio.create_task(first.prompt("go", run_id="r"))
    await asyncio.gather(quick.wait(), stored.wait())
    prompt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await prompt
    assert first.state.active_run_id == "r"
    assert await agent().resume("r") == "r"
    assert (asked, called) == ([0, 2], ["fast", "slow", "slow"])
    assert await texts(cp) == ["go", "call:fast-0", "call:slow-1", "result:fast-0=f", "result:slow-1=s", "done"]


@pytest.mark.parametrize("at", ["append", "claim_run"])
async def test_r9_a_run_whose_first_message_was_lost_begins_again(cp: Checkpointer, at: str) -> None:
    """R9: claimed and nothing stored, or claimed without learning it; the object that claimed it prompts again under the same
    id, and for others it stays claimed (R13).
    """
    lost = iter([True])

    def lose(method: str) -> None:
        if method == at and next(lost, False):
            raise BackendUnavailableError("lost")

    watched = Watched(cp, lose) if at == "append" else Watched(cp, lambda method: None, lose)
    agent = Agent(echo(), checkpointer=watched, thread_id=T)  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailableError):
        await agent.prompt("a", run_id="r")
    other = Agent(echo(), checkpointer=cp, thread_id=T)
    for _ in range(2):
        with pytest.raises(RunAlreadyClaimedError):
            await other.prompt("a", run_id="r")
    assert await agent.prompt("a", run_id="r") == "r"
    assert await texts(cp) == ["a", "a!"]


async def test_r9_what_cannot_be_resumed(cp: Checkpointer) -> None:
    agent = Agent(echo(), checkpointer=cp, thread_id=T)
    await agent.prompt("a", run_id="r")
    with pytest.raises(RunAlreadyCompletedError):
        await agent.resume("r")
    with pytest.raises(RunNotClaimedError):
        await agent.resume("unknown")
    with pytest.raises(NothingToRunError):
        await agent.resume()


async def test_r7_abort(cp: Checkpointer) -> None:
    """R7, R8: what its host stopped is not completed and not active; the next prompt does not see it."""
    begun = asyncio.Event()

    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(calling(("wait", {})), tools=[wait], checkpointer=cp, thread_id=T)
    await agent.abort()
    prompt = asyncio.create_task(agent.prompt("a", run_id="r"))
    await begun.wait()
    await agent.abort()
    with pytest.raises(AgentCancelledError):
        await prompt
    assert (agent.state.active_run_id, agent.state.is_streaming) == (None, False)
    other = Agent(echo(), checkpointer=cp, thread_id=T)
    await other.prompt("b")
    assert [m.text for m in other.state.messages] == ["b", "b!"]


async def test_r7_abort_before_the_model_is_asked(cp: Checkpointer) -> None:
    """R7, R8: a prompt that is still being claimed is stopped as well."""
    stopping: list[asyncio.Task[None]] = []

    def stop(method: str) -> None:
        if method == "claim_run" and not stopping:
            stopping.append(asyncio.create_task(agent.abort()))

    agent = Agent(echo(), checkpointer=Watched(cp, stop), thread_id=T)  # type: ignore[arg-type]
    with pytest.raises(AgentCancelledError):
        await agent.prompt("a", run_id="r")
    await stopping[0]
    assert (agent.state.active_run_id, agent.state.is_streaming) == (None, False)
    assert await agent.prompt("b", run_id="s") == "s"
    assert [m.text for m in agent.state.messages] == ["b", "b!"]


async def test_events_are_those_of_a_worker(cp: Checkpointer) -> None:
    """E2: one terminal event, after what it tells of is stored; an unsubscribed or broken listener disturbs nobody."""
    agent = Agent(calling(("add", {"a": 1, "b": 2})), tools=[lambda_add], checkpointer=cp, thread_id=T)
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("a listener's own")

    unsubscribe = agent.subscribe(seen.append)
    agent.subscribe(broken)
    await agent.prompt("add", run_id="r")
    kinds = [event.type for event in seen if event.type not in ("message.started", "message.delta")]
    assert kinds == [
        *("run.started", "message.completed", "message.completed", "tool.started"),
        *("message.completed", "tool.completed", "message.completed", "run.completed"),
    ]
    assert {(event.thread_id, event.run_id) for event in seen} == {(T, "r")}
    ids = [event.id.split("-") for event in seen if event.id]
    assert [int(n) for _, n in ids] == [*range(1, len(seen) + 1)]
    count = len(seen)
    unsubscribe()
    await agent.prompt("again")
    assert len(seen) == count


async def lambda_add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


lambda_add.__name__ = "add"


async def test_extra_and_steps(cp: Checkpointer) -> None:
    """R6, R15: what a run changes of extra is there with its completion; a step's result outlives the attempt."""
    done: list[int] = []

    class Stepping(Agent):
        async def __call__(self, ctx: RunContext) -> None:
            ctx.extra["n"] = await ctx.step(lambda: done.append(1) or len(done), key="count")
            if len(done) == 1 and ctx.attempt == 1:
                raise RuntimeError("between the step and the answer")
            await ctx.append(Message.assistant(f"{ctx.extra['n']}"))

    agent = Stepping(echo(), checkpointer=cp, thread_id=T)
    await cp.save_extra(T, {"kept": True})
    with pytest.raises(RuntimeError):
        await agent.prompt("a", run_id="r")
    await agent.resume()
    data = await cp.load(T)
    assert data is not None and done == [1]
    assert {key: value for key, value in data.extra.items() if key != "runyard"} == {"kept": True, "n": 1}


def test_agent_with_contradictory_arguments_is_refused() -> None:
    from pydantic_ai import Agent as Engine

    from runyard.hitl import CheckpointedChannel, InMemoryChannel, ask_user_tool

    cp = MemoryCheckpointer()
    with pytest.raises(InvalidInputError, match="engine"):
        Agent(echo(), engine=Engine(echo()))
    with pytest.raises(InvalidInputError, match="different channels"):
        Agent(echo(), tools=[ask_user_tool(InMemoryChannel())], channel=InMemoryChannel())
    with pytest.raises(InvalidInputError, match="bound to thread"):
        Agent(echo(), channel=CheckpointedChannel(checkpointer=cp, thread_id="a", run_id="r"), checkpointer=cp, thread_id="b")


async def test_agent_of_pydantic_ai_is_taken_as_it_is(cp: Checkpointer) -> None:
    """A pydantic-ai agent of the user's own, with an output that is no text."""
    from pydantic import BaseModel
    from pydantic_ai import Agent as Engine

    class City(BaseModel):
        name: str

    engine = Engine(calling(("final_result", {"name": "Paris"})), output_type=City)
    agent = Agent(engine=engine, checkpointer=cp, thread_id=T)
    await agent.prompt("where?")
    assert (await texts(cp))[:2] == ["where?", "call:final_result-0"]
    await agent.prompt("where?")


async def test_budgets_limits_and_dependencies(cp: Checkpointer) -> None:
    """R7: what a run may use up is checked before each model request, and then it does not count; dependencies are made for
    each run."""
    seen: list[str] = []

    async def shelf(ctx: ToolContext[str]) -> str:
        seen.append(ctx.deps)
        return "full"

    for fields, refusal in (
        ({"budget": Budget(steps=1)}, BudgetExceededError),
        ({"usage_limits": UsageLimits(request_limit=1)}, UsageLimitExceeded),
    ):
        agent = Agent(calling(("shelf", {})), tools=[shelf], checkpointer=cp, thread_id=T, **fields)  # type: ignore[arg-type]
        with pytest.raises(refusal):
            await agent.prompt("go")
    agent = Agent(calling(("shelf", {})), tools=[shelf], checkpointer=cp, thread_id=T, deps=lambda ctx: f"for {ctx.run_id}")
    await agent.prompt("go", run_id="r")
    assert seen[-1] == "for r"
    assert [m.run_id for m in agent.state.messages] == ["r"] * 4
