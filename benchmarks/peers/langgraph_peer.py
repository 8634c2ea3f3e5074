"""A LangGraph graph with one node that answers, on a Postgres saver with one pool of ten connections.

The state is a list of messages. A turn is one ``ainvoke`` with a user message. LangGraph's own saver stores the whole list in
each checkpoint. Its migrations are executed by ``setup``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks import fixtures
from benchmarks.lab import Lab
from runyard.adapters.langgraph_saver import RunyardSaver
from runyard_backends.postgres.migrate import migrate


class LangGraphConversation:
    def __init__(self, saver: Any) -> None:
        graph = StateGraph(MessagesState)
        graph.add_node("answer", _answer)
        graph.add_edge(START, "answer")
        graph.add_edge("answer", END)
        self._graph: Any = graph.compile(checkpointer=saver)

    async def build(self, thread_id: str, messages: int, *, depth: int = 0) -> str:
        runs = messages // 2
        state: list[AnyMessage] = []
        for number in range(1, runs + 1):
            state += [HumanMessage(fixtures.prompt(number)), AIMessage(fixtures.answer(number))]
        await self._graph.aupdate_state(_config(thread_id), {"messages": state}, as_node="answer")
        return fixtures.run_id(runs)

    async def run(self, thread_id: str, run_id: str) -> None:
        found = await self._graph.ainvoke({"messages": [HumanMessage(fixtures.prompt(1))]}, _config(thread_id))
        if not isinstance(found["messages"][-1], AIMessage):
            raise AssertionError("the graph did not answer")


async def _answer(_state: MessagesState) -> dict[str, list[AnyMessage]]:
    return {"messages": [AIMessage(fixtures.answer(1))]}


def _config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


@asynccontextmanager
async def own_saver(lab: Lab) -> AsyncIterator[LangGraphConversation]:
    """Open the graph on LangGraph's saver, on a database of its own."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(
        await lab.database("langgraph"), min_size=1, max_size=10, kwargs=options, open=False
    ) as pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await saver.setup()
        yield LangGraphConversation(saver)


@asynccontextmanager
async def runyard_saver(lab: Lab) -> AsyncIterator[LangGraphConversation]:
    """Open the graph on runyard's saver, on a database of its own."""
    url = await lab.database("runyard_graphs")
    await migrate(url)
    async with RunyardSaver(url) as saver:
        yield LangGraphConversation(saver)
