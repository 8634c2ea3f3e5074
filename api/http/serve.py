"""Serve the API alone, until SIGTERM or SIGINT: streams end at once, other requests within seconds.

What comes before a request is one, an application cannot bound: :class:`Protocol` does (semantics: A2).
"""

from __future__ import annotations

import asyncio
import signal
import socket
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from runner.errors import BackendUnavailableError, InvalidInputError, RequestTimeoutError, RequestTooLargeError, RunyardError
from runner.models import new_id

from . import problems
from .settings import ApiSettings

GRACE: Final = 10
"""Seconds that requests have to end when the server stops."""
WAITING: Final = 2048
"""Connections that may wait to be taken."""
UNANSWERED: Final = 60_000
"""Milliseconds after which a connection is cut whose other end takes nothing, where the system can do that."""


class Protocol(HttpToolsProtocol):
    """Bounds the head of a request: its size, and the time that it takes.

    And tells the request that is being answered that its client is gone, also if others wait behind it on the connection.
    """

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        settings: ApiSettings = config.app.state.service.settings  # type: ignore[union-attr]
        self._most, self._patience = settings.max_header_bytes, settings.body_timeout
        self._head: int | None = None  # bytes of the head that is not complete
        self._slow: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        before = self._head
        super().data_received(data)
        if before is not None and self._head is not None and not self.transport.is_closing():
            self._head = before + len(data)
            if self._head > self._most:
                self._refuse(RequestTooLargeError(f"the headers are larger than {self._most} bytes", most=self._most))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_is_over()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head_is_over()
        self._head = 0
        self._slow = self.loop.call_later(self._patience, self._too_slow)

    def _head_is_over(self) -> None:
        self._head = None
        if self._slow is not None:
            self._slow.cancel()

    def _too_slow(self) -> None:
        if self._head:
            self._refuse(RequestTimeoutError(f"the headers did not arrive within {self._patience:g} s"))
        else:
            self.transport.close()

    def _refuse(self, error: RunyardError) -> None:
        if self._answering is None or self._answering.response_complete:
            answer = problems.response(error, new_id(), {"Connection": "close"})
            lines = [f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}".encode()]
            lines += [name + b": " + value for name, value in answer.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()


class Server(uvicorn.Server):
    """Ends the streams first: otherwise they would hold up the end for as long as they last."""

    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(
            app,
            http=Protocol,
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
    server = Server(app)
    with listening, asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve([listening]))
