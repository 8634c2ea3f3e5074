"""Tests of the checkpoints of graphs: tenants, deletion, fences and lost writes (R14, R9, I2)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph

from runyard import App, Client
from runyard.adapters.langgraph_cache import ListCache
from runyard.adapters.langgraph_saver import RunyardSaver
from runyard.errors import CapabilityMissingError, InvalidInputError, StaleFenceError, ThreadAlreadyExistsError
from runyard.ports.graph_checkpoints import LineRef, NewCheckpoint, Segments
from runyard.ports.refs import AttemptToken
from runyard.support import backend_urls
from runyard.testing import Harness
from runyard_backends.http.backend import HttpBackend
from runyard_backends.memory.graph_checkpoints import MemoryGraphCheckpointStore
from tests.integration.graphs.conftest import Serve
from tests.integration.graphs.test_graph_agent import listen, one_node, say
from tests.support.agents.graph import effects, graph
from tests.support.lock_waits import until_a_session_waits
from tests.support.long_graph import chat

TABLES = ("lines", "levels", "checkpoints", "values", "streams", "chunks", "writes", "marks")


def config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


async def rows(url: str) -> dict[str, int]:
    """Return the number of rows of each table of graphs."""
    connection = await asyncpg.connect(url)
    try:
        return {name: await connection.fetchval(f"SELECT count(*) FROM runyard.graph_{name}") for name in TABLES}
    finally:
        await connection.close()


@pytest.fixture
async def saver(postgres_url: str) -> AsyncIterator[RunyardSaver]:
    async with RunyardSaver(postgres_url) as made:
        yield made


async def texts(saver: RunyardSaver, thread_id: str) -> list[str]:
    state = await chat(saver).aget_state(config(thread_id))
    return [str(message.content) for message in state.values.get("messages", ())]


async def test_tenants_do_not_see_each_other(postgres_url: str) -> None:
    """The same thread id in two tenants has two states. No call of one tenant changes or reads the other tenant's state."""
    async with RunyardSaver(postgres_url, tenant="a") as a, RunyardSaver(postgres_url, tenant="b") as b:
        await chat(a).ainvoke({"messages": [HumanMessage("of a")]}, config("t"))
        assert [found async for found in b.alist(None)] == []
        assert await b.aget_tuple(config("t")) is None
        await b.adelete_thread("t")
        await b.aprune(["t"], strategy="delete")
        await b.acopy_thread("t", "u")
        assert await b.aget_tuple(config("u")) is None
        assert (await texts(a, "t"))[0] == "of a"


async def test_a_copy_is_its_own_thread(saver: RunyardSaver, postgres_url: str) -> None:
    """Later changes of one thread do not change the other. A copy stays after the deletion of its source.

    The deletion of the last thread deletes all rows.
    """
    await chat(saver).ainvoke({"messages": [HumanMessage("a")]}, config("t"))
    before = await texts(saver, "t")
    await saver.acopy_thread("t", "copy")
    await saver.acopy_thread("copy", "copy of copy")
    with pytest.raises(ThreadAlreadyExistsError):
        await saver.acopy_thread("t", "copy")
    await chat(saver).ainvoke({"messages": [HumanMessage("b")]}, config("t"))
    await chat(saver).ainvoke({"messages": [HumanMessage("c")]}, config("copy"))
    assert (await texts(saver, "copy"))[2] == "c"
    assert (await texts(saver, "t"))[2] == "b"
    assert await texts(saver, "copy of copy") == before
    await saver.adelete_thread("t")
    assert (await texts(saver, "copy"))[:3] == [*before, "c"]
    await saver.adelete_thread("copy")
    assert await texts(saver, "copy of copy") == before
    await saver.adelete_thread("copy of copy")
    assert set((await rows(postgres_url)).values()) == {0}


