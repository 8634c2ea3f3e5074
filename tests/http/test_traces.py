"""The traces of requests, and what a caller's context can do (T1, T2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import get_tracer

from runyard import Client
from runyard.worker.worker import Worker
from runyard_api.http.settings import ApiSettings
from tests.http.shared_routes import asgi_app
from tests.support.api_server import serving
from tests.support.traces import Spans, recorded

TRACE_ID, CALLER_ID = "a" * 32, "b" * 16
RUNS = "/v1/threads/{thread_id}/runs"
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


def traceparent(flags: str = "01", trace_id: str = TRACE_ID) -> str:
    return f"00-{trace_id}-{CALLER_ID}-{flags}"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded() as spans:
        yield spans


async def prompt(http: httpx.AsyncClient, run_id: str = "r", **headers: str) -> None:
    reply = await http.post("/v1/threads/t/runs", json={"message": "x", "run_id": run_id}, headers=headers)
    assert reply.status_code == 202


async def test_a_request_continues_the_trace_of_its_caller(http: httpx.AsyncClient, spans: Spans) -> None:
    """T1: down to the run that it accepts."""
    await prompt(http, traceparent=traceparent(), tracestate="vendor=value", baggage="user=secret")
    [request] = spans.named(f"POST {RUNS}")
    assert (request.trace_id, request.parent_id, request.kind) == (TRACE_ID, CALLER_ID, "SERVER")
    assert spans.tree(request) == (f"POST {RUNS}", ["accept"])
    expected = {
        "http.request.method": "POST",
        "http.route": RUNS,
        "http.response.status_code": 202,
        "url.path": "/v1/threads/t/runs",
        "url.scheme": "http",
    }
    assert request.attributes == expected
    assert "key=vendor, value=value" in request.everything and "secret" not in request.everything


async def test_errors_of_requests(http: httpx.AsyncClient, spans: Spans) -> None:
    """T4: a caller's mistake is no failure of the server. The query may hold a token."""
    await http.get("/v1/threads/none")
    await http.get("/v1/threads/none?word=secret")
    await http.get("/v1/none")
    found = spans.named("GET /v1/threads/{thread_id}")
    assert [span.attributes["error.type"] for span in found] == ["thread_not_found", "invalid_request"]
    assert not any(span.failed for span in spans)
    [unknown] = spans.named("GET")
    assert unknown.attributes["http.response.status_code"] == 404
    assert not any("secret" in span.everything for span in spans)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_probes_have_no_span(http: httpx.AsyncClient, spans: Spans, path: str) -> None:
    await http.get(path)
    assert spans == []
    await http.get(f"/v1/threads{path}")
    assert len(spans) == 1


@pytest.mark.parametrize(
    "header",
    ["", "nonsense", traceparent(trace_id="0" * 32), traceparent() + "x" * 10_000, traceparent("zz"), "ff" + traceparent()[2:]],
)
async def test_a_context_of_another_form_is_ignored(http: httpx.AsyncClient, client: Client, spans: Spans, header: str) -> None:
    """T2."""
    await prompt(http, traceparent=header)
    [request] = spans.named(f"POST {RUNS}")
    assert request.parent_id is None and request.trace_id != TRACE_ID


@pytest.mark.parametrize("state", ["a=" + "x" * 600, ",".join(f"k{n}={n}" for n in range(33)), "=,=,", "\u00e9=1"])
async def test_a_state_of_another_form_is_left_out(http: httpx.AsyncClient, spans: Spans, state: str) -> None:
    """T2: at most 512 characters and 32 entries; the trace goes on."""
    headers: Any = {"traceparent": traceparent().encode(), "tracestate": state.encode("latin-1")}
    await http.post("/v1/threads/t/runs", json={"message": "x"}, headers=headers)
    [request] = spans.named(f"POST {RUNS}")
    assert request.trace_id == TRACE_ID and "k32" not in request.everything and "xxx" not in request.everything


NONE_HERE = [ALWAYS_OFF, ParentBased(ALWAYS_OFF), ParentBasedTraceIdRatio(0.0), TraceIdRatioBased(0.0)]


