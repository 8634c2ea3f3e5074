"""The states of graphs that runs leave, and what is erased of them (R9, F13, D3), on Postgres and in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from runyard import App, Client
from runyard.adapters.json_values import OMITTED
from runyard.errors import CheckpointMissingError
from runyard_backends.memory.graph_checkpoints import MemoryGraphCheckpointStore
from runyard_backends.postgres.graph_checkpoints import PostgresGraphCheckpointStore
from tests.integration.graphs.conftest import Serve
from tests.integration.graphs.test_graph_agent import Counted, listen, one_node, say

CONTENT = {"graph_chunks": "items", "graph_values": "data", "graph_writes": "data", "graph_checkpoints": "content"}
"""The columns with the content of states."""


async def test_f13_a_lost_mark_is_made_by_the_next_attempt(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt ends between the message and its mark: the next run sees the message in its state (R9)."""
    lost: list[str] = []

    def losing(mark: Any) -> Any:
        async def loses_the_first(*args: Any) -> None:
            if not lost:
                lost.append("mark")
                raise ConnectionError("lost")
            await mark(*args)

        return loses_the_first

    for store in (MemoryGraphCheckpointStore, PostgresGraphCheckpointStore):
        monkeypatch.setattr(store, "mark", losing(store.mark))
    app = App()
    app.agent("g", max_attempts=3)(one_node(listen))
    async with serve(app) as client:
        assert (await say(client, "t", "a")).ok
        assert (await say(client, "t", "b")).messages[-1].text == "turn 2: a|b"


async def test_f13_a_superstep_without_messages_stays_in_the_state(serve: Serve) -> None:
    """The state after the last node goes on, also if this node adds no message."""

    async def counts(state: Counted) -> dict[str, Any]:
        return {"turns": 100 + state["turns"]}

    made = StateGraph(Counted)
    made.add_node("listen", listen)
    made.add_node("counts", counts)
    made.add_edge(START, "listen")
    made.add_edge("listen", "counts")
    async with serve(App(agents={"g": made.compile()})) as client:
        await say(client, "t", "a")
        await client.fork("t", "u")
        for thread in ("t", "u"):
            assert (await say(client, thread, "b")).messages[-1].text == "turn 102: a|b"


async def test_f13_the_state_after_a_run_without_messages_goes_on(serve: Serve) -> None:
    """A node that adds no message changes the state: the next run, also of a fork and of a probe, begins at this state."""

    async def counts(state: Counted) -> dict[str, Any]:
        return {"turns": state.get("turns", 0) + 1}

    async with serve(App(agents={"g": one_node(counts), "listens": one_node(listen)})) as client:
        for n in range(3):
            assert (await say(client, "t", f"{n}", agent="g")).run.result == {"turns": n + 1}
        await client.fork("t", "u")
        assert (await client.fork_once("t", "probe", agent="listens")).text == "turn 4: 0|1|2|probe"
        assert (await say(client, "u", "b", agent="listens")).messages[-1].text == "turn 4: 0|1|2|b"


async def test_f13_a_redriven_run_is_in_the_later_state(serve: Serve) -> None:
    """A run that was redriven after another run has completed: the next run, also of a fork and of a probe, sees both."""
    broken = True

    async def fails(state: Counted) -> dict[str, Any]:
        if broken and state["messages"][-1].content == "b":
            raise ValueError("broken")
        return await listen(state)

    async with serve(App(agents={"g": one_node(fails)})) as client:
        await say(client, "t", "a")
        failed = await say(client, "t", "b")
        assert failed.run.status == "failed"
        await client.store_message("t", "note")
        assert (await say(client, "t", "c")).messages[-1].text == "turn 2: a|note|c"
        broken = False
        await client.redrive("t", failed.run.run_id)
        assert (await client.handle("t", failed.run.run_id).result(20)).messages[-1].text == "turn 2: a|b"
        await client.fork("t", "u")
        assert sorted((await client.fork_once("t", "d")).text[8:].split("|")) == ["a", "b", "c", "d", "note"]
        for thread, text in (("t", "d"), ("u", "e")):
            heard = (await say(client, thread, text)).messages[-1].text[8:].split("|")
            assert sorted(heard) == sorted(["a", "b", "c", "note", text])
            heard = (await say(client, thread, "f")).messages[-1].text[8:].split("|")
            assert sorted(heard) == sorted(["a", "b", "c", "note", text, "f"])


async def test_d3_an_erased_source_ends_the_run_of_a_fork(serve: Serve) -> None:
    """A live run of a fork stores nothing of the erased state, and fails with checkpoint_missing."""
    go, started = asyncio.Event(), asyncio.Event()

    async def slow(state: Counted) -> dict[str, Any]:
        if state["messages"][-1].content == "wait":
            started.set()
            await go.wait()
        return {"messages": [AIMessage("ok")], "turns": 1}

    async with serve(App(agents={"g": one_node(slow)})) as client:
        await say(client, "t", "SECRETWORD of a person")
        await client.fork("t", "u")
        handle = await client.enqueue("u", "wait")
        await started.wait()
        await client.erase_thread("t")
        go.set()
        run = await handle.result(20)
        assert run.error is not None and run.error.code == CheckpointMissingError.code
        again = await say(client, "u", "next")
        assert again.error is None or again.error.code == CheckpointMissingError.code