async def test_pruned_threads_keep_their_state_and_their_copies(saver: RunyardSaver, postgres_url: str) -> None:
    """prune keeps the newest state. A process whose cache has deleted streams can still write."""
    for text in "abc":
        await chat(saver).ainvoke({"messages": [HumanMessage(text)]}, config("t"))
    await saver.acopy_thread("t", "copy")
    expected = await texts(saver, "t")
    async with RunyardSaver(postgres_url) as other:
        await other.aprune(["t"])
    assert len([found async for found in saver.alist(config("t"))]) == 1
    await chat(saver).ainvoke({"messages": [HumanMessage("d")]}, config("t"))
    assert (await texts(saver, "t"))[:7] == [*expected, "d"]
    assert await texts(saver, "copy") == expected
    await saver.aprune(["t", "copy"], strategy="delete")
    assert set((await rows(postgres_url)).values()) == {0}
    with pytest.raises(InvalidInputError):
        await saver.aprune(["t"], strategy="all")


async def test_a_deletion_for_runs_waits_for_a_write_to_a_copy(saver: RunyardSaver, postgres_url: str) -> None:
    """The checkpoint of a copy keeps a value of its source that is deleted at the same moment."""
    version = "000000000001.a"
    values = {"channel_values": {"doc": "precious"}, "channel_versions": {"doc": version}}
    place = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    first = cast(Checkpoint, {**empty_checkpoint(), "id": "1", **values})
    await saver.aput(cast(Any, place), first, cast(Any, {"run_id": "r"}), {"doc": version})
    await saver.acopy_thread("t", "copy")
    writer = await asyncpg.connect(postgres_url)
    try:
        async with writer.transaction():
            put = "runyard.graph_put('', 0, 'copy', NULL, NULL, '', '2', '1', 'msgpack', '\\x80', '{}', ARRAY['doc'], $1, '{}')"
            await writer.execute(f"SELECT {put}", [version])
            deletion = asyncio.create_task(saver.adelete_for_runs(["r"]))
            await until_a_session_waits(writer, call=deletion)
        await deletion
    finally:
        await writer.close()
    async with RunyardSaver(postgres_url) as other:
        copied = await other.aget_tuple(config("copy"))
        assert copied is not None and copied.checkpoint["channel_values"] == {"doc": "precious"}
        assert await other.aget_tuple(config("t")) is None


def checkpoint(id: str, value: str, **versions: str) -> Checkpoint:
    found = {"channel_values": dict.fromkeys(versions, value), "channel_versions": versions}
    return cast(Checkpoint, {**empty_checkpoint(), "id": id, **found})


