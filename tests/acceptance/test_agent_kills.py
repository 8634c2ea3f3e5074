"""An agent on pydantic-ai whose process is killed at each step (R9)."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.support.agents.customer_support import NOTES, notes
from tests.support.agents.ten_steps import CALLS
from tests.support.fleet import Fleet, until
from tests.support.long_form import LONG

APP = "tests.support.agents.ten_steps:app"
AFTER = ["runs.append.after=crash"] * 2 * CALLS if LONG else ["runs.append.after=crash"] * 2 + ["runs.append.after=crash*1+4"]
KILLS = ["runs.append.before=crash", *AFTER]
"""Where each worker is killed with -9: the first one with an answer of the model that is not committed, the others after a
commit of an answer or of a tool's result. In the long form each of them makes one commit. In the short form the last of them
makes five."""


@pytest.mark.slow
async def test_r9_kill_9_at_each_step_repeats_at_most_one_model_request_and_no_finished_tool(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "notes"
    monkeypatch.setenv(NOTES, str(file))
    pids = [await fleet.start(app=APP, slots=1, failpoints=KILLS[0])]
    handle = await fleet.client.enqueue("t", "begin", agent="worker")

    async def claimed(attempt: int) -> bool:
        return (await handle.run()).attempt >= attempt

    for attempt, failpoint in enumerate([*KILLS[1:], ""], start=1):
        # Its successor comes when nobody else can have the run, so that each of them dies.
        await until(partial(claimed, attempt))
        pids.append(await fleet.start(app=APP, slots=1, failpoints=failpoint))
        async with asyncio.timeout(30):
            await asyncio.gather(*(fleet.processes[pid].wait() for pid in pids[:-1]))
    result = await handle.result(30)
    assert result.ok, result.error
    assert [message.role for message in result.messages] == ["user", *["assistant", "tool"] * CALLS, "assistant"]
    assert result.run.attempt == len(KILLS) + 1
    requests = Counter(line for line in notes(file) if line.startswith("request"))
    tools = Counter(line for line in notes(file) if line.startswith("tool"))
    assert sorted(requests) == [f"request {n}" for n in range(CALLS + 1)]
    assert sorted(tools) == [f"tool {n}" for n in range(CALLS)]
    assert requests.total() - len(requests) == 1  # the answer that was not committed
    assert tools.total() == len(tools)
    carried = sum(message.usage.requests for message in result.messages if message.usage is not None)
    assert result.run.usage.requests == carried == CALLS + 1
