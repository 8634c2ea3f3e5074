"""The metrics keep the conventions of Prometheus, and count from zero what they are told to serve."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from runyard.domain.runs import ErrorInfo
from runyard.domain.states import RunStatus
from runyard.domain.waits import WAITS_FOR, WaitsFor
from runyard.errors import BackendUnavailableError, LockedError, RunyardError
from runyard.execution.run_meter import RunMeter
from runyard.execution.usage import UsageMeter, model_name
from runyard.models import HitlRequest, JsonObject, Message, Run, Usage
from runyard.ports.refs import RunRef
from runyard.ports.results import Claim, Ended, Page
from runyard.ports.scheduling import Delivery, Effects, Job, OutsideEvent
from runyard.ports.workers import DeploymentFigures, QueueInfo
from runyard.support import metrics, tracing
from runyard.worker import claim_loop
from runyard.worker.leader_metrics import OF_QUEUES, LeaderMetrics
from runyard_api.http.telemetry import Telemetry

WORKERS = "workers: names of the apps' agents, which register with their queues; empty for others"
SOURCES = {
    "agent": WORKERS,
    "queue": WORKERS + "; of gauges also queues that the operator paused",
    "outcome": "metrics.OUTCOMES, metrics.ATTEMPT_OUTCOMES, webhooks.models.TRY_OUTCOMES",
    "kind": "models.RunKind",
    "le": "buckets in metrics.py",
    "method": "runyard_api.http.telemetry.METHODS, or other",
    "route": "templates of the API's routes, or empty",
    "status": "three digits that the API's own code answers, or left",
    "code": "errors.BY_CODE, metrics.USUAL_ERRORS; empty for others",
    "model": "names that model layers report, the first metrics.MAX_MODELS of a process, each for one agent; empty for others",
    "direction": "input, output",
    "server": "metrics.SERVERS",
    "waits_for": "waits.WAITS_FOR",
}
"""Where the values of each label come from. None comes from a caller: not what a caller names, sends, or types."""
LABELS = set(SOURCES)
START = datetime(2030, 1, 1, tzinfo=UTC)
REF = RunRef(1, "r")


def families() -> Iterator[Metric]:
    metrics.serve({"writer": "default"}, ["default", "gpu"])
    metrics.serve_http([("GET", "/v1/threads", 200)])
    text = generate_latest().decode()
    return (family for family in text_string_to_metric_families(text) if family.name.startswith("runyard_"))


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def ended(status: RunStatus, code: str | None = None, *events: OutsideEvent) -> Ended:
    return Ended(status, "1-1", ErrorInfo(code=code, message="m") if code else None, Effects(events=list(events)))


def meter(run: Run, agent: str | None) -> RunMeter:
    return RunMeter(REF, run, agent)


def run(**fields: object) -> Run:
    given = {"thread_id": "t", "run_id": "r", "status": RunStatus.RUNNING, "accepted_at": START, "attempt": 1, "queue": "gpu"}
    return Run.model_validate(given | {"started_at": START + timedelta(seconds=2)} | fields)


@pytest.mark.parametrize("family", list(families()), ids=lambda family: family.name)
def test_metric_names_follow_the_conventions(family: Metric) -> None:
    """https://prometheus.io/docs/practices/naming/: what ``promtool check metrics`` asks for."""
    assert re.fullmatch(r"runyard(_[a-z]+)+", family.name)
    assert re.fullmatch(r"[A-Z0-9].*\.( 0 without faults\.)?", family.documentation)
    assert not re.search(r"_(total|count|sum|bucket|info)$", family.name)
    assert not re.search(r"_(ms|milliseconds|minutes|hours|days|counter|gauge|histogram)(_|$)", family.name)
    assert {label for sample in family.samples for label in sample.labels} <= LABELS
    if family.type == "counter":
        assert {sample.name for sample in family.samples} <= {f"{family.name}_total", f"{family.name}_created"}
    elif family.type in ("histogram", "summary"):
        assert family.name.endswith("_seconds")
    else:
        assert family.type == "gauge"


