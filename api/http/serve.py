"""Serve the API alone, until SIGTERM or SIGINT: streams end at once, other requests within seconds."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from ipaddress import ip_address
from typing import Final

import uvicorn
from fastapi import FastAPI

from runner.collector import settle
from runner.errors import BackendUnavailableError, InvalidInputError

from .protocol import Protocol
from .settings import ApiSettings

GRACE: Final = 10
"""Seconds that requests have to end when the server stops."""
WAITING: Final = 2048
"""Connections that may wait to be taken."""
OTHER_FILES: Final = 128
"""Descriptors for what is no connection of a client."""
UNANSWERED: Final = 60_000
"""Milliseconds after which a connection is cut whose other end takes nothing, where the system can do that."""


class Server(uvicorn.Server):
    """Ends the streams first: otherwise they would hold up the end for as long as they last."""

    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
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
        listening = socket.create_server((host, port), family=family, backlog=WAITING)
    except OSError as error:
        why = error.strerror or str(error)
        raise BackendUnavailableError(f"cannot listen on {host}:{port}: {why}", host=host, port=port) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # closing alone would wait for ever for what was not taken
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED)
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Serve ``app`` on ``listening``. Blocks; takes the process's signals."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises them once more when it has stopped; that is no failure
    settings: ApiSettings = app.state.service.settings
    settings.max_connections = room_for(settings.max_connections, files=_files(settings.max_connections + OTHER_FILES))
    server = Server(app)
    settle()
    with listening, asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve([listening]))


def room_for(connections: int, *, files: int) -> int:
    """How many connections a process may have that has ``files`` descriptors, ``connections`` at most."""
    return min(connections, max(files - OTHER_FILES, files // 2))


def _files(wanted: int) -> int:
    """How many descriptors this process may have open; the soft limit is raised to what is wanted, as far as the hard one
    allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
    except (OSError, ValueError):  # some systems have a lower bound that nobody tells of
        return soft
    return more
