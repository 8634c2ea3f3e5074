"""Print results as tables, and write them as JSON for comparison over time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Outcome, Record, Scenario
from benchmarks.runyard import NAME as RUNYARD
from benchmarks.stats import Summary, paired_ratio

RESULTS = Path(__file__).parent / "results"
Json = dict[str, Any]


def as_json(scenario: Scenario, outcome: Outcome) -> Json:
    """Return a scenario's results: per case and contestant the summary, the ratio of runyard to it, and all samples."""
    return {
        "name": scenario.name,
        "title": scenario.title,
        "unit": scenario.unit,
        "better": scenario.better,
        "cases": {
            case: {name: _contestant(record, records.get(RUNYARD)) for name, record in records.items()}
            for case, records in outcome.items()
        },
    }


def _contestant(record: Record, runyard: Record | None) -> Json:
    if record.error or not record.values:
        return {"error": record.error or "no samples"}
    comparable = runyard is not None and runyard is not record and not runyard.error and runyard.values
    return {
        "summary": asdict(Summary.of(record.values)),
        "runyard_to_this": paired_ratio(runyard.rounds, record.rounds) if runyard and comparable else None,
        "facts": record.facts,
        "rounds": record.rounds,
    }


def write_json(environment: Mapping[str, str], scenarios: list[Json], *, quick: bool) -> Path:
    """Write ``results/<UTC time>.json`` and return its path."""
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    content = {"at": now.isoformat(), "quick": quick, "environment": environment, "scenarios": scenarios}
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def print_environment(console: Console, environment: Mapping[str, str]) -> None:
    table = Table(show_header=False, box=None)
    for name, value in environment.items():
        table.add_row(name, value)
    console.print(table)


def print_scenario(console: Console, result: Json) -> None:
    """Print one table. The column ``runyard/this`` is the median over the rounds of the ratio of medians."""
    table = Table(title=f"{result['title']} ({result['unit']}, {result['better']} is better)", title_justify="left")
    table.add_column("case")
    table.add_column("contestant")
    for heading in ("n", "p50", "p99", "min", "max", "runyard/this"):
        table.add_column(heading, justify="right")
    table.add_column("beside")
    for case, contestants in result["cases"].items():
        for name, one in contestants.items():
            table.add_row(case, name, *_cells(one))
        table.add_section()
    console.print(table)


def _cells(one: Json) -> list[str]:
    if "error" in one:
        return ["", "", "", "", "", "", f"[red]{one['error'].splitlines()[0]}[/red]"]
    summary, ratio = one["summary"], one["runyard_to_this"]
    figures = [_number(summary[key]) for key in ("p50", "p99", "minimum", "maximum")]
    beside = ", ".join(f"{name} {_number(value)}" for name, value in one["facts"].items())
    return [str(summary["count"]), *figures, "" if ratio is None else f"{ratio:.3g} ×", beside]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
