"""A graph of LangGraph with a tool, a subgraph and an interrupt. Each of its effects is a line of the file EFFECTS."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from runyard import App, current_run, step
from runyard.adapters.langgraph_agent import adapt
from runyard.support import agent_adapters

EFFECTS = "RUNYARD_TEST_EFFECTS"

agent_adapters.register("langgraph", adapt)


@step
async def effect(name: str) -> str:
    """Record an effect, in one write. A crash of this process cannot cut this write."""
    if path := os.environ.get(EFFECTS):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{current_run().thread_id} {name}\n".encode())
        finally:
            os.close(file)
    return name


def effects(file: Path, thread_id: str = "t") -> list[str]:
    """Return the recorded effects of a thread, in order."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.removeprefix(f"{thread_id} ") for line in lines if line.startswith(f"{thread_id} ")]


class State(MessagesState):
    notes: str
    verdict: str


async def plan(state: State) -> dict[str, Any]:
    await effect("plan")
    call = {"name": "look_up", "args": {"n": len(state["messages"])}, "id": f"call-{len(state['messages'])}"}
    return {"messages": [AIMessage("let me look", tool_calls=[call])]}


async def look_up(state: State) -> dict[str, Any]:
    [call] = state["messages"][-1].tool_calls  # type: ignore[union-attr]
    await effect("tool")
    return {"messages": [ToolMessage(f"found {call['args']['n']}", tool_call_id=call["id"], name="look_up")]}


async def read(state: State) -> dict[str, Any]:
    return {"notes": await effect("read")}


async def write(state: State) -> dict[str, Any]:
    return {"notes": state["notes"] + "+" + await effect("write")}


async def review(state: State) -> dict[str, Any]:
    await effect("review")
    verdict = interrupt({"question": "Publish?", "notes": state["notes"], "answer_schema": {"type": "string"}})
    await effect(f"publish:{verdict}")
    return {"verdict": verdict}


async def answer(state: State) -> dict[str, Any]:
    await effect("answer")
    model = GenericFakeChatModel(messages=iter([AIMessage(f"{state['verdict']} of {len(state['messages'])} messages")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


def compiled() -> Any:
    """Return the graph. Its nodes are plan, look_up, a subgraph of read and write, review with an interrupt, and answer."""
    inner = StateGraph(State)
    inner.add_node("read", read)
    inner.add_node("write", write)
    inner.add_edge(START, "read")
    inner.add_edge("read", "write")
    graph = StateGraph(State)
    for name, node in (("plan", plan), ("look_up", look_up), ("review", review), ("answer", answer)):
        graph.add_node(name, node)
    graph.add_node("research", inner.compile())
    order = [START, "plan", "look_up", "research", "review", "answer", END]
    for before, after in pairwise(order):
        graph.add_edge(before, after)
    return graph.compile()


graph = compiled()
app = App(agents={"graph": graph})
