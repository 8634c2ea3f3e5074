"""What kills a worker waits until it must have left by itself (R9): killed earlier, its runs have crashed."""

import re
from pathlib import Path

from runyard.support.settings import Settings
from runyard.worker.worker import LEAVE_SECONDS
from runyard_api.worker.process import LINGER_SECONDS

ROOT = Path(__file__).parents[3]
GRANTED = 30
"""Seconds after the grace time: what operations.md asks for."""


def number(path: str, pattern: str) -> float:
    [found] = re.findall(pattern, (ROOT / path).read_text("utf-8"))
    return float(found)


def test_a_worker_is_gone_within_what_the_operator_is_asked_for() -> None:
    assert LEAVE_SECONDS + LINGER_SECONDS < GRANTED
    assert number("docs/operations.md", r"`RUNYARD_GRACE` plus (\d+) seconds") == GRANTED


def test_the_chart_grants_it() -> None:
    assert number("charts/runyard/templates/worker.yaml", r"terminationGracePeriodSeconds: .*\.grace (\d+)") == GRANTED
    assert number("charts/runyard/values.yaml", r"the pod gets (\d+) more") == GRANTED


def test_compose_grants_it() -> None:
    grace = Settings.model_fields["grace"].default
    assert number("docker-compose.yml", r'command: \["worker"\]\n    stop_grace_period: (\d+)s') == grace + GRANTED


def test_the_secret_of_stream_tokens_comes_from_the_operator_or_is_kept() -> None:
    """A1: the API does not start without one, and all its processes have the same."""
    _, _, api = (ROOT / "docker-compose.yml").read_text("utf-8").partition("\n  api:\n")
    assert "      RUNYARD_API_TOKEN_SECRET: ${RUNYARD_API_TOKEN_SECRET:?" in api
    made, taken = ((ROOT / f"charts/runyard/templates/{name}.yaml").read_text("utf-8") for name in ("api-token", "api"))
    name = '(printf "%s-api-token" .Release.Name)'
    assert f"name: {{{{ .Values.api.tokenSecret | default {name} }}}}\n                  key: RUNYARD_API_TOKEN_SECRET" in taken
    assert f"$name := {name[1:-1]}" in made and 'lookup "v1" "Secret" .Release.Namespace $name' in made
    assert made.startswith("{{- if and .Values.api.enabled (not .Values.api.tokenSecret) }}")
    assert len(re.findall("RUNYARD_API_TOKEN_SECRET:", made)) == 2
