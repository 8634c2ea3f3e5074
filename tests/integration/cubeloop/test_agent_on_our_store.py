"""Agents of cubeloop and cubepi with runyard's checkpointer (R13 to R15, R17, H1 to H8, F1 to F10)."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from runyard import Client
from runyard.adapters.cubeloop_checkpointer import RunyardCheckpointer
from runyard.adapters.cubeloop_requests import STATE
from runyard.errors import HitlInvalidAnswerError, InvalidInputError
from runyard.models import HitlRequest, Message, ToolCallPart, ToolResultPart
from tests.support.cubeloop_packages import NAMES, Package, asked, asking


@pytest.fixture
def cp(client: Client, package: Package) -> RunyardCheckpointer:
    return RunyardCheckpointer(client, package=package.name)


def dumps(messages: list[Any]) -> list[Any]:
    return [message.model_dump() for message in messages]


def texts(messages: list[Any]) -> list[str]:
    return ["".join(getattr(part, "text", "") for part in message.content) for message in messages]


async def test_prompt_restart_and_go_on(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """R15: Another process loads every field of the first process's messages. runyard's readers see the same conversation."""
    provider = package.provider
    agent = package.agent(
        package.calls_for(("c1", "add", {"a": 1, "b": 2})),
        package.says("three"),
        package.says("yes", stop_reason="my own reason"),
        provider=provider,
        tools=[package.add()],
        checkpointer=cp,
        thread_id="t",
    )
    first = await agent.prompt("1 + 2?")
    again = package.agent(provider=provider, tools=[package.add()], checkpointer=cp, thread_id="t")
    second = await again.prompt("sure?", run_id="r2")
    loaded = await cp.load("t")
    assert loaded is not None
    assert dumps(loaded.messages) == dumps(again.state.messages) and again.state.error_message is None
    assert [message.run_id for message in loaded.messages] == [first] * 4 + [second] * 2
    usage = loaded.messages[-1].usage
    assert usage is not None and usage.cache_read_tokens > 0 and loaded.messages[-1].stop_reason == "my own reason"
    seen = (await client.messages("t")).items
    assert [message.role for message in seen] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert seen[1].tool_calls == [ToolCallPart(id="c1", name="add", arguments={"a": 1, "b": 2})]
    assert seen[2].tool_results == [ToolResultPart(call_id="c1", name="add", content="3")]
    assert seen[5].usage is not None and seen[5].usage.output_tokens == usage.output_tokens
    assert (await client.run("t", "r2")).kind == "external"


def channel(package: Package, cp: RunyardCheckpointer, run_id: str = "r1") -> Any:
    return package.hitl.CheckpointedChannel(checkpointer=cp, thread_id="t", run_id=run_id)


def asker(package: Package, cp: RunyardCheckpointer, provider: Any, *responses: Any, **fields: Any) -> tuple[Any, Any]:
    own = channel(package, cp)
    tools = [package.hitl.ask_user_tool(own), package.add()]
    made = package.agent(*responses, provider=provider, tools=tools, checkpointer=cp, thread_id="t", channel=own, **fields)
    return made, own


async def suspended(package: Package, cp: RunyardCheckpointer, provider: Any, *answers: Any) -> None:
    """Prompt the agent until it asks. Then detach from the agent, like a process that ends."""
    agent, own = asker(package, cp, provider, package.calls_for(("c1", "ask_user", asking())), *answers)
    running = asyncio.create_task(agent.prompt("go", run_id="r1"))
    while own.pending is None or await cp.load_pending("t") is None:
        assert not running.done(), agent.state.error_message
        await asyncio.sleep(0)
    await agent.detach()
    assert await running == "r1"


async def test_suspend_restart_respond(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """H1, H5, H10: The question is in the inbox. Another process answers it. The run continues under its id."""
    provider = package.provider
    await suspended(package, cp, provider, package.says("thanks"))
    loaded = await cp.load_pending("t")
    assert loaded is not None and loaded[1] == "r1" and await cp.load_pending_run_id("t") == "r1"
    [question] = (await client.requests()).items
    assert (question.thread_id, question.run_id, question.kind, question.payload["question"]) == (
        "t",
        "r1",
        "question",
        "Which?",
    )
    other, _ = asker(package, cp, provider)
    await other.respond(answer={"k": "blue"})
    assert other.state.error_message is None and texts(other.state.messages)[-1] == "thanks"
    assert await cp.load_pending("t") is None and (await client.requests()).items == []
    [done] = (await client.requests(pending=False)).items
    assert (done.answer, done.answered_by) == ({"k": "blue"}, "cubeloop")
    assert (await client.run("t", "r1")).completion_seq == 1
    assert STATE not in (await client.thread("t")).extra


async def test_answer_from_the_inbox_reaches_the_agent(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """H3, H6, H10: The answer from the inbox stays valid. A restarted program reads the answer and continues."""
    provider = package.provider
    await suspended(package, cp, provider, package.says("thanks"))
    assert await cp.answered("t") is None
    await client.respond("t", {"k": "red"}, answered_by="ann")
    found = await cp.answered("t")
    assert found is not None and found[1] == {"k": "red"}
    assert await cp.load_hitl_answer("t", found[0], run_id="r1") == {"k": "red"}
    other, _ = asker(package, cp, provider)
    with pytest.raises(package.hitl.HitlStaleAnswer, match="ann"):
        await other.respond(answer={"k": "green"})
    other, _ = asker(package, cp, provider)
    await other.respond(question_id=found[0], answer=found[1])
    assert '"red"' in texts(other.state.messages)[-2] and texts(other.state.messages)[-1] == "thanks"
    assert await cp.answered("t") is None


async def test_answer_from_the_inbox_is_delivered_to_a_waiting_agent(
    cp: RunyardCheckpointer, package: Package, client: Client
) -> None:
    agent, own = asker(package, cp, package.provider, package.calls_for(("c1", "ask_user", asking())), package.says("thanks"))
    running = asyncio.create_task(agent.prompt("go", run_id="r1"))
    await asked(cp, "t", running)
    delivered = asyncio.create_task(cp.deliver("t", own, every=0.01))
    await client.respond("t", {"k": "red"})
    assert await delivered and await running == "r1"
    assert texts(agent.state.messages)[-1] == "thanks" and not await cp.deliver("t", own)


async def test_approval_in_runyards_form(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """H9: A human edits the arguments of a call in the inbox. The inbox refuses an answer that is not a decision."""
    provider, own = package.provider, channel(package, cp)
    gate = package.hitl.ConfirmToolCallMiddleware(own, require_confirm=["add"])
    fields = {"tools": [package.add()], "middleware": [gate], "checkpointer": cp, "thread_id": "t", "channel": own}
    answers = (package.calls_for(("c1", "add", {"a": 1, "b": 2})), package.says("done"))
    agent = package.agent(*answers, provider=provider, **fields)
    running = asyncio.create_task(agent.prompt("go", run_id="r1"))
    await asked(cp, "t", running)
    await agent.detach()
    await running
    [question] = (await client.requests()).items
    assert question.kind == "approval" and question.payload["tool_call"] == {
        "type": "tool_call",
        "id": "c1",
        "name": "add",
        "arguments": {"a": 1, "b": 2},
    }
    with pytest.raises(HitlInvalidAnswerError):
        await client.respond("t", "maybe")
    await client.respond("t", {"approved": True, "arguments": {"a": 5, "b": 6}})
    found = await cp.answered("t")
    assert found == ("c1", package.hitl.ApproveAnswer(decision="edit", edited_args={"a": 5, "b": 6}))
    again = package.agent(provider=provider, **{**fields, "channel": own})
    await again.respond(answer=found[1])
    assert package.calls == [(5, 6)] and texts(again.state.messages)[-2:] == ["11", "done"]


async def test_fork_and_fork_once(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """F1 to F4, F9: A fork shows the completed runs, in constant time. A probe writes no message."""
    provider = package.provider
    agent = package.agent(*(package.says(f"answer {n}") for n in range(4)), provider=provider, checkpointer=cp, thread_id="t")
    for n in range(2):
        await agent.prompt(f"question {n}", run_id=f"r{n}")
    await cp.save_extra("t", {"colour": "blue"})
    await cp.claim_run("t", "open")
    await cp.append("t", [package.user("in flight", run_id="open")])
    await agent.fork("t", "u", after_run_id="r0", metadata={"label": "branch"})
    fork = await cp.load("u")
    assert fork is not None and (texts(fork.messages), fork.parent_thread_id) == (["question 0", "answer 0"], "t")
    assert fork.extra["fork"] == {"label": "branch"}
    probe = await agent.fork_once("t", "what if?", after_run_id="r1")
    assert (probe.text, probe.stop_reason, len(probe.messages)) == ("answer 2", "stop", 2)
    on_fork = package.agent(provider=provider, checkpointer=cp, thread_id="u")
    await on_fork.prompt("go on")
    assert texts(on_fork.state.messages) == ["question 0", "answer 0", "go on", "answer 3"]
    source = await cp.load("t")
    assert source is not None and len(source.messages) == 5
    with pytest.raises(package.errors.ThreadAlreadyExistsError):
        await agent.fork("t", "u", after_run_id="r0")
    with pytest.raises(package.errors.RunNotCompletedError):
        await agent.fork("t", "v", after_run_id="open")
    with pytest.raises(package.errors.ThreadNotFoundError):
        await agent.fork_once("nowhere", "?", after_run_id="r0")
    with pytest.raises(package.errors.RunAlreadyCompletedError):
        await on_fork.checkpointer.claim_run("u", "r0")
    with pytest.raises(package.errors.RunAlreadyClaimedError):
        await cp.claim_run("t", "open")
    with pytest.raises(package.errors.RunNotClaimedError):
        await cp.mark_run_complete("t", "never")


async def test_forks_inherit_no_question_and_no_answer(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """I6: Answers belong to the thread, even if a fork has a run with the same id."""
    await cp.claim_run("t", "r0")
    await cp.append("t", [package.user("hi", run_id="r0")])
    question = package.hitl.HitlRequest(
        question_id="q.0", thread_id="t", payload=package.hitl.ConfirmRequest(prompt="Go?"), created_at=1.0
    )
    await cp.save_pending_request("t", question, run_id="r1")
    await cp.save_hitl_answer("t", "q.0", True, run_id="r1")
    await cp.mark_run_complete("t", "r0")
    await cp.fork("t", "u", after_run_id="r0")
    assert await cp.load_hitl_answer("t", "q.0", run_id="r1") is True and await cp.load_pending("t") == (question, "r1")
    assert await cp.load_hitl_answer("u", "q.0", run_id="r1") is None and await cp.load_pending("u") is None
    fork = await cp.load("u")
    assert fork is not None and fork.extra == {} == await cp.load_extra("u")
    await cp.save_pending_request("u", question, run_id="r1")  # the same question id in another thread
    assert len((await client.requests()).items) == 1 and await cp.load_pending("u") == (question, "r1")
    await cp.clear_hitl_answers("t", run_id="r1")
    await cp.save_pending_request("t", None)
    await cp.clear_hitl_answers("t", run_id="r1")
    assert await cp.load_hitl_answer("t", "q.0", run_id="r1") is None and await cp.load_pending("u") is not None


async def test_clear_pending_request_if_matches(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """Only the given question of the given run is cleared, and only once. It may be answered or not."""

    def question(n: int) -> Any:
        payload = package.hitl.ConfirmRequest(prompt="Go?")
        return package.hitl.HitlRequest(question_id=f"q.{n}", thread_id="t", payload=payload, created_at=float(n))

    clear = cp.clear_pending_request_if_matches
    assert not await clear("nowhere", question_id="q.0", run_id="r")
    await cp.save_pending_request("t", question(0), run_id="r")
    assert not await clear("t", question_id="q.1", run_id="r") and not await clear("t", question_id="q.0", run_id="s")
    both = await asyncio.gather(*(clear("t", question_id="q.0", run_id="r") for _ in range(2)))
    assert sorted(both) == [False, True]
    assert await cp.load_pending("t") is None and (await client.requests("t")).items == []
    await cp.save_pending_request("t", question(1), run_id="r")
    await cp.save_hitl_answer("t", "q.1", False, run_id="r")
    assert await clear("t", question_id="q.1", run_id="r") and await cp.load_pending("t") is None
    await cp.save_pending_request("t", question(2), run_id="r")
    assert not await clear("t", question_id="q.1", run_id="r") and await cp.load_pending("t") == (question(2), "r")


async def test_one_pending_request_is_removed(client: Client) -> None:
    """R14: Another request, an answered request and another tenant's request are not removed."""
    store: Any = client.backend.checkpointer
    await store.save_requests("t", [HitlRequest(request_id=name) for name in ("a", "b", "c")], run_id="r")
    await store.answer_request("t", "yes", request_id="c")
    other: Any = client.backend.for_tenant("other").checkpointer
    assert [await other.remove_request("t", "a"), await store.remove_request("u", "a")] == [False, False]
    assert [await store.remove_request("t", name) for name in ("a", "a", "c")] == [True, False, False]
    assert [request.request_id for request in await store.load_requests("t", run_id="r")] == ["b", "c"]


