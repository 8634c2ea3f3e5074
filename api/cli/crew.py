"""Worker processes that belong to one command."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from runner.client import Client
from runner.errors import BackendUnavailableError

PATIENCE: Final = 15.0
"""Seconds that a worker has to stop before it is killed: more than the grace that it gives its runs."""
GRACE: Final = 10.0
_DEFAULTS: Final = {"RUNYARD_GRACE": str(GRACE), "RUNYARD_METRICS_PORT": "0", "RUNYARD_METRICS_HOST": "127.0.0.1"}
"""Settings of the workers where the environment has none: a free port each, for this machine only."""
START_BOUND: Final = 30.0
"""Seconds for workers to report."""


class Crew:
    """Worker processes that are replaced when they die, and stopped gracefully at the end."""

    def __init__(self, app: str, count: int, postgres_url: str, redis_url: str, *, log: Path | None = None) -> None:
        self.app, self.count, self.log = app, count, log
        self.environment = {**os.environ, "RUNYARD_POSTGRES_URL": postgres_url, "RUNYARD_REDIS_URL": redis_url}
        for name, value in _DEFAULTS.items():
            self.environment.setdefault(name, value)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.drains: list[threading.Thread] = []

    def __enter__(self) -> Crew:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        leaving, self.processes = self.processes, []
        stop(leaving)
        for drain in self.drains:
            drain.join()

    def start(self) -> None:
        """Bring the crew to its full number."""
        while len(self.processes) < self.count:
            self.processes.append(self._spawn())

    def replace(self) -> None:
        """Start a new crew at once; the old one drains meanwhile, so nobody waits for a run that is under way."""
        leaving, self.processes = self.processes, []
        self.start()
        drain = threading.Thread(target=stop, args=(leaving,), name="runyard-drain")
        drain.start()
        self.drains = [*(one for one in self.drains if one.is_alive()), drain]

    def dead(self) -> list[int]:
        """Exit codes of the workers that ended by themselves; they leave the crew."""
        ended = [process for process in self.processes if process.poll() is not None]
        self.processes = [process for process in self.processes if process not in ended]
        return [process.returncode for process in ended]

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "api.cli", "worker", self.app, "--owned"]
        with ExitStack() as stack:
            log = stack.enter_context(self.log.open("ab")) if self.log else None
            return subprocess.Popen(
                command, env=self.environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )


def stop(leaving: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, then wait until each has drained; SIGKILL for one that does not end."""
    for process in leaving:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + PATIENCE
    for process in leaving:
        try:
            process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def ready(client: Client, crew: Crew) -> None:
    """Until every worker of ``crew`` beats. Raises BackendUnavailableError if one ended or none came in time."""
    deadline = time.monotonic() + START_BOUND
    awaited = {str(process.pid) for process in crew.processes}
    while not awaited <= {pid_of(worker.worker_id) for worker in await client.backend.workers.workers()}:
        if codes := crew.dead():
            raise BackendUnavailableError(f"a worker ended with code {codes[0]} while it started; see its log")
        if time.monotonic() > deadline:
            raise BackendUnavailableError(f"the workers did not start within {START_BOUND:g} s; see their log")
        await asyncio.sleep(0.05)


def pid_of(worker_id: str) -> str:
    """The process id in a worker's id (``host-pid-random``)."""
    return worker_id.rsplit("-", 2)[-2] if worker_id.count("-") >= 2 else ""
