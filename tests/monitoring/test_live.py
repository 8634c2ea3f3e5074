"""A real Prometheus scrapes a live deployment. Every query answers, and the figures are those of what happened."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.monitoring.answers import answers, table
from tests.monitoring.scene import AGENTS, BOUND, Scene, deployment
from tests.support import monitoring
from tests.support.fleet import Fleet, scrape, until
from tests.support.long_form import LONG

RUNS = int(os.environ.get("RUNYARD_TEST_SCRAPED_RUNS", "200" if LONG else "80"))
EMPTY = {
    "runs: Jobs of arq's producers per second: {{outcome}}": "no queue of arq is served",
    "servers: Memory of Redis: limit": "the Redis of the tests has no memory limit",
    "inbox: Requests without an answer in time: {{code}}": "every question has time",
}
"""Queries without a series in this deployment, and why."""


async def test_every_query_answers_on_a_live_deployment(fleet: Fleet, tmp_path: Path) -> None:
    """Runs through two workers and the API, one worker killed: no query fails or is empty without a reason."""
    async with deployment(fleet, tmp_path) as scene:
        await scene.play(RUNS // 2)
        taken_over = await scene.kill_a_worker()
        await scene.play(RUNS // 2)
        await scene.scraped()
        await until(lambda: measured(scene), BOUND)
        print(await asyncio.to_thread(table, scene.prometheus))
        found = await asyncio.to_thread(answers, scene.prometheus)
        assert {name for name, series in found.items() if not series} == EMPTY.keys()
        await asyncio.to_thread(check_figures, scene, taken_over)
        await asyncio.to_thread(check_alerts, scene)
    await asyncio.to_thread(check_series, [*fleet.metrics.values()])


async def measured(scene: Scene) -> bool:
    """Whether the leader has measured what the last round left behind."""
    await asyncio.sleep(0.2)
    suspended = 'max(runyard_suspended_runs{waits_for="human"}) == 2'
    expr = f"max(runyard_scheduled_runs) == 2 and {suspended} and sum(runyard_leading) == 1"
    return bool(await asyncio.to_thread(scene.prometheus.query, expr))


def check_figures(scene: Scene, taken_over: int) -> None:
    """What Prometheus has counted over all workers, the killed one included, is what happened."""
    value = scene.prometheus.value
    ended = value("sum(max_over_time(runyard_runs_finished_total[10m]))")
    assert ended == scene.ended
    assert value("sum(rate(runyard_runs_finished_total[1m]))") > 0
    shown = {panel.title: panel.filled("1m", "10m") for panel in monitoring.panels() if panel.dashboard == "recovery"}
    assert taken_over >= 1 and value(shown["Takeovers"]) == taken_over  # also if a worker that had just started took over
    assert value(shown["Workers declared dead"]) == 1
    assert value("sum(max_over_time(runyard_pickup_seconds_count[10m]))") >= ended
    assert 0 < value("histogram_quantile(0.5, sum by (le) (rate(runyard_pickup_seconds_bucket[1m])))") < 10
    assert value('sum(max_over_time(runyard_runs_finished_total{outcome="failed"}[10m]))') == 4
    assert value('sum(max_over_time(runyard_attempt_errors_total{code="budget_exceeded"}[10m]))') == 2
    assert value("sum(runyard_pending_requests)") == 2 and value("sum(runyard_suspended_runs)") == 2
    cost = value('sum(max_over_time(runyard_cost_dollars_total{agent="priced", model="example-large"}[10m]))')
    assert cost == pytest.approx(0.02 * RUNS / 4)


def check_alerts(scene: Scene) -> None:
    """Every alert was evaluated without an error. The death of the worker is reported, and no critical alert fires."""
    rules = {rule["name"]: rule for rule in scene.prometheus.rules()}
    assert rules.keys() == monitoring.alerts().keys()
    assert {name: rule["lastError"] for name, rule in rules.items() if rule["health"] != "ok"} == {}
    firing = {name for name, rule in rules.items() if rule["state"] == "firing"}
    assert "RunyardWorkerDied" in firing
    assert not {name for name in firing if rules[name]["labels"]["severity"] == "critical"}
    assert {target["health"] for target in scene.prometheus.targets()} == {"up"}


def check_series(urls: list[str]) -> None:
    """A worker with five agents has at most 300 series, also when its agents have used every metric."""
    for url in urls:
        families = [*text_string_to_metric_families(scrape(url))]
        assert sum(len(family.samples) for family in families) <= 300
        agents = {sample.labels["agent"] for family in families for sample in family.samples if "agent" in sample.labels}
        assert {*AGENTS} <= agents
