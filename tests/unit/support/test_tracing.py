"""The process's spans, and trace contexts from elsewhere."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, get_tracer

from runyard.errors import QueueFullError
from runyard.support import logging as logs
from runyard.support import metrics, tracing
from tests.support.traces import recorded, using

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "",
        "nonsense",
        TRACE + "-more",
        TRACE.upper(),
        TRACE.replace("a", "0"),
        TRACE.replace("b", "0"),
        f"ff{TRACE[2:]}",
        f" {TRACE}",
        f"{TRACE}\n",
        "00-" + "a" * 100_000,
        "٠٠" + TRACE[2:],
    ],
)
def test_a_context_of_another_form_is_ignored(wrong: str | None) -> None:
    """T2: with and without a provider."""
    with tracing.within(wrong):
        assert tracing.current() is None and tracing.headers() == {}
    with recorded() as spans:
        with tracing.within(wrong), tracing.span("call"):
            pass
        assert spans.one("call").parent_id is None


def test_without_a_provider_there_is_no_span() -> None:
    """T3: what the caller sent is kept for the runs."""
    assert tracing.tracer() is None
    with tracing.within(TRACE), tracing.span("call") as span:
        assert span is tracing.NO_SPAN and not span.is_recording()
        assert tracing.current() == TRACE and tracing.headers() == {"traceparent": TRACE}
        assert tracing.exemplar() is None and tracing.log_fields() == {}
        with pytest.raises(ValueError), tracing.span("inner"):
            raise ValueError


@pytest.mark.parametrize("disabled", [True, False])
def test_a_provider_that_makes_no_spans_is_none(disabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: OTEL_SDK_DISABLED, and the provider of the API alone."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with using(TracerProvider() if disabled else NoOpTracerProvider()):
        assert tracing.tracer() is None and tracing.start("call") is tracing.NO_SPAN


def test_a_span_has_the_callers_span_as_parent() -> None:
    """T1: the host's current span, else the context that came with the call."""
    with recorded() as spans:
        with get_tracer("host").start_as_current_span("host"), tracing.within(TRACE), tracing.span("inside", "producer"):
            inside = tracing.current()
        with tracing.within(TRACE), tracing.span("outside"):
            pass
        with tracing.span("given", parent=TRACE):
            pass
    host, inner = spans.one("host"), spans.one("inside")
    assert inner.parent_id == host.span_id and inner.kind == "PRODUCER"
    assert inside == f"00-{inner.trace_id}-{inner.span_id}-0{inside[-1] if inside else ''}"
    for name in ("outside", "given"):
        assert (spans.one(name).trace_id, spans.one(name).parent_id) == ("a" * 32, "b" * 16)


def test_an_error_is_recorded_by_its_code_alone() -> None:
    """T4."""
    with recorded() as spans:
        for name, error in {"ours": QueueFullError("secret words"), "theirs": KeyError("secret words")}.items():
            with pytest.raises(type(error)), tracing.span(name):
                raise error
    assert (spans.one("ours").attributes["error.type"], spans.one("theirs").attributes["error.type"]) == (
        "queue_full",
        "KeyError",
    )
    assert all(span.failed and "secret" not in span.everything for span in spans)


def test_ids_can_be_chosen() -> None:
    """T1: for the spans of this package alone."""
    ids = tracing.SpanIds(7, 8)
    with recorded() as spans:
        assert tracing.chooses_ids()
        tracing.start("root", ids=ids).end()
        tracing.start("child", parent=TRACE, ids=ids).end()
        tracing.start("other").end()
        get_tracer("host").start_span("host").end()
    assert (spans.one("root").trace_id, spans.one("root").span_id) == (f"{7:032x}", f"{8:016x}")
    assert (spans.one("child").trace_id, spans.one("child").span_id) == ("a" * 32, f"{8:016x}")
    assert not {spans.one(name).span_id for name in ("other", "host")} & {f"{8:016x}"}


def test_lines_of_a_json_log_have_the_ids_of_their_span() -> None:
    """T5: of structlog and of logging."""
    stream, before = io.StringIO(), logging.getLogger().handlers[:]
    try:
        logs.configure("info", "json", stream)
        with recorded() as spans, tracing.span("call"):
            structlog.get_logger("a").info("by_structlog")
            logging.getLogger("b").warning("by_logging")
        structlog.get_logger("a").info("outside")
    finally:
        logging.getLogger().handlers[:] = before
        structlog.reset_defaults()
    *inside, outside = map(json.loads, stream.getvalue().splitlines())
    span = spans.one("call")
    assert [line["event"] for line in inside] == ["by_structlog", "by_logging"]
    assert all((line["trace_id"], line["span_id"]) == (span.trace_id, span.span_id) for line in inside)
    assert "trace_id" not in outside and "span_id" not in outside


def test_a_measurement_has_the_ids_of_a_recorded_span() -> None:
    """T5: a span that the sampler left out is none."""
    with recorded(), tracing.span("call") as span:
        assert tracing.exemplar() == tracing.exemplar(span) == tracing.log_fields()
        assert tracing.exemplar(tracing.NO_SPAN) is None
        metrics.observe(metrics.FORK, 0.001)
    assert f'# {{span_id="{span.get_span_context().span_id:016x}"' in exposition() or "trace_id" in exposition()
    with recorded(ALWAYS_OFF), tracing.span("call"):
        assert tracing.exemplar() is None and tracing.log_fields() != {}


def exposition() -> str:
    from prometheus_client import REGISTRY
    from prometheus_client.openmetrics.exposition import generate_latest

    lines = generate_latest(REGISTRY).decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("runyard_fork_seconds_bucket"))
