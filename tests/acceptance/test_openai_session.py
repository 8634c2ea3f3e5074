"""Tests of sessions of the OpenAI Agents SDK on threads: the protocol, branches, and runs of the SDK (B1, B2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from agents import Agent, RunConfig, Runner, SessionSettings, function_tool, set_tracing_disabled
from agents.memory import Session

from runyard import Client, Message
from runyard.adapters.openai_session import MARKS, RunyardSession
from runyard.errors import InvalidInputError, MessageNotFoundError, ThreadBusyError
from runyard.models import ROOT_ID, ImagePart
from runyard.ports.queries import PathRequest
from runyard.ports.results import Page
from runyard.support import backend_urls
from runyard_api.http.app import asgi_app
from tests.support.openai_models import ItemModel, Items, calls, results, texts

set_tracing_disabled(True)

CALL: dict[str, Any] = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "1"}
REASONING: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def model(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": f"msg_{text}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


@pytest.fixture(params=["memory", "postgres", "http"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url") if request.param == "postgres" else request.param)


@pytest.fixture
async def client(store: str) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if store.startswith("postgresql"):
            yield await stack.enter_async_context(Client.connect(store))
            return
        backend = await backend_urls.connect("memory://")
        stack.push_async_callback(backend.close)
        if store == "memory":
            yield Client(backend)
            return
        transport = httpx.ASGITransport(asgi_app(backend, auth="off"))
        yield await stack.enter_async_context(Client.connect("http://localhost", transport=transport))


@pytest.fixture
def session(client: Client) -> RunyardSession:
    return RunyardSession(client, "t")


class TestProtocol:
    async def test_it_is_a_session(self, session: RunyardSession) -> None:
        assert isinstance(session, Session)
        assert session.session_id == "t"
        assert session.session_settings == SessionSettings()

    async def test_an_unknown_thread_is_an_empty_session(self, session: RunyardSession) -> None:
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.clear_session()
        await session.add_items([])
        assert (await (await session.client()).threads()).items == []

    async def test_items_come_back_as_they_were(self, session: RunyardSession) -> None:
        """Items keep all fields, ids, orders of names and kinds of numbers, even items without a corresponding message."""
        odd: list[dict[str, Any]] = [
            user("hi"),
            {"content": "order", "role": "user"},
            {"type": "message", "role": "developer", "content": "rules"},
            REASONING,
            CALL,
            {**CALL, "call_id": "c2", "arguments": "not json"},
            RESULT,
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]},
            {"type": "computer_call", "id": "cu", "call_id": "c3", "action": {"type": "click", "x": 1, "y": 2.0}},
            {"type": "computer_call_output", "call_id": "c3", "output": {"type": "computer_screenshot", "image_url": "u"}},
            {"type": "of_next_year", "value": 1.0, "deep": [{"x": None}]},
            {"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png", "detail": "low"}]},
            {"type": "mcp_approval_request", "id": "a", "name": "n", "arguments": "{}", "server_label": "s"},
            {"type": "compaction", "id": "cmp", "encrypted_content": "e"},
            model("ümlaut 😀 'quoted' \"; DROP TABLE messages"),
            user(""),
        ]
        await session.add_items(odd)
        found = await session.get_items()
        assert found == odd
        assert [list(item) for item in found] == [list(item) for item in odd]
        for item in odd:
            await session.add_items([item])
        assert await session.get_items() == odd * 2

    async def test_a_model_answer_is_one_message(self, session: RunyardSession) -> None:
        """Agents of other frameworks get a call and its result as parts of messages."""
        await session.add_items([user("go"), REASONING, CALL, RESULT, model("done")])
        path = (await (await session.client()).messages("t")).items
        assert [message.role for message in path] == ["user", "assistant", "tool", "assistant"]
        assert path[1].tool_calls[0].arguments == {"a": 1} and path[2].tool_results[0].content == "1"

    @pytest.mark.parametrize(("limit", "last"), [(None, 7), (0, 0), (-1, 0), (1, 1), (4, 4), (7, 7), (99, 7)])
    async def test_a_limit_is_of_the_latest_items(self, session: RunyardSession, limit: int | None, last: int) -> None:
        items = [user("1"), model("2"), user("3"), REASONING, CALL, RESULT, model("4")]
        await session.add_items(items)
        assert await session.get_items(limit) == items[len(items) - last :]

    async def test_the_settings_have_a_limit(self, client: Client) -> None:
        session = RunyardSession(client, "t", session_settings={"limit": 2})
        await session.add_items([user("1"), user("2"), user("3")])
        assert await session.get_items() == [user("2"), user("3")]
        assert await session.get_items(1) == [user("3")]
        assert await RunyardSession(client, "t", session_settings=SessionSettings(limit=0)).get_items() == []
        with pytest.raises(TypeError):
            RunyardSession(client, "t", session_settings={"limitt": 1})

    async def test_pages(self, session: RunyardSession) -> None:
        items = [user(str(n)) for n in range(230)]
        await session.add_items(items)
        assert await session.get_items() == items
        assert await session.get_items(150) == items[-150:]

    async def test_sessions_are_apart(self, client: Client) -> None:
        one, other = RunyardSession(client, "one"), RunyardSession(client, "other")
        await one.add_items([user("1")])
        await other.add_items([user("2")])
        assert await one.pop_item() == user("1")
        assert await one.get_items() == [] and await other.get_items() == [user("2")]

    async def test_what_is_no_item_is_refused(self, session: RunyardSession) -> None:
        for bad in ["text", 7, {"role": "user", "content": object()}, {"role": "user", "content": float("nan")}]:
            with pytest.raises(InvalidInputError):
                await session.add_items([user("before"), bad])
        assert await session.get_items() == []

    async def test_an_invalid_thread_id_is_refused(self, client: Client) -> None:
        with pytest.raises(InvalidInputError):
            RunyardSession(client, "")


class TestRemoval:
    async def test_pops_are_in_reverse_order(self, session: RunyardSession) -> None:
        items = [user("1"), REASONING, CALL, RESULT, model("2")]
        await session.add_items(items)
        assert [await session.pop_item() for _ in range(6)] == [*reversed(items), None]
        await session.add_items([user("again")])
        assert await session.get_items() == [user("again")]

    async def test_a_popped_item_stays_in_the_thread(self, session: RunyardSession) -> None:
        """The next item begins a branch, and no message is removed."""
        await session.add_items([user("1"), model("2"), user("typo")])
        assert await session.pop_item() == user("typo")
        await session.add_items([user("mended")])
        client = await session.client()
        assert [message.text for message in (await client.messages("t")).items] == ["1", "2", "mended"]
        leaves = (await client.branches("t")).items
        assert sorted([(await client.message("t", leaf.message_id)).text for leaf in leaves]) == ["mended", "typo"]

    async def test_another_session_sees_the_removal(self, session: RunyardSession, client: Client) -> None:
        await session.add_items([user("1"), model("2")])
        await session.pop_item()
        assert await RunyardSession(client, "t").get_items() == [user("1")]
        assert await RunyardSession(client, "t").pop_item() == user("1")
        assert await session.get_items() == []

    async def test_a_pop_inside_an_answer(self, session: RunyardSession) -> None:
        """If one of several items in a message is popped, the other items are part of the new branch."""
        await session.add_items([user("1"), REASONING, CALL])
        assert await session.pop_item() == CALL
        assert await session.get_items() == [user("1"), REASONING]
        assert await session.get_items(1) == [REASONING]
        assert await session.leaf_id() == (await (await session.client()).messages("t")).items[0].id
        await session.add_items([model("2")])
        assert await session.get_items() == [user("1"), REASONING, model("2")]

    async def test_a_clear_begins_another_tree(self, session: RunyardSession) -> None:
        await session.add_items([user("1"), model("2")])
        await session.clear_session()
        assert await session.get_items() == [] and await session.leaf_id() == ROOT_ID
        await session.add_items([user("new"), model("3")])
        assert await session.get_items() == [user("new"), model("3")]
        client = await session.client()
        assert len((await client.branches("t")).items) == 2

    async def test_a_message_of_another_writer_voids_a_removal(self, session: RunyardSession) -> None:
        """A session continues at the end of the head, even if another writer has added a message to the head."""
        await session.add_items([user("1"), model("2")])
        await session.pop_item()
        await (await session.client()).store_message("t", "from elsewhere")
        assert texts(await session.get_items()) == ["1", "2", "from elsewhere"]

    async def test_each_item_is_popped_once(self, client: Client) -> None:
        """Sessions that pop at the same time get different items. Items that are added at the same time are all stored."""
        await asyncio.gather(*(RunyardSession(client, "t").add_items([user(str(n)), model(str(n))]) for n in range(5)))
        items = await RunyardSession(client, "t").get_items()
        popped = await asyncio.gather(*(RunyardSession(client, "t").pop_item() for _ in range(10)))
        assert sorted(map(str, popped)) == sorted(map(str, items)) and len({str(item) for item in popped}) == 10

    async def test_additions_at_once_after_a_pop_are_on_one_branch(self, client: Client) -> None:
        session = RunyardSession(client, "t")
        await session.add_items([user("1"), model("2")])
        await session.pop_item()
        await asyncio.gather(*(RunyardSession(client, "t").add_items([user(f"n{n}")]) for n in range(5)))
        found = texts(await session.get_items())
        assert found[0] == "1" and sorted(found[1:]) == [f"n{n}" for n in range(5)]

    async def test_a_cancelled_addition_is_whole(self, session: RunyardSession) -> None:
        """A cancel waits for the end of the change, because the SDK must know the stored items."""
        adding = asyncio.create_task(session.add_items([user("1"), model("2")]))
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert await session.get_items() == [user("1"), model("2")]

    async def test_a_cancelled_pop_is_whole(self, session: RunyardSession, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cancel that comes while the store works does not undo the pop, of which nobody would know the outcome."""
        await session.add_items([user("1"), model("2")])
        client = await session.client()
        update = client.update_thread

        async def cancelled(*args: Any, **changes: Any) -> Any:
            popping.cancel()
            await asyncio.sleep(0)
            return await update(*args, **changes)

        monkeypatch.setattr(client, "update_thread", cancelled)
        popping = asyncio.create_task(session.pop_item())
        with pytest.raises(asyncio.CancelledError):
            await popping
        assert await session.get_items() == [user("1")]

    async def test_an_addition_at_the_same_moment_is_not_lost(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """B1: Another session adds after this session has read its place. Both additions are on one branch, in order."""
        session, store = RunyardSession(client, "t"), client.store_message
        await session.add_items([user("1"), model("2")])
        await session.pop_item()

        async def late(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(client, "store_message", store)
            await RunyardSession(client, "t").add_items([user("first")])
            return await store(*args, **options)

        monkeypatch.setattr(client, "store_message", late)
        await session.add_items([user("second")])
        assert texts(await session.get_items()) == ["1", "first", "second"]

    async def test_a_clear_at_the_moment_of_an_addition_is_a_clear(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The clear begins again if another session has added an item after the read of the place."""
        session, update = RunyardSession(client, "t"), client.update_thread
        await session.add_items([user("1")])

        async def late(*args: Any, **changes: Any) -> Any:
            monkeypatch.setattr(client, "update_thread", update)
            await RunyardSession(client, "t").add_items([user("2")])
            return await update(*args, **changes)

        monkeypatch.setattr(client, "update_thread", late)
        await session.clear_session()
        assert await session.get_items() == []

    async def test_other_keys_of_extra_stay(self, session: RunyardSession) -> None:
        client = await session.client()
        await client.create_thread("t", extra={"mine": 1})
        await session.add_items([user("1")])
        await session.pop_item()
        extra = (await client.thread("t")).extra
        assert extra["mine"] == 1 and set(extra) == {"mine", MARKS}


class TestBranches:
    @pytest.fixture
    async def session(self, client: Client) -> RunyardSession:
        session = RunyardSession(client, "t")
        for n in "123":
            await session.add_items([user(f"question {n}"), model(f"answer {n}")])
        return session

    async def test_a_turn_is_edited_on_a_branch(self, session: RunyardSession) -> None:
        assert await session.create_branch_from_turn(2, "edited") == "edited"
        assert texts(await session.get_items()) == ["question 1", "answer 1"]
        await session.add_items([user("better question"), model("better answer")])
        await session.switch_to_branch("main")
        assert len(await session.get_items()) == 6
        await session.add_items([user("question 4")])
        await session.switch_to_branch("edited")
        assert texts(await session.get_items()) == ["question 1", "answer 1", "better question", "better answer"]

    async def test_branches_are_listed(self, session: RunyardSession) -> None:
        name = await session.create_branch_from_content("QUESTION 3")
        assert [(branch["branch_id"], branch["is_current"]) for branch in await session.list_branches()] == [
            ("main", False),
            (name, True),
        ]
        await session.add_items([user("other question 3")])
        assert {b["branch_id"]: b["message_count"] for b in await session.list_branches()} == {"main": 6, name: 5}

    async def test_a_branch_by_message(self, session: RunyardSession) -> None:
        client = await session.client()
        path = (await client.messages("t")).items
        await session.create_branch_from_message(path[0].id, "fresh")
        assert await session.get_items() == []
        await session.add_items([user("anew")])
        assert await session.get_items() == [user("anew")]
        with pytest.raises(MessageNotFoundError):
            await session.create_branch_from_message("01a00000-0000-7000-8000-000000000000", "none")

    async def test_sessions_on_two_branches(self, session: RunyardSession, client: Client) -> None:
        await session.create_branch_from_turn(1, "b")
        await session.add_items([user("b1")])
        main, b = RunyardSession(client, "t", branch="main"), RunyardSession(client, "t", branch="b")
        for n in range(3):
            await main.add_items([user(f"main {n}")])
            await b.add_items([user(f"b {n}")])
        assert texts(await main.get_items(3)) == ["main 0", "main 1", "main 2"]
        assert texts(await b.get_items()) == ["b1", "b 0", "b 1", "b 2"]
        assert await b.pop_item() == user("b 2")
        await b.add_items([user("b 3")])
        assert texts(await b.get_items()) == ["b1", "b 0", "b 1", "b 3"]
        assert len(await main.get_items()) == 9

    async def test_a_removal_stays_on_its_branch(self, session: RunyardSession) -> None:
        """A removed item stays removed when the session leaves the branch and returns."""
        await session.pop_item()
        await session.create_branch_from_turn(1, "b")
        await session.switch_to_branch("main")
        assert texts(await session.get_items())[-1] == "question 3"

    async def test_a_branch_loses_its_name_and_not_its_messages(self, session: RunyardSession) -> None:
        await session.create_branch_from_turn(2, "b")
        await session.add_items([user("b1")])
        with pytest.raises(ValueError):
            await session.delete_branch("b")
        await session.delete_branch("b", force=True)
        assert session.branch == "main"
        assert [branch["branch_id"] for branch in await session.list_branches()] == ["main"]
        assert len((await (await session.client()).branches("t")).items) == 2

    async def test_a_branch_that_was_not_begun_is_removed(self, session: RunyardSession) -> None:
        await session.create_branch_from_turn(2, "b")
        await session.switch_to_branch("main")
        await session.delete_branch("b")
        assert [branch["branch_id"] for branch in await session.list_branches()] == ["main"]

    async def test_unknown_names_are_refused(self, session: RunyardSession, client: Client) -> None:
        await session.create_branch_from_turn(2, "b")
        for refused in (
            session.create_branch_from_turn(9),
            session.create_branch_from_content("not there"),
            session.create_branch_from_turn(1, "main"),
            session.create_branch_from_turn(1, " "),
            session.create_branch_from_turn(1, "x" * 65),
            session.switch_to_branch("c"),
            session.delete_branch("main"),
            session.delete_branch("c"),
            RunyardSession(client, "t", branch="c").get_items(),
            RunyardSession(client, "t", branch="c").add_items([user("x")]),
        ):
            with pytest.raises(ValueError):
                await refused

    async def test_turns(self, session: RunyardSession) -> None:
        await session.add_items([user("q" * 101), CALL, RESULT, CALL, RESULT])
        turns = await session.get_conversation_turns()
        assert [turn["turn"] for turn in turns] == [1, 2, 3, 4]
        assert turns[0]["content"] == "question 1" and turns[3]["content"] == "q" * 100 + "..."
        assert turns[3]["full_content"] == "q" * 101 and turns[3]["can_branch"]
        assert [turn["turn"] for turn in await session.find_turns_by_content("Question")] == [1, 2, 3]
        by_turn = await session.get_conversation_by_turns()
        assert by_turn[1] == [{"type": "user", "tool_name": None}, {"type": "assistant", "tool_name": None}]
        assert by_turn[4][1] == {"type": "function_call", "tool_name": "add"}
        assert await session.get_tool_usage() == [("add", 2, 4)]
        assert await session.get_conversation_turns("main") == turns if session.branch else True


class TestRunner:
    async def test_a_conversation_over_several_runs(self, client: Client) -> None:
        seen: list[list[str]] = []

        def answer(items: Items) -> Any:
            seen.append(texts(items))
            if texts(items)[-1] == "sum" and not results(items):
                return [calls("add", "c1", a=1, b=2)]
            return f"{results(items) or 'ok'}"

        @function_tool
        def add(a: int, b: int) -> int:
            return a + b

        agent = Agent(name="a", model=ItemModel(answer, streams=False), tools=[add])
        session = RunyardSession(client, "t")
        await Runner.run(agent, "hello", session=session)
        result = await Runner.run(agent, "sum", session=RunyardSession(client, "t"))
        assert result.final_output == "['3']"
        assert seen[-1] == ["hello", "ok", "sum"]
        assert [item.get("type", item.get("role")) for item in await session.get_items()] == [
            *("user", "message", "user", "function_call", "function_call_output", "message")
        ]
        await Runner.run(agent, [user("a list")], session=session)
        assert seen[-1] == ["hello", "ok", "sum", "['3']", "a list"]
        limited = RunConfig(session_settings=SessionSettings(limit=1))
        await Runner.run(agent, "last", session=session, run_config=limited)
        assert seen[-1] == ["ok", "last"]

    async def test_a_streamed_run(self, client: Client) -> None:
        session = RunyardSession(client, "t")
        agent = Agent(name="a", model=ItemModel(lambda items: f"answer {len(items)}"))
        for n in (1, 3):
            streamed = Runner.run_streamed(agent, "hello", session=session)
            async for _ in streamed.stream_events():
                pass
            assert streamed.final_output == f"answer {n}"
        assert texts(await session.get_items()) == ["hello", "answer 1", "hello", "answer 3"]

    async def test_a_thread_with_a_live_run_is_busy(self, client: Client) -> None:
        """R4: A run of a worker and a run of the SDK do not write to one branch at the same time."""
        await client.enqueue("t", "go", "r")
        with pytest.raises(ThreadBusyError):
            await RunyardSession(client, "t").add_items([user("meanwhile")])


@pytest.mark.parametrize("length", [40, 400])
async def test_a_read_takes_each_message_once(
    client: Client, session: RunyardSession, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call reads the end of the thread, and one call all items. With a limit, a call reads up to 100 messages."""
    await session.add_items([user(f"{n}") for n in range(length)])
    sizes: list[int] = []
    read = client.backend.threads.messages

    async def counted(thread_id: str, path: PathRequest) -> Page[Message]:
        page = await read(thread_id, path)
        sizes.append(len(page.items))
        return page

    monkeypatch.setattr(client.backend.threads, "messages", counted)
    assert len(await session.get_items()) == length
    assert sizes == [1, length]
    sizes.clear()
    assert len(await session.get_items(length - 1)) == length - 1
    assert sum(sizes) <= length + 1 and len(sizes) == 1 + -(-length // 100)


async def test_a_message_without_items_does_not_shorten_a_read(client: Client, session: RunyardSession) -> None:
    await session.add_items([user("first")])
    for _ in range(5):
        await client.store_message("t", Message(role="system", content=[ImagePart(data="QUJD")]))
    assert texts(await session.get_items(1)) == ["first"]


async def test_a_session_connects_by_url(postgres_url: str) -> None:
    async with RunyardSession(postgres_url, "t") as session:
        await session.add_items([user("1")])
    again = RunyardSession(postgres_url, "t")
    assert await again.get_items() == [user("1")]
    await again.close()
    assert await again.pop_item() == user("1")
    await again.close()


def test_a_session_on_a_url_works_in_every_event_loop(postgres_url: str) -> None:
    """asyncio.run and Runner.run_sync make event loops. One session serves them one after another, and two at once."""
    session = RunyardSession(postgres_url, "t")

    async def add(text: str) -> int:
        try:
            await session.add_items([user(text)])
            await asyncio.gather(*(session.add_items([user(f"{text}{n}")]) for n in range(3)))
            return len(await session.get_items())
        finally:
            await session.close()

    assert [asyncio.run(add(text)) for text in "ab"] == [4, 8]
    with ThreadPoolExecutor(2) as threads:
        counts = [*threads.map(lambda text: asyncio.run(add(text)), "cd")]
    assert max(counts) == 16
    agent = Agent(name="a", model=ItemModel(lambda items: f"{len(items)} items"))
    result = Runner.run_sync(agent, "go", session=session)
    assert result.final_output == "17 items"
    asyncio.get_event_loop_policy().get_event_loop().run_until_complete(session.close())


@pytest.mark.parametrize("method", ["run", "run_streamed"])
class TestRunnerMethods:
    """What the SDK's documents say of a session, for both methods of its Runner."""

    @staticmethod
    async def go(method: str, agent: Agent, said: Any, **how: Any) -> list[dict[str, Any]]:
        """Run the agent. Return the items that the model got."""
        seen: list[Items] = []

        def answer(items: Items) -> str:
            seen.append(items)
            return f"answer {len(items)}"

        agent = agent.clone(model=ItemModel(answer))
        if method == "run":
            await Runner.run(agent, said, **how)
        else:
            async for _ in Runner.run_streamed(agent, said, **how).stream_events():
                pass
        return seen[0]

    async def test_sessions_have_separate_histories(self, client: Client, method: str) -> None:
        agent, one, other = Agent(name="a"), RunyardSession(client, "t"), RunyardSession(client, "u")
        await self.go(method, agent, "cats", session=one)
        await self.go(method, agent, "dogs", session=other)
        assert texts(await self.go(method, agent, "which?", session=one)) == ["cats", "answer 1", "which?"]
        assert texts(await self.go(method, agent, "which?")) == ["which?"]

    async def test_a_callback_chooses_the_input_of_the_model(self, session: RunyardSession, method: str) -> None:
        """The callback gets the history and the new items. The session stores the new items, and not the history again."""

        def last_user(history: list[Any], new: list[Any]) -> list[Any]:
            return [item for item in history if item.get("role") == "user"][-1:] + new

        await session.add_items([user("first"), model("hello"), user("second"), model("again")])
        seen = await self.go(
            method, Agent(name="a"), [user("third")], session=session, run_config=RunConfig(session_input_callback=last_user)
        )
        assert texts(seen) == ["second", "third"]
        assert texts(await session.get_items()) == ["first", "hello", "second", "again", "third", "answer 2"]

    async def test_settings_of_a_run_limit_the_history(self, session: RunyardSession, method: str) -> None:
        await session.add_items([user("1"), model("2"), user("3"), model("4")])
        config = RunConfig(session_settings=SessionSettings(limit=2))
        assert texts(await self.go(method, Agent(name="a"), "5", session=session, run_config=config)) == ["3", "4", "5"]
        assert len(await session.get_items()) == 6


async def test_messages_of_other_writers_are_items(postgres_url: str) -> None:
    """The messages of a worker's run, or of any client, are items of a session."""
    async with Client.connect(postgres_url) as client:
        await client.store_message("t", Message.user("hi"))
        await client.store_message("t", {"role": "assistant", "content": "hello"}, format="openai")
        session = RunyardSession(client, "t")
        assert texts(await session.get_items()) == ["hi", "hello"]
        assert (await session.pop_item())["role"] == "assistant"
