"""The agent of the chaos tests. It notes its actions and the messages that it sees in a file, with its fence, for the checker.

Its prompt is a :class:`Plan` as JSON. Each message that it appends has a ``mark``. A later attempt continues after the last
committed mark. A completed run has each mark exactly once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import structlog

from runyard.execution.context import RunContext
from runyard.models import Message, ToolCallPart, ToolResultPart

TRACE_VARIABLE: Final = "CHAOS_TRACE"
SIGNAL: Final = "go"
"""The name of the signals for which runs wait."""


class PassingError(Exception):
    """An error after which another attempt succeeds."""


class LastingError(Exception):
    """An error that another attempt would raise again."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one run. ``approve``: the step that waits for a human. ``sleep`` and ``block``: seconds before each step.
    ``probe``: True for a probe, which writes no trace. Its last message names the messages that it saw.

    Before its steps, the run sleeps for ``nap`` seconds, waits for the signal SIGNAL if ``signal`` is True, and runs
    ``children`` children, which have children of their own in ``levels`` levels."""

    steps: int = 2
    approve: int | None = None
    deltas: int = 0
    sleep: float = 0.0
    block: float = 0.0
    error: str | None = None
    probe: bool = False
    nap: float = 0.0
    signal: bool = False
    children: int = 0
    levels: int = 1

    def child(self) -> Plan:
        """Return the plan of each child."""
        below = self.children if self.levels > 1 else 0
        return Plan(steps=1, sleep=self.sleep, nap=self.nap, children=below, levels=self.levels - 1)

    def text(self) -> str:
        return json.dumps(asdict(self))

    def marks(self) -> list[str]:
        """Return the marks of a completed run's messages, in order. The user's message has none."""
        return [mark for n in range(self.steps) for mark in (f"call-{n}", f"result-{n}")] + ["final"]


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the trace. ``at``: seconds of the machine's monotonic clock."""

    at: float
    thread: str
    run: str
    fence: int
    what: str
    data: dict[str, Any] = field(default_factory=dict)


def digest(ids: Iterable[str]) -> str:
    """Return a short name for a sequence of message ids."""
    return hashlib.blake2b("\n".join(ids).encode(), digest_size=8).hexdigest()


class Trace:
    """Writes notes of one attempt to the file that all workers share. Each line is one write, so that lines do not mix."""

    def __init__(self, thread: str, run: str, *, silent: bool = False) -> None:
        self._thread, self._run, self._silent = thread, run, silent
        self._fence: int = structlog.contextvars.get_contextvars()["fence"]

    def __call__(self, what: str, **data: Any) -> None:
        if self._silent:
            return
        note = Note(time.monotonic(), self._thread, self._run, self._fence, what, data)
        file = os.open(os.environ[TRACE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(asdict(note)).encode() + b"\n")
        finally:
            os.close(file)


async def chaotic(ctx: RunContext) -> None:
    """Execute the plan from the place at which the last attempt stopped."""
    assert ctx.input is not None
    plan = Plan(**json.loads(ctx.input.text))
    trace = Trace(ctx.thread_id, ctx.run_id, silent=plan.probe)
    trace("begin")
    try:
        history = await ctx.history()
        shown = digest(message.id for message in history if message.run_id != ctx.run_id)
        trace("context", of=shown)
        done = {str(message.metadata.get("mark")) for message in history if message.run_id == ctx.run_id}
        if plan.error == "passing" and ctx.attempt == 1:
            raise PassingError("passes")
        await _wait(ctx, plan, trace)
        for n in range(plan.steps):
            if f"result-{n}" not in done:
                await _act(ctx, plan, n, done, trace)
        if plan.error == "lasting":
            raise LastingError("lasts")
        for n in range(plan.deltas):
            await ctx.stream_text(f"{n} ")
            await asyncio.sleep(0.002)
        if "final" not in done:
            await ctx.append(Message.assistant(shown if plan.probe else "done", metadata={"mark": "final"}))
    finally:
        trace("end")


async def _wait(ctx: RunContext, plan: Plan, trace: Trace) -> None:
    """Sleep, wait for a signal and run children, as the plan says."""
    if plan.nap:
        trace("nap")
        await ctx.sleep(plan.nap, key="nap")
        trace("awake", seconds=plan.nap)
    if plan.signal:
        trace("signal", id=await ctx.wait_for(SIGNAL, key="signal"))
    if plan.children:
        text = plan.child().text()
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(ctx.run(None, text, key=f"child-{n}")) for n in range(plan.children)]
        found = [task.result() for task in started]
        trace("children", runs=[[child.thread_id, child.run_id] for child in found], texts=[child.text for child in found])


async def _act(ctx: RunContext, plan: Plan, n: int, done: set[str], trace: Trace) -> None:
    """Append one tool call with its side effect and its result."""
    call = ToolCallPart(id=f"call-{ctx.run_id}-{n}", name="effect")
    if f"call-{n}" not in done:
        await ctx.append(Message.assistant([call], metadata={"mark": f"call-{n}"}))
    if plan.approve == n:
        approval = await ctx.approve(call)
        trace("answer", call=call.id, reason=approval.reason)
    await asyncio.sleep(plan.sleep)
    time.sleep(plan.block)  # noqa: ASYNC251 - user code that blocks the loop is one of the faults

    def effect() -> str:
        trace("effect", call=call.id)
        return call.id

    value = await ctx.step(effect, key=call.id)
    await ctx.append(Message.tool(ToolResultPart(call_id=call.id, content=value), metadata={"mark": f"result-{n}"}))
