"""The suite that every adapter of agents must pass (:mod:`runyard.support.agent_adapters`). The authors of other adapters can
run the suite too::

    # tests/test_my_adapter.py
    from runyard.testing.adapter_suite import AdapterSuite

    class TestMyAdapter(AdapterSuite):
        def echo_agent(self, seen): ...
        def tool_agent(self, tool): ...
        def approval_agent(self, tool): ...

The methods return agents of the framework. An App must accept these agents. The test controls the model of the agent. The
model's answer must depend only on the messages of the request, because a request can be repeated after a crash. The tests need
no server. They need anyio, or pytest-asyncio in its mode ``auto``. The docstrings cite the rules that the tests prove.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ..app import App, as_function, may_ask
from ..domain.states import RunStatus
from ..errors import HitlNotAllowedError
from ..execution.steps import current_step
from .crashes import Moment
from .harness import Harness, HarnessRun

SuiteTool: TypeAlias = "Callable[[str], Awaitable[str]]"
"""An async function ``work(text: str) -> str``."""


class AdapterSuite(ABC):
    """The tests of one adapter. A subclass makes the agents.

    ``streams``: False if the framework does not stream tokens. ``counts_usage``: False if the framework does not report model
    requests. ``records_calls``: False if tool calls of the framework's agents are not stored as messages.
    """

    streams = True
    counts_usage = True
    records_calls = True

    @abstractmethod
    def echo_agent(self, seen: list[list[str]]) -> object:
        """Return an agent whose model answers ``You said: TEXT`` to the last user message TEXT, in several pieces.

        For each request the model appends a list to ``seen``. The list has the texts of the request's messages, in order.
        Instructions are not in the list.
        """

    @abstractmethod
    def tool_agent(self, tool: SuiteTool) -> object:
        """Return an agent whose model calls ``tool`` once per prompt with ``text="x"``, then answers ``done: RESULT``."""

    @abstractmethod
    def approval_agent(self, tool: SuiteTool) -> object:
        """Return an agent that works like the agent of :meth:`tool_agent` and also asks a human to approve each call."""

    async def test_the_app_takes_the_agent(self) -> None:
        """F9: An App finds the adapter of the agent. The App knows whether the agent may ask a human."""
        assert not may_ask(as_function(self.echo_agent([])))
        assert may_ask(as_function(self.approval_agent(_counted()[1])))

    async def test_messages_are_stored_and_shown_again(self) -> None:
        """S5: The thread has the prompt and the answer. The model gets both messages in the next run."""
        seen: list[list[str]] = []
        async with Harness(self.echo_agent(seen)) as harness:
            first = await harness.prompt("t", "one")
            second = await harness.prompt("t", "two")
            stored = await harness.messages("t")
        assert first.ok and second.ok, (first.error, second.error)
        assert [(message.role, message.text) for message in stored] == [
            ("user", "one"),
            ("assistant", "You said: one"),
            ("user", "two"),
            ("assistant", "You said: two"),
        ]
        assert seen == [["one"], ["one", "You said: one", "two"]]

    async def test_a_run_without_a_prompt_continues(self) -> None:
        """R1: A run without a message answers the last message of the thread."""
        seen: list[list[str]] = []
        async with Harness(self.echo_agent(seen)) as harness:
            await harness.client.store_message("t", "one")
            run = await harness.prompt("t", None)
        assert run.ok and run.text == "You said: one", run.error
        assert seen == [["one"]]

    async def test_tokens_are_streamed(self) -> None:
        """Each piece of the answer is an event. The event has the id of the message that is stored later."""
        if not self.streams:
            return
        async with Harness(self.echo_agent([])) as harness:
            run = await harness.prompt("t", "hello")
        deltas = [event.data for event in run.events if event.type == "message.delta"]
        assert "".join(data.get("text", "") for data in deltas) == "You said: hello"
        assert {data["message_id"] for data in deltas} == {run.messages[-1].id}

    async def test_tool_calls_are_messages(self) -> None:
        """R9: The call, its result and the answer are stored, in this order."""
        calls, tool = _counted()
        async with Harness(self.tool_agent(tool)) as harness:
            run = await harness.prompt("t", "go")
        assert run.ok and run.text == "done: worked on x", run.error
        assert calls == ["x"]
        if not self.records_calls:
            return
        [call] = [call for message in run.messages for call in message.tool_calls]
        [result] = [result for message in run.messages for result in message.tool_results]
        assert call.arguments == {"text": "x"} and call.name
        assert result.call_id == call.id and result.content == "worked on x"
        assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]

    async def test_usage_is_counted_once(self) -> None:
        """The run has the usage of its model requests, each counted once."""
        if not self.counts_usage:
            return
        async with Harness(self.tool_agent(_counted()[1])) as harness:
            run = await harness.prompt("t", "go")
        assert run.run.usage.requests == 2

    async def test_a_crash_repeats_no_stored_result(self) -> None:
        """R9: If the worker crashes directly before or after any one write, the run ends with the same messages as without a
        crash.

        The first write after a tool call stores the result of the call. After a later crash the call is not repeated.
        """
        async with Harness(self.tool_agent(_counted()[1])) as harness:
            expected = _shape(await harness.prompt("t", "go"))
            writes = len(harness.writes)
        for nth in range(1, writes + 1):
            for moment in ("before", "after"):
                await self._crash(nth, moment, expected)

    async def _crash(self, nth: int, moment: Moment, expected: list[tuple[str, str, int]]) -> None:
        called_after: list[int] = []

        async def work(text: str) -> str:
            called_after.append(len(harness.writes))
            return f"worked on {text}"

        async with Harness(self.tool_agent(work)) as harness:
            harness.crash(moment, nth=nth)
            run = await harness.prompt("t", "go")
        where = f"the worker died {moment} write {nth}"
        assert run.ok, (where, run.error)
        assert _shape(run) == expected, where
        stored_by = called_after[0] + 1
        kept = nth > stored_by or (nth == stored_by and moment == "after")
        lost_before_call = nth <= called_after[0] and len(called_after) == 1
        assert len(called_after) == (1 if kept or lost_before_call else 2), (where, called_after)

    async def test_log_lines_of_a_tool_name_the_run_and_the_step(self) -> None:
        """Log lines that a tool writes have the thread, the run, the attempt and the step."""
        from structlog.contextvars import get_contextvars

        lines: list[dict[str, object]] = []
        steps: list[str] = []

        async def work(text: str) -> str:
            lines.append({**get_contextvars()})
            steps.append(current_step().key)
            return f"worked on {text}"

        async with Harness(self.tool_agent(work)) as harness:
            run = await harness.prompt("t", "go")
        assert run.ok, run.error
        [line] = lines
        assert (line["thread_id"], line["run_id"], line["attempt"], [line["step"]]) == ("t", run.id, 1, steps)

    async def test_an_approval_parks_the_run(self) -> None:
        """H5: The run waits without a worker. The answer continues the run. The approved call is made once."""
        calls, tool = _counted()
        async with Harness(self.approval_agent(tool)) as harness:
            run = await harness.prompt("t", "go")
            assert run.status == RunStatus.SUSPENDED, run.error
            [request] = run.requests
            assert request.kind == "approval" and calls == []
            assert request.payload["tool_call"]["arguments"] == {"text": "x"}
            run = await run.respond(True)
        assert run.ok and run.text == "done: worked on x", run.error
        assert calls == ["x"]

    async def test_a_denied_call_is_not_made(self) -> None:
        """H9: A denied call is not made, and the run continues."""
        calls, tool = _counted()
        async with Harness(self.approval_agent(tool)) as harness:
            run = await harness.prompt("t", "go")
            run = await run.respond({"approved": False, "reason": "too dear"})
        assert run.ok, run.error
        assert calls == [] and "too dear" in run.text

    async def test_edited_arguments(self) -> None:
        """H9: A human may approve a call with other arguments."""
        calls, tool = _counted()
        async with Harness(self.approval_agent(tool)) as harness:
            run = await harness.prompt("t", "go")
            run = await run.respond({"approved": True, "arguments": {"text": "y"}})
        assert run.ok and run.text == "done: worked on y", run.error
        assert calls == ["y"]

    async def test_a_crash_after_an_answer_repeats_no_stored_result(self) -> None:
        """R9, H5: The human is asked once. An approved call whose result is stored is not made again."""
        calls, tool = _counted()
        async with Harness(self.approval_agent(tool)) as harness:
            run = await harness.prompt("t", "go")
            harness.crash_before("complete")
            run = await run.respond(True)
        assert run.ok and run.text == "done: worked on x", run.error
        assert calls == ["x"]

    async def test_a_cancel_stops_the_agent(self) -> None:
        """R10: A cancel ends a run that executes a tool."""
        started, over = asyncio.Event(), asyncio.Event()

        async def work(text: str) -> str:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                over.set()
            return text

        async with Harness(self.tool_agent(work)) as harness:
            handle = await harness.client.enqueue("t", "go", "r")

            async def cancel() -> RunStatus:
                await started.wait()
                await harness.client.cancel("t", "r")
                await over.wait()
                return (await handle.result()).status

            assert await harness.work(cancel()) is RunStatus.CANCELLED

    async def test_a_probe_stores_nothing(self) -> None:
        """F9: A probe answers on a snapshot and writes to no thread."""
        async with Harness(self.echo_agent([])) as harness:
            run = await harness.prompt("t", "one")
            before = await harness.messages("t")
            probe = await harness.fork_once("t", "what if", run.id)
            assert probe.text == "You said: what if"
            assert await harness.messages("t") == before

    async def test_a_probe_of_an_agent_that_asks_is_refused(self) -> None:
        """F9: The probe is refused before a tool is called."""
        calls, tool = _counted()
        app = App({"echo": self.echo_agent([]), "asks": self.approval_agent(tool)})
        async with Harness(app) as harness:
            run = await harness.prompt("t", "one", agent="echo")
            try:
                await harness.fork_once("t", "go", run.id, agent="asks")
            except HitlNotAllowedError:
                assert calls == []
                return
        raise AssertionError("the probe of an agent that asks was not refused")


def _counted() -> tuple[list[str], SuiteTool]:
    """Return a list and a tool. The tool appends its text to the list."""
    calls: list[str] = []

    async def work(text: str) -> str:
        calls.append(text)
        return f"worked on {text}"

    return calls, work


def _shape(run: HarnessRun) -> list[tuple[str, str, int]]:
    return [(message.role, message.text, len(message.tool_calls) + len(message.tool_results)) for message in run.messages]
