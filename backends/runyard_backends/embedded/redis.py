"""A private Valkey (or Redis) server."""

import os
import signal
import socket
from pathlib import Path

from .binaries import find_redis
from .process import EmbeddedServer


class EmbeddedRedis(EmbeddedServer):
    """Valkey with a password, on 127.0.0.1, without eviction.

    data_dir: see EmbeddedServer. appendonly: True to keep the data over restarts, with an fsync every second. If False, every
    start begins without data.
    """

    name = "Redis"
    graceful = signal.SIGTERM
    immediate = signal.SIGTERM

    def __init__(self, data_dir: Path | None = None, *, appendonly: bool = False) -> None:
        super().__init__(data_dir)
        self._appendonly = appendonly

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        self._binary = find_redis()
        (self.home / "data").mkdir(mode=0o700, exist_ok=True)

    def _settings(self) -> dict[str, object]:
        """Return the settings of the Redis server as a dict. A key is the name of a setting in ``redis.conf``."""
        return {
            "bind": "127.0.0.1",
            "port": self.port,
            "protected-mode": "yes",
            "requirepass": self.password,
            "dir": f'"{self.home / "data"}"',
            "save": '""',
            "appendonly": "yes" if self._appendonly else "no",
            "maxmemory-policy": "noeviction",
            "databases": 16,
            "daemonize": "no",
        }

    def _command(self) -> tuple[list[str], Path]:
        # The settings are in a file because they contain the password, and every user can read the arguments of a process.
        config = self.home / "redis.conf"
        config.unlink(missing_ok=True)
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.writelines(f"{key} {value}\n" for key, value in self._settings().items())
        return [str(self._binary), str(config)], self.home

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                return connection.makefile("rb").read(len(b"+OK\r\n+PONG\r\n")) == b"+OK\r\n+PONG\r\n"
        except OSError:
            return False
