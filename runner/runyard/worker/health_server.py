"""The health server of a worker. The server reports liveness, readiness, metrics and stacks.

=============  ====================================================================================================
``/livez``     200 while the process and its heartbeat thread run, even without Postgres and Redis
``/readyz``    200 if the worker claims runs, else 503; JSON with the reasons
``/metrics``   Prometheus
``/stacks``    the stacks of threads and tasks; to other machines only with RUNYARD_REMOTE_STACKS=true
=============  ====================================================================================================

The server has separate threads. The server therefore answers even while the main loop is blocked by user code. Anyone on the
network may call the server. The number of connections is therefore bounded. Each connection has a maximum number of bytes and
a maximum duration. The metrics are cached for a second.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog

from ..errors import BackendUnavailableError
from ..support.exposition import content_type, exposed

if TYPE_CHECKING:
    from io import BufferedIOBase
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from .worker import Worker

CONNECTION_SECONDS = 5.0
"""Maximum number of seconds of a connection."""
MAX_CONNECTIONS = 64
"""Maximum number of connections at the same time. If there are more, the server closes the oldest connection."""
MAX_REQUEST_BYTES: Final = 16 * 2**10
"""Maximum number of bytes of a request."""
METRICS_CACHE_SECONDS = 1.0
"""Seconds for which the metrics are cached, because their generation delays the main loop."""
PLAIN: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


log = structlog.get_logger("runyard.health")


@dataclass
class Watched:
    """The worker whose health the server reports.

    ``address``: the server's ``host:port``. The worker registers this address. ``worker``: None while the worker starts.
    """

    address: str | None = None
    worker: Worker | None = None

    def live(self) -> tuple[bool, dict[str, Any]]:
        alive = self.worker is None or self.worker.alive
        return alive, {"alive": alive}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        reasons = self.worker.troubles() if self.worker is not None else ["the worker is starting"]
        return not reasons, {"ready": not reasons, "reasons": reasons}


@contextmanager
def serving(port: int, host: str = "0.0.0.0", *, remote_stacks: bool = False) -> Iterator[Watched]:
    """Serve on ``host:port`` (0: any free port) until the block ends. ``remote_stacks``: send stacks to other machines.

    Raises BackendUnavailableError if the port is not available.
    """
    watched = Watched()
    with _listening(application(watched, remote_stacks=remote_stacks), host, port) as number:
        watched.address = f"{socket.gethostname()}:{number}"
        yield watched


@contextmanager
def serving_metrics(port: int, host: str = "0.0.0.0") -> Iterator[int]:
    """Serve only ``/metrics`` on ``host:port`` (0: any free port) until the block ends. Yield the port. Other processes than
    workers use this function.

    Raises BackendUnavailableError if the port is not available.
    """
    with _listening(_routed({"/metrics": _Metrics()}), host, port) as number:
        yield number


@contextmanager
def _listening(app: WSGIApplication, host: str, port: int) -> Iterator[int]:
    """Serve ``app`` in threads until the block ends. Yield the port."""
    try:
        server = make_server(host, port, app, server_class=_Server6 if ":" in host else _Server, handler_class=_Quiet)
    except OSError as error:
        raise BackendUnavailableError(f"cannot listen on {host}:{port}: {error.strerror}", host=host, port=port) from error
    thread = threading.Thread(target=server.serve_forever, name="runyard-health", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def application(watched: Watched, *, remote_stacks: bool = False) -> WSGIApplication:
    """Return the health server as a WSGI application."""

    def report_stacks(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        if not (remote_stacks or ip_address(environ["REMOTE_ADDR"]).is_loopback):
            return _reply(respond, "403 Forbidden", PLAIN, "allowed from this machine, or with RUNYARD_REMOTE_STACKS=true\n")
        return _reply(respond, "200 OK", PLAIN, stacks(watched.worker.loop if watched.worker else None))

    def report(facts: Callable[[], tuple[bool, dict[str, Any]]]) -> WSGIApplication:
        def answer(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
            well, body = facts()
            return _reply(respond, "200 OK" if well else "503 Service Unavailable", JSON, json.dumps(body) + "\n")

        return answer

    checks = {"/livez": report(watched.live), "/readyz": report(watched.ready)}
    return _routed({**checks, "/metrics": _Metrics(), "/stacks": report_stacks})


def _routed(routes: Mapping[str, WSGIApplication]) -> WSGIApplication:
    """Return an application that answers GET and HEAD of the paths of ``routes``."""

    def route(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        if (found := routes.get(environ["PATH_INFO"])) is None:
            return _reply(respond, "404 Not Found", PLAIN, f"{', '.join(routes)}\n")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _reply(respond, "405 Method Not Allowed", PLAIN, "GET and HEAD only\n")
        content = found(environ, respond)
        return content if environ["REQUEST_METHOD"] == "GET" else []

    return route


class _Metrics:
    """Answers ``/metrics``. One thread at a time generates the metrics. Each requested format is cached."""

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._made: dict[str, tuple[float, bytes]] = {}

    def __call__(self, environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        kind = content_type(environ.get("HTTP_ACCEPT", ""))
        with self._making:
            made_at, content = self._made.get(kind, (-METRICS_CACHE_SECONDS, b""))
            if time.monotonic() - made_at >= METRICS_CACHE_SECONDS:
                content = exposed(kind)
                self._made = {**self._made, kind: (time.monotonic(), content)}
        respond("200 OK", [("Content-Type", kind), ("Content-Length", str(len(content)))])
        return [content]


def _reply(respond: StartResponse, status: str, kind: str, body: str) -> list[bytes]:
    content = body.encode()
    respond(status, [("Content-Type", kind), ("Content-Length", str(len(content)))])
    return [content]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: dict[socket.socket, float] = {}  # the oldest connection first
        self._changing = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            for oldest in list(self._open)[: max(0, len(self._open) - MAX_CONNECTIONS + 1)]:
                self._cut(oldest)
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that last too long. A timeout of single reads would not be enough, because such a timeout starts
        again with every byte."""
        late = time.monotonic() - CONNECTION_SECONDS
        with self._changing:
            for request in [request for request, since in self._open.items() if since < late]:
                self._cut(request)

    def _cut(self, request: socket.socket) -> None:
        """Shut the connection down, so that its thread ends."""
        del self._open[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error, unless the client closed the connection."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.exception("health_request_failed", client_address=client_address, error=str(error))


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Head:
    """Reads the request of a connection. A read raises ConnectionError after MAX_REQUEST_BYTES bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, MAX_REQUEST_BYTES

    def readline(self, most: int = -1) -> bytes:
        if not self._left:
            raise ConnectionAbortedError(f"the request is longer than {MAX_REQUEST_BYTES} bytes")
        line = self._file.readline(min(most, self._left) if most >= 0 else self._left)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _Quiet(WSGIRequestHandler):
    timeout = CONNECTION_SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile = cast("BufferedIOBase", _Head(cast(BinaryIO, self.rfile)))

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because health checks come every few seconds."""


MAX_TASK_NAMES: Final = 3
"""Maximum number of names of tasks that wait at the same place."""


def stacks(loop: asyncio.AbstractEventLoop | None = None) -> str:
    """Return the stack of each thread, and of each task of ``loop``. Tasks at the same place are shown once."""
    return "\n".join([*_threads(), *(_tasks(loop) if loop is not None else ())])


def _threads() -> Iterator[str]:
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.ident in frames and thread is not threading.current_thread():
            yield f"thread {thread.name}"
            yield _lines(traceback.extract_stack(frames[thread.ident]))


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for task in asyncio.all_tasks(loop):
        names.setdefault(_lines(_awaits(task)), []).append(task.get_name())
    for where, alike in sorted(names.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(sorted(alike)[:MAX_TASK_NAMES]) + (", …" if len(alike) > MAX_TASK_NAMES else "")
        yield f"{len(alike)} tasks: {shown}" if len(alike) > 1 else f"task {shown}"
        yield where


def _awaits(task: asyncio.Task[Any]) -> Iterator[traceback.FrameSummary]:
    """Yield the frames of a task's coroutines, the outermost first."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame: FrameType | None = next(filter(None, (getattr(awaited, f"{kind}_frame", None) for kind in _KINDS)), None)
        if frame is not None:
            yield traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        awaited = next(filter(None, (getattr(awaited, name, None) for name in _INNER)), None)


_KINDS: Final = ("cr", "ag", "gi")

_INNER: Final = ("cr_await", "ag_await", "gi_yieldfrom")


def _lines(frames: Iterable[traceback.FrameSummary]) -> str:
    return "".join(traceback.format_list(list(frames))) or "  (no Python code)\n"