def test_counters_of_served_queues_start_at_zero() -> None:
    """rate() of a counter needs the zero before the first one."""
    without = {family.name for family in families() if not family.samples}
    measured = (*OF_QUEUES, metrics.SUSPENDED_RUNS, metrics.PENDING_REQUESTS)  # by the leader
    reported = (metrics.TOKENS, metrics.COST, metrics.MODEL_REQUESTS)  # by models, whose names are not known before
    assert without <= {metric.describe()[0].name for metric in (*measured, *reported, metrics.ARQ_JOBS)}
    text = generate_latest().decode()
    for outcome in metrics.OUTCOMES:
        assert f'runyard_runs_finished_total{{agent="writer",outcome="{outcome}",queue="default"}}' in text


def test_names_that_nobody_serves_share_a_label() -> None:
    metrics.serve({"writer": "default"}, ["default"])
    assert metrics.labels("writer", "default") == {"agent": "writer", "queue": "default"}
    assert metrics.labels("user-4711", "queue-of-user-4711") == metrics.labels(None, "") == {"agent": "", "queue": ""}


def test_an_attempt_that_ends_its_run() -> None:
    metrics.serve({"writer": "gpu"}, ["gpu"])
    labels = {"agent": "writer", "queue": "gpu"}
    before = value("runyard_runs_finished_total", outcome="completed", **labels)
    waited = value("runyard_run_seconds_sum", agent="writer")
    meter(run(), "writer").ended(ended(RunStatus.COMPLETED), time.monotonic() + 0.5)
    assert value("runyard_runs_finished_total", outcome="completed", **labels) == before + 1
    assert value("runyard_run_seconds_sum", agent="writer") - waited == pytest.approx(2.0, abs=0.2)
    assert value("runyard_first_token_seconds_sum", agent="writer") == pytest.approx(2.5, abs=0.2)


@pytest.mark.parametrize(
    ("status", "outcome"), [(RunStatus.QUEUED, "released"), (None, "lost"), (RunStatus.SUSPENDED, "suspended")]
)
def test_an_attempt_whose_run_goes_on(status: RunStatus | None, outcome: str) -> None:
    metrics.serve({"writer": "gpu"}, ["gpu"])
    finished = sum(value("runyard_runs_finished_total", outcome=o, agent="writer", queue="gpu") for o in metrics.OUTCOMES)
    before = value("runyard_attempts_ended_total", outcome=outcome)
    meter(run(), "writer").ended(status and ended(status), None)
    assert value("runyard_attempts_ended_total", outcome=outcome) == before + 1
    assert finished == sum(
        value("runyard_runs_finished_total", outcome=o, agent="writer", queue="gpu") for o in metrics.OUTCOMES
    )


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.QUEUED])
def test_each_error_that_ended_an_attempt_is_counted_once(status: RunStatus) -> None:
    """By the end that was stored: an attempt that lost its run had no effect, and the store may refuse what an agent left."""
    before = value("runyard_attempt_errors_total", code="invalid_input")
    meter(run(), "writer").ended(ended(status, "invalid_input"), None)
    meter(run(), "writer").ended(None, None)
    assert value("runyard_attempt_errors_total", code="invalid_input") == before + 1


def test_an_end_whose_event_the_store_made_is_counted_with_that_event() -> None:
    metrics.serve({"writer": "gpu"}, ["gpu"])
    names = {"outcome": "cancelled", "agent": "writer", "queue": "gpu"}
    before = value("runyard_runs_finished_total", **names)
    event = OutsideEvent(REF, "t", "1-1", "run.cancelled", {}, "writer", "gpu")
    meter(run(), "writer").ended(ended(RunStatus.CANCELLED, None, event), None)
    assert value("runyard_runs_finished_total", **names) == before
    metrics.count_ends([event])
    assert value("runyard_runs_finished_total", **names) == before + 1


