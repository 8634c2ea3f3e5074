"""The metrics keep the conventions of Prometheus, and count from zero what they are told to serve."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message, Receive, Scope, Send

from runyard.domain.states import RunStatus
from runyard.models import HitlRequest, Run
from runyard.ports.refs import RunRef
from runyard.ports.results import Claim
from runyard.ports.scheduling import Delivery, Job, OutsideEvent
from runyard.ports.workers import QueueInfo
from runyard.support import metrics
from runyard.worker import claim_loop
from runyard.worker.queue_metrics import QueueMetrics
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
    "code": "errors.BY_CODE; empty for others",
}
"""Where the values of each label come from. None comes from a caller: not what a caller names, sends, or types."""
LABELS = set(SOURCES)
START = datetime(2030, 1, 1, tzinfo=UTC)


def families() -> Iterator[Metric]:
    metrics.serve({"writer": "default"}, ["default", "gpu"])
    metrics.serve_http([("GET", "/v1/threads", 200)])
    text = generate_latest().decode()
    return (family for family in text_string_to_metric_families(text) if family.name.startswith("runyard_"))


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


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
    elif family.type == "histogram":
        assert family.name.endswith("_seconds")
    else:
        assert family.type == "gauge"


def test_counters_of_served_queues_start_at_zero() -> None:
    """rate() of a counter needs the zero before the first one."""
    without = {family.name for family in families() if not family.samples}
    assert without <= {gauge.describe()[0].name for gauge in metrics.OF_QUEUES}, "queues appear when the leader has measured"
    text = generate_latest().decode()
    for outcome in metrics.OUTCOMES:
        assert f'runyard_runs_finished_total{{agent="writer",outcome="{outcome}",queue="default"}}' in text


def test_the_alerts_of_the_documents_use_metrics_that_exist() -> None:
    known = {sample.rpartition("{")[0] or sample.split(" ")[0] for sample in generate_latest().decode().splitlines()}
    known |= {gauge.describe()[0].name for gauge in metrics.OF_QUEUES}
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\brunyard_[a-z_]+", text))
    assert named and not named - known


def test_names_that_nobody_serves_share_a_label() -> None:
    metrics.serve({"writer": "default"}, ["default"])
    assert metrics.labels("writer", "default") == {"agent": "writer", "queue": "default"}
    assert metrics.labels("user-4711", "queue-of-user-4711") == metrics.labels(None, "") == {"agent": "", "queue": ""}


def test_an_attempt_that_ends_its_run() -> None:
    metrics.serve({"writer": "gpu"}, ["gpu"])
    labels = {"agent": "writer", "queue": "gpu"}
    before = value("runyard_runs_finished_total", outcome="completed", **labels)
    waited = value("runyard_run_seconds_sum", outcome="completed", agent="writer")
    metrics.RunMeter(run(), "writer").ended(RunStatus.COMPLETED, time.monotonic() + 0.5)
    assert value("runyard_runs_finished_total", outcome="completed", **labels) == before + 1
    assert value("runyard_run_seconds_sum", outcome="completed", agent="writer") - waited == pytest.approx(2.0, abs=0.2)
    assert value("runyard_first_token_seconds_sum", agent="writer") == pytest.approx(2.5, abs=0.2)


@pytest.mark.parametrize(
    ("status", "outcome"), [(RunStatus.QUEUED, "released"), (None, "lost"), (RunStatus.SUSPENDED, "suspended")]
)
def test_an_attempt_whose_run_goes_on(status: RunStatus | None, outcome: str) -> None:
    metrics.serve({"writer": "gpu"}, ["gpu"])
    finished = sum(value("runyard_runs_finished_total", outcome=o, agent="writer", queue="gpu") for o in metrics.OUTCOMES)
    before = value("runyard_attempts_ended_total", outcome=outcome, agent="writer", queue="gpu")
    metrics.RunMeter(run(), "writer").ended(status, None)
    assert value("runyard_attempts_ended_total", outcome=outcome, agent="writer", queue="gpu") == before + 1
    assert finished == sum(
        value("runyard_runs_finished_total", outcome=o, agent="writer", queue="gpu") for o in metrics.OUTCOMES
    )


def test_the_time_of_the_last_suspension_counts() -> None:
    metrics.serve({"writer": "gpu"}, ["gpu"])
    before = value("runyard_suspended_seconds_sum", agent="writer")
    asked = [
        HitlRequest(created_at=START, answered_at=START + timedelta(hours=5)),
        HitlRequest(created_at=START + timedelta(hours=6), answered_at=START + timedelta(hours=6, seconds=9)),
    ]
    metrics.RunMeter(run(attempt=3), "writer").resumed(asked)
    assert value("runyard_suspended_seconds_sum", agent="writer") - before == pytest.approx(9.0)


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

    class Queues:
        async def queues(self) -> list[QueueInfo]:
            return found

    backlog = QueueMetrics(Queues(), lambda: True)  # type: ignore[arg-type]

    async def attack(name: str) -> int:
        meter = metrics.RunMeter(run(agent=name, queue=name), name)
        meter.resumed([HitlRequest(created_at=START, answered_at=START)])
        meter.ended(RunStatus.FAILED, time.monotonic())
        metrics.count_ends([OutsideEvent(RunRef(1, "r"), "t", "1-1", type, {}, name, name) for type in ("run.failed", name)])
        metrics.count_rejected(name)
        job = Job(1, "r", queue=name, ready_at=START.timestamp())
        claim_loop._count(Delivery(job, 1), Claim(job.ref, "claimed", run=run(queue=name)))
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

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        """Nobody reads it."""

    await Telemetry(nowhere)({"type": "http", "method": method, "path": path, "headers": []}, receive, send)


def test_a_counter_that_was_looked_up_before_is_the_same() -> None:
    before = value("runyard_attempts_ended_total", outcome="lost", agent="", queue="")
    for _ in range(2):
        metrics.child(metrics.ATTEMPTS_ENDED, "lost", "", "").inc()
    assert value("runyard_attempts_ended_total", outcome="lost", agent="", queue="") == (before or 0) + 2


async def test_only_the_leader_shows_what_waits() -> None:
    class Queues:
        found: list[QueueInfo]

        async def queues(self) -> list[QueueInfo]:
            return self.found

    queues, leading = Queues(), True
    backlog = QueueMetrics(queues, lambda: leading)  # type: ignore[arg-type]
    queues.found = [QueueInfo(queue="a", queued=3, oldest=7.5, paused_at=START, known=True), QueueInfo(queue="b", known=True)]
    await backlog.step()
    shown = {name: value(f"runyard_{name}", queue="a") for name in ("queued_runs", "oldest_queued_seconds", "paused_queue")}
    assert shown == {"queued_runs": 3.0, "oldest_queued_seconds": 7.5, "paused_queue": 1.0}
    queues.found = [QueueInfo(queue="b", known=True)]
    await backlog.step()
    assert REGISTRY.get_sample_value("runyard_queued_runs", {"queue": "a"}) is None
    leading = False
    await backlog.step()
    assert REGISTRY.get_sample_value("runyard_queued_runs", {"queue": "b"}) is None
