"""What a new user does: make a project, start it, talk to it, change it. Real processes, real servers."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue

import pytest

from runyard_api.cli.dev.servers import forget
from tests.support.forked import completed

RUNYARD = [sys.executable, "-P", "-m", "runyard_api.cli"]
ON_A_DESKTOP = [
    sys.executable,
    "-P",
    "-c",
    "import sys; from runyard_api.cli import main; from runyard_api.cli.dev import browser; browser.CONTAINER_FILES = (); "
    "sys.exit(main.main())",
]
"""The command, where the tests run in a container."""
BOUND = 60.0
"""Seconds that any one step may take on a busy machine."""


def environment() -> dict[str, str]:
    """Nothing of the caller's deployment: these tests start their own servers."""
    seen = ("CI", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "container", "KUBERNETES_SERVICE_HOST")
    return {name: value for name, value in os.environ.items() if not name.startswith("RUNYARD_") and name not in seen}


def runyard(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run a command in ``folder``, check its exit code, return its standard output."""
    ended, out, error = asyncio.run(completed(arguments, environment(), folder=folder, seconds=BOUND))
    assert ended == code, (arguments, ended, out, error)
    return out


class Dev:
    """A running ``runyard dev`` whose output is read as it comes."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        terminal: bool = False,
        command: Sequence[str] = RUNYARD,
        **variables: str,
    ) -> None:
        """``terminal``: whether input and output are a terminal."""
        reading, writing = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [*command, "dev", "app:app", *arguments],
            cwd=folder,
            env={**environment(), **variables},
            stdin=writing if terminal else subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(writing)
        self.lines: Queue[str] = Queue()
        self.said: list[str] = []
        threading.Thread(target=self._read, args=(reading,), daemon=True).start()

    def _read(self, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="replace") as output, suppress(OSError):  # EIO: the end of a terminal
            for line in output:
                self.lines.put(line)

    def wait_for(self, words: str) -> str:
        """The next line with ``words``."""
        deadline = time.monotonic() + BOUND
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self.lines.get(timeout=min(left, 0.5))
            except Empty:
                assert self.process.poll() is None, "".join(self.said)
                continue
            self.said.append(line)
            if words in line:
                return line
        raise AssertionError(f"no {words!r} in: {''.join(self.said)}")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(BOUND)


@contextmanager
def dev(
    folder: Path, *arguments: str, terminal: bool = False, command: Sequence[str] = RUNYARD, **variables: str
) -> Iterator[Dev]:
    running = Dev(folder, *arguments, terminal=terminal, command=command, **variables)
    try:
        running.wait_for("serving")
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            try:
                running.process.wait(BOUND)
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    runyard(tmp_path, "init", "shop")
    yield tmp_path / "shop"
    with suppress(OSError):
        forget(tmp_path / "shop" / ".runyard")  # as root the cluster is in /var/tmp


def test_init_dev_prompt_edit_fork(project: Path) -> None:
    with dev(project, "--reload") as running:
        announced = project / ".runyard" / "dev.json"
        assert stat.S_IMODE(announced.stat().st_mode) == 0o600
        assert "hello" in runyard(project, "prompt", "t1", "hello", "--wait")
        assert "turn 2" in runyard(project, "prompt", "t1", "again", "--stream")

        source = project / "app.py"
        source.write_text(source.read_text(encoding="utf-8").replace("You said", "I heard"), encoding="utf-8")
        running.wait_for("app.py changed")
        assert runyard(project, "prompt", "t1", "third", "--wait").startswith("I heard")

        first = json.loads(runyard(project, "runs", "list", "--thread", "t1", "--json"))["items"][-1]["run_id"]
        assert runyard(project, "fork", "t1", "t2", "--after", first).strip() == "t2"
        assert "turn 2" in runyard(project, "prompt", "t2", "elsewhere", "--wait")
        assert {"‹t1›", "‹t2›"} <= set(runyard(project, "threads", "tree", "t2").split())
        probe = runyard(project, "fork-once", "t1", "what if?", "--after", first)
        assert "what if?" in probe
        runyard(project, "dev", "app:app", code=2)  # one at a time
        assert running.interrupt() in (0, 130)
    assert not announced.exists()
    runyard(project, "threads", "list", code=2)


def test_dev_in_a_terminal_opens_the_console(project: Path, tmp_path: Path) -> None:
    """Once the API answers. With `--no-open` it opens nothing and prints the address."""
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n', encoding="utf-8")
    browser.chmod(0o755)
    terminal = {"TERM": "dumb", "BROWSER": str(browser), "DISPLAY": ":0"}
    with dev(project, "--port", "0", "--no-open", terminal=True, command=ON_A_DESKTOP, **terminal) as running:
        running.wait_for("console: http://127.0.0.1:")
        assert running.interrupt() in (0, 130)
    assert not opened.exists()
    with dev(project, "--port", "0", terminal=True, command=ON_A_DESKTOP, **terminal) as running:
        address = running.wait_for("console:").split()[-1]
        deadline = time.monotonic() + BOUND
        while not opened.exists() or not opened.read_text(encoding="utf-8").endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert opened.read_text(encoding="utf-8").split() == [address]


