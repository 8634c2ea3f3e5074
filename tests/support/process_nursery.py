"""Processes forked from a process that has imported everything. A worker starts in milliseconds, and many fit on two cores.

:class:`Nursery` is the test's side. The program below it reads one JSON line per process to fork, ``{"id", "env",
"role", "log"}``, and answers ``{"id", "pid"}`` at its start and ``{"id", "code"}`` at its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Self


@dataclass
class Child:
    """One forked process. ``ended`` has its exit code, negative for a signal."""

    pid: int
    ended: asyncio.Future[int]

    @property
    def code(self) -> int | None:
        """The exit code, None while the process lives."""
        return self.ended.result() if self.ended.done() else None

    def signal(self, number: int) -> None:
        if not self.ended.done():
            os.kill(self.pid, number)


class Nursery:
    """Forks processes on demand. The end of the nursery ends all of them."""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._started: dict[int, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._listening

    async def fork(self, role: str, env: Mapping[str, str], log: Path) -> Child:
        """Start ``role``, a function of this module's program, with ``env`` added and its output in ``log``."""
        assert self._process.stdin is not None
        number = len(self._started)
        self._started[number] = asyncio.get_running_loop().create_future()
        order = {"id": number, "role": role, "env": dict(env), "log": str(log)}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self._started[number]

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            if "pid" in told:
                child = Child(told["pid"], asyncio.get_running_loop().create_future())
                self._children[told["id"]] = child
                self._started[told["id"]].set_result(child)
            else:
                self._children[told["id"]].ended.set_result(told["code"])


def main(roles: Mapping[str, Callable[[], None]]) -> None:
    """Fork a process for each order. At the end of the orders, kill the live processes."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive: dict[int, int] = {}
    pending = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        _reap(alive)
        if 0 not in ready:
            continue
        if not (chunk := os.read(0, 65536)):
            break
        *lines, pending = (pending + chunk).split(b"\n")
        for order in map(json.loads, lines):
            if not (pid := os.fork()):
                _become(order, roles)
            alive[pid] = order["id"]
            _tell(id=order["id"], pid=pid)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _reap(alive: dict[int, int]) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        _tell(id=alive.pop(pid), code=os.waitstatus_to_exitcode(status))


def _tell(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _become(order: Mapping[str, Any], roles: Mapping[str, Callable[[], None]]) -> None:
    """Run a role in the forked process."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        os.environ.update(order["env"])
        roles[order["role"]]()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _worker() -> None:
    from runyard.support.logging import configure
    from runyard.support.settings import Settings
    from runyard_api.worker.process import run_worker
    from tests.support.agents.sweep import app

    settings = Settings()
    configure(settings.log_level, "json")
    run_worker(app, settings)


def _driver() -> None:
    from tests.failpoints.scenario import drive

    asyncio.run(drive())


ROLES: Final = {"worker": _worker, "driver": _driver}

if __name__ == "__main__":
    for name in (
        "uvloop",
        "runyard.agents.downloads",
        "runyard_backends.postgres.backend",
        "runyard_api.worker.process",
        "tests.failpoints.scenario",
    ):
        import_module(name)
    main(ROLES)
