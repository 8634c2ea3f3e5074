"""The processor time of a simple run in a new database and in a database with a million ended runs.

Measured: microseconds of processor time of Postgres, Redis, the worker and the producer together, per run, over 200 threads.
Also reported: runs per second, and the time of each part. The ended runs are inserted by SQL before the turns, with two
messages each, on 50,000 threads of 2,000 tenants. This takes one to two minutes and is not timed.
"""

from __future__ import annotations

from benchmarks import runyard
from benchmarks.harness import Scenario
from benchmarks.scenarios._processor_time import contestant

ENDED = 1_000_000

SCENARIO = Scenario(
    name="million_ended",
    title="Processor time per run beside a million ended runs",
    unit="µs",
    better="lower",
    cases=("simple run",),
    contestants=[
        contestant(runyard.NAME),
        contestant("runyard, a million ended runs", database="runyard_full", ended=ENDED),
    ]
    if runyard.side() is not None
    else [],
    rounds=3,
    seconds=150,
)
