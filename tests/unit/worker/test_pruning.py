"""How much the leader prunes in a pass (Q3)."""

from __future__ import annotations

import pytest

from runyard.ports.workers import Retention
from runyard.worker import reconciler as module
from runyard.worker.reconciler import Reconciler
from runyard_backends.memory import connect


@pytest.mark.parametrize(("seconds", "calls"), [(60.0, 4), (0.0, 1)], ids=["time is left", "the time is over"])
async def test_a_pass_prunes_in_short_transactions_while_time_is_left(
    monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int
) -> None:
    """D3: the erasure of a thread with many forks is one transaction per fork."""
    backend = await connect()
    more = [True, True, True, False]

    async def prune(retention: Retention) -> bool:
        return more.pop(0)

    monkeypatch.setattr(module, "PRUNE_PART_SECONDS", seconds)
    monkeypatch.setattr(backend.workers, "prune", prune)
    leader = Reconciler(backend, lambda: "leader", lambda effects: None, Retention(), lambda: True)
    await leader.step()
    assert 4 - len(more) == calls
