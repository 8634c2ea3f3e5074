"""Each alert has a page, and unit tests in which it fires and in which it stays silent."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import monitoring

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
NAMES = sorted(monitoring.alerts())


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([monitoring.program("promtool"), *arguments], capture_output=True, text=True, check=False)


def cases() -> Iterator[dict[str, Any]]:
    for test in yaml.safe_load(monitoring.ALERT_TESTS.read_text(encoding="utf-8"))["tests"]:
        yield from test["alert_rule_test"]


def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", str(monitoring.ALERTS))
    assert done.returncode == 0, done.stderr


def test_the_alerts_fire_and_stay_silent_as_their_unit_tests_say() -> None:
    done = promtool("test", "rules", str(monitoring.ALERT_TESTS))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_case_that_fires_and_a_case_that_is_silent(name: str) -> None:
    expected = [bool(case["exp_alerts"]) for case in cases() if case["alertname"] == name]
    assert True in expected and False in expected


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_names_its_page(name: str) -> None:
    """The page names the alert, and says what it means, how to look, and what to do."""
    rule = monitoring.alerts()[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    page = ROOT / rule["annotations"]["runbook_url"]
    text = page.read_text(encoding="utf-8")
    assert page.parent == RUNBOOKS and f"Alert `{name}`" in text
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["What it means", "How to look", "What to do"]
    [dashboard] = re.findall(r"dashboard `(\w+)`", text)
    assert dashboard in monitoring.dashboards()


def test_every_page_belongs_to_an_alert() -> None:
    named = {Path(rule["annotations"]["runbook_url"]).name for rule in monitoring.alerts().values()}
    assert {page.name for page in RUNBOOKS.glob("*.md")} == named | {"README.md"}
    contents = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    for name, rule in monitoring.alerts().items():
        line = f"({Path(rule['annotations']['runbook_url']).name}) | `{name}` | {rule['labels']['severity']} |"
        assert line in contents


def test_the_metrics_that_pages_name_are_exported() -> None:
    docs = RUNBOOKS.parent
    for page in (docs / "operations.md", docs / "monitoring.md", *RUNBOOKS.glob("*.md")):
        named = set(re.findall(r"\brunyard_[a-z_]+", page.read_text(encoding="utf-8")))
        assert named <= monitoring.exported().keys(), page.name


def test_a_broken_alert_makes_its_unit_test_fail(tmp_path: Path) -> None:
    """The unit tests see the expression, and not only that it parses."""
    rules = monitoring.ALERTS.read_text(encoding="utf-8")
    broken = rules.replace("runyard_queued_runs) > 0", "runyard_queued_runs) > 1000")
    assert broken != rules
    (tmp_path / "alerts.yaml").write_text(broken)
    tests = monitoring.ALERT_TESTS.read_text(encoding="utf-8").replace("../../charts/runyard/alerts.yaml", "alerts.yaml")
    (tmp_path / "alerts.test.yaml").write_text(tests)
    done = promtool("test", "rules", str(tmp_path / "alerts.test.yaml"))
    assert done.returncode != 0 and "RunyardQueueUnserved" in done.stdout + done.stderr