async def test_a_state_that_is_no_result_fails_no_run(serve: Serve) -> None:
    """Bytes become base64, NaN becomes null, and a state that is larger than a result is left out with the reason."""

    class Odd(MessagesState):
        value: Any

    async def node(state: Odd) -> dict[str, Any]:
        values = {"bytes": b"\xff\xfe", "nan": float("nan"), "big": "x" * 9 * 2**20}
        return {"messages": [AIMessage("done")], "value": values[str(state["messages"][-1].content)]}

    async with serve(App(agents={"g": one_node(node, Odd)})) as client:
        found = {}
        for kind in ("bytes", "nan", "big"):
            run = await say(client, kind, kind)
            assert run.ok, run.error
            found[kind] = run.run.result
        assert found["bytes"] == {"value": "__4="} and found["nan"] == {"value": None}
        assert "result" in found["big"][OMITTED]  # type: ignore[index, call-overload]


async def test_the_answer_is_streamed_after_private_tokens(serve: Serve) -> None:
    """Answers of models that do not enter the state do not hide the tokens of the one that does."""

    def model(text: str) -> GenericFakeChatModel:
        return GenericFakeChatModel(messages=iter([AIMessage(text)]))

    async def route(state: MessagesState) -> dict[str, Any]:
        await model("PRIVATE classification").ainvoke([])
        return {}

    async def answer(state: MessagesState) -> dict[str, Any]:
        await model("another draft").ainvoke([])
        return {"messages": [await model("the real answer").ainvoke([])]}

    made = StateGraph(MessagesState)
    made.add_node("route", route)
    made.add_node("answer", answer)
    made.add_edge(START, "route")
    made.add_edge("route", "answer")
    async with serve(App(agents={"g": made.compile()})) as client:
        handle = await client.enqueue("t", "a")
        events = [event async for event in handle.stream()]
        last = (await handle.result(20)).messages[-1]
        said = [e.data["text"] for e in events if e.type == "message.delta" and e.data["message_id"] == last.id]
        assert "".join(said) == last.text == "the real answer"


class TestContentOnPostgres:
    @pytest.fixture
    def serve(self, request: pytest.FixtureRequest) -> Serve:
        return request.getfixturevalue("postgres_serve")  # type: ignore[no-any-return]

    @staticmethod
    async def found(url: str) -> list[str]:
        """Return the columns that contain the secret word."""
        connection = await asyncpg.connect(url)
        try:
            query = "SELECT count(*) FROM runyard.{} WHERE position('SECRETWORD'::bytea IN {}) > 0"
            return [table for table, column in CONTENT.items() if await connection.fetchval(query.format(table, column))]
        finally:
            await connection.close()

    async def test_d3_erased_content_does_not_come_back(self, serve: Serve, postgres_url: str) -> None:
        """No column has the content, also after the live run of a fork has ended."""
        go, started = asyncio.Event(), asyncio.Event()

        async def slow(state: Counted) -> dict[str, Any]:
            if state["messages"][-1].content == "wait":
                started.set()
                await go.wait()
            return {"messages": [AIMessage("ok")], "turns": 1}

        async with serve(App(agents={"g": one_node(slow)})) as client:
            await say(client, "t", "SECRETWORD of a person")
            await client.fork("t", "u")
            handle = await client.enqueue("u", "wait")
            await started.wait()
            assert await self.found(postgres_url) != []
            await client.erase_thread("t")
            go.set()
            await handle.result(20)
            assert await self.found(postgres_url) == []

    async def test_a_deleted_run_leaves_nothing_in_the_state(self, serve: Serve, postgres_url: str) -> None:
        """The content of a failed run is deleted with it, and the thread goes on from the state before it."""

        async def fails(state: Counted) -> dict[str, Any]:
            if "SECRETWORD" in str(state["messages"][-1].content):
                raise ValueError("broken")
            return await listen(state)

        async def deleted(client: Client, thread_id: str) -> None:
            run = await say(client, thread_id, "SECRETWORD")
            assert run.run.status == "failed" and await self.found(postgres_url) != []
            await client.delete_run(thread_id, run.run.run_id)
            assert await self.found(postgres_url) == []

        async with serve(App(agents={"g": one_node(fails)})) as client:
            await deleted(client, "first")
            assert (await say(client, "first", "a")).messages[-1].text == "turn 1: a"
            await deleted(client, "first")
            await client.fork("first", "u")
            assert (await say(client, "first", "b")).messages[-1].text == "turn 2: a|b"
            assert (await say(client, "u", "c")).messages[-1].text == "turn 2: a|c"
