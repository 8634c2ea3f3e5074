"""Draws the dashboards of the chart from the answers of a Prometheus, panel by panel, where Grafana would place them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tests.support import monitoring
from tests.support.prometheus import Prometheus, Series

COLUMNS: Final = 24
INCHES: Final = (18 / COLUMNS, 0.36)
"""Width of a column and height of a row of the grid."""
POINTS: Final = 120
BACKGROUND, PANEL, TEXT = "#111217", "#181b1f", "#ccccdc"
COLOURS: Final = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#37872d", "#fade2a", "#ffa6b0")


def draw(prometheus: Prometheus, name: str, start: float, end: float, file: Path) -> list[str]:
    """Draw the dashboard ``name`` for the time from ``start`` to ``end``. Return the titles of the panels without data."""
    dashboard = monitoring.dashboards()[name]
    panels = dashboard["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) + 2
    figure = plt.figure(figsize=(COLUMNS * INCHES[0], rows * INCHES[1]), facecolor=BACKGROUND, dpi=80)
    figure.text(0.01, 1 - 0.9 / rows, dashboard["title"], color=TEXT, fontsize=15, va="center")
    step = max(1.0, (end - start) / POINTS)
    empty = []
    for panel in panels:
        place = panel["gridPos"]
        x, w = place["x"] / COLUMNS, place["w"] / COLUMNS
        y, h = 1 - (place["y"] + 2 + place["h"]) / rows, place["h"] / rows
        figure.add_artist(
            plt.Rectangle(
                (x + 0.002, y + 0.15 / rows), w - 0.004, h - 0.3 / rows, facecolor=PANEL, edgecolor="#2c3235", zorder=-1
            )
        )
        figure.text(x + 0.008, y + h - 0.75 / rows, panel["title"], color=TEXT, fontsize=9, va="center")
        found = [answer(prometheus, target, start, end, step) for target in panel["targets"]]
        if not any(found):
            empty.append(panel["title"])
            figure.text(x + w / 2, y + h / 2, "No data", color="#6e7077", fontsize=11, ha="center", va="center")
            continue
        margin = 0.04 if panel["type"] == "timeseries" else 0.01
        axes = figure.add_axes((x + margin, y + 2.0 / rows, w - margin - 0.012, h - 3.3 / rows), facecolor=PANEL)
        (curves if panel["type"] == "timeseries" else number)(axes, panel, found)
    figure.savefig(file, facecolor=BACKGROUND)
    plt.close(figure)
    return empty


def answer(prometheus: Prometheus, target: dict[str, Any], start: float, end: float, step: float) -> Series:
    expr = monitoring.filled(target["expr"], f"{max(4 * step, 10):.0f}s", f"{end - start:.0f}s")
    if target.get("instant"):
        return [{"metric": one["metric"], "values": [one["value"]]} for one in prometheus.query(expr, end)]
    return prometheus.query_range(expr, start, end, step)


def points(series: dict[str, Any]) -> tuple[list[datetime], list[float]]:
    pairs = [(datetime.fromtimestamp(at), float(value)) for at, value in series["values"]]
    return [at for at, _ in pairs], [value for _, value in pairs]


def label(target: dict[str, Any], series: dict[str, Any]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: series["metric"].get(match[1], "–"), target["legendFormat"])


def curves(axes: Axes, panel: dict[str, Any], found: Sequence[Series]) -> None:
    """Draw lines, stacked areas or bars, as the panel says, with a legend."""
    how = panel["fieldConfig"]["defaults"]["custom"]
    lines = [(label(target, one), *points(one)) for target, some in zip(panel["targets"], found, strict=True) for one in some]
    lines = [line for line in lines if not all(map(math.isnan, line[2]))][: len(COLOURS)]
    if how["stacking"]["mode"] == "normal" and lines:
        times = sorted({at for _, each, _ in lines for at in each})
        by_time = [dict(zip(each, values, strict=True)) for _, each, values in lines]
        heights = [[0.0 if math.isnan(value := known.get(at, 0.0)) else value for at in times] for known in by_time]
        axes.stackplot(times, heights, colors=COLOURS, alpha=0.55, labels=[name for name, *_ in lines])
    for colour, (name, times, values) in zip(COLOURS, lines, strict=False):
        if how["stacking"]["mode"] == "normal":
            continue
        if how["drawStyle"] == "bars":
            axes.bar(times, values, width=1 / 86400, color=colour, alpha=0.7, label=name)
        else:
            axes.plot(times, values, color=colour, linewidth=1.1, label=name)
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] < 1e-9:
        axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, panel["fieldConfig"]["defaults"]["unit"])))
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(matplotlib.dates.AutoDateLocator(maxticks=5))
    axes.tick_params(colors=TEXT, labelsize=6.5, length=2)
    axes.grid(color="#2c3235", linewidth=0.5)
    for edge in axes.spines.values():
        edge.set_visible(False)
    columns = max(1, 110 // (max([len(name) for name, *_ in lines], default=0) + 6))
    legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncol=min(6, columns), fontsize=6.5, frameon=False)
    for text in legend.get_texts():
        text.set_color(TEXT)


def number(axes: Axes, panel: dict[str, Any], found: Sequence[Series]) -> None:
    """Draw the last value in the colour of its threshold, above a line of its values."""
    [series, *_] = found[0]
    times, values = points(series)
    last, defaults = values[-1], panel["fieldConfig"]["defaults"]
    steps = [step for step in defaults["thresholds"]["steps"] if step["value"] is None or last >= step["value"]]
    colour = {"text": "#73bf69"}.get(steps[-1]["color"], steps[-1]["color"])
    if len(values) > 1:
        axes.fill_between(times, values, color=colour, alpha=0.15)
        axes.set_ylim(0, max([value for value in values if not math.isnan(value)] or [1.0]) * 3 or 1)
    axes.axis("off")
    text = shown(last, defaults["unit"], defaults.get("decimals"))
    axes.text(0.5, 0.6, text, color=colour, fontsize=20, ha="center", va="center", transform=axes.transAxes)


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """Return ``value`` with its unit, as Grafana shows it."""
    if math.isnan(value):
        return "–"
    scales: dict[str, Callable[[float], str]] = {
        "s": lambda v: f"{v * 1000:.3g} ms" if abs(v) < 1 else f"{v:.3g} s" if v < 120 else f"{v / 60:.3g} min",
        "bytes": lambda v: next(
            f"{v / 1024**n:.3g} {name}" for n, name in enumerate(("B", "KiB", "MiB", "GiB")) if v < 1024 ** (n + 1) or n == 3
        ),
        "percentunit": lambda v: f"{v * 100:.3g} %",
        "currencyUSD": lambda v: f"${v:.{2 if decimals is None else decimals}f}",
    }
    if decimals == 0 and unit == "short" and value < 1000:
        return f"{value:.0f}"
    text = scales.get(unit, lambda v: f"{v:.3g}" if abs(v) < 1000 else f"{v / 1000:.3g} K")(value)
    return text + {"ops": " /s", "reqps": " /s"}.get(unit, "")
