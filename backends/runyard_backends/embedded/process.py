"""The common part of both embedded servers: a directory, a port, a supervised process, and signals to it."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from . import supervisor
from .binaries import EmbeddedServerError

START_SECONDS = 30.0
BIND_ATTEMPTS = 5
POLL_SECONDS = 0.005


def free_port() -> int:
    """Return a free port of 127.0.0.1. If another process takes the port before the server does, `start` tries another port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedServer(ABC):
    """A server on 127.0.0.1 that ends with its owner. The owner is the process (not the thread) that calls `start`.

    data_dir: the directory that keeps the server's files over several starts. If `data_dir` is None, the directory is
    temporary, and is removed by `stop` or after the owner's end.
    """

    name: str
    graceful: signal.Signals  # shuts the server down cleanly
    immediate: signal.Signals  # stops the server at once, without losing committed data

    def __init__(self, data_dir: Path | None = None) -> None:
        self._given_dir = data_dir
        self._home: Path | None = None
        self._port: int | None = None
        self._pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for clients, including the password. A restart does not change the URL."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make the files that the first start needs, unless they exist."""

    @abstractmethod
    def _command(self) -> tuple[list[str], Path]:
        """Return the command line and the working directory of the server. The command line includes `self.port`."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return True if the server answers."""

    def _user(self) -> tuple[int | None, int | None]:
        """Return the user id and the group id of the server process. An id is None if the server process has the id of this
        process."""
        return None, None

    def _temporary_parent(self) -> Path | None:
        """Return the directory in which the temporary directory is made. Return None for the system's directory for temporary
        files."""
        return None

    def _removals(self) -> list[Path]:
        """Return the temporary directories, which `stop` removes. After the owner's end, the supervisor removes them."""
        return [self.home] if self._given_dir is None else []

    @property
    def home(self) -> Path:
        """The directory of the server's files."""
        if self._home is None:
            raise EmbeddedServerError(f"the embedded {self.name} is not started")
        return self._home

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1."""
        if self._port is None:
            raise EmbeddedServerError(f"the embedded {self.name} is not started")
        return self._port

    @property
    def pid(self) -> int:
        """The server's process id (Postgres: the postmaster's)."""
        if self._pid is None:
            raise EmbeddedServerError(f"the embedded {self.name} is not running")
        return self._pid

    @property
    def password(self) -> str:
        """The random password. It is made once per data directory and stored there in a file that only its owner can read."""
        file = self.home / "password"
        if not file.exists():
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(secrets.token_urlsafe(18))
        return file.read_text()

    def start(self) -> Self:
        """Start the server and wait until it answers. Raises EmbeddedServerError, with the last lines of the server's log, if
        it does not answer in time."""
        if self._process is not None:
            raise EmbeddedServerError(f"the embedded {self.name} is already running")
        if self._home is None:
            self._make_home()
        try:
            self._prepare()
            promised_port = self._port
            for _ in range(BIND_ATTEMPTS):
                self._port = promised_port or free_port()
                if self._launch():
                    return self
            raise EmbeddedServerError(f"the embedded {self.name} did not start: {self._last_words()}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and remove its temporary directories. A server with a `data_dir` is shut down cleanly. A server
        without a `data_dir` is stopped immediately. Do nothing if the server was not started. Do nothing in a child process
        that the owner forked."""
        if self._home is None or os.getpid() != self._owner:
            return
        self._end(f"stop {int(self.immediate if self._given_dir is None else self.graceful)}")
        for directory in self._removals():
            shutil.rmtree(directory, ignore_errors=True)
        self._home = self._port = None

    def kill(self) -> None:
        """Kill the server and its child processes (SIGKILL), to test a sudden end. The data directory stays for `start` or
        `restart`."""
        self._end(f"signal {int(signal.SIGKILL)}")

    def restart(self) -> None:
        """Shut the server down cleanly and start it with the same port, password and data. The call also works after `kill`."""
        self._end(f"stop {int(self.graceful)}")
        self.start()

    def pause(self) -> None:
        """Freeze the server and its child processes (SIGSTOP). Connections stay open and get no answers."""
        self._ask(f"signal {int(signal.SIGSTOP)}")

    def resume(self) -> None:
        """Undo `pause`."""
        self._ask(f"signal {int(signal.SIGCONT)}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_home(self) -> None:
        self._owner = os.getpid()
        if self._given_dir is None:
            self._home = Path(tempfile.mkdtemp(prefix="runyard-", dir=self._temporary_parent())).resolve()
        else:
            self._given_dir.mkdir(parents=True, exist_ok=True)
            self._home = self._given_dir.resolve()

    def _launch(self) -> bool:
        """Try to start the server once. Return False if the server ended before it was ready, for example because another
        process took its port."""
        argv, cwd = self._command()
        uid, gid = self._user()
        (self.home / "log").write_bytes(b"")
        order = {
            "argv": argv,
            "cwd": str(cwd),
            "env": {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            "uid": uid,
            "gid": gid,
            "log": str(self.home / "log"),
            "lock": str(self.home / "lock"),
            "remove": [str(directory) for directory in self._removals()],
            "immediate": int(self.immediate),
            "owner": os.getpid(),
        }
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C must reach only the owner, because the owner itself stops its servers.
            )
        try:
            first = self._answer()
            if first == "busy":
                raise EmbeddedServerError(f"another {self.name} uses {self.home}")
            self._pid = int(first.removeprefix("pid "))
            deadline = time.monotonic() + START_SECONDS
            while not self._is_ready():
                if self._process.poll() is not None:
                    raise EOFError
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(f"the embedded {self.name} is not ready: {self._last_words()}")
                time.sleep(POLL_SECONDS)
        except EOFError:
            self._reap()
            return False
        return True

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        return line.decode().strip()

    def _ask(self, command: str) -> None:
        if self._process is None or self._process.stdin is None:
            raise EmbeddedServerError(f"the embedded {self.name} is not running")
        try:
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()
            self._answer()
        except (BrokenPipeError, EOFError) as error:
            raise EmbeddedServerError(f"the embedded {self.name} has ended: {self._last_words()}") from error

    def _end(self, command: str) -> None:
        if self._process is None:
            return
        with contextlib.suppress(EmbeddedServerError):  # raised if the server has already ended
            self._ask(command)
        self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process = self._pid = None

    def _last_words(self) -> str:
        lines = (self.home / "log").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-5:]) or "no output"
