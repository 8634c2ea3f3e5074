"""A private MariaDB server for tests, in a new directory. It uses the machine's ``mariadbd``, because no wheel contains it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import asyncmy

START_SECONDS: Final = 60.0
ROOM_BYTES: Final = 2**30
PLACES: Final = ("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")


def program(*names: str) -> str:
    """Return the path of the first of the programs ``names`` that the machine has."""
    for name in names:
        if (found := shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))) is not None:
            return found
    raise AssertionError(f"the machine has no {names[0]}; install mariadb-server (Debian: apt-get install mariadb-server)")


class PrivateMariaDB:
    """A server that only listens on a Unix socket. The start with an empty directory takes three seconds."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        roomy = memory.is_dir() and shutil.disk_usage(memory).free > ROOM_BYTES
        self.directory = Path(tempfile.mkdtemp(prefix="runyard-mariadb-", dir=memory if roomy else None))
        self.data, self.socket = self.directory / "data", self.directory / "s"
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        """Return the URL of a database on this server."""
        return f"mysql://root@localhost/{database}?unix_socket={self.socket}"

    def __enter__(self) -> Self:
        try:
            install = [
                program("mariadb-install-db", "mysql_install_db"),
                "--no-defaults",
                f"--datadir={self.data}",
                *self._user(),
            ]
            how = ["--auth-root-authentication-method=normal", "--skip-test-db"]
            made = subprocess.run([*install, *how], capture_output=True, check=False, timeout=START_SECONDS)
            assert made.returncode == 0, (made.stdout + made.stderr).decode(errors="replace")
            self.start()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    @staticmethod
    def _user() -> list[str]:
        return ["--user=root"] if os.getuid() == 0 else []

    def start(self) -> None:
        """Start the server, and wait until it accepts connections. Commits survive a crash of the server. A server that starts
        deletes the temporary tables in its `tmpdir`, so each server has a `tmpdir` of its own."""
        temporary = self.directory / "tmp"
        temporary.mkdir(exist_ok=True)
        settings = ["--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=1"]
        names = [
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--pid-file={self.directory / 'pid'}",
            f"--tmpdir={temporary}",
        ]
        command = [program("mariadbd", "mysqld"), "--no-defaults", *names, *settings, "--max-allowed-packet=64M", *self._user()]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        give_up = time.monotonic() + START_SECONDS
        ping = [program("mariadb-admin", "mysqladmin"), "--no-defaults", f"--socket={self.socket}", "--user=root", "ping"]
        while subprocess.run(ping, capture_output=True, check=False).returncode != 0:
            assert self.process.poll() is None and time.monotonic() < give_up, (self.directory / "log").read_text()
            time.sleep(0.05)

    def stop(self, how: signal.Signals) -> None:
        """End the server by a signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(START_SECONDS)

    async def run(self, *sql: str) -> list[Sequence[Any]]:
        """Send statements as the administrator, and return the rows of the last statement."""
        connection = await asyncmy.connect(unix_socket=str(self.socket), user="root", autocommit=True)
        try:
            cursor = connection.cursor()
            for each in sql:
                await cursor.execute(each)
            return list(await cursor.fetchall()) if cursor.description else []
        finally:
            await connection.ensure_closed()

    async def create(self) -> str:
        """Make an empty database, and return its name."""
        name = f"t_{secrets.token_hex(6)}"
        await self.run(f"CREATE DATABASE {name}")
        return name
