"""``python -m tests.chaos --duration 60 --seed 1``: chaos from the command line. Ends with 1 if a rule was broken."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from runyard.support.logging import configure
from tests.chaos.driver import run_chaos
from tests.chaos.redis_setups import SETUPS
from tests.chaos.report import failure, table


def main() -> int:
    """Run the chaos and print the table. After a failure, print also the violations and the faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--duration", type=float, default=60, help="seconds of faults")
    parser.add_argument("--seed", type=int, default=1, help="what the faults and the load are drawn from")
    parser.add_argument("--redis", choices=SETUPS, default="pair", help="how Redis fails over")
    parser.add_argument("--keep", type=Path, help="a directory for the agents' trace and the logs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "clients.log").open("w") as log:
            configure("warning", "json", log)
            report = asyncio.run(run_chaos(arguments.duration, arguments.seed, directory, arguments.redis))
    print(table(report))
    if report.violations:
        print(failure(report))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
