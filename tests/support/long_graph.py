"""A graph with a long list of messages, and measurements of a checkpoint saver."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

CALLS = ("aget_tuple", "aput", "aput_writes")
_RANDOM = random.Random(1)
_WORDS = ["".join(_RANDOM.choices("etaoinshrdlu", k=_RANDOM.randint(2, 9))) for _ in range(4000)]


def text(n: int) -> str:
    """Return about 1,000 characters that compress like natural language."""
    return f"{n} " + " ".join(random.Random(n).choices(_WORDS, k=155))


def chat(saver: BaseCheckpointSaver[Any]) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return a graph with one node that answers."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(text(len(state["messages"])))]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


@dataclass
class Cost:
    """The seconds in which a call of the saver is active, the seconds of the whole prompt, and the bytes of WAL."""

    saver: float = 0.0
    turn: float = 0.0
    wal: int = 0


@asynccontextmanager
async def measured(saver: BaseCheckpointSaver[Any], url: str) -> AsyncIterator[Cost]:
    """Measure the calls of ``saver`` and the WAL of the server at ``url`` inside the block."""
    cost = Cost()
    open_calls: list[float] = []  # no other call was active when the first call began

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **options: Any) -> Any:
            open_calls.append(time.perf_counter())
            try:
                return await method(*args, **options)
            finally:
                since = open_calls[0]
                open_calls.pop()
                if not open_calls:
                    cost.saver += time.perf_counter() - since

        return call

    connection = await asyncpg.connect(url)
    try:
        for name in CALLS:
            setattr(saver, name, timed(getattr(saver, name)))
        before = await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        since = time.perf_counter()
        yield cost
        cost.turn = time.perf_counter() - since
        cost.wal = int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") - before)
    finally:
        for name in CALLS:
            delattr(saver, name)
        await connection.close()


async def fill(saver: BaseCheckpointSaver[Any], thread_id: str, messages: int) -> None:
    """Make a thread with this number of messages."""
    history = [kind(text(n), id=f"m{n}") for n in range(messages) for kind in ((HumanMessage, AIMessage)[n % 2],)]
    await chat(saver).aupdate_state({"configurable": {"thread_id": thread_id}}, {"messages": history}, as_node="answer")


async def turn(saver: BaseCheckpointSaver[Any], thread_id: str, text: str) -> int:
    """Call the graph with one prompt. Return the number of messages."""
    config = {"configurable": {"thread_id": thread_id}}
    state = await chat(saver).ainvoke({"messages": [HumanMessage(text)]}, config, durability="sync")  # type: ignore[arg-type]
    return len(state["messages"])
