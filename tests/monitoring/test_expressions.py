"""Each expression of a dashboard or an alert asks for what the code exports."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from runyard.support import metrics
from tests.support import monitoring

FILES = sorted(monitoring.dashboards())


def test_every_metric_label_and_value_of_a_panel_is_exported() -> None:
    queries = [panel.filled() for panel in monitoring.panels()]
    assert len(queries) > 100
    assert [fault for query in queries for fault in monitoring.faults(query)] == []


def test_every_metric_label_and_value_of_an_alert_is_exported() -> None:
    assert [fault for rule in monitoring.alerts().values() for fault in monitoring.faults(rule["expr"])] == []


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(rate(runyard_runs_finishd_total[5m]))",
        "sum by (agnt) (runyard_running_attempts)",
        'runyard_runs_finished_total{outcome="ded"}',
        'runyard_pickup_seconds_bucket{le="0.7"}',
        'runyard_slots{queue="default"}',
        "sum by (agent) (runyard_slots)",
        "rate(runyard_slots[5m]",
    ],
)
def test_a_wrong_name_label_or_value_is_found(wrong: str) -> None:
    assert monitoring.faults(wrong)


def test_every_metric_is_shown_or_watched() -> None:
    """A metric that no panel and no alert uses tells nobody anything."""
    expressions = [panel.filled() for panel in monitoring.panels()] + [rule["expr"] for rule in monitoring.alerts().values()]
    used = {family for expr in expressions for family in monitoring.uses(expr)}
    assert {family for name in monitoring.exported() for family in monitoring.uses(name)} - used == set()


def test_prometheus_accepts_every_query(tmp_path: Path) -> None:
    """promtool parses what a library might parse otherwise."""
    rules = [{"record": f"panel{n}", "expr": panel.filled()} for n, panel in enumerate(monitoring.panels())]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [monitoring.program("promtool"), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_variables_ask_for_series_with_their_labels() -> None:
    for query in monitoring.variable_queries():
        series, label = query.removeprefix("label_values(").removesuffix(")").split(", ")
        assert label in monitoring.exported()[series] | monitoring.OF_TARGETS


@pytest.mark.parametrize("name", FILES)
def test_a_dashboard_has_a_fixed_id_variables_and_a_tidy_grid(name: str) -> None:
    """A changed uid would break links and bookmarks. Grafana moves panels that overlap."""
    dashboard = monitoring.dashboards()[name]
    assert (dashboard["uid"], dashboard["title"].split(" / ")[0]) == (f"runyard-{name}", "runyard")
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "namespace", "queue", "agent"]
    assert all(v["definition"] == v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query")
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    assert not any(overlap(one["gridPos"], other["gridPos"]) for one, other in itertools.combinations(panels, 2))


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


def test_every_panel_regards_the_variables_that_its_metrics_know() -> None:
    """A selected queue or agent narrows every query whose metric has that label."""
    for panel in monitoring.panels():
        for name in monitoring.named(panel.filled()):
            for label in monitoring.exported()[name] & {"queue", "agent"}:
                assert f'{label}=~"${label}"' in panel.expr, panel.name
        assert 'namespace=~"$namespace"' in panel.expr, panel.name


def test_the_reference_lists_no_metric_twice() -> None:
    names = [metric.describe()[0].name for metric in vars(metrics).values() if isinstance(metric, monitoring.MetricWrapperBase)]
    assert len(names) == len(set(names))