def test_the_time_of_the_last_suspension_counts() -> None:
    metrics.serve({"writer": "gpu"}, ["gpu"])
    before = value("runyard_suspended_seconds_sum")
    asked = [
        HitlRequest(created_at=START, answered_at=START + timedelta(hours=5)),
        HitlRequest(created_at=START + timedelta(hours=6), answered_at=START + timedelta(hours=6, seconds=9)),
    ]
    meter(run(attempt=3), "writer").resumed(asked)
    assert value("runyard_suspended_seconds_sum") - before == pytest.approx(9.0)


def test_runs_that_end_outside_an_attempt() -> None:
    metrics.serve({"writer": "gpu"}, ["gpu"])
    before = value("runyard_runs_finished_total", outcome="dead", agent="writer", queue="gpu")
    events = [OutsideEvent(RunRef(1, "r"), "t", "1-1", type, {}, "writer", "gpu") for type in ("run.dead", "run.queued")]
    metrics.count_ends(events)
    assert value("runyard_runs_finished_total", outcome="dead", agent="writer", queue="gpu") == before + 1


def test_every_label_has_a_source() -> None:
    """Whoever adds a label says where its values come from, or takes one that is known."""
    declared = {
        (metric.describe()[0].name, label)
        for metric in vars(metrics).values()
        if isinstance(metric, MetricWrapperBase)
        for label in metric._labelnames
    }
    assert declared
    assert {label for _, label in declared} <= SOURCES.keys()


async def test_hostile_names_do_not_grow_what_is_exposed() -> None:
    """A2: agents, queues, codes, methods and paths that callers invent, 3,000 of each."""
    metrics.serve({"writer": "default"}, ["default"])
    found: list[QueueInfo] = [QueueInfo(queue="default", queued=1, workers=1, known=True)]

    class Store:
        async def queues(self) -> Page[QueueInfo]:
            return Page(found)

        async def measure(self) -> DeploymentFigures:
            return DeploymentFigures()

    backlog = LeaderMetrics(Store(), Store(), lambda: True)  # type: ignore[arg-type]

    async def attack(name: str) -> int:
        attempt = meter(run(agent=name, queue=name), name)
        attempt.resumed([HitlRequest(created_at=START, answered_at=START)])
        attempt.ended(ended(RunStatus.FAILED, name), time.monotonic())
        metrics.count_ends([OutsideEvent(RunRef(1, "r"), "t", "1-1", type, {}, name, name) for type in ("run.failed", name)])
        metrics.count_rejected(name)
        metrics.count_usage(name, Usage(requests=1), name * 100)
        metrics.count_usage(name, Usage(requests=1), f"\ud800{name}")
        job = Job(1, "r", queue=name, ready_at=START.timestamp())
        claim_loop._count(Delivery(job, 1), Claim(job.ref, "claimed", run=run(queue=name)), tracing.NO_SPAN)
        await respond(method=name, path=f"/{name}")
        found.append(QueueInfo(queue=name, queued=2, deepest=1, oldest=5.0))
        await backlog.step()
        return len(generate_latest())

    size = await attack("name0")
    for n in range(1, 3000):
        if n < 3000 - 50:
            found.append(QueueInfo(queue=f"name{n}", queued=2, deepest=1, oldest=5.0))
        elif (now := await attack(f"name{n}")) > size + 1000:  # digits of the values
            pytest.fail(f"{now} bytes after {n} names, {size} after the first")
    assert "name1" not in generate_latest().decode()
    assert (value("runyard_queued_runs", queue=""), value("runyard_queued_runs", queue="default")) == (5998 + 2, 1)
    found.clear()
    await backlog.step()


async def respond(method: str, path: str) -> None:
    """One request that no route takes, as the API observes it."""

    async def nowhere(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})

    async def receive() -> AsgiMessage:
        return {"type": "http.disconnect"}

    async def send(message: AsgiMessage) -> None:
        """Nobody reads it."""

    await Telemetry(nowhere)({"type": "http", "method": method, "path": path, "headers": []}, receive, send)


