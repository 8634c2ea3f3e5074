"""Child processes of a command. The command stops them before it ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

STOP_SECONDS: Final = 15.0
"""Seconds that a process has to stop before it is killed. The time is longer than the grace time of a worker."""


class OwnedProcess:
    """A child process. The constructor starts the process, and the end of ``with`` stops it. Raises OSError if it cannot be
    started.

    ``owned``: True for a command of runyard. The standard input of such a command is a pipe from this process. The command
    stops when the pipe closes. The terminal's Ctrl-C does not reach the command. ``log``: the file to which the output of the
    child process is appended, or None for the output of this process.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, owned: bool = True, log: Path | None = None
    ) -> None:
        self._command, self._environment, self._owned, self._log = command, environment, owned, log
        self._process = self._spawn()

    @classmethod
    def runyard(cls, *arguments: str, environment: Mapping[str, str], log: Path | None = None) -> Self:
        """Start the ``runyard`` command with ``arguments``."""
        command = [sys.executable, "-P", "-m", "runyard_api.cli", *arguments, "--owned"]
        return cls(command, environment, log=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs. The code is negative after a signal."""
        return self._process.poll()

    def restart(self) -> None:
        """Start the command again. Call this method only after the process has ended."""
        self._process = self._spawn()

    def terminate(self) -> None:
        """Send SIGTERM if the process runs."""
        if self.exit_code is None:
            self._process.terminate()

    def stop(self) -> None:
        """Send SIGTERM and wait for the end of the process. Send SIGKILL after STOP_SECONDS."""
        stop_all([self])

    def wait(self, deadline: float) -> None:
        """Wait for the end of the process. Kill it at ``deadline`` (seconds of the monotonic clock)."""
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with ExitStack() as stack:
            output = stack.enter_context(self._log.open("ab")) if self._log is not None else None
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE if self._owned else None,
                stdout=output,
                stderr=output,
                start_new_session=self._owned,
            )


def stop_all(processes: Iterable[OwnedProcess]) -> None:
    """Stop ``processes`` at the same time. Send SIGTERM to each process, and SIGKILL to the processes that still run after
    STOP_SECONDS."""
    leaving = list(processes)
    for process in leaving:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in leaving:
        process.wait(deadline)
