"""The export of traces, as the OTEL_* variables say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_tracer_provider

from runyard.errors import InvalidInputError
from runyard.support import tracing
from runyard_api import trace_export
from tests.support.fleet import free_port
from tests.support.traces import OtlpReceiver, using

PROGRAM = """
from runyard_api import trace_export
from runyard.support import tracing
trace_export.set_up(trace_export.WORKER, content=False)
with tracing.span("call", attributes={"long": 100_000 * "x"}):
    pass
"""


def run(variables: Mapping[str, str], program: str = PROGRAM) -> str:
    """Run a program that makes one span. Return its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**kept, **variables}, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout + done.stderr


def test_spans_are_exported_to_the_endpoint() -> None:
    """T1: also those of the last moment; with the names that the variables give."""
    with OtlpReceiver() as receiver:
        run({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint})
        run({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.endpoint}/v1/traces", "OTEL_SERVICE_NAME": "mine"})
        other = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "10"}
        run({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, **other})
    found = [(span.service, len(span.attributes["long"])) for span in receiver.spans]
    assert found == [("runyard-worker", 65536), ("mine", 65536), ("theirs", 10)]


def test_a_process_exits_while_its_collector_is_away() -> None:
    run({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"})


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
)
def test_without_an_exporter_nothing_is_set_up(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """T3."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    trace_export.set_up(trace_export.API, content=False)
    assert tracing.tracer() is None


def test_a_provider_of_the_program_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    with using(provider := TracerProvider()):
        trace_export.set_up(trace_export.API, content=False)
        trace_export.flush()
        assert get_tracer_provider() is provider


@pytest.mark.parametrize(
    ("variables", "advice"),
    [
        ({"OTEL_TRACES_EXPORTER": "pigeon"}, "set OTEL_TRACES_EXPORTER to otlp, console or none"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "pip install opentelemetry-exporter-otlp-proto-grpc",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "pigeon"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is http/protobuf or grpc, got 'pigeon'",
        ),
    ],
)
def test_an_exporter_that_is_not_installed_is_refused(
    variables: dict[str, str], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install and what to set."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInputError, match=advice):
        trace_export.set_up(trace_export.API, content=False)


def test_without_the_sdk_a_process_says_what_to_install() -> None:
    """T3: and serves without traces."""
    missing = "import sys; sys.modules['opentelemetry.sdk'] = None\n"
    assert "runyard[otel]" in run({"OTEL_TRACES_EXPORTER": "console"}, missing + PROGRAM)