def test_a_counter_that_was_looked_up_before_is_the_same() -> None:
    before = value("runyard_attempts_ended_total", outcome="lost")
    for _ in range(2):
        metrics.child(metrics.ATTEMPTS_ENDED, "lost").inc()
    assert value("runyard_attempts_ended_total", outcome="lost") == before + 2


async def test_only_the_leader_shows_what_waits() -> None:
    class Store:
        found: list[QueueInfo]
        figures = DeploymentFigures(approvals=2, oldest_request=9.0, connections=7, max_connections=97, commits=1000)

        async def queues(self) -> Page[QueueInfo]:
            return Page(self.found)

        async def measure(self) -> DeploymentFigures:
            return self.figures

    store, leading = Store(), True
    backlog = LeaderMetrics(store, store, lambda: leading)  # type: ignore[arg-type]
    waits: dict[WaitsFor, int] = {"human": 2, "timer": 1}
    store.found = [
        QueueInfo(queue="a", queued=3, oldest=7.5, running=2, scheduled=1, waits_for=waits, paused_at=START, known=True)
    ]
    store.found += [QueueInfo(queue="b", known=True)]
    commits = value("runyard_postgres_commits_total")
    await backlog.step()
    names = ("queued_runs", "oldest_queued_seconds", "running_runs", "scheduled_runs", "paused_queue")
    assert [value(f"runyard_{name}", queue="a") for name in names] == [3.0, 7.5, 2.0, 1.0, 1.0]
    suspended = {kind: value("runyard_suspended_runs", queue="a", waits_for=kind) for kind in WAITS_FOR}
    assert suspended == {"human": 2, "timer": 1, "signal": 0, "child": 0}
    assert value("runyard_pending_requests", kind="approval") == 2 and value("runyard_oldest_request_seconds") == 9.0
    assert value("runyard_postgres_connections") == 7 and value("runyard_postgres_max_connections") == 97
    store.found, store.figures = [QueueInfo(queue="b", known=True)], replace(store.figures, commits=1010)
    await backlog.step()
    assert REGISTRY.get_sample_value("runyard_queued_runs", {"queue": "a"}) is None
    assert value("runyard_postgres_commits_total") == commits + 10
    leading = False
    await backlog.step()
    assert REGISTRY.get_sample_value("runyard_queued_runs", {"queue": "b"}) is None
    assert REGISTRY.get_sample_value("runyard_pending_requests", {"kind": "approval"}) is None
    assert math.isnan(value("runyard_postgres_connections"))


def test_usage_is_counted_by_agent_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_models", set())  # other tests may have used up the models of this process
    metrics.serve({"writer": "gpu"}, ["gpu"])
    names = {"agent": "writer", "model": "opus"}
    cost, tokens = value("runyard_cost_dollars_total", **names), value("runyard_tokens_total", **names, direction="output")
    metrics.count_usage("writer", Usage(requests=2, input_tokens=5, output_tokens=3, cost=0.25), "opus")
    assert value("runyard_cost_dollars_total", **names) == cost + 0.25
    assert value("runyard_tokens_total", **names, direction="output") == tokens + 3


def test_hostile_models_have_a_bounded_number_of_series() -> None:
    """A2: an agent may choose a model by what a caller says, and a provider may answer with any name."""
    agents = {f"m{n}": "gpu" for n in range(5)}
    metrics.serve(agents, ["gpu"])
    for agent in agents:
        for n in range(metrics.MAX_MODELS):
            metrics.count_usage(agent, Usage(requests=1), f"model {n}")
    series = sum(line.startswith("runyard_model_requests_total{") for line in generate_latest().decode().splitlines())
    assert series <= metrics.MAX_MODELS + 10  # one more for each agent
    others = sum(value("runyard_model_requests_total", agent=agent, model="") for agent in agents)
    named = sum(value("runyard_model_requests_total", agent=agent, model=f"model {n}") for agent in agents for n in range(50))
    assert others > 0 and others + named == 5 * metrics.MAX_MODELS


