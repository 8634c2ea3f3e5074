"""Interrupts and breakpoints of graphs as questions to humans (H5, I6, F9), on Postgres and in memory."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph import types as langgraph_types
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from runyard import App, Client, RunResult
from runyard.adapters import langgraph_answers
from runyard.adapters.langgraph_agent import serve as served
from runyard.errors import HitlDeniedError, HitlInvalidAnswerError, HitlNotAllowedError, InvalidInputError
from tests.integration.graphs.conftest import Serve
from tests.integration.graphs.test_graph_agent import listen, one_node, say


@dataclass
class Amount:
    currency: str
    value: int


async def answered(client: Client, run: RunResult, answer: Any) -> RunResult:
    """Answer the only question of a run, and wait until the run stops."""
    await client.respond(run.run.thread_id, answer)
    return await client.handle(run.run.thread_id, run.run.run_id).result(20)


def retried(graph: Any) -> App:
    app = App()
    app.agent("g", max_attempts=4)(graph)
    return app


def outer(*inner: Any) -> Any:
    """A graph whose nodes are these graphs, all in one superstep."""
    made = StateGraph(MessagesState)
    for n, graph in enumerate(inner):
        made.add_node(f"inner{n}", graph)
        made.add_edge(START, f"inner{n}")
    return made.compile()


def gated(ran: list[str], name: str = "node") -> Any:
    """A graph that stops before its only node."""

    async def node(state: Any) -> dict[str, Any]:
        ran.append(name)
        return {"messages": [AIMessage(f"{name} ran")]}

    made = StateGraph(MessagesState)
    made.add_node(name, node)
    made.add_edge(START, name)
    return made.compile(interrupt_before=[name])


@pytest.mark.parametrize("nested", [False, True])
async def test_h5_a_failed_task_keeps_its_answer_and_gives_it_to_no_other_question(serve: Serve, nested: bool) -> None:
    """After an answer and an error the answer is not asked for again, and the next question is shown to the human (I6)."""
    tries: list[Any] = []

    async def node(state: Any) -> dict[str, Any]:
        refund = interrupt("Refund 5 euros?")
        tries.append(refund)
        if len(tries) == 1:
            raise ConnectionError("the provider is busy")
        return {"messages": [AIMessage(f"refund={refund} delete={interrupt('DELETE THE ACCOUNT?')}")]}

    graph = one_node(node, MessagesState)
    async with serve(retried(outer(graph) if nested else graph)) as client:
        run = await say(client, "t", "a")
        shown = []
        for answer in ("yes", "no"):
            shown += [request.payload["question"] for request in run.requests]
            run = await answered(client, run, answer)
        assert shown == ["Refund 5 euros?", "DELETE THE ACCOUNT?"]
        assert run.ok and run.messages[-1].text == "refund=yes delete=no"


async def test_h5_a_task_that_has_finished_asks_no_more(serve: Serve) -> None:
    """Of two tasks that asked, one asks again: the other's answered question is not repeated."""
    asked: list[str] = []

    async def ask(state: Any) -> dict[str, Any]:
        answers = [interrupt(f"{state['name']}{n}?") for n in range(state["questions"])]
        return {"messages": [AIMessage(f"{state['name']}={answers}")]}

    made = StateGraph(MessagesState)
    made.add_node("ask", ask)
    tasks = [Send("ask", {"name": "a", "questions": 1}), Send("ask", {"name": "b", "questions": 2})]
    made.add_conditional_edges(START, lambda state: tasks, ["ask"])
    async with serve(App(agents={"g": made.compile()})) as client:
        run = await say(client, "t", "go")
        for _ in range(2):
            for request in run.requests:
                asked.append(request.payload["question"])
                await client.respond(None, request.payload["question"], request.request_id)
            run = await client.handle("t", run.run.run_id).result(20)
        assert sorted(asked) == ["a0?", "b0?", "b1?"]
        assert [m.text for m in run.messages[1:]] == ["a=['a0?']", "b=['b0?', 'b1?']"]


@pytest.mark.parametrize(("depth", "denial"), [(0, False), (1, False), (2, {"approved": False, "reason": "too dangerous"})])
async def test_a_breakpoint_waits_for_an_approval(serve: Serve, depth: int, denial: Any) -> None:
    """A breakpoint of a graph, or of a subgraph, is a question. A denial ends the run before the node."""
    ran: list[str] = []
    graph = gated(ran)
    for _ in range(depth):
        graph = outer(graph)
    async with serve(App(agents={"g": graph, "listens": one_node(listen)})) as client:
        await say(client, "probed", "hi", agent="listens")
        with pytest.raises(HitlNotAllowedError):
            await client.fork_once("probed", "probe", agent="g")
        run = await say(client, "t", "go", agent="g")
        assert run.run.status == "suspended" and ran == []
        assert run.requests[0].payload["next"] == ["node"]
        denied = await answered(client, run, denial)
        assert denied.error is not None and denied.error.code == HitlDeniedError.code
        assert ran == [] and denied.run.attempt == 2
        run = await answered(client, await say(client, "u", "go", agent="g"), {"approved": True})
        assert run.ok and [m.text for m in run.messages[1:]] == ["node ran"]
    assert ran == ["node"]


