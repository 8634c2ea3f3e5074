"""H6: whatever happens to a worker between any two steps around a question, the question stays and no answer is invented.

Crashes at these points, and answers that are lost there, are part of the sweep; here a deploy catches the worker at each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runyard import RunStatus
from tests.support.agents.sweep import EFFECTS
from tests.support.fleet import Fleet, until

APP = "tests.support.agents.sweep:app"
BOUND = 30.0

POINTS = {
    "before the question is stored": "runs.suspend.before",
    "after the question is stored": "runs.suspend.after",
    "before the lane is given back": "scheduler.release.before",
    "before the answer is read": "runs.ledger.before",
    "after the answer is read": "runs.ledger.after",
}


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS.keys())
async def test_h6_a_deploy_around_a_question(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """SIGTERM without grace, so that the agent's task is cancelled, while the call is under way."""
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    reached, go_on = tmp_path / "reached", tmp_path / "go on"
    leaver = await fleet.start(app=APP, grace=0, failpoints=f"{point}=note({reached});{point}=pause({go_on})")
    handle = await fleet.client.enqueue("t", "tool-a ask-go tool-b", "r")

    async def there() -> bool:
        return reached.exists()

    if point.startswith("runs.ledger"):
        assert (await handle.result(BOUND)).status is RunStatus.SUSPENDED
        await fleet.client.respond("t", "yes")
    await until(there, BOUND)
    fleet.processes[leaver].terminate()
    await fleet.start(app=APP)
    go_on.touch()
    assert await asyncio.wait_for(fleet.processes[leaver].wait(), BOUND) == 0

    result = await handle.result(BOUND)
    if result.status is RunStatus.SUSPENDED:
        [request] = (await fleet.client.requests("t")).items
        assert request.answered_at is None
        await fleet.client.respond("t", "yes")
        result = await handle.result(BOUND)
    assert result.ok
    assert [message.text for message in result.messages if message.text.startswith("answered")] == ["answered yes"]
    [request] = (await fleet.client.requests("t", pending=False)).items
    assert (request.answer, result.run.crash_count) == ("yes", 0)
    assert [line.split()[:2] for line in (tmp_path / "effects").read_text().splitlines()] == [["r", "tool-a"], ["r", "tool-b"]]
