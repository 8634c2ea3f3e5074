"""Serve the API until SIGTERM or SIGINT. Then streams end at once, and other requests within seconds."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from runyard.errors import BackendUnavailableError, InvalidInputError
from runyard.support.garbage_collector import settle

from .protocol import Protocol
from .settings import ApiSettings

GRACE_SECONDS: Final = 10
"""Seconds within which requests must end when the server stops."""
LISTEN_BACKLOG: Final = 2048
"""Maximum number of connections that wait until the server accepts them."""
OTHER_FILES: Final = 128
"""Number of file descriptors that are reserved for other uses than connections of clients."""
UNACKNOWLEDGED_MS: Final = 60_000
"""Milliseconds without an acknowledgement of the peer after which the system closes a connection. Some systems lack this
option."""

log = structlog.get_logger("runyard.api")


class Server(uvicorn.Server):
    """A server that logs its ``addresses``, by name, when it accepts requests. When it stops, it ends the streams first. The
    base class would wait for the streams."""

    def __init__(self, app: FastAPI, addresses: Mapping[str, str]) -> None:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        super().__init__(config)
        self._app, self._addresses = app, addresses

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log.info("api_listening", **self._addresses)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.service.streams.close()
        await super().shutdown(sockets)


def listen(settings: ApiSettings) -> socket.socket:
    """Return the listening socket that ``settings`` describe. Raises InvalidInputError, BackendUnavailableError."""
    host, port = settings.host, settings.port
    if settings.auth == "off" and not _is_loopback(host):
        raise InvalidInputError(f"without keys the API listens on 127.0.0.1 or ::1 only, not on {host}", field="host")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        why = error.strerror or str(error)
        raise BackendUnavailableError(f"cannot listen on {host}:{port}: {why}", host=host, port=port) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # without it, close() would wait for ever for a peer that does not read
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def url_of(host: str, port: int) -> str:
    """Return the URL of an HTTP server at an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def addresses_of(listening: socket.socket, *, console: bool) -> dict[str, str]:
    """Return the URLs of the API on ``listening``, by name."""
    url = url_of(*listening.getsockname()[:2])
    return {"url": url, "console_url": f"{url}/console"} if console else {"url": url}


def serve(app: FastAPI, listening: socket.socket, addresses: Mapping[str, str]) -> None:
    """Serve ``app`` on ``listening`` until a signal stops the server. This function handles the signals of the process.

    ``addresses``: the URLs to log, by name.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the received signals again after it has stopped
    settings: ApiSettings = app.state.service.settings
    settings.max_connections = room_for(settings.max_connections, files=_files(settings.max_connections + OTHER_FILES))
    server = Server(app, addresses)
    settle()
    with listening, asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve([listening]))


def room_for(connections: int, *, files: int) -> int:
    """Return the number of connections that a process with ``files`` descriptors may have, at most ``connections``."""
    return min(connections, max(files - OTHER_FILES, files // 2))


def _files(wanted: int) -> int:
    """Raise the soft limit of file descriptors to ``wanted``, or to a lower hard limit. Return the number that may be used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they report
        return soft
    return more
