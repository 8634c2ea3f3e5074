"""Export the traces of a process, as configured by the OTEL_* variables of OpenTelemetry. The export needs the extra
``otel``."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import structlog

from runyard.errors import InvalidInputError
from runyard.support import genai_spans, tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

API: Final = "runyard-api"
WORKER: Final = "runyard-worker"
"""Default names of the services. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence."""
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTER_OF: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""The name of the exporter for each protocol of OTLP."""
PACKAGE_OF: Final = {"otlp_proto_http": "'runyard[otel]'", "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc"}
"""The argument of ``pip install`` for each exporter."""
MAX_ATTRIBUTE_CHARACTERS: Final = 64 * 2**10
"""Default for the maximum number of characters of an attribute. Longer texts are shortened."""
LENGTH_LIMITS: Final = ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
FLUSH_SECONDS: Final = 2.0
"""Maximum seconds of one call of :func:`flush`."""

log = structlog.get_logger("runyard.traces")


def set_up(service: str, *, content: bool) -> None:
    """Export the traces of this process if OTEL_TRACES_EXPORTER or the endpoint of an OTLP exporter is set.

    If a tracer provider already exists, for example from ``opentelemetry-instrument``, it is kept. ``service``: the
    name of the service. ``content``: True if the spans of models and tools contain messages, arguments and results.

    Raises InvalidInputError for an unknown protocol, or for an exporter that is not installed.
    """
    genai_spans.record_content(content)
    if tracing.tracer() is not None or not (names := _exporters()):
        return
    if find_spec("opentelemetry.sdk") is None:
        log.warning("tracing_not_installed", effect="no trace is exported", advice="pip install 'runyard[otel]'")
        return
    _set_provider(service, [_exporter(name) for name in names])


def flush() -> None:
    """Export the spans that have ended, within FLUSH_SECONDS."""
    if tracing.tracer() is None:
        return
    from opentelemetry.trace import get_tracer_provider

    provider: Any = get_tracer_provider()
    if hasattr(provider, "force_flush"):
        provider.force_flush(int(FLUSH_SECONDS * 1000))


def _exporters() -> list[str]:
    """Return the names of the exporters that the OTEL_* variables name."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(os.environ.get(name) for name in ENDPOINTS) else ""
    named = (os.environ.get("OTEL_TRACES_EXPORTER") or default).split(",")
    return [name.strip() for name in named if name.strip() not in ("", "none")]


def _exporter(name: str) -> SpanExporter:
    """Return the exporter ``name``. Like OpenTelemetry, find the exporter by its entry point."""
    wanted = _otlp_exporter() if name == "otlp" else name
    found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=wanted)), None)
    if found is None:
        package = PACKAGE_OF.get(wanted, "its package")
        raise InvalidInputError(
            f"the exporter {wanted!r} of traces is not installed; run pip install {package}, or set OTEL_TRACES_EXPORTER to "
            "otlp, console or none",
            field="OTEL_TRACES_EXPORTER",
        )
    exporter: SpanExporter = found.load()()
    return exporter


def _otlp_exporter() -> str:
    """Return the name of the exporter for the protocol that the OTEL_* variables name."""
    for variable in PROTOCOLS:
        if protocol := os.environ.get(variable, "").strip():
            if protocol not in EXPORTER_OF:
                raise InvalidInputError(f"{variable} is {' or '.join(EXPORTER_OF)}, got {protocol!r}", field=variable)
            return EXPORTER_OF[protocol]
    return EXPORTER_OF["http/protobuf"]


def _set_provider(service: str, exporters: list[SpanExporter]) -> None:
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import set_tracer_provider

    named = Resource({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
    length = None if any(os.environ.get(name) for name in LENGTH_LIMITS) else MAX_ATTRIBUTE_CHARACTERS
    provider = TracerProvider(
        resource=Resource.create(dict(named.attributes)), span_limits=SpanLimits(max_span_attribute_length=length)
    )
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    set_tracer_provider(provider)
    log.info("tracing_started", exporters=[type(exporter).__module__ for exporter in exporters])