async def test_an_answer_to_one_subgraph_approves_no_other(serve: Serve) -> None:
    """Of two subgraphs of a superstep, one has an interrupt and one a breakpoint: both are asked, and both must be answered."""
    ran: list[str] = []

    async def ask(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"got {interrupt('which?')}")]}

    async with serve(App(agents={"g": outer(one_node(ask, MessagesState), gated(ran))})) as client:
        run = await say(client, "t", "go")
        assert len(run.requests) == 2
        [which] = [request for request in run.requests if "next" not in request.payload]
        [gate] = [request for request in run.requests if "next" in request.payload]
        await client.respond(None, "that", which.request_id)
        assert ran == []
        await client.respond(None, False, gate.request_id)
        run = await client.handle("t", run.run.run_id).result(20)
        assert run.error is not None and run.error.code == HitlDeniedError.code and ran == []


async def test_a_breakpoint_that_langgraph_does_not_list_fails_the_run(serve: Serve) -> None:
    """A graph that a node makes cannot be asked about: its gate is not passed."""
    ran: list[str] = []

    async def node(state: Any) -> Any:
        return await gated(ran).ainvoke(state)

    async with serve(App(agents={"g": one_node(node, MessagesState)})) as client:
        run = await say(client, "t", "go")
        assert run.error is not None and "interrupt()" in run.error.message and ran == []


def test_interrupt_after_is_refused_in_subgraphs() -> None:
    """A crash could pass it. The error names the subgraph."""

    async def node(state: Any) -> dict[str, Any]:
        return {}

    made = StateGraph(MessagesState)
    made.add_node("node", node)
    made.add_edge(START, "node")
    with pytest.raises(InvalidInputError, match="inner0"):
        served(outer(made.compile(interrupt_after="*")))


@pytest.mark.parametrize("failing", [True, False], ids=["after an error", "at the resume"])
@pytest.mark.parametrize("nested", [False, True])
async def test_h5_a_changed_question_is_asked_anew(serve: Serve, failing: bool, nested: bool) -> None:
    """The answer to a question is given to no other question of the same place, and is kept for its own question."""
    amounts = iter([5, 5, 500, 500] if failing else [5, 500, 500])
    tries = 0

    async def node(state: Any) -> dict[str, Any]:
        nonlocal tries
        amount = next(amounts)
        answer = interrupt(f"Refund {amount} euros?")
        tries += 1
        if failing and tries == 1:
            raise ConnectionError("the provider is busy")
        return {"messages": [AIMessage(f"{amount}: {answer}")]}

    graph = one_node(node, MessagesState)
    async with serve(retried(outer(graph) if nested else graph)) as client:
        run = await say(client, "t", "a")
        shown = []
        for answer in ("yes", "no"):
            shown += [request.payload["question"] for request in run.requests]
            run = await answered(client, run, answer)
        assert shown == ["Refund 5 euros?", "Refund 500 euros?"]
        assert run.ok and run.messages[-1].text == "500: no"


async def test_h5_answers_do_not_depend_on_the_order_of_questions(serve: Serve) -> None:
    """A task asks several questions at once, in another order each time: each gets its own answer, and is asked once."""
    orders = itertools.cycle([("a?", "b?", "b?"), ("b?", "a?", "b?")])

    async def ask(question: str) -> str:
        return f"{question[0]}={interrupt(question)}"

    async def node(state: Any) -> dict[str, Any]:
        said = await asyncio.gather(*map(ask, next(orders)))
        return {"messages": [AIMessage(" ".join(sorted(said)))]}

    async with serve(App(agents={"g": one_node(node, MessagesState)})) as client:
        run, shown = await say(client, "t", "a"), []
        while run.requests:
            shown += [request.payload["question"] for request in run.requests]
            run = await answered(client, run, f"{shown[-1][0]}{shown.count(shown[-1])}")
        assert sorted(shown) == ["a?", "b?", "b?"]
        assert run.ok and run.messages[-1].text == "a=a1 b=b1 b=b2"


