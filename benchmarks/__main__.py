"""Run the scenarios, print tables and write JSON: ``python -m benchmarks [--only NAME]… [--quick]``.

Servers at RUNYARD_POSTGRES_URL and RUNYARD_REDIS_URL are used if these are set. Otherwise the program starts private servers.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time

import uvloop
from rich.console import Console

from benchmarks import environment, harness, report
from benchmarks.lab import open_lab
from runyard_backends.embedded import Servers, servers

SCENARIOS = (
    "pickup",
    "throughput",
    "tools",
    "batch",
    "four_workers",
    "fork",
    "load",
    "turn_10k",
    "run_cost",
    "respond_resume",
    "transactional_enqueue",
    "idle",
    "streaming",
    "traces",
    "http",
    "million_ended",
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="runyard and its peers, side by side")
    parser.add_argument("--only", action="append", choices=SCENARIOS, metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--quick", action="store_true", help="one short round of each scenario, to test that it runs")
    return parser.parse_args()


async def _run(urls: Servers, only: list[str], quick: bool) -> int:
    console = Console(width=None if sys.stdout.isatty() else 160)
    results = []
    async with open_lab(urls.postgres_url, urls.redis_url, quick=quick) as lab:
        described = await environment.describe(lab)
        report.print_environment(console, described)
        for name in only:
            scenario: harness.Scenario = importlib.import_module(f"benchmarks.scenarios.{name}").SCENARIO
            if not scenario.contestants:
                console.print(f"{scenario.title}: no contestant here")
                continue
            begin = time.monotonic()
            result = report.as_json(scenario, await harness.run(scenario, lab))
            report.print_scenario(console, result)
            console.print(f"{time.monotonic() - begin:.0f} s\n", style="dim")
            results.append(result)
    console.print(f"written to {report.write_json(described, results, quick=quick)}")
    failed = any("error" in one for result in results for case in result["cases"].values() for one in case.values())
    return 1 if failed else 0


if __name__ == "__main__":
    arguments = _arguments()
    with servers() as urls:
        status = uvloop.run(_run(urls, arguments.only or list(SCENARIOS), arguments.quick))
    sys.exit(status)
