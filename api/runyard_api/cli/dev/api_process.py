"""The process of the HTTP API in ``runyard dev``. The process ends with the command. If it dies earlier, it is restarted."""

from __future__ import annotations

import os
import secrets
import socket
import time
from typing import Final

from .processes import OwnedProcess

HOST: Final = "127.0.0.1"
RESTART_SECONDS: Final = 5.0
"""Minimum seconds between two starts of the process."""
CONNECT_SECONDS: Final = 0.05
"""Seconds between two attempts to connect to the process."""


class ApiProcess:
    """The API process. It runs during the ``with`` block.

    ``port``: the port on which it listens. If the given port is taken or 0, any free port is used.
    ``tenant``: the tenant of the callers. An empty text stands for the tenant of the environment.
    """

    def __init__(self, postgres_url: str, redis_url: str, port: int, tenant: str = "") -> None:
        self.port = port if port and _is_free(port) else _any_port()
        self._environment = {
            "RUNYARD_API_TOKEN_SECRET": secrets.token_hex(32),  # so that tokens stay valid after a restart of the process
            **os.environ,
            "RUNYARD_POSTGRES_URL": postgres_url,
            "RUNYARD_REDIS_URL": redis_url,
            **({"RUNYARD_TENANT": tenant} if tenant else {}),
            "RUNYARD_LOG_LEVEL": os.environ.get("RUNYARD_LOG_LEVEL", "warning"),
        }

    def __enter__(self) -> ApiProcess:
        arguments = ("--host", HOST, "--port", str(self.port), "--auth", "off")
        self._process = OwnedProcess.runyard("api", *arguments, environment=self._environment)
        self._started = time.monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.stop()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def listens(self) -> bool:
        """Wait until the process accepts connections. Return False if it ends first."""
        while self._process.exit_code is None:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
            except OSError:
                time.sleep(CONNECT_SECONDS)
            else:
                return True
        return False

    def revive(self) -> int | None:
        """If the process has ended, start it again. Return the exit code of the ended process, or None if no process was
        started.

        There are at least RESTART_SECONDS between two starts.
        """
        code = self._process.exit_code
        if code is None or time.monotonic() - self._started < RESTART_SECONDS:
            return None
        self._started = time.monotonic()
        self._process.restart()
        return code


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def _any_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
