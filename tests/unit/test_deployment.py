"""What kills a worker waits until it must have left by itself (R9): killed earlier, its runs have crashed."""

import re
from pathlib import Path

from backends.redis.arq_worker import LINGER
from runner.settings import Settings
from runner.worker import LEAVE

ROOT = Path(__file__).parents[2]
GRANTED = 30
"""Seconds after the grace time: what operations.md asks for."""


def number(path: str, pattern: str) -> float:
    [found] = re.findall(pattern, (ROOT / path).read_text("utf-8"))
    return float(found)


def test_a_worker_is_gone_within_what_the_operator_is_asked_for() -> None:
    assert LEAVE + LINGER < GRANTED
    assert number("docs/operations.md", r"`RUNYARD_GRACE` plus (\d+) seconds") == GRANTED


def test_the_chart_grants_it() -> None:
    assert number("charts/runyard/templates/worker.yaml", r"terminationGracePeriodSeconds: .*\.grace (\d+)") == GRANTED
    assert number("charts/runyard/values.yaml", r"the pod gets (\d+) more") == GRANTED


def test_compose_grants_it() -> None:
    grace = Settings.model_fields["grace"].default
    assert number("docker-compose.yml", r'command: \["worker"\]\n    stop_grace_period: (\d+)s') == grace + GRANTED