async def test_abort_pending_closes_the_conversation(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """H8: Another process aborts the waiting run. The run gets results and a last message, and cannot be forked."""
    provider = package.provider
    await suspended(package, cp, provider)
    other, _ = asker(package, cp, provider)
    calls = provider.call_count
    await other.abort_pending("changed my mind")
    await other.abort_pending("again")
    loaded = await cp.load("t")
    assert loaded is not None and texts(loaded.messages)[-2:] == [
        "aborted: changed my mind",
        "Conversation aborted: changed my mind",
    ]
    assert loaded.messages[-1].stop_reason == "aborted" and provider.call_count == calls
    assert await cp.load_pending("t") is None and (await client.requests("t")).items == []
    with pytest.raises(package.errors.RunNotCompletedError):
        await cp.snapshot("t", after_run_id="r1")


async def test_crash_after_the_answer_leaves_the_question_resumable(cp: RunyardCheckpointer, package: Package) -> None:
    """H6: The process dies after the answer is stored and before the tool's result. Another process resumes with the answer."""
    provider = package.provider
    await suspended(package, cp, provider, package.says("thanks"))
    loaded = await cp.load_pending("t")
    assert loaded is not None
    await cp.save_hitl_answer("t", loaded[0].question_id, {"k": "x"}, run_id="r1")
    assert await cp.load_pending("t") == loaded
    other, _ = asker(package, cp, provider)
    await other.respond(answer={"k": "x"})
    assert texts(other.state.messages)[-1] == "thanks"


async def test_repeated_appends_are_stored_once(cp: RunyardCheckpointer, package: Package) -> None:
    """A message with an id, a time or a response id is stored once. Equal messages without these fields are stored twice."""
    assistant = package.module("providers.base").AssistantMessage(content=[], response_id="resp_1", run_id="r")
    timed = package.user("hi", run_id="r", timestamp=1.5)
    await cp.claim_run("t", "r")
    for _ in range(2):
        await cp.append("t", [timed, assistant])
    bare = [package.user("yes"), package.user("yes")]
    await cp.append("t", bare)
    loaded = await cp.load("t")
    assert loaded is not None and dumps(loaded.messages) == dumps([timed, assistant, *bare])
    if package.name == "cubeloop":
        host = package.user("mine", id="message-1")
        plain = package.user("yours", id=uuid4().hex)
        for _ in range(2):
            await cp.append("t", [host, plain])
        loaded = await cp.load("t")
        assert loaded is not None and [m.id for m in loaded.messages[4:]] == ["message-1", plain.id]


async def test_bulk_append_is_whole(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    many = [package.user(f"{n}", timestamp=float(n)) for n in range(1200)]
    await cp.append("t", many)
    loaded = await cp.load("t")
    assert loaded is not None and texts(loaded.messages) == [str(n) for n in range(1200)]
    await cp.claim_run("t", "r")
    await cp.mark_run_complete("t", "r")
    with pytest.raises(package.errors.RunAlreadyCompletedError):
        await cp.append("t", [package.user("new"), package.user("late", run_id="r")])
    assert len((await client.messages("t")).items) == 1200


async def test_messages_of_others_are_converted(cp: RunyardCheckpointer, package: Package, client: Client) -> None:
    """Messages of another agent or client become messages of the package. Each tool result becomes a message."""
    calls = [ToolCallPart(id=f"c{n}", name="look", arguments={}) for n in range(2)]
    results = [ToolResultPart(call_id=f"c{n}", content={"n": n}) for n in range(2)]
    for message in (
        Message(role="system", content="be brief"),
        Message.user("hi"),
        Message.assistant(calls, stop_reason="tool_calls"),
        Message.tool(*results),
        Message.assistant("done"),
    ):
        await client.store_message("t", message)
    loaded = await cp.load("t")
    assert loaded is not None
    assert [message.role for message in loaded.messages] == [
        "user",
        "user",
        "assistant",
        "tool_result",
        "tool_result",
        "assistant",
    ]
    assert loaded.messages[0].metadata["synthetic"] is True
    assert [(m.tool_name, texts([m])) for m in loaded.messages[3:5]] == [("look", ['{"n":0}']), ("look", ['{"n":1}'])]


async def test_an_import_package_is_chosen_and_needed(client: Client) -> None:
    """A program that has imported both packages must choose a package. An unknown package is refused."""
    assert [Package(name).module().__name__ for name in NAMES] == list(NAMES)
    with pytest.raises(InvalidInputError, match="package="):
        RunyardCheckpointer(client)
    with pytest.raises(InvalidInputError, match="cubeloop, cubepi"):
        RunyardCheckpointer(client, package="other")
    closed = RunyardCheckpointer("memory://", package="cubepi")
    with pytest.raises(InvalidInputError, match="async with"):
        await closed.load("t")
    async with closed as opened:
        assert await opened.load("t") is None
