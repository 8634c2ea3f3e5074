"""How often a repeated failure is logged."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from runyard.errors import BackendUnavailableError
from runyard.support.failure_log import REPEAT_SECONDS, FailureLog


def test_a_call_that_fails_each_second_has_one_line_per_minute_and_one_at_its_end() -> None:
    now = 0.0
    with capture_logs() as logs:
        failures = FailureLog(structlog.get_logger(), "call_failed", clock=lambda: now)
        for _ in range(90):
            failures.failed(BackendUnavailableError("away"), worker_id="w")
            now += 1.0
        for _ in range(3):
            failures.worked(worker_id="w")
    assert [(line["event"], line.get("failures"), line["log_level"]) for line in logs] == [
        ("call_failed", 1, "warning"),
        ("call_failed", REPEAT_SECONDS, "warning"),
        ("call_failed_resolved", None, "info"),
    ]


def test_a_server_that_fails_every_other_call_has_two_lines_per_minute() -> None:
    now = 0.0
    with capture_logs() as logs:
        failures = FailureLog(structlog.get_logger(), "call_failed", clock=lambda: now)
        for _ in range(50):
            failures.failed(BackendUnavailableError("away"))
            failures.worked()
            now += 1.0
    assert [line["event"] for line in logs] == ["call_failed", "call_failed_resolved"]


def test_a_success_ends_the_count() -> None:
    """The failures before a success are over. The next line counts those after it, also if no line told of the others."""
    now = 0.0
    with capture_logs() as logs:
        failures = FailureLog(structlog.get_logger(), "call_failed", clock=lambda: now)
        for _ in range(3):
            failures.failed(BackendUnavailableError("away"))
            failures.worked()
        now = REPEAT_SECONDS
        failures.failed(BackendUnavailableError("away"))
    assert [(line["event"], line.get("failures")) for line in logs] == [
        ("call_failed", 1),
        ("call_failed_resolved", None),
        ("call_failed", 1),
    ]


def test_an_unexpected_error_is_logged_with_its_traceback() -> None:
    with capture_logs() as logs:
        failures = FailureLog(structlog.get_logger(), "call_failed")
        failures.failed(error := ValueError("broken"))
        failures.failed(error, expected=True)
    [line] = logs
    assert (line["log_level"], line["exc_info"]) == ("error", error)
