"""The processor time of a simple run with one worker process and with four.

Measured: microseconds of processor time of Postgres, Redis, the workers and the producer together, per run, over 200 threads.
Four workers share the runs, so their batches are smaller. Also reported: runs per second, and the time of each part.
"""

from __future__ import annotations

from benchmarks import runyard
from benchmarks.harness import Scenario
from benchmarks.scenarios._processor_time import contestant

SCENARIO = Scenario(
    name="four_workers",
    title="Processor time per run, one worker and four",
    unit="µs",
    better="lower",
    cases=("simple run",),
    contestants=[contestant(runyard.NAME), contestant("runyard, four workers", workers=4)]
    if runyard.side() is not None
    else [],
    rounds=3,
    seconds=60,
)
