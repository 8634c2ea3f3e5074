"""The end of a long history: how much of it is read, and where a window begins."""

from __future__ import annotations

from typing import Any

import pytest

from runyard import App, RunContext
from runyard.errors import InvalidInputError
from runyard.execution import transcript
from runyard.execution.history_window import MEDIA_TOKENS, SEARCHED_MESSAGES, estimated_tokens, page_of, read_window
from runyard.models import ImagePart, Message, TextPart, ToolCallPart, ToolResultPart
from runyard.testing import Harness
from tests.support.attempt_lab import Lab

HISTORY = [Message.user(f"{n}" * 40, run_id=f"r{n}", seq=n) for n in range(10)]


def calling(*ids: str, run_id: str = "tools") -> Message:
    return Message.assistant([ToolCallPart(id=id, name="look", arguments={}) for id in ids], run_id=run_id)


def seen(id: str, content: Any = "seen", run_id: str = "tools") -> Message:
    return Message.tool(ToolResultPart(call_id=id, content=content), run_id=run_id)


class Pages:
    """A store. ``read``: the sizes of the pages that were read. ``page``: the maximum size of a page."""

    def __init__(self, messages: list[Message], page: int = 100) -> None:
        self.messages, self.page, self.read = messages, page, list[int]()

    async def __call__(self, limit: int, before: Message | None) -> list[Message]:
        found = page_of(self.messages, min(limit, self.page), before)
        self.read.append(len(found))
        return found


@pytest.mark.parametrize("page", [1, 2, 100])
@pytest.mark.parametrize("last", [1, 3, 10, 11])
async def test_the_last_messages(last: int, page: int) -> None:
    """Only these messages are read."""
    pages = Pages(HISTORY, page)
    assert await read_window(pages, last, None) == HISTORY[-last:]
    assert sum(pages.read) == min(last, 10)


async def test_a_number_of_tokens() -> None:
    """Each message has 14 tokens. At least one message is returned."""
    for most, count in ((1, 1), (14, 1), (27, 1), (28, 2), (139, 9), (140, 10), (1000, 10)):
        assert await read_window(Pages(HISTORY, 3), None, most) == HISTORY[-count:]
    assert await read_window(Pages(HISTORY), 2, 1000) == HISTORY[-2:]
    assert await read_window(Pages(HISTORY), 5, 28) == HISTORY[-2:]
    assert await read_window(Pages([]), 5, 28) == []


@pytest.mark.parametrize("page", [1, 2, 100])
async def test_a_window_begins_before_a_tool_cycle(page: int) -> None:
    """I7: It has the call of each of its results."""
    cycle = [calling("a", "b"), seen("a"), seen("b")]
    history = [*HISTORY, *cycle, Message.assistant("done", run_id="tools")]
    assert [len(await read_window(Pages(history, page), last, None)) for last in (1, 2, 3, 4, 5)] == [1, 4, 4, 4, 5]
    assert await read_window(Pages(history[:-1], page), 1, None) == cycle
    assert await read_window(Pages(history[:-1], page), None, 1) == cycle
    assert await read_window(Pages(history[-3:], page), 2, None) == history[-2:], "the history lacks the call"


async def test_messages_of_a_run_are_together() -> None:
    """S5. A window is cut in the order of storing. Each run is at the place of its first message in the window."""
    history = [
        Message.user(text, run_id=run) for text, run in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("c", None), ("b2", "b"))
    ]
    window = await read_window(Pages(history), 4, None)
    assert [message.text for message in window] == ["b1", "b2", "a2", "c"]


@pytest.mark.parametrize("page", [1, 2, 100])
async def test_i7_a_window_has_the_calls_of_results_behind_messages_of_others(page: int) -> None:
    between = Message.user("y?", run_id="y")
    history = [*HISTORY, calling("c", run_id="x"), between, seen("c", run_id="x"), Message.assistant("x!", run_id="x")]
    for last in (2, 3, 4):
        window = await read_window(Pages(history, page), last, None)
        assert window == [history[-4], history[-2], history[-1], between]
    history[-4:] = [calling("c", run_id="r"), Message.user("none"), seen("c", run_id="r")]
    assert await read_window(Pages(history, page), 1, None) == [history[-3], history[-1], history[-2]]
    assert await read_window(Pages(history, page), None, 1) == [history[-3], history[-1], history[-2]]


async def test_the_call_of_a_result_is_sought_in_few_reads() -> None:
    history = [*(Message.user(f"{n}") for n in range(5_000)), seen("c")]
    pages = Pages(history, 10_000)
    assert await read_window(pages, 1, None) == history[-1:] and len(pages.read) < 15


async def test_i7_the_call_of_a_result_is_a_call_of_the_same_run() -> None:
    """I7: External runs may use the same ids of calls. A repaired fork answers a call with a result without a run."""
    both = [calling("c", run_id="x"), calling("c", run_id="y"), seen("c", run_id="x"), seen("c", run_id="y")]
    assert len(await read_window(Pages(both), 1, None)) == 4
    repaired = [*HISTORY, calling("c"), Message.tool(ToolResultPart(call_id="c", content="closed"))]
    assert await read_window(Pages(repaired), 1, None) == repaired[-2:]


