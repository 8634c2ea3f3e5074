"""Serve the API alone, until SIGTERM or SIGINT: streams end at once, other requests within seconds."""

from __future__ import annotations

import asyncio
import signal
import socket
from ipaddress import ip_address
from typing import Final

import uvicorn
from fastapi import FastAPI

from runner.errors import BackendUnavailableError, InvalidInputError

from .settings import ApiSettings

GRACE: Final = 10
"""Seconds that requests have to end when the server stops."""
WAITING: Final = 2048
"""Connections that may wait to be taken."""


class Server(uvicorn.Server):
    """Ends the streams first: otherwise they would hold up the end for as long as they last."""

    def __init__(self, app: FastAPI, settings: ApiSettings) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=settings.max_header_bytes,
        )
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.service.streams.close()
        await super().shutdown(sockets)


def listen(settings: ApiSettings) -> socket.socket:
    """The socket that ``settings`` ask for. Raises InvalidInputError, BackendUnavailableError."""
    host, port = settings.host, settings.port
    if settings.auth == "off" and not _is_loopback(host):
        raise InvalidInputError(f"without keys the API listens on 127.0.0.1 or ::1 only, not on {host}", field="host")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=WAITING)
    except OSError as error:
        why = error.strerror or str(error)
        raise BackendUnavailableError(f"cannot listen on {host}:{port}: {why}", host=host, port=port) from error


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def serve(app: FastAPI, settings: ApiSettings, listening: socket.socket) -> None:
    """Serve ``app`` on ``listening``. Blocks; takes the process's signals."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises them once more when it has stopped; that is no failure
    server = Server(app, settings)
    with listening, asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve([listening]))
