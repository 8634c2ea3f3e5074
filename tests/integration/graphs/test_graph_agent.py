"""A compiled graph as the agent of an App (F9, F13, H5, R9), on Postgres and in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

from runyard import App, Client, RunContext, RunResult
from runyard.adapters.langgraph_agent import serve as served
from runyard.errors import CheckpointMissingError, HitlInvalidAnswerError, HitlNotAllowedError, InvalidInputError
from runyard.execution.steps import current_run
from runyard.models import Message
from tests.integration.graphs.conftest import Serve
from tests.support.agents.graph import app, effects, graph

ROLES = ["user", "assistant", "tool", "assistant"]


class Counted(MessagesState):
    turns: int


async def listen(state: Counted) -> dict[str, Any]:
    """Answer with the content of the state. A model streams the answer."""
    heard = "|".join(str(message.content) for message in state["messages"] if message.type == "human")
    model = GenericFakeChatModel(messages=iter([AIMessage(f"turn {state.get('turns', 0) + 1}: {heard}")]))
    return {"messages": [await model.ainvoke([])], "turns": state.get("turns", 0) + 1}


def one_node(node: Any, state: Any = Counted) -> Any:
    made = StateGraph(state)
    made.add_node("node", node)
    made.add_edge(START, "node")
    made.add_edge("node", END)
    return made.compile()


async def say(client: Client, thread_id: str, text: str | None, **how: Any) -> RunResult:
    """Enqueue a prompt and wait until the run ends or waits for a human."""
    return await (await client.enqueue(thread_id, text, **how)).result(20)


async def test_a_graph_suspends_and_goes_on_with_the_answer(serve: Serve, notes: Path) -> None:
    """interrupt() suspends the run. The answer resumes the run. No finished node is repeated. The thread has the messages."""
    async with serve(app) as client:
        run = await say(client, "t", "go")
        assert run.run.status == "suspended"
        assert [m.role for m in (await client.messages("t")).items] == ROLES[:3]
        [request] = run.requests
        assert request.payload == {"question": "Publish?", "notes": "read+write", "answer_schema": {"type": "string"}}
        with pytest.raises(HitlInvalidAnswerError):
            await client.respond("t", {"not": "a string"})
        await client.respond("t", "yes")
        done = await client.handle("t", run.run.run_id).result(20)
        assert done.ok, done.error
        assert [m.role for m in done.messages] == ROLES
        assert done.messages[-1].text == "yes of 3 messages"
        assert done.run.result == {"notes": "read+write", "verdict": "yes"}
    assert effects(notes) == ["plan", "tool", "read", "write", "review", "publish:yes", "answer"]


async def test_f13_a_fork_resumes_from_the_state_at_its_cut(serve: Serve) -> None:
    """The thread continues its newest state. A fork continues the state at its cut."""
    async with serve(App(agents={"g": one_node(listen)})) as client:
        first = await say(client, "t", "a")
        assert (await say(client, "t", "b")).messages[-1].text == "turn 2: a|b"
        await client.fork("t", "early", first.run.run_id)
        await client.fork("t", "late")
        assert (await say(client, "early", "c")).messages[-1].text == "turn 2: a|c"
        assert (await say(client, "late", "d")).messages[-1].text == "turn 3: a|b|d"
        assert (await say(client, "t", "e")).messages[-1].text == "turn 3: a|b|e"
        await client.fork("early", "grandchild")
        assert (await say(client, "grandchild", "f")).messages[-1].text == "turn 3: a|c|f"
        await client.delete_thread("t")
        assert (await say(client, "late", "g")).messages[-1].text == "turn 4: a|b|d|g"
        await client.fork("late", "again")
        assert (await say(client, "again", "h")).messages[-1].text == "turn 5: a|b|d|g|h"


async def test_b5_branches_of_a_thread_have_states_of_their_own(serve: Serve) -> None:
    """A regenerated answer begins at the state before its prompt. A stored message becomes input of the graph."""
    async with serve(App(agents={"g": one_node(listen)})) as client:
        await say(client, "t", "a")
        second = await say(client, "t", "b")
        again = await (await client.regenerate("t", second.messages[-1].id)).result(20)
        assert again.messages[-1].text == "turn 2: a|b"
        edited = await (await client.regenerate("t", second.messages[-1].id, message="B")).result(20)
        assert edited.messages[-1].text == "turn 2: a|B"
        await client.store_message("t", "note")
        assert (await say(client, "t", "c")).messages[-1].text == "turn 3: a|B|note|c"


async def test_f9_a_probe_stores_nothing(serve: Serve) -> None:
    """A probe begins at the state at its cut. The thread's next run does not see the probe's messages."""
    async with serve(App(agents={"g": one_node(listen)})) as client:
        await say(client, "t", "a")
        assert (await client.fork_once("t", "probe")).text == "turn 2: a|probe"
        assert (await client.fork_once("t", "probe")).text == "turn 2: a|probe"
        assert (await say(client, "t", "b")).messages[-1].text == "turn 2: a|b"


async def test_f9_a_probe_cannot_ask(serve: Serve, notes: Path) -> None:
    """interrupt() in a probe raises HitlNotAllowedError. With ``asks_humans=True`` any probe raises this error."""
    apps = App(agents={"g": one_node(listen), "asks": graph, "says": served(graph, asks_humans=True)})
    async with serve(apps) as client:
        await say(client, "t", "a", agent="g")
        with pytest.raises(HitlNotAllowedError):
            await client.fork_once("t", "go", agent="asks")
        before = effects(notes)
        with pytest.raises(HitlNotAllowedError):
            await client.fork_once("t", "go", agent="says")
        assert effects(notes) == before


async def test_f13_a_missing_state_is_an_error(serve: Serve) -> None:
    """After a run of another agent the graph has no state. The run fails and does not begin with an empty state."""

    async def other(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("mine"))

    async with serve(App(agents={"g": one_node(listen), "other": other})) as client:
        await say(client, "t", "a", agent="other")
        run = await say(client, "t", "b", agent="g")
        assert run.error is not None and run.error.code == CheckpointMissingError.code
        with pytest.raises(CheckpointMissingError):
            await client.fork_once("t", "probe", agent="g")


async def test_f13_a_failed_run_leaves_no_trace_in_the_state(serve: Serve) -> None:
    """R7: The run after a failed run begins at the state before the failed run."""

    async def fails(state: Counted) -> dict[str, Any]:
        if state["messages"][-1].content == "fail":
            raise ValueError("broken")
        return await listen(state)

    async with serve(App(agents={"g": one_node(fails)})) as client:
        await say(client, "t", "a")
        assert (await say(client, "t", "fail")).run.status == "failed"
        assert (await say(client, "t", "b")).messages[-1].text == "turn 2: a|b"


async def test_r10_a_kept_cancel_stays_in_the_state(serve: Serve, notes: Path) -> None:
    """The run after a cancelled run with ``keep`` sees its messages, and the results that closed its calls."""
    started = asyncio.Event()

    async def slow(state: Counted) -> dict[str, Any]:
        if len(state["messages"]) > 1:
            return await listen(state)
        started.set()
        await asyncio.sleep(60)
        return {}

    async with serve(App(agents={"g": one_node(slow)})) as client:
        handle = await client.enqueue("t", "a")
        await started.wait()
        await handle.cancel(keep=True)
        assert (await handle.result(20)).run.status == "cancelled"
        assert (await say(client, "t", "b")).messages[-1].text == "turn 1: a|b"


async def test_h5_every_interrupt_is_asked(serve: Serve) -> None:
    """If a node asks the same question twice, the human is asked twice. Questions of parallel tasks are asked together."""

    async def ask(state: Any) -> dict[str, Any]:
        answers = [interrupt("same?"), interrupt("same?")]
        return {"messages": [AIMessage(f"{answers}")]}

    async def one(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{state['n']}={interrupt({'question': 'which?', 'n': state['n']})}")]}

    parallel = StateGraph(MessagesState)
    parallel.add_node("one", one)
    parallel.add_conditional_edges(START, lambda state: [Send("one", {"n": n}) for n in range(3)], ["one"])
    async with serve(App(agents={"twice": one_node(ask), "parallel": parallel.compile()})) as client:
        run = await say(client, "t", "a", agent="twice")
        for answer in (1, 2):
            await client.respond("t", answer)
            run = await client.handle("t", run.run.run_id).result(20)
        assert run.messages[-1].text == "[1, 2]"
        run = await say(client, "u", "a", agent="parallel")
        assert sorted(request.payload["n"] for request in run.requests) == [0, 1, 2]
        for request in reversed(run.requests):
            await client.respond(None, f"x{request.payload['n']}", request.request_id)
        run = await client.handle("u", run.run.run_id).result(20)
        assert [m.text for m in run.messages[1:]] == ["0=x0", "1=x1", "2=x2"]


async def test_interrupt_before_asks_for_a_permission(serve: Serve) -> None:
    """A static breakpoint is a question. The graph continues after the answer."""
    made = StateGraph(Counted)
    made.add_node("node", listen)
    made.add_edge(START, "node")
    async with serve(App(agents={"g": made.compile(interrupt_before=["node"])})) as client:
        run = await say(client, "t", "a")
        assert run.run.status == "suspended"
        await client.respond("t", True)
        assert (await client.handle("t", run.run.run_id).result(20)).messages[-1].text == "turn 1: a"


async def test_tokens_are_streamed_under_the_id_of_their_message(serve: Serve) -> None:
    """The deltas of a model's answer together are its text. They have the id of the stored message."""
    async with serve(App(agents={"g": one_node(listen)})) as client:
        handle = await client.enqueue("t", "a")
        events = [event async for event in handle.stream()]
        last = (await handle.result(20)).messages[-1]
        deltas = [event.data for event in events if event.type == "message.delta"]
        assert {data["message_id"] for data in deltas} == {last.id}
        assert "".join(data["text"] for data in deltas) == last.text == "turn 1: a"