def test_a_broken_save_is_named_in_a_second_terminal(project: Path) -> None:
    """The commands of a second terminal know only the servers, and the file of `dev`."""
    source = project / "app.py"
    sound = source.read_text(encoding="utf-8")
    with dev(project, "--reload") as running:
        assert "hello" in runyard(project, "prompt", "t0", "hello", "--wait")
        source.write_text(f"import nothing_of_this_name\n{sound}", encoding="utf-8")
        said = running.wait_for("ended with code 8")
        assert "`runyard dev` has no worker" in said and "save" in said
        trouble = "the worker of `runyard dev` ended with code 8: the import of app:app failed at "
        run = runyard(project, "prompt", "t1", "hello").strip()
        deadline = time.monotonic() + BOUND
        while trouble not in (why := runyard(project, "runs", "explain", run)):
            assert time.monotonic() < deadline, why
        assert "No module named 'nothing_of_this_name'" in why
        assert trouble in runyard(project, "doctor", code=1)
        source.write_text(sound, encoding="utf-8")
        running.wait_for("app.py changed")
        assert "hello" in runyard(project, "prompt", "t1", "hello", "--run-id", run, "--wait")
        listed = json.loads(runyard(project, "workers", "list", "--json"))["items"]
        runyard(project, "workers", "drain", next(each["worker_id"] for each in listed if each["state"] == "live"))
        assert "another" in running.wait_for("a worker was drained")
        assert "again" in runyard(project, "prompt", "t1", "again", "--wait")


HANGS = """
import os, socket
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
socket.create_server(("127.0.0.1", 0)).accept()
"""
"""An app whose import waits at its line 5."""


def test_an_import_that_hangs_is_named_and_stops_nothing(project: Path) -> None:
    """Neither the reaction to the next save nor Ctrl-C, which leaves no process."""
    source = project / "app.py"
    sound = source.read_text(encoding="utf-8")
    with dev(project, "--reload") as running:
        assert "hello" in runyard(project, "prompt", "t0", "hello", "--wait")
        source.write_text(HANGS, encoding="utf-8")
        running.wait_for("app.py changed")
        note = running.wait_for("the import of app:app has taken")
        assert re.search(r"has taken \d+ s; it is at app\.py:5$", note.strip())
        source.write_text(sound, encoding="utf-8")
        running.wait_for("app.py changed")
        assert "hello" in runyard(project, "prompt", "t1", "hello", "--wait")
        before = len(_pids(project))
        source.write_text(HANGS, encoding="utf-8")
        running.wait_for("app.py changed")
        deadline = time.monotonic() + BOUND
        while len(_pids(project)) < before + 2:  # those of the worker and of the check
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert running.interrupt() in (0, 130)
    assert not any(map(_alive, _pids(project)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_that_hangs_at_the_start_is_named(project: Path, number: signal.Signals) -> None:
    (project / "app.py").write_text(HANGS, encoding="utf-8")
    running = Dev(project)
    try:
        assert "it is at app.py:5" in running.wait_for("the import of app:app has taken")
    finally:
        running.process.send_signal(number)
    assert running.process.wait(BOUND) == 130
    assert len(_pids(project)) == 1 and not any(map(_alive, _pids(project)))
    assert not (project / ".runyard").exists()


def test_data_survives_a_restart_and_of_two_resets_at_once_one_clears_it(project: Path) -> None:
    with dev(project):
        assert "hello" in runyard(project, "prompt", "t1", "hello", "--wait")
    with dev(project):
        assert "turn 2" in runyard(project, "prompt", "t1", "again", "--wait")
    kept = (project / ".runyard" / "postgres" / "cluster").resolve() / "kept"  # as root it is elsewhere, behind a link
    kept.touch()
    both = [Dev(project, "--reset", "--port", "0") for _ in range(2)]
    try:
        deadline = time.monotonic() + BOUND
        while all(running.process.poll() is None for running in both):
            assert time.monotonic() < deadline
            time.sleep(0.05)  # either of two processes may end
        refused, serving = sorted(both, key=lambda running: running.process.poll() is None)
        assert refused.process.wait() == 2
        serving.wait_for("serving")
        assert not kept.exists()
        assert "turn 1" in runyard(project, "prompt", "t1", "anew", "--wait")
        assert serving.interrupt() in (0, 130)
    finally:
        for running in both:
            running.process.terminate()
            running.process.wait(BOUND)


def test_a_program_beside_the_workers_finds_the_servers_and_ends_dev(project: Path) -> None:
    """Its exit code is dev's."""
    program = """
import os, sys
from runyard import Client
with Client.sync(os.environ["RUNYARD_POSTGRES_URL"], redis=os.environ["RUNYARD_REDIS_URL"]) as client:
    print(client.enqueue("t1", "hello").result(30).text)
sys.exit(7)
"""
    said = runyard(project, "dev", "app:app", "--", sys.executable, "-c", program, code=7)
    assert "You said “hello”" in said
    runyard(project, "dev", "app:app", "--", "no-such-program", code=2)


def test_a_killed_dev_leaves_no_worker(project: Path) -> None:
    with dev(project) as running:
        workers = _children(running.process.pid)
        assert workers
        running.process.kill()
        running.process.wait()
        deadline = time.monotonic() + 30
        while any(_alive(pid) for pid in workers):
            assert time.monotonic() < deadline, workers
            time.sleep(0.1)  # processes of others cannot be awaited


def test_an_app_that_cannot_be_loaded_is_one_line(project: Path) -> None:
    (project / "app.py").write_text("x = 1\n", encoding="utf-8")
    done = subprocess.run(
        [*RUNYARD, "dev", "app:app"], cwd=project, env=environment(), capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (project / ".runyard").exists()


def _pids(project: Path) -> list[int]:
    """The processes that have begun to import HANGS."""
    return [int(line) for line in (project / "pids").read_text(encoding="utf-8").split()]


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == pid and "worker" in row[2]]


def _alive(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
    return bool(listed) and not listed.startswith("Z")
