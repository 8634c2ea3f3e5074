"""Seconds of chaos with a fixed seed; `make chaos DURATION=600 SEED=7` is the long form."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.driver import run_chaos
from tests.chaos.faults import EVERY, counts
from tests.chaos.report import failure, table
from tests.support.long_form import LONG

SECONDS, SEED = float(os.environ.get("RUNYARD_TEST_CHAOS", "60" if LONG else "20")), 20
RUNS = 3 * SECONDS
"""At least so many runs, or the time proves nothing; an idle machine does three times as many."""
WAITS = SECONDS / 10
"""At least so many sleeps, waits for signals, and waits for children that end."""


@pytest.mark.slow
@pytest.mark.timeout(240 + SECONDS)
async def test_chaos_breaks_no_rule(tmp_path: Path) -> None:
    """I1 to I9, K1 to K3, R7, H1: under kills, pauses, lost servers and bad wires."""
    report = await run_chaos(SECONDS, SEED, tmp_path)
    print(table(report))
    assert not report.violations, failure(report)
    assert len(report.history.runs) >= RUNS
    ended = Counter(note.what for note in report.history.notes)
    assert min(ended[what] for what in ("awake", "signal", "children")) >= WAITS
    assert counts(report.struck).keys() == EVERY.keys()