def test_usage_that_an_earlier_attempt_stored_is_counted_once() -> None:
    """The worker that received an answer counts it. A later attempt reads the answer, and adds it to the run only."""
    used: list[tuple[int, str]] = []
    meter = UsageMeter(Usage(), lambda usage, model: used.append((usage.output_tokens, model)))
    old = Message.assistant("a", usage=Usage(output_tokens=7))
    meter.found(old.usage, old.id)
    new = Message.assistant(
        "b", usage=Usage(output_tokens=2), provider_details={"pydantic_ai": {"response": {"model_name": "m"}}}
    )
    meter.add_message(new)
    meter.add_message(new)
    assert used == [(2, "m")] and meter.uncounted == Usage(output_tokens=9)


@pytest.mark.parametrize(
    ("details", "name"),
    [
        (None, ""),
        ({"pydantic_ai": {"parts": []}}, ""),
        ({"pydantic_ai": {"response": {"model_name": "claude"}}}, "claude"),
        ({"openai_agents": {"response_id": "r", "model": "gpt"}}, "gpt"),
        ({"cubeloop": {"provider_id": "p", "model_id": "sonnet"}}, "sonnet"),
        ({"langgraph": {"id": "x", "model": 4711}}, ""),
    ],
)
def test_the_model_of_a_message_is_read_where_its_layer_keeps_it(details: JsonObject | None, name: str) -> None:
    assert model_name(Message.assistant("a", provider_details=details)) == name


def test_a_failed_call_of_a_server_is_counted_and_a_lock_is_not() -> None:
    before = value("runyard_server_calls_failed_total", server="redis")
    for error in (BackendUnavailableError("down"), LockedError("locked"), RunyardError("refused")):
        with pytest.raises(type(error)), metrics.measured_call("redis"):
            raise error
    assert value("runyard_server_calls_failed_total", server="redis") == before + 1


def test_five_agents_have_at_most_300_series() -> None:
    """Of a leader whose agents have executed runs with every outcome. Prometheus keeps each series in memory."""
    program = """
from datetime import UTC, datetime
from prometheus_client import generate_latest
from runyard.domain.runs import ErrorInfo
from runyard.domain.states import RunStatus
from runyard.domain.waits import WAITS_FOR, WaitsFor
from runyard.execution.run_meter import RunMeter
from runyard.models import Run, Usage
from runyard.ports.refs import RunRef
from runyard.ports.results import Ended
from runyard.ports.results import Page
from runyard.ports.workers import DeploymentFigures, QueueInfo
from runyard.support import metrics
from runyard.worker.leader_metrics import LeaderMetrics
metrics.own_registry()
metrics.serve({f"agent{n}": "default" for n in range(5)}, ["default"])
for n in range(5):
    for status in (*RunStatus, None):
        names = {"thread_id": "t", "run_id": "r", "queue": "default", "agent": f"agent{n}"}
        run = Run(**names, status=RunStatus.RUNNING, attempt=1, accepted_at=datetime.now(UTC))
        RunMeter(RunRef(1, "r"), run, run.agent).ended(status and Ended(status, "1-1"), 1.0)
    metrics.count_usage(f"agent{n}", Usage(), f"model{n}")
job = RunMeter(RunRef(1, "r"), run, None)
job.ended(Ended(RunStatus.COMPLETED, "1-1"), None)
with job.running():
    metrics.count_error("data_corrupted")
queues = [QueueInfo(queue="default", known=True), QueueInfo(queue="unknown")]
LeaderMetrics(None, None, bool)._show(queues, DeploymentFigures(commits=1, max_connections=1))
print(sum(line[0] != "#" for line in generate_latest().decode().splitlines()))
"""
    counted = int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
    assert 200 < counted <= 300
