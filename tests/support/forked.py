"""Worker processes by fork from a process that has imported runyard, which takes milliseconds instead of seconds of imports.

The fork server of `multiprocessing` is one per process of the tests, starts with the first worker and ends with the tests.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Mapping
from typing import Self

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "uvloop",
        "runyard.agents.downloads",
        "runyard.testing.scripted_agent",
        "runyard_backends.postgres.backend",
        "runyard_api.worker.process",
        __name__,
    ]
)


class ForkedWorker:
    """A worker process. It has the methods of :class:`asyncio.subprocess.Process` that tests need."""

    @classmethod
    async def start(cls, app: str, environment: Mapping[str, str]) -> Self:
        """Start a worker of ``app`` (``module:name``). ``environment``: all variables of the process. Its output goes to the
        output of the tests."""
        worker = cls()
        worker._process = CONTEXT.Process(target=_serve, args=(app, dict(environment)), daemon=True)
        await asyncio.to_thread(worker._process.start)
        assert worker._process.pid is not None
        worker.pid = worker._process.pid
        worker._loop = asyncio.get_running_loop()
        worker._ended = asyncio.Event()
        worker._loop.add_reader(worker._process.sentinel, worker._end)
        return worker

    def _end(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self._ended.set()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal. None while the process lives."""
        return self._process.exitcode

    async def wait(self) -> int:
        """Wait for the end. Return the exit code."""
        await self._ended.wait()
        code = self.returncode
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _serve(app: str, environment: Mapping[str, str]) -> None:
    """Run a worker in the forked process."""
    from runyard.app import load_app
    from runyard.support.logging import configure
    from runyard.support.settings import Settings
    from runyard_api.worker.process import run_worker

    os.environ.clear()
    os.environ.update(environment)
    settings = Settings()
    configure(settings.log_level, "json")
    run_worker(load_app(app), settings)
