"""The cost of streaming an agent's answers durably, with one run and with a hundred runs at once, of 20 tokens a second each.

Measured: the time from the start of a run to its end, for an answer that takes its model 5 s. ``runyard`` executes the agent in
one worker process. ``pydantic-ai`` executes the same agent in one process and stores nothing. ``the model alone`` only reads
the tokens of the model in one process.

``cpu_us_per_token`` is the CPU time of that process per token, in microseconds. The CPU time of runyard's own code is the
difference between the figures of ``runyard`` and ``pydantic-ai``. The CPU time of pydantic-ai's own code is the difference
between the figures of ``pydantic-ai`` and ``the model alone``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness import Contestant, Measure, Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.process import worker_process
from benchmarks.runyard import NAME
from benchmarks.streaming_side import TOKENS
from runyard import Client
from runyard.models import Run
from runyard_backends.postgres.migrate import migrate

CASES = {"1 run": 1, "100 runs": 100}
SIDE = "benchmarks.streaming_side"


@asynccontextmanager
async def by_runyard(lab: Lab) -> AsyncIterator[Measure]:
    url = await lab.database("streaming")
    await migrate(url)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    command = [SIDE, "worker", url, lab.redis_url, str(2 * max(CASES.values())), port]
    async with worker_process(command, lab.board(1)), Client.connect(url, redis=lab.redis_url) as client:

        async def finished(runs: int) -> Sequence[Run]:
            handles = [await client.enqueue(f"t{n}", "go", agent="streams") for n in range(runs)]
            return [result.run for result in await asyncio.gather(*(handle.result(50) for handle in handles))]

        async def measure(case: str) -> Sample:
            before = await asyncio.to_thread(cpu_seconds, port)
            runs = await finished(CASES[case])
            used = await asyncio.to_thread(cpu_seconds, port) - before
            return sample([seconds(run) for run in runs], used)

        await finished(1)
        yield measure


def elsewhere(what: str) -> Any:
    """Return the ``open`` of a contestant that executes the agent (``alone``) or its model (``model``) in another process."""

    @asynccontextmanager
    async def opened(_lab: Lab) -> AsyncIterator[Measure]:
        async def measure(case: str) -> Sample:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", SIDE, what, str(CASES[case])), stdout=asyncio.subprocess.PIPE
            )
            told, _ = await process.communicate()
            found = json.loads(told)
            return sample(found["seconds"], found["cpu"])

        yield measure

    return opened


def sample(runs: Sequence[float], cpu: float) -> Sample:
    return Sample([1000 * run for run in runs], {"cpu_us_per_token": 1e6 * cpu / (TOKENS * len(runs))})


def seconds(run: Run) -> float:
    assert run.started_at is not None and run.finished_at is not None, run.status
    return (run.finished_at - run.started_at).total_seconds()


def cpu_seconds(port: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return sum(sample.value for one in families for sample in one.samples if sample.name == "process_cpu_seconds_total")


SCENARIO = Scenario(
    name="streaming",
    title="An answer that is streamed for 5 s",
    unit="ms",
    better="lower",
    cases=tuple(CASES),
    contestants=[
        Contestant(NAME, by_runyard),
        Contestant("pydantic-ai", elsewhere("alone")),
        Contestant("the model alone", elsewhere("model")),
    ],
    rounds=2,
    seconds=60,
)