@pytest.mark.parametrize("bound", [{"last": 3, "max_tokens": None}, {"last": None, "max_tokens": 3 * 14}])
async def test_a_result_without_a_call_does_not_make_the_window_the_whole_history(bound: dict[str, Any]) -> None:
    long = [Message.user(f"{n:040}", run_id=f"r{n}", seq=n) for n in range(2 * SEARCHED_MESSAGES)]
    pages = Pages([*long, seen("never", "s" * 40, run_id="r"), *HISTORY[:2]])
    assert len(await read_window(pages, **bound)) == 3
    assert sum(pages.read) <= SEARCHED_MESSAGES + 200


def test_the_estimate_counts_every_part() -> None:
    assert estimated_tokens(Message.user("x" * 9)) == 4 + 3
    assert estimated_tokens(calling("a")) == 4 + 2
    assert estimated_tokens(seen("a", "x" * 8)) == 4 + 2
    assert estimated_tokens(seen("a", {"k": [1, 2]})) == 4 + 4
    media = ImagePart(url="https://example.com/x.png")
    assert estimated_tokens(Message.user([TextPart(text="abcd"), media])) == 4 + 1 + MEDIA_TOKENS
    parts = ToolResultPart(call_id="a", content=[{"type": "text", "text": "abcd"}, media.model_dump()], has_parts=True)
    assert estimated_tokens(Message.tool(parts)) == 4 + 1 + MEDIA_TOKENS


async def test_an_agent_reads_the_end_of_its_history() -> None:
    """It has held messages, which are not stored yet, and leaves the whole history as it was."""
    app = App()
    found: dict[str, list[str]] = {}

    @app.agent
    async def windowed(ctx: RunContext) -> None:
        found["early"] = [m.text for m in await ctx.history(last=2)]
        await ctx.append(Message.assistant("held 1"), Message.assistant("held 2"))
        for last in (1, 2, 3, 5):
            found[f"{last}"] = [m.text for m in await ctx.history(last=last)]
        found["tokens"] = [m.text for m in await ctx.history(max_tokens=12)]
        found["whole"] = [m.text for m in await ctx.history()]
        found["after"] = [m.text for m in await ctx.history(last=3)]

    async with Harness(app) as harness:
        for n in range(3):
            await harness.prompt("t", f"q{n}")
    whole = ["q0", "held 1", "held 2", "q1", "held 1", "held 2", "q2", "held 1", "held 2"]
    assert found["whole"] == whole and found["early"] == ["held 2", "q2"]
    assert [found[f"{last}"] for last in (1, 2, 3, 5)] == [whole[-last:] for last in (1, 2, 3, 5)]
    assert found["tokens"] == whole[-2:] and found["after"] == whole[-3:]


async def test_a_window_is_the_same_before_and_after_a_read_of_the_whole_history(lab: Lab) -> None:
    """Also if two runs stored messages in turn."""
    checkpointer = lab.backend.checkpointer
    for run in ("x", "y"):
        await checkpointer.claim_run("t", run)
    said = [Message.user("x?", run_id="x"), Message.user("y?", run_id="y")]
    said += [Message.assistant("x!", run_id="x"), Message.assistant("y!", run_id="y")]
    await checkpointer.append("t", said)
    for run in ("x", "y"):
        await checkpointer.mark_run_complete("t", run)
    found: list[list[str]] = []

    async def agent(ctx: RunContext) -> None:
        windows = await ctx.history(last=4), await ctx.history(), await ctx.history(last=4)
        found.extend([message.text for message in window] for window in windows)

    await lab.attempt(agent)
    assert found == [["y?", "y!", "x!", "hi"], ["x?", "x!", "y?", "y!", "hi"], ["y?", "y!", "x!", "hi"]]


async def test_a_later_attempt_reads_only_its_own_messages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: they are found, also behind messages that a window does not have."""
    first = [Message.assistant(f"{n}") for n in range(5)]
    told: list[Message] = []
    lasts = [100, 2]

    async def fails(ctx: RunContext) -> None:
        await ctx.append(*first)
        raise ValueError("again")

    async def agent(ctx: RunContext) -> None:
        if lasts:
            await ctx.history(last=lasts.pop())
        told.extend(await ctx.append(first[1], Message.assistant(f"new {len(lasts)}")))
        raise ValueError("again")

    async def whole(*_: Any) -> list[Message]:
        raise AssertionError("the whole context was read")

    await lab.attempt(fails)
    monkeypatch.setattr(lab.backend.runs, "context", whole)
    monkeypatch.setattr(transcript, "PAGE_MESSAGES", 2)
    for _ in range(3):
        await lab.attempt(agent)
    assert await lab.texts() == ["hi", *(message.text for message in first), "new 1", "new 0", "new 0"]
    assert told[0].created_at is not None and told[0].id == first[1].id


@pytest.mark.parametrize("bound", [{"last": 0}, {"last": -1}, {"max_tokens": 0}, {"last": True}, {"last": 1.5}, {"last": "1"}])
async def test_a_bound_is_a_positive_number(bound: dict[str, Any]) -> None:
    app = App()

    @app.agent
    async def wrong(ctx: RunContext) -> None:
        with pytest.raises(InvalidInputError, match="at least 1"):
            await ctx.history(**bound)

    async with Harness(app) as harness:
        await harness.prompt("t", "q")
