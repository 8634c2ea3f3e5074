"""The dashboards and alerts of the chart: their expressions, and what is wrong with one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from runyard.domain.waits import WAITS_FOR
from runyard.errors import BY_CODE
from runyard.support import metrics

CHART: Final = Path(__file__).parents[2] / "charts" / "runyard"
DASHBOARDS: Final = CHART / "dashboards"
ALERTS: Final = CHART / "alerts.yaml"
ALERT_TESTS: Final = Path(__file__).parents[1] / "monitoring" / "alerts.test.yaml"

OF_TARGETS: Final = frozenset({"namespace", "instance"})
"""Labels that Prometheus adds to each series of a target."""
OF_PROCESSES: Final = frozenset({"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"})
"""Metrics that prometheus-client adds on Linux."""
VARIABLES: Final = {"namespace": ".*", "queue": ".*", "agent": ".*"}
SUFFIXES: Final = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


@dataclass(frozen=True, slots=True)
class Panel:
    """A query of a panel. ``instant``: the query is about the whole time that the dashboard shows."""

    dashboard: str
    title: str
    expr: str
    legend: str
    instant: bool

    @property
    def name(self) -> str:
        return f"{self.dashboard}: {self.title}: {self.legend}"

    def filled(self, interval: str = "1m", span: str = "1h") -> str:
        """Return the query as Grafana sends it when everything is selected. ``interval`` and ``span``: durations, as ``5m``."""
        return filled(self.expr, interval, span)


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``."""
    found = shutil.which(name)
    assert found is not None, f"the machine has no {name}; install prometheus (Debian: apt-get install prometheus)"
    return found


def filled(expr: str, interval: str = "1m", span: str = "1h") -> str:
    """Return ``expr`` with values in place of Grafana's variables."""
    values = {**VARIABLES, "__rate_interval": interval, "__range": span}
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)


@cache
def dashboards() -> Mapping[str, dict[str, Any]]:
    """Return the dashboards by the names of their files."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels() -> list[Panel]:
    """Return the queries of all panels."""
    return [
        Panel(name, panel["title"], target["expr"], target["legendFormat"], target.get("instant", False))
        for name, dashboard in dashboards().items()
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def variable_queries() -> list[str]:
    """Return the queries of the variables of all dashboards."""
    lists = [dashboard["templating"]["list"] for dashboard in dashboards().values()]
    return [variable["query"]["query"] for variables in lists for variable in variables if variable["type"] == "query"]


@cache
def exported() -> Mapping[str, frozenset[str]]:
    """Return the names of the series that runyard exports, each with its labels."""
    found = {}
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            family = metric.describe()[0]
            for suffix in SUFFIXES.get(family.type, ("",)):
                found[family.name + suffix] = frozenset({*metric._labelnames, *(["le"] if suffix == "_bucket" else [])})
    return {**found, **dict.fromkeys(OF_PROCESSES, frozenset[str]())}


@cache
def values() -> Mapping[str, frozenset[str]]:
    """Return the values of the labels whose values the code knows."""
    metrics.serve({"writer": "default"}, ["default"])
    metrics.serve_arq()
    metrics.serve_http([("GET", "/v1/threads", 200), ("GET", "/v1/threads", 503)])
    found: dict[str, set[str]] = {"code": set(BY_CODE), "waits_for": set(WAITS_FOR)}
    for family in REGISTRY.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault(label, set()).add(value)
    return {label: frozenset(texts) for label, texts in found.items()}


def faults(expr: str) -> list[str]:
    """Return what is wrong with an expression without variables: names, labels and values that no process exports."""
    try:
        tree = promql.parse(expr)
    except ValueError as error:
        return [f"{error}: {expr}"]
    selectors, grouped = _parts(tree)
    found = []
    labels = set[str]()
    for name, matchers in selectors:
        if name not in exported():
            found.append(f"{name} is not exported: {expr}")
            continue
        labels |= exported()[name]
        found += [f"{name} has no label {label}: {expr}" for label in matchers.keys() - exported()[name] - OF_TARGETS]
        for label, (exact, value) in matchers.items():
            known = values().get(label, frozenset())
            if label not in OF_TARGETS and not any(re.fullmatch(re.escape(value) if exact else value, text) for text in known):
                found.append(f"{label} is never {value}: {expr}")
    return found + [f"no series has the label {label}: {expr}" for label in grouped - labels - OF_TARGETS]


def named(expr: str) -> set[str]:
    """Return the names of the series in an expression."""
    return {name for name, _ in _parts(promql.parse(expr))[0]}


Selector = tuple[str, dict[str, tuple[bool, str]]]


def _parts(tree: promql.Expr) -> tuple[list[Selector], set[str]]:
    """Return the selectors in an expression, each with its matchers (label → exact, value), and the labels that group."""
    selectors: list[Selector] = []
    grouped: set[str] = set()

    def visit(node: promql.Expr) -> bool:
        if isinstance(node, promql.VectorSelector):
            matchers = node.matchers.matchers
            selectors.append((node.name or "", {m.name: (m.op == promql.MatchOp.Equal, m.value) for m in matchers}))
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)
        elif isinstance(node, promql.BinaryExpr) and node.modifier is not None and node.modifier.matching is not None:
            grouped.update(node.modifier.matching.labels)
        return True

    promql.walk(tree, visit)
    return selectors, grouped


def uses(expr: str) -> Iterator[str]:
    """Yield the families of the metrics in an expression, as ``docs/reference/metrics.md`` names them."""
    for name in named(expr):
        yield re.sub(r"_(bucket|sum|count)$", "", name)
