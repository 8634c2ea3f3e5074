"""What a Prometheus answers to every query of the dashboards and every expression of the alerts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.support import monitoring
from tests.support.prometheus import Prometheus, Series


def answers(prometheus: Prometheus) -> dict[str, Series]:
    """Return the series of each panel's and variable's query. Rates are those of the last minute."""
    found = {panel.name: prometheus.query(panel.filled("1m", "10m")) for panel in monitoring.panels()}
    for query in monitoring.variable_queries():
        series, label = query.removeprefix("label_values(").removesuffix(")").split(", ")
        found[query] = prometheus.query(f"count by ({label}) ({series})")
    return found


def table(prometheus: Prometheus) -> str:
    """Return a line for each query and each alert: the number of series, the lowest and the highest value, and the name."""
    return "\n".join(_lines(prometheus))


def _lines(prometheus: Prometheus) -> Iterator[str]:
    yield f"{'series':>6}  {'values':24}  query"
    for name, series in sorted(answers(prometheus).items()):
        yield f"{len(series):6}  {_values(series):24}  {name}"
    yield f"{'series':>6}  {'values':24}  alert: state, evaluation"
    for rule in sorted(prometheus.rules(), key=lambda rule: str(rule["name"])):
        series = prometheus.query(rule["query"])
        health = rule.get("lastError", rule["health"])
        yield f"{len(series):6}  {_values(series):24}  {rule['name']}: {rule['state']}, {health}"


def _values(series: Series) -> str:
    values = [value for one in series if not math.isnan(value := float(one["value"][1]))]
    if not values:
        return "-"
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"
