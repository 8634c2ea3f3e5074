"""One agent over the protocols of the model providers, in worker processes that die (R9, H1, H5, R7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runyard import RunStatus
from tests.support.agents.customer_support import NOTES, model, notes
from tests.support.fleet import Fleet
from tests.support.providers.conversation import MODELS
from tests.support.providers.server import Providers

BOUND = 60.0
"""Seconds that any one run may take on a busy machine."""


async def test_a_worker_is_killed_while_its_runs_wait_for_an_approval(
    fleet: Fleet, providers: Providers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompt, parallel tool calls, suspension, kill -9, answer, completed: each effect once, each request to the model once."""
    monkeypatch.setenv(NOTES, str(tmp_path / "notes"))
    providers.scenario = model
    pid = await fleet.start(app="tests.support.agents.customer_support:app")
    handles = {name: await fleet.client.enqueue(name, f"Refund order {name}", agent=name) for name in MODELS}
    asked = await asyncio.gather(*(handle.result(BOUND) for handle in handles.values()))
    assert [result.status for result in asked] == [RunStatus.SUSPENDED] * len(MODELS)
    assert len(providers.requests) == len(MODELS)
    fleet.processes[pid].kill()
    await fleet.processes[pid].wait()

    heir = await fleet.start(app="tests.support.agents.customer_support:app")
    for name, result in zip(handles, asked, strict=True):
        [request] = result.requests
        assert request.payload["tool_call"]["name"] == "refund"  # type: ignore[index,call-overload]
        await fleet.client.respond(name, True)
    results = dict(zip(handles, await asyncio.gather(*(handle.result(BOUND) for handle in handles.values())), strict=True))
    for name, result in results.items():
        assert result.ok, result.error
        assert result.text.startswith("look: found; refund: refunded; shop: ")
        assert "the shop is closed" in result.text
        assert [message.role for message in result.messages] == ["user", "assistant", "tool", "tool", "tool", "assistant"]
        assert result.run.attempt == 2 and result.run.crash_count == 0
        effects = [line.split() for line in notes(tmp_path / "notes") if line.startswith(f"{name} ")]
        assert sorted(effect for _, effect, _ in effects) == ["look", "refund", "shop"]
        assert len({key for _, _, key in effects}) == 3
    assert providers.refused == []
    assert len(providers.requests) == 2 * len(MODELS)
    assert fleet.processes[heir].returncode is None
