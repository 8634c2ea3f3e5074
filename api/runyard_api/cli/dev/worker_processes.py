"""The worker processes of one command."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from runyard import Client
from runyard.errors import BackendUnavailableError

from .processes import OwnedProcess, stop_all

GRACE_SECONDS: Final = 10.0
_DEFAULTS: Final = {"RUNYARD_GRACE": str(GRACE_SECONDS), "RUNYARD_METRICS_PORT": "0", "RUNYARD_METRICS_HOST": "127.0.0.1"}
"""Default settings of the workers. The environment takes precedence. Each worker serves metrics on a free port of this
machine."""
START_SECONDS: Final = 30.0
"""Seconds within which workers must register."""


class WorkerProcesses:
    """The ``count`` worker processes of one command. The end of the ``with`` block stops all of them gracefully. To replace
    workers that have ended, call :meth:`dead` and then :meth:`start`.

    ``arq_queues``: the queues of arq that the workers serve. By default, the environment names them.
    """

    def __init__(
        self,
        app: str,
        count: int,
        postgres_url: str,
        redis_url: str,
        *,
        log: Path | None = None,
        arq_queues: Sequence[str] | None = None,
    ) -> None:
        self.app, self.count, self.log = app, count, log
        self.environment = {**os.environ, "RUNYARD_POSTGRES_URL": postgres_url, "RUNYARD_REDIS_URL": redis_url}
        if arq_queues:
            self.environment["RUNYARD_ARQ_QUEUES"] = ",".join(arq_queues)
        for name, value in _DEFAULTS.items():
            self.environment.setdefault(name, value)
        self.processes: list[OwnedProcess] = []
        self.drains: list[threading.Thread] = []

    def __enter__(self) -> WorkerProcesses:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        leaving, self.processes = self.processes, []
        stop_all(leaving)
        for drain in self.drains:
            drain.join()

    def start(self) -> None:
        """Start workers until ``count`` worker processes exist."""
        while len(self.processes) < self.count:
            self.processes.append(OwnedProcess.runyard("worker", self.app, environment=self.environment, log=self.log))

    def replace(self) -> None:
        """Start new workers. The old workers drain at the same time. New runs therefore do not wait for the runs of old
        workers."""
        leaving, self.processes = self.processes, []
        self.start()
        drain = threading.Thread(target=stop_all, args=(leaving,), name="runyard-drain")
        drain.start()
        self.drains = [*(one for one in self.drains if one.is_alive()), drain]

    def dead(self) -> list[int]:
        """Remove the workers that have ended, and return their exit codes."""
        codes = self.exit_codes()
        self.processes = [process for process in self.processes if process not in codes]
        return list(codes.values())

    def exit_codes(self) -> dict[OwnedProcess, int]:
        """Return the exit codes of the workers that have ended."""
        return {process: code for process in self.processes if (code := process.exit_code) is not None}


async def ready(client: Client, pool: WorkerProcesses) -> None:
    """Wait until every worker of ``pool`` has registered.

    Raises BackendUnavailableError if a worker ends, or has not registered within START_SECONDS.
    """
    deadline = time.monotonic() + START_SECONDS
    awaited = {str(process.pid) for process in pool.processes}
    while not awaited <= {pid_of(worker.worker_id) for worker in await client.backend.workers.workers()}:
        if codes := pool.exit_codes():
            raise BackendUnavailableError(f"a worker ended with code {min(codes.values())} while it started; see its log")
        if time.monotonic() > deadline:
            raise BackendUnavailableError(f"the workers did not start within {START_SECONDS:g} s; see their log")
        await asyncio.sleep(0.05)


def pid_of(worker_id: str) -> str:
    """Return the process id in a worker's id (``host-pid-random``), or an empty text if the id has none."""
    return worker_id.rsplit("-", 2)[-2] if worker_id.count("-") >= 2 else ""