@pytest.mark.parametrize("sampler", NONE_HERE)
async def test_a_callers_flag_records_nothing_that_the_sampler_would_not(
    http: httpx.AsyncClient, client: Client, sampler: Sampler
) -> None:
    """T2: neither in this process nor in the workers, which follow the flag of the run."""
    with recorded(sampler) as spans:
        await prompt(http, traceparent=traceparent("01"))
        await prompt(http, "low", traceparent=traceparent("01", trace_id="a" * 16 + "0" * 15 + "1"))  # an id below every ratio
    assert spans == []
    for run_id in ("r", "low"):
        context = (await client.run("t", run_id)).trace_context
        assert context is not None and int(context[-2:], 16) & 1 == 0


@pytest.mark.parametrize(
    ("sampler", "flags", "recorded_here"),
    [(DEFAULT_ON, "01", True), (DEFAULT_ON, "00", False), (ALWAYS_ON, "00", True), (ParentBasedTraceIdRatio(1.0), "01", True)],
)
async def test_the_sampler_decides(http: httpx.AsyncClient, sampler: Sampler, flags: str, recorded_here: bool) -> None:
    """T2: a caller can leave its requests out where the sampler follows parents."""
    with recorded(sampler) as spans:
        await prompt(http, traceparent=traceparent(flags))
    assert bool(spans) is recorded_here and all(span.trace_id == TRACE_ID for span in spans)


async def test_a_trusted_caller_decides(client: Client, settings: ApiSettings) -> None:
    """T2: RUNYARD_API_TRUST_TRACEPARENT, with a sampler that follows parents."""
    app = asgi_app(client, auth="off", settings=settings.model_copy(update={"trust_traceparent": True}))
    with recorded(ParentBasedTraceIdRatio(0.0)) as spans:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            await prompt(http, traceparent=traceparent("01"))
    assert [span.name for span in spans] == ["accept", f"POST {RUNS}"]


@pytest.mark.parametrize(("trusted", "flags"), [(True, "01"), (False, "00")])
async def test_an_api_that_does_not_trace_keeps_the_context_for_the_run(
    client: Client, settings: ApiSettings, trusted: bool, flags: str
) -> None:
    """T2, T3: without the flag, unless the caller is trusted: no sampler has decided."""
    app = asgi_app(client, auth="off", settings=settings.model_copy(update={"trust_traceparent": trusted}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        await prompt(http, traceparent=traceparent("01"))
    assert (await client.run("t", "r")).trace_context == traceparent(flags)


async def test_the_client_over_http_is_part_of_the_trace(app: FastAPI, key: str, worker: Worker, spans: Spans) -> None:
    """T1: from the host's span over the API to the attempt, for prompts and answers."""
    async with serving(app) as url, Client.connect(url, api_key=key) as far:
        with get_tracer("host").start_as_current_span("asks"):
            handle = await far.enqueue("t", "color?", "r")
        await handle.result(20)
        with get_tracer("host").start_as_current_span("answers"):
            await far.respond("t", "blue")
        await handle.result(20)
    asks, answers = spans.one("asks"), spans.one("answers")
    [request] = spans.named(f"POST {RUNS}")
    assert request.parent_id == asks.span_id
    run = ["queue_wait", "invoke_agent scripted", "respond", "queue_wait", "invoke_agent scripted"]
    assert spans.tree(request) == (f"POST {RUNS}", [("accept", run)])
    [clicked] = [s for s in spans.children(answers) if s.name.endswith("/respond")]
    answer = spans.one("respond")
    assert answer.links == {clicked.span_id: "caller"} and clicked.links == {answer.span_id: "answer"}
    assert spans.orphans() == []


async def test_a_host_that_traces_its_requests_has_no_second_span(app: FastAPI, key: str, spans: Spans) -> None:
    """T1: a mounted API is part of the host's span."""
    auth = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api", headers=auth) as http:
        with get_tracer("host").start_as_current_span("POST /agents"):
            await prompt(http, traceparent=traceparent())
    assert spans.tree(spans.one("POST /agents")) == ("POST /agents", ["accept"])


async def test_latencies_have_exemplars(http: httpx.AsyncClient, spans: Spans) -> None:
    """T5: in the format of OpenMetrics, with the ids of the request."""
    await prompt(http, traceparent=traceparent(trace_id="c" * 32))
    lines = (await http.get("/metrics", headers=OPENMETRICS)).text.splitlines()
    [request] = spans.named(f"POST {RUNS}")
    found = [line for line in lines if line.startswith("runyard_http_request_seconds_bucket") and request.span_id in line]
    assert found and 'trace_id="' + "c" * 32 in found[0]
    assert "trace_id" not in (await http.get("/metrics")).text
