"""Supervise a server, so that it never outlives its owner.

The module runs as a script, with the standard library only: `python -I -S supervisor.py <json>`. The owner writes one command
per line to the supervisor's stdin: `signal <number>` or `stop <number>`. The supervisor answers each command on stdout.

The owner has ended if stdin is closed or the parent process has changed. The supervisor then stops the server immediately and
removes its temporary directories. To check stdin alone would not be enough, because a process that the owner forked may keep
stdin open. A parent-death signal for the server would not be enough either, because macOS has no such signal. The supervisor is
therefore a separate process.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARENT_POLL_SECONDS = 0.5
GRACE_SECONDS = 2.0  # seconds that the server has after the owner's end; the documented limit is five seconds
STOP_SECONDS = 20.0  # seconds that the server has after the command `stop`; the owner waits for its end
LOCK_SECONDS = 4.0  # seconds to wait for the lock; the server of an owner that has just ended can still run
PR_SET_PDEATHSIG = 1


def descendants(root: int) -> list[int]:
    """Return the process ids of all descendants of `root`. The process group of `root` does not contain all of them, because
    Postgres starts a separate session for every child process."""
    parents: dict[int, int] = {}
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(entry.parent.name)] = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
    else:
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
        parents = {int(pid): int(ppid) for pid, ppid in (line.split() for line in table.splitlines())}
    found: list[int] = []
    edge = {root}
    while edge:
        edge = {pid for pid, parent in parents.items() if parent in edge}
        found += edge
    return found


def signal_tree(root: int, number: int) -> None:
    """Send signal `number` to `root` and all its descendants. During this time `root` is stopped, so that `root` cannot start a
    child process that would miss the signal."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)
    for pid in descendants(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    for last in (number,) if number in (signal.SIGSTOP, signal.SIGKILL) else (number, signal.SIGCONT):
        with contextlib.suppress(ProcessLookupError):
            os.kill(root, last)


def die_with_parent(number: int) -> None:
    """Set signal `number` as the parent-death signal of this child process. Call it after the process has changed its user id,
    because that change clears the setting. Do nothing if the kernel has no such signal."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


class Supervisor:
    """One server and its supervision. `order`: the JSON object that `EmbeddedServer._launch` makes."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.lock = os.open(order["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        self.ending = False
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_terminate)

    def _on_terminate(self, *_: object) -> None:
        self.ending = True

    def owner_lives(self) -> bool:
        return os.getppid() == int(self.order["owner"])

    def take_lock(self) -> None:
        """Lock the server's directory, so that only one server at a time uses it. The end of this process releases the lock."""
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > deadline or not self.owner_lives():
                    self.say("busy")
                    sys.exit(1)
                time.sleep(0.05)

    def spawn(self) -> None:
        user: dict[str, Any] = {}
        if self.order["uid"] is not None:
            user = {"user": self.order["uid"], "group": self.order["gid"], "extra_groups": []}
        death = self.order["immediate"]
        with Path(self.order["log"]).open("ab") as log:
            self.server = subprocess.Popen(
                self.order["argv"],
                cwd=self.order["cwd"],
                env=self.order["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: die_with_parent(death),  # this process has one thread, so the hook is safe
                **user,
            )
        self.say(f"pid {self.server.pid}")

    def say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(1, f"{line}\n".encode())

    def end(self, number: int, seconds: float) -> None:
        """Send signal `number` to the server. If it still runs after `seconds`, kill it and its descendants."""
        if self.server.poll() is None:
            self.server.send_signal(number)
            signal_tree(self.server.pid, signal.SIGCONT)  # a paused server cannot react to the signal
        try:
            self.server.wait(seconds)
        except subprocess.TimeoutExpired:
            signal_tree(self.server.pid, signal.SIGKILL)
            self.server.wait()

    def abandon(self) -> None:
        """Stop the server and remove its temporary directories, because the owner has ended."""
        self.end(self.order["immediate"], GRACE_SECONDS)
        for directory in self.order["remove"]:
            shutil.rmtree(directory, ignore_errors=True)

    def command(self, line: str) -> None:
        verb, _, number = line.partition(" ")
        if verb == "stop":
            self.end(int(number), STOP_SECONDS)
        else:
            signal_tree(self.server.pid, int(number))
        self.say("done")

    def run(self) -> int:
        """Execute the owner's commands until the server has ended. Return the exit status of the server, or 0 if the owner has
        ended."""
        self.take_lock()
        self.spawn()
        pending = b""
        while self.server.poll() is None:
            ready, _, _ = select.select([0, self.wake], [], [], PARENT_POLL_SECONDS)
            if self.wake in ready:
                os.read(self.wake, 4096)
            chunk = os.read(0, 4096) if 0 in ready else None
            if chunk == b"" or self.ending or not self.owner_lives():
                self.abandon()
                return 0
            *lines, pending = (pending + (chunk or b"")).split(b"\n")
            for line in lines:
                self.command(line.decode())
        return self.server.returncode


if __name__ == "__main__":
    sys.exit(Supervisor(json.loads(sys.argv[1])).run() & 0xFF)