async def test_h5_two_tasks_that_ask_the_same_question_get_their_own_answers(serve: Serve) -> None:
    """The answer of a task is given to no other task, also if both ask the same value in the same superstep."""

    async def ask(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{state['name']}={interrupt({'question': 'sure?', 'for': 'all'})}")]}

    made = StateGraph(MessagesState)
    made.add_node("ask", ask)
    tasks = [Send("ask", {"name": name}) for name in "ab"]
    made.add_conditional_edges(START, lambda state: tasks, ["ask"])
    async with serve(App(agents={"g": made.compile()})) as client:
        run = await say(client, "t", "go")
        assert len(run.requests) == 2
        await client.respond(None, "first", run.requests[0].request_id)
        await client.respond(None, "second", run.requests[1].request_id)
        run = await client.handle("t", run.run.run_id).result(20)
        assert {m.text[2:] for m in run.messages[1:]} == {"first", "second"}


async def test_h5_a_node_that_changes_its_answer_changes_it_for_nobody(serve: Serve) -> None:
    """A repetition of the node in the same attempt gets the answer as the human gave it."""
    got: list[Any] = []

    async def node(state: Any) -> dict[str, Any]:
        answer = interrupt("which?")
        got.append(dict(answer))
        answer["seen"] = True
        if len(got) == 1:
            raise ConnectionError("busy")
        return {"messages": [AIMessage("done")]}

    made = StateGraph(MessagesState)
    made.add_node("node", node, retry_policy=RetryPolicy(initial_interval=0.0, retry_on=ConnectionError))
    made.add_edge(START, "node")
    async with serve(App(agents={"g": made.compile()})) as client:
        run = await answered(client, await say(client, "t", "go"), {"k": 1})
        assert run.ok and got == [{"k": 1}, {"k": 1}]


@pytest.mark.parametrize("value", [("a", 1), Amount("EUR", 5), ValueError("no")], ids=["tuple", "dataclass", "error"])
async def test_h5_a_question_is_the_same_after_it_was_stored(serve: Serve, value: Any) -> None:
    """The serializer returns some values in another form. Such a question is asked once."""

    async def node(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(str(interrupt(value)))]}

    async with serve(App(agents={"g": one_node(node, MessagesState)})) as client:
        run = await answered(client, await say(client, "t", "go"), "yes")
        assert run.ok and run.messages[-1].text == "yes"


async def test_h5_the_response_schema_of_an_interrupt_is_the_schema_of_answers(serve: Serve) -> None:
    """An answer that LangGraph would refuse is refused when it is given, and the request stays."""

    async def node(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(str(interrupt("how many?", response_schema={"type": "integer"})))]}

    async with serve(App(agents={"g": one_node(node, MessagesState)})) as client:
        run = await say(client, "t", "a")
        with pytest.raises(HitlInvalidAnswerError):
            await client.respond("t", "many")
        assert (await answered(client, run, 3)).messages[-1].text == "3"


def test_h5_langgraph_itself_gives_an_answer_to_any_question_at_its_place() -> None:
    """The resume map of LangGraph names an interrupt by its id, and another question at the same place has the same id.

    An adapter that answers by the resume map would therefore give the approval of one amount to another amount. If this test
    fails, LangGraph binds answers to questions, and :mod:`runyard.adapters.langgraph_answers` can use its interface.
    """
    amounts = iter([5, 500, 500])

    def node(state: Any) -> dict[str, Any]:
        amount = next(amounts)
        return {"messages": [AIMessage(f"{amount}: {interrupt(f'Refund {amount} euros?')}")]}

    graph = one_node(node, MessagesState).copy({"checkpointer": InMemorySaver()})
    place: Any = {"configurable": {"thread_id": "t"}}
    [asked] = graph.invoke({"messages": []}, place)["__interrupt__"]
    assert asked.value == "Refund 5 euros?"
    said = graph.invoke(Command(resume={asked.id: "yes"}), place)["messages"]
    assert [message.content for message in said] == ["500: yes"]


async def test_a_question_of_an_interrupt_with_other_names_fails_the_run(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of LangGraph whose ``interrupt()`` names its variables otherwise asks a human once, not for ever."""
    names: dict[str, Any] = {}
    source = inspect.getsource(inspect.unwrap(interrupt)).replace("idx", "number")
    exec(compile(f"from __future__ import annotations\n{source}", "renamed", "exec"), vars(langgraph_types), names)
    monkeypatch.setattr(langgraph_answers, "interrupt", names["interrupt"])

    async def node(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{names['interrupt']('sure?')}")]}

    async with serve(App(agents={"g": one_node(node, MessagesState)})) as client:
        run = await answered(client, await say(client, "t", "a"), "yes")
        assert run.error is not None and "version of LangGraph" in run.error.message


async def test_a_question_that_cannot_get_its_answer_fails_the_run(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of LangGraph that does not read answers in ``interrupt()`` asks a human once, not for ever."""
    monkeypatch.setattr(langgraph_answers, "interrupt", say)

    async def node(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{interrupt('sure?')}")]}

    async with serve(App(agents={"g": one_node(node, MessagesState)})) as client:
        run = await answered(client, await say(client, "t", "a"), "yes")
        assert run.error is not None and "version of LangGraph" in run.error.message
