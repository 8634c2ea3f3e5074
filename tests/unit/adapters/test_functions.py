"""Agents of an App that are plain functions of messages."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import Any

import pytest

from runyard import App, Message, current_run
from runyard.adapters.functions import SYNC_THREADS, message_agent
from runyard.errors import InvalidBlobError, InvalidInputError
from runyard.testing import Harness, HarnessRun


async def run(fn: Any, prompt: str = "hi", **options: Any) -> HarnessRun:
    async with Harness(message_agent(fn, **options)) as harness:
        return await harness.prompt("t", prompt)


async def _awaited(messages: list[Message]) -> str:
    return f"to {messages[-1].text}"


class Callable:
    async def __call__(self, messages: list[Message]) -> Message:
        return Message.assistant("an object")


@pytest.mark.parametrize(
    ("fn", "texts"),
    [
        (lambda messages: "text", ["text"]),
        (lambda messages: Message.assistant("message"), ["message"]),
        (lambda messages: [Message.assistant("one"), "two"], ["one", "two"]),
        (lambda messages: [*messages, Message.assistant("after")], ["after"]),
        (lambda messages: (*messages, "a tuple"), ["a tuple"]),
        (lambda messages: messages.append(Message.assistant("in place")) or messages, ["in place"]),
        (lambda messages: None, []),
        (lambda messages: [], []),
        (lambda messages: messages, []),
        (lambda messages: _awaited(messages), ["to hi"]),
        (_awaited, ["to hi"]),
        (Callable(), ["an object"]),
    ],
)
async def test_what_a_function_may_return(fn: Any, texts: list[str]) -> None:
    done = await run(fn)
    assert done.ok, done.error
    assert [message.text for message in done.messages[1:]] == texts


async def test_sync_functions_have_threads_of_their_own() -> None:
    """L6: functions that block all of them leave the threads of the loop free, which resolve names of servers."""
    free, blocked = threading.Event(), threading.Barrier(SYNC_THREADS + 1)

    def block(messages: list[Message]) -> str:
        if messages[-1].text == "last":
            return "after the others"
        blocked.wait(30)
        free.wait(30)
        return "ok"

    async with Harness(message_agent(block)) as harness:
        handles = [await harness.client.enqueue(f"t{n}", "hi") for n in range(SYNC_THREADS)]
        await asyncio.to_thread(blocked.wait, 30)
        last = await harness.client.enqueue("last", "last")
        assert await asyncio.to_thread(lambda: "free") == "free"
        assert not (await last.run()).ended
        free.set()
        assert (await last.result()).text == "after the others"
        assert {(await handle.result()).text for handle in handles} == {"ok"}


async def test_a_sync_function_is_executed_in_a_thread() -> None:
    """The function has the run's context in the thread, and does not block the worker."""
    seen: list[Any] = []

    def answer(messages: list[Message]) -> str:
        seen.append((threading.current_thread() is threading.main_thread(), current_run().thread_id))
        return "ok"

    assert (await run(answer)).ok and seen == [(False, "t")]


async def test_a_function_in_the_format_of_a_provider() -> None:
    seen: list[Any] = []

    def answer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen.append([*messages])
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return [
            *messages,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "4"},
            {"role": "assistant", "content": "done"},
        ]

    async with Harness(message_agent(answer, format="openai")) as harness:
        first = await harness.prompt("t", "one")
        await harness.prompt("t", "two")
    assert [message.role for message in first.messages] == ["user", "assistant", "tool", "assistant"]
    assert seen[0] == [{"role": "user", "content": "one"}]
    assert seen[1] == [*answer_of(seen[0]), {"role": "user", "content": "two"}]


def answer_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [*messages, calling, {"role": "tool", "tool_call_id": "c", "content": "4"}, {"role": "assistant", "content": "done"}]


@pytest.mark.parametrize("bad", [7, {"role": "assistant", "content": "x"}, [object()], b"bytes"])
async def test_anything_else_fails_the_run_and_says_so(bad: Any) -> None:
    done = await run(lambda messages: bad)
    assert not done.ok and "return texts or runyard Messages" in done.run.error.message


@pytest.mark.parametrize("format", [None, "openai"])
@pytest.mark.parametrize("copied", [False, True])
async def test_given_messages_after_a_system_message_fail_the_run(format: Any, copied: bool) -> None:
    """They would be stored twice. The error says what to return."""

    def answer(messages: list[Any]) -> list[Any]:
        system: Any = {"role": "system", "content": "be kind"} if format else Message(role="system", content="be kind")
        reply: Any = {"role": "assistant", "content": "hi"} if format else Message.assistant("hi")
        return [system, *(copy.deepcopy(messages) if copied else messages), reply]

    done = await run(answer, format=format)
    assert not done.ok and done.run.error.code == InvalidInputError.code
    assert "return only the new messages" in done.run.error.message
    assert [message.text for message in done.messages] == ["hi"]


async def test_a_part_of_the_given_messages_fails_the_run() -> None:
    """A function that shortens the conversation for its model returns a part of it."""
    async with Harness(message_agent(lambda messages: [*messages[-1:], "next"], format="openai")) as harness:
        assert not (await harness.prompt("t", "one")).run.error
        assert "return only the new messages" in (await harness.prompt("t", "two")).run.error.message


async def test_an_answer_may_repeat_an_earlier_answer() -> None:
    async with Harness(message_agent(lambda messages: [{"role": "assistant", "content": "ok"}], format="openai")) as harness:
        for _ in range(2):
            assert (await harness.prompt("t", "go")).ok


async def test_an_invalid_object_of_the_format_fails_the_run() -> None:
    done = await run(lambda messages: {"role": "nobody", "content": "x"}, format="openai")
    assert not done.ok and done.run.error.code == InvalidBlobError.code


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidInputError):
        message_agent("no function")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        message_agent(_awaited, format="no format")  # type: ignore[arg-type]
    assert App({"f": message_agent(_awaited, asks_humans=True)})["f"].hitl
