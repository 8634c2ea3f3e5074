"""Processes of runyard that are forked from a process that has imported runyard. A fork takes milliseconds, the imports take
seconds.

The fork server of `multiprocessing` is one per process of the tests, starts with the first process and ends with the tests.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "uvloop",
        "runyard.agents.downloads",
        "runyard.testing.scripted_agent",
        "runyard_backends.postgres.backend",
        "runyard_api.cli.main",
        "runyard_api.http.app",
        "runyard_api.worker.process",
        __name__,
    ]
)


class ForkedProcess:
    """A process. It has the methods of :class:`asyncio.subprocess.Process` that tests need."""

    @classmethod
    async def worker(cls, app: str, environment: Mapping[str, str]) -> Self:
        """Start a worker of ``app`` (``module:name``). ``environment``: all variables of the process. Its output goes to the
        output of the tests."""
        return await cls._start(_serve, app, dict(environment))

    @classmethod
    async def command(
        cls, arguments: Sequence[str], environment: Mapping[str, str], output: Path | None = None, folder: Path | None = None
    ) -> Self:
        """Start ``runyard`` with ``arguments`` in ``folder``. ``output``: a directory for the files ``out`` and ``err``.
        Without it, the output goes to the output of the tests."""
        return await cls._start(_run, list(arguments), dict(environment), output, folder)

    @classmethod
    async def _start(cls, run: Callable[..., None], *arguments: Any) -> Self:
        started = cls()
        started._process = CONTEXT.Process(target=run, args=arguments, daemon=True)
        await asyncio.to_thread(started._process.start)
        assert started._process.pid is not None
        started.pid = started._process.pid
        started._loop = asyncio.get_running_loop()
        started._ended = asyncio.Event()
        started._loop.add_reader(started._process.sentinel, started._end)
        return started

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


async def completed(
    arguments: Sequence[str], environment: Mapping[str, str], *, folder: Path | None = None, seconds: float = 60
) -> tuple[int, str, str]:
    """Run ``runyard`` with ``arguments`` in ``folder``. Return its exit code, its standard output and its standard error."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory)
        process = await ForkedProcess.command(arguments, environment, output, folder)
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        finally:
            process.kill()
        return code, (output / "out").read_text(), (output / "err").read_text()


def _serve(app: str, environment: Mapping[str, str]) -> None:
    """Run a worker in the forked process."""
    from runyard.app import load_app
    from runyard.support.logging import configure
    from runyard.support.settings import Settings
    from runyard_api.worker.process import run_worker

    _set(environment)
    settings = Settings()
    configure(settings.log_level, "json")
    run_worker(load_app(app), settings)


def _run(arguments: Sequence[str], environment: Mapping[str, str], output: Path | None, folder: Path | None) -> None:
    """Run a command in the forked process."""
    from runyard_api.cli.main import main

    _set(environment)
    if folder is not None:
        os.chdir(folder)
    if output is not None:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.exit(main(arguments))


def _set(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
