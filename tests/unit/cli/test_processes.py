"""A child process of one command: it is stopped with the command, killed if it does not stop, and can be started again."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from runyard_api.cli.dev import processes
from runyard_api.cli.dev.processes import OwnedProcess, stop_all

DEAF = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
BOUND = 30.0


def python(code: str, log: Path) -> OwnedProcess:
    return OwnedProcess([sys.executable, "-c", code], dict(os.environ), log=log)


def says(log: Path, words: str) -> None:
    deadline = time.monotonic() + BOUND
    while words not in log.read_text("utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.2)
    with python(DEAF, tmp_path / "log") as process:
        says(tmp_path / "log", "deaf")
        assert process.exit_code is None
    assert process.exit_code == -signal.SIGKILL


def test_processes_are_stopped_together(tmp_path: Path) -> None:
    started = [python("import time; time.sleep(60)", tmp_path / "log") for _ in range(2)]
    stop_all(started)
    assert [process.exit_code for process in started] == [-signal.SIGTERM] * 2
    stop_all(started)  # again changes nothing


def test_a_process_that_ended_is_started_again(tmp_path: Path) -> None:
    process = python("print('once')", tmp_path / "log")
    process.wait(time.monotonic() + BOUND)
    assert process.exit_code == 0
    process.restart()
    process.wait(time.monotonic() + BOUND)
    assert (tmp_path / "log").read_text("utf-8").split() == ["once", "once"]


def test_a_command_that_does_not_exist_is_an_oserror() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        OwnedProcess(["no-such-program"], {}, owned=False)
