"""The trace of a run over real processes, exported to a local OTLP receiver as the OTEL_* variables say (T1)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import get_tracer

from runyard import Client
from tests.support.agents.traced import SECRET
from tests.support.fleet import Fleet, free_port, until
from tests.support.traces import OtlpReceiver, Seen, Spans, using

APP = "tests.support.agents.traced:app"
PROMPT = "POST /v1/threads/{thread_id}/runs"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def variables(receiver: OtlpReceiver) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}


@asynccontextmanager
async def host(receiver: OtlpReceiver) -> AsyncIterator[None]:
    """Make this process a host with a tracer provider of its own."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.endpoint}/v1/traces")))
    with using(provider):
        yield
    provider.shutdown()


@asynccontextmanager
async def api(fleet: Fleet, environment: Mapping[str, str]) -> AsyncIterator[str]:
    """Run `runyard api`. Yield its URL."""
    port = free_port()
    settings = {"RUNYARD_POSTGRES_URL": fleet.postgres, "RUNYARD_REDIS_URL": fleet.redis, "RUNYARD_API_AUTH": "off"}
    command = (sys.executable, "-m", "runyard_api.cli", "api", "--port", str(port))
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment, **settings})
    url = f"http://127.0.0.1:{port}"

    async def ready() -> bool:
        assert process.returncode is None
        with suppress(httpx.TransportError):
            return (await http.get(f"{url}/readyz")).is_success
        return False

    try:
        async with httpx.AsyncClient() as http:
            await until(ready, 60)
        yield url
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_a_suspended_taken_over_and_forked_run_is_one_story(fleet: Fleet, receiver: OtlpReceiver) -> None:
    """T1, T4: from the host's request over the API to three attempts in two workers, one of which is killed."""
    fleet.environment = variables(receiver)
    await fleet.start(app=APP)
    async with host(receiver), api(fleet, fleet.environment) as url, Client.connect(url) as client:
        with get_tracer("shop").start_as_current_span("checkout"):
            run = await client.enqueue("t", f"refund {SECRET}", "r")
        asked = await run.result(30)
        with get_tracer("shop").start_as_current_span("approve"):
            await client.respond("t", True, asked.requests[0].request_id)
        killed = await fleet.holder("t", "r", 3)  # the model's second answer, whose tool waits
        survivor = await fleet.start(app=APP)
        await arrived(receiver, lambda spans: len([s for s in spans if s.name.startswith("chat ")]) == 2)
        os.kill(killed, signal.SIGKILL)
        result = await run.result(60)
        assert result.ok and result.run.attempt == 3 and result.run.crash_count <= 1
        with get_tracer("shop").start_as_current_span("what if"):
            forked = await client.fork("t", "t2", "r", message="and now?")
        again = (await client.runs(forked.thread_id)).items[0]
        await client.handle("t2", again.run_id).result(30)
    await arrived(receiver, lambda spans: len([s for s in spans if s.name == "invoke_agent support"]) == 4)
    latencies = await asyncio.to_thread(openmetrics, fleet.metrics[survivor])
    check_story(receiver.spans)
    check_exemplars(latencies, receiver.spans)
    assert not any(SECRET.encode() in body for body in receiver.bodies)


def openmetrics(url: str) -> str:
    """Return the metrics of a worker in the format that has exemplars."""
    request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        text: str = reply.read().decode()
        return text


def check_exemplars(metrics: str, spans: Spans) -> None:
    """T5: a bucket of each latency of the worker leads to an attempt of the run or of the fork."""
    attempts = {span.span_id for span in spans.named("invoke_agent support")}
    for name in ("pickup", "queue_wait", "run", "first_token"):
        found = re.findall(rf'runyard_{name}_seconds_bucket.*span_id="([0-9a-f]+)"', metrics)
        assert found and attempts.issuperset(found), name


async def arrived(receiver: OtlpReceiver, condition: Any) -> None:
    async def true() -> bool:
        return bool(condition(receiver.spans))

    await until(true, 30)


def check_story(spans: Spans) -> None:
    """Check the tree of the run, its links, and the trace of the fork."""
    checkout, approve, what_if = (spans.one(name) for name in ("checkout", "approve", "what if"))
    assert spans.orphans() == []
    [(request, [(accept, below)])] = spans.tree(checkout)[1]
    assert (request, accept) == (PROMPT, "accept")
    chat = next(span.name for span in spans if span.name.startswith("chat "))
    invoked = "invoke_agent support"
    assert below == [
        "queue_wait",
        (invoked, [chat]),
        "respond",
        "queue_wait",
        (invoked, ["execute_tool refund", chat]),
        (invoked, ["execute_tool ship", chat]),
    ]
    of_run = Spans(span for span in spans if span.trace_id == checkout.trace_id)
    assert {span.service for span in of_run} == {"shop", "runyard-api", "runyard-worker"}
    accepted = of_run.one("accept")
    first, second, third = of_run.named(invoked)
    assert [s.attributes["runyard.outcome"] for s in (first, second, third)] == ["suspended", "lost", "completed"]
    assert [s.links for s in (first, second, third)] == [{}, {first.span_id: "suspension"}, {second.span_id: "takeover"}]
    answer = of_run.one("respond")
    [clicked] = [span for span in spans if span.trace_id == approve.trace_id and span.service == "runyard-api"]
    assert answer.links == {clicked.span_id: "caller"} and clicked.links == {answer.span_id: "answer"}
    for span in (s for s in of_run if "gen_ai.operation.name" in s.attributes):
        assert (span.attributes["gen_ai.conversation.id"], span.attributes["gen_ai.agent.name"]) == ("t", "support")
    assert all(span.attributes["gen_ai.usage.output_tokens"] > 0 for span in of_run if span.name == chat)
    check_fork(Spans(span for span in spans if span.trace_id == what_if.trace_id), accepted)


def check_fork(spans: Spans, source: Seen) -> None:
    """Check the trace of the fork: the fork and the first run on its thread link to the run after which it was cut."""
    fork, [attempt] = spans.one("fork"), spans.named("invoke_agent support")
    assert fork.links == {source.span_id: "fork"} and attempt.links == {source.span_id: "fork"}
    assert attempt.attributes["gen_ai.conversation.id"] == "t2"
    assert attempt.parent_id == spans.one("accept").span_id
