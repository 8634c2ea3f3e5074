"""The HTTP API of a ``runyard dev``: a process of its own that ends with it and is started again when it dies."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from typing import Final

from .crew import stop

HOST: Final = "127.0.0.1"
PAUSE: Final = 5.0
"""Seconds between two starts."""


class Companion:
    """The API process. ``port``: where it listens; another one if that is taken."""

    def __init__(self, postgres_url: str, redis_url: str, port: int) -> None:
        self.port = port if _is_free(port) else _any_port()
        self._environment = {
            "RUNYARD_API_TOKEN_SECRET": secrets.token_hex(32),  # kept here, so that tokens outlast a restart
            **os.environ,
            "RUNYARD_POSTGRES_URL": postgres_url,
            "RUNYARD_REDIS_URL": redis_url,
            "RUNYARD_LOG_LEVEL": os.environ.get("RUNYARD_LOG_LEVEL", "warning"),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def __enter__(self) -> Companion:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            stop([self._process])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Start it."""
        command = [sys.executable, "-P", "-m", "api.cli", "api", "--owned"]
        command += ["--host", HOST, "--port", str(self.port), "--auth", "off"]
        self._started = time.monotonic()
        self._process = subprocess.Popen(command, env=self._environment, stdin=subprocess.PIPE, start_new_session=True)

    def revive(self) -> int | None:
        """Start it again if it ended and was not started just now; the code with which it ended."""
        code = self._process.poll() if self._process is not None else None
        if code is None or time.monotonic() - self._started < PAUSE:
            return None
        self.start()
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