async def test_steps_of_a_node_have_names_of_their_own(serve: Serve) -> None:
    """R20: A step in a node has another name than the same step of a node that finished in an earlier attempt."""
    ran: list[str] = []

    def node(name: str) -> Any:
        async def run(state: MessagesState) -> dict[str, Any]:
            async def effect() -> str:
                ran.append(name)
                return name

            done = await current_run().step(effect)
            if name == "b" and current_run().attempt == 1:
                raise ConnectionError("try again")
            return {"messages": [AIMessage(f"{name}: {done}")]}

        return run

    made = StateGraph(MessagesState)
    made.add_node("a", node("a"))
    made.add_node("b", node("b"))
    made.add_edge(START, "a")
    made.add_edge("a", "b")
    again = App()
    again.agent("g", max_attempts=3)(made.compile())
    async with serve(again) as client:
        run = await say(client, "t", "go")
        assert [m.text for m in run.messages[1:]] == ["a: a", "b: b"]
        assert run.run.attempt == 2
    assert ran == ["a", "b"]


def test_a_graph_without_a_channel_of_messages_is_refused() -> None:
    """The error has the names of the graph's channels."""

    class OnlyTurns(TypedDict):
        turns: int

    with pytest.raises(InvalidInputError, match=r"no channel 'messages'.*turns"):
        served(one_node(lambda state: {"turns": 1}, state=OnlyTurns))
