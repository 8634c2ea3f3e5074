"""The sentences of ``explain`` (R12)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from runyard.domain.explanations import explanation
from runyard.domain.states import RunStatus
from runyard.models import Run


@pytest.mark.parametrize(
    ("facts", "more"),
    [
        ({"silent_for": 2.0}, ""),
        ({"silent_for": None}, ""),
        (
            {"silent_for": 23.4},
            "; the worker has sent no heartbeat for 23 s, but no leader has declared it dead; does another worker run?",
        ),
        (
            {"silent_for": 23.4, "blocked_for": 22, "blocked_at": "app.py:26"},
            "; the main loop of the worker has been blocked for 22 s at app.py:26",
        ),
    ],
)
def test_r12_the_sentence_says_that_the_worker_is_silent(facts: dict[str, Any], more: str) -> None:
    run = Run(thread_id="t", run_id="r", status=RunStatus.RUNNING, attempt=1, accepted_at=datetime.now(UTC))
    assert explanation(run, "running", {"worker_id": "w", **facts}) == f"running on worker w, attempt 1{more}"