@pytest.fixture(params=["memory", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else "memory://"


@pytest.fixture
async def either(store_url: str) -> AsyncIterator[RunyardSaver]:
    """A saver on each store."""
    async with RunyardSaver(store_url) as made:
        yield made


async def test_a_graph_keeps_its_channels_after_a_deletion_of_its_run(either: RunyardSaver) -> None:
    """A put after delete_for_runs has a version whose value was deleted. The value is stored again."""
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    await either.aput(place, checkpoint("1", "x", doc="1", log="1"), cast(Any, {"run_id": "r"}), {"doc": "1", "log": "1"})
    await either.adelete_for_runs(["r"])
    assert await either.aget_tuple(config("t")) is None
    await either.aput(place, checkpoint("2", "x", doc="1", log="2"), cast(Any, {"run_id": "s"}), {"log": "2"})
    found = await either.aget_tuple(config("t"))
    assert found is not None and found.checkpoint["channel_values"] == {"doc": "x", "log": "x"}


async def test_a_deletion_for_runs_forgets_only_the_lists_of_these_runs(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists of other threads, and of a thread with the same name of another tenant, are not read again."""
    backend, cache = await backend_urls.connect(store_url), ListCache()
    reads: list[Segments] = []
    items = type(backend.graphs).items

    async def counted(self: Any, segments: Segments) -> Any:
        reads.append(segments)
        return await items(self, segments)

    monkeypatch.setattr(type(backend.graphs), "items", counted)
    try:
        mine, others = (RunyardSaver(Client(backend.for_tenant(tenant)), cache=cache) for tenant in ("", "b"))
        said = [HumanMessage(f"{n}", id=f"{n}") for n in range(3)]
        for saver, thread_id, run_id in [(mine, "t", "r"), (mine, "u", "s"), (others, "t", "r")]:
            place: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
            new = {"channel_values": {"log": said}, "channel_versions": {"log": "1"}}
            for id in "12":
                made = cast(Checkpoint, {**empty_checkpoint(), "id": id, **new})
                changed = {"log": "1"} if id == "1" else {}
                await saver.aput(place, made, cast(Any, {"run_id": run_id if id == "2" else "first"}), changed)
        await mine.acopy_thread("t", "copy")
        assert await mine.aget_tuple(config("copy")) is not None
        reads.clear()
        await mine.adelete_for_runs(["r"])
        for saver, thread_id, again in [(mine, "u", 0), (others, "t", 0), (mine, "t", 1), (mine, "copy", 1)]:
            found = await saver.aget_tuple(config(thread_id))
            assert found is not None and found.checkpoint["channel_values"]["log"] == said
            assert len(reads) == again, (thread_id, found.config)
            reads.clear()
    finally:
        await backend.close()


async def test_a_list_filters_the_present_metadata(either: RunyardSaver) -> None:
    """A checkpoint that was put again is found by its new metadata only. A copy has the earlier metadata."""
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for source in ("input", "loop"):
        await either.aput(place, checkpoint("1", source, doc=source), cast(Any, {"source": source}), {"doc": source})
        if source == "input":
            await either.acopy_thread("t", "copy")
    counts = {
        (thread, source): len([found async for found in either.alist(config(thread), filter={"source": source})])
        for thread in ("t", "copy")
        for source in ("input", "loop")
    }
    assert counts == {("t", "input"): 0, ("t", "loop"): 1, ("copy", "input"): 1, ("copy", "loop"): 0}


async def test_a_write_of_an_old_attempt_is_refused(saver: RunyardSaver, serve: Serve) -> None:
    """I2: Checkpoints of an attempt carry the attempt's fence."""
    async with serve(App(agents={"g": one_node(listen)})) as client:
        run = await say(client, "t", "a")
        token = AttemptToken(1, run.run.run_id, 1)
        new = NewCheckpoint("", "x", None, "msgpack", b"", {}, {}, ())
        with pytest.raises(StaleFenceError):
            await client.backend.graphs.put(LineRef("x", token), new)
        with pytest.raises(StaleFenceError):
            await client.backend.graphs.begin(token, [], None)
        with pytest.raises(StaleFenceError):
            await client.backend.graphs.put_writes(LineRef("x", token), "", "x", "task", "", [(0, "c", "msgpack", b"")])


async def test_deleting_and_erasing_threads_removes_their_states(postgres_url: str, serve: Serve) -> None:
    """F13: A deletion keeps the checkpoints that forks show. An erasure deletes them too, and the fork's next run fails."""
    async with serve(App(agents={"g": one_node(listen)})) as client:
        for n in range(2):
            await say(client, "t", f"{n}")
        first = (await client.runs(thread_id="t")).items[-1]
        await client.fork("t", "fork", first.run_id)
        await client.fork("t", "later")
        await client.delete_thread("t")
        assert (await say(client, "fork", "x")).messages[-1].text == "turn 2: 0|x"
        await client.delete_thread("later")
        await client.fork("fork", "again")
        await client.erase_thread("fork")
        run = await say(client, "again", "y")
        assert run.error is not None and run.error.code == "checkpoint_missing"
        await client.delete_thread("again")
    assert set((await rows(postgres_url)).values()) == {0}


@pytest.mark.parametrize("verb", ["put", "put_writes", "mark"])
async def test_r9_a_lost_write_repeats_no_effect(verb: str, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If any write of the graph fails, before or after it is stored, the next attempt continues."""
    method = getattr(MemoryGraphCheckpointStore, verb)
    app = App()
    app.agent("graph", max_attempts=2)(graph)
    for n in itertools.count():
        calls = itertools.count()

        async def fails(*args: Any, calls: Any = calls, n: int = n) -> Any:
            call = next(calls)
            if call == n // 2 and n % 2 == 0:
                raise ConnectionError("lost")
            result = await method(*args)
            if call == n // 2:
                raise ConnectionError("lost")
            return result

        monkeypatch.setattr(MemoryGraphCheckpointStore, verb, fails)
        notes.unlink(missing_ok=True)
        async with Harness(app) as harness:
            run = await harness.prompt("t", "go")
            if run.run.status == "suspended":
                run = await run.respond("yes")
            assert run.ok, (n, run.error)
            assert [m.role for m in run.messages] == ["user", "assistant", "tool", "assistant"], n
        assert effects(notes) == ["plan", "tool", "read", "write", "review", "publish:yes", "answer"], n
        if next(calls) <= n // 2:
            break
    assert n > 4


async def test_r14_other_backends_say_that_they_have_none() -> None:
    """The HTTP API has no checkpoints of graphs."""
    graphs = HttpBackend(cast(Any, None)).graphs
    with pytest.raises(CapabilityMissingError):
        await graphs.latest(LineRef("t"), "")


async def test_concurrent_turns_and_copies_do_not_mix(saver: RunyardSaver, postgres_url: str) -> None:
    """Two processes write to one thread, and copies are made meanwhile. Every checkpoint is read as it was put."""
    graph = StateGraph(MessagesState)
    graph.add_node("n", lambda state: {"messages": [AIMessage("answer")]})
    graph.add_edge(START, "n")
    async with RunyardSaver(postgres_url) as other:
        await chat(saver).ainvoke({"messages": [HumanMessage("start")]}, config("t"))
        await asyncio.gather(
            *(
                graph.compile(checkpointer=(saver, other)[n % 2]).ainvoke({"messages": [HumanMessage(f"{n}")]}, config("t"))
                for n in range(8)
            ),
            *(saver.acopy_thread("t", f"copy{n}") for n in range(8)),
        )
    async with RunyardSaver(postgres_url) as fresh:
        for thread_id in ("t", *(f"copy{n}" for n in range(8))):
            found = [one async for one in fresh.alist(config(thread_id))]
            assert found
            for one in found:
                values = one.checkpoint["channel_values"]
                assert all(message.id for message in values.get("messages", ()))
                if (parent := one.parent_config) is not None and one.metadata["source"] == "loop":
                    before = await fresh.aget_tuple(parent)
                    assert before is not None
                    known = [m.id for m in before.checkpoint["channel_values"].get("messages", ())]
                    assert [m.id for m in values["messages"]][: len(known)] == known


def test_synchronous_graphs_use_the_same_saver(saver_url: str) -> None:
    """invoke, get_state_history and update_state work without an event loop."""
    with RunyardSaver(saver_url) as saver:
        graph = StateGraph(MessagesState)
        graph.add_node("n", lambda state: {"messages": [AIMessage(f"{len(state['messages'])}")]})
        graph.add_edge(START, "n")
        compiled = graph.compile(checkpointer=saver)
        for text in "ab":
            state = compiled.invoke({"messages": [HumanMessage(text)]}, config("sync"))
        assert [m.content for m in state["messages"]] == ["a", "1", "b", "3"]
        history = [*compiled.get_state_history(config("sync"))]
        assert len(history) == 6
        branch = compiled.update_state(history[3].config, {"messages": [HumanMessage("c")]})
        assert [m.content for m in compiled.invoke(None, branch)["messages"]][:2] == ["a", "1"]


@pytest.fixture
def saver_url(module_postgres_url: str) -> str:
    return module_postgres_url


async def test_a_saver_on_a_client_refuses_to_block_its_loop(postgres_url: str) -> None:
    """A synchronous method raises an error in the client's own event loop, and works in a thread."""
    async with Client.connect(postgres_url) as client:
        saver = RunyardSaver(client)
        await chat(saver).ainvoke({"messages": [HumanMessage("a")]}, config("t"))
        with pytest.raises(RuntimeError, match="such as aput"):
            saver.get_tuple(config("t"))
        assert await asyncio.to_thread(saver.get_tuple, config("t")) is not None
        with pytest.raises(InvalidInputError):
            await saver.aget_tuple(config("a\x00b"))
